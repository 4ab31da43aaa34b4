"""The settings of workers in a Ray cluster."""

import re
from typing import Annotated

from pydantic import Field

from keima.config.sections.types import Auto, Line, Section, matching

RAY_WORKER = re.compile(r"ray(-.*)?")  # the workers are ray-1, ray-2 ...


RayAddress = Annotated[str, matching(r"auto|[A-Za-z0-9_.:\[\]%-]+:[0-9]{1,5}", "'auto' or host:port of the head node")]


class RaySettings(Section):
    """Workers in a Ray cluster: each has a slot, which is an actor."""

    address: Annotated[
        str, matching(r"auto|[A-Za-z0-9_.:\[\]%-]+:[0-9]{1,5}", "'auto' or host:port of the head node")
    ] = "auto"
    """Address, host:port, of the head node; auto: the cluster that this machine belongs to."""
    slots: Auto | Annotated[int, Field(ge=1, le=4096)] = "auto"
    """Number of workers; auto: as many as fit, also on nodes that join later."""
    num_cpus: Annotated[float, Field(gt=0, le=1024)] = 1.0
    """CPUs that Ray reserves for each."""
    num_gpus: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of a GPU for each, such as 0.5; 0: they play on CPUs."""
    directory: Line = "~/keima"
    """Folder on each node for code, models and games."""
