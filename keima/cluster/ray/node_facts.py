"""Where a slot is, and whether its node can play: the versions of Python and Ray, and the GPU."""

import platform
from dataclasses import dataclass

from keima.cluster.agent.commands import PathText, PrintableText
from keima.cluster.ray import PACKAGE
from keima.cluster.ssh.errors import Refused


@dataclass(frozen=True)
class NodeFacts:
    """A slot's report on its node."""

    worker: PrintableText  # whose folder it has taken
    host: PrintableText
    python: PathText  # the interpreter that runs Ray there, and the workers
    version: PrintableText  # of Python
    ray: PrintableText  # version
    gpus: PrintableText  # those that Ray has given the slot, as CUDA_VISIBLE_DEVICES


def check_versions(worker: str, node: NodeFacts, *, ray: str) -> None:
    """Check that a node runs the same Python, up to its last number, and the same Ray as this one.

    Args:
        worker: the worker's name.
        node: what the node says.
        ray: the version of Ray here.

    Raises:
        Refused: it does not.
    """
    ours = {"Python": _minor_version(platform.python_version()), "Ray": ray}
    theirs = {"Python": _minor_version(node.version), "Ray": node.ray}
    if theirs != ours:
        has, here = (" and ".join(f"{name} {version}" for name, version in each.items()) for each in (theirs, ours))
        remedy = f"give all nodes this one's versions ({PACKAGE} among them), and start Ray there again"
        raise Refused(worker, f"{node.host} runs {has}, here it is {here}", remedy)


def assigned_gpu(worker: str, node: NodeFacts) -> int:
    """Return the number of the GPU that Ray has given the slot.

    Raises:
        Refused: Ray names none, or not by its number.
    """
    first = node.gpus.partition(",")[0]
    if not first.isdecimal():
        remedy = "start Ray there without CUDA_VISIBLE_DEVICES, or with numbers in it"
        raise Refused(worker, f"{node.host}: Ray gives the slot the GPU {first or '(none)'}, not a number", remedy)
    return int(first)


def _minor_version(version: str) -> str:
    return ".".join(version.split(".")[:2])
