"""The settings of machines that join a run from outside."""

import re
from typing import Annotated

from pydantic import Field

from keima.config.sections.types import Count, Line, Positive, Section

CROWD_NAME = "crowd"  # the workers are crowd-anna-1a2b-1 ...
CROWD_WORKER = re.compile(rf"{CROWD_NAME}(-.*)?")


class CrowdSettings(Section):
    """Machines that join a run by a link, from anywhere (docs/crowd.md). What they say is checked."""

    port: Annotated[int, Field(ge=0, le=65_535)] = 8443
    """Port of the door; 0: a free one."""
    listen: Line = "0.0.0.0"
    """Address of this machine that the door listens on."""
    address: Line | None = None
    """Host, or whole address behind a proxy, that links name; null: this machine's name."""
    behind_proxy: bool = False
    """true: a reverse proxy or tunnel on this machine has the certificate; the door speaks HTTP, on 127.0.0.1 alone."""
    this_machine: bool = True
    """Whether this machine plays too, with a worker on each core."""
    check_share: Annotated[float, Field(ge=0, le=1)] = 0.02
    """Share of the games that are played again on this machine, to check them; of newcomers, more."""
    most_machines: Count = 2000
    """Machines at a time."""
    machines_per_link: Count = 2000
    """Machines at a time that came by the same link."""
    workers_per_link: Count = 4000
    """Workers at a time whose machines came by the same link."""
    connections_per_address: Count = 256
    """Connections at a time from one address, behind which there may be several machines."""
    usual_silence: Positive = 45.0
    """Seconds without a report after which a worker is Offline."""
