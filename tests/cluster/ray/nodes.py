"""A real Ray cluster on this machine's loopback: each node has its own home, as if it had its own disk."""

import os
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.ssh.transport import Transport
from keima.paths import CACHE
from tests.sources import ROOT

ON_RAY = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs requirements-ray.txt"),
    pytest.mark.slow,
    # Ray leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SURROUNDINGS = {
    "USAGE_STATS_ENABLED": "0",
    "AUTH_MODE": "token",
    "AUTH_TOKEN": secrets.token_hex(32),
    "raylet_start_wait_time_s": "180",  # on a machine that is also busy with other work
}
ATTEMPTS = 5
STORE = 100 * 2**20  # bytes of each node's object store


class Nodes:
    """The nodes of a cluster; the head node has no room for workers."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._folder = folder
        head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes beside the head node."""
        return tuple(self._nodes)

    def home(self, name: str) -> Path:
        """Return the home of a node, which outlives the node."""
        return self._folder / name

    def add(self, name: str, *, cpus: int = 1) -> None:
        """Add a node; with a name that was there before, it has the disk of that one."""
        self.home(name).mkdir(parents=True, exist_ok=True)
        environment = {"HOME": str(self.home(name)), "KEIMA_CACHE": str(CACHE)}
        for attempt in range(1, ATTEMPTS + 1):  # Ray gives a node half a minute, on a machine however busy
            try:
                made = self._cluster.add_node(num_cpus=cpus, object_store_memory=STORE, env_vars=environment)
                break
            except Exception as error:
                if "timed out during startup" not in str(error) or attempt == ATTEMPTS:
                    raise
        self._nodes[name] = made

    def kill(self, name: str) -> None:
        """Kill every process of a node at once, as when a machine loses its power."""
        for pid in self._processes(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def _processes(self, name: str) -> list[int]:
        """Return the processes with a node's home."""
        mark, found = f"HOME={self.home(name)}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def end(self) -> None:
        self._cluster.shutdown()


@contextmanager
def ray_nodes(folder: Path, **cpus: int) -> Iterator[Nodes]:
    """Yield a cluster with these nodes, and with as many CPUs each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SURROUNDINGS.items():
            patch.setenv(f"RAY_{name}", value)  # for everything that is started now
        nodes = Nodes(folder)
        try:
            for name, count in cpus.items():
                nodes.add(name, cpus=count)
            yield nodes
        finally:
            nodes.end()


class OpenSlot:
    """An actor with a slot in any folder: the real slot, without what prepares a node."""

    def __init__(self, project: str) -> None:
        sys.path.insert(0, project)

    def open(self, root: str) -> None:
        from keima.cluster.ray.slot import RaySlot

        self._slot = RaySlot(Path(root), "")

    def call(self, operation: str, *arguments: Any) -> Any:
        return self._slot.call(operation, *arguments)


class Slots:
    """Slots of a cluster, for tests of what goes through them."""

    def __init__(self, nodes: Nodes) -> None:
        import ray

        ray.init(address=nodes.address, log_to_driver=False, configure_logging=False, logging_level="ERROR")
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self._ray = ray
        self._actor = ray.remote(OpenSlot).remote(str(ROOT))
        self.ended: list[Exception] = []

    def transport(self, root: Path) -> Transport:
        """Return a transport to a folder of the node."""
        from keima.cluster.ray.transport import RayTransport, SharedObjects

        self._ray.get(self._actor.open.remote(str(root)))
        return RayTransport("worker1", self._actor, SharedObjects(), self.ended.append)

    def kill(self) -> None:
        """Kill the actor."""
        self._ray.kill(self._actor)

    def close(self) -> None:
        self._ray.shutdown()


@contextmanager
def ray_slots(folder: Path) -> Iterator[Slots]:
    """Yield slots of a cluster with one node."""
    with ray_nodes(folder, one=1) as nodes:
        slots = Slots(nodes)
        try:
            yield slots
        finally:
            slots.close()
