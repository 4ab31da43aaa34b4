"""A cluster whose machines are folders of this one: real worker processes, and a network that can be cut."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from keima.base.system.processes import Process, start_process
from keima.cluster.agent.commands import POLL
from keima.cluster.fleet.backend import Fleet
from keima.cluster.local.processes import PRELOAD, play_in_folder
from keima.cluster.machines.machine import WorkerSlot, worker_place
from keima.cluster.machines.process_manager import ProcessManager, ProcessStatus, RemoteProcessManager
from keima.cluster.machines.release import worker_requirements
from keima.cluster.ssh.errors import Unreachable
from keima.cluster.ssh.transport import Completed, Entry, LocalTransport, Stream, Transport
from keima.config.schema import Settings
from keima.config.sections.workers import WorkerSettings
from keima.worker import WORKER_CLASS
from keima.worker.worker_folder import WorkerFolder
from tests.small_run import GAME, small_settings
from tests.sources import ROOT


def make_host(root: Path) -> Path:
    """Make the folder of a machine that already has our code."""
    root.mkdir(parents=True)
    (root / "keima").symlink_to(ROOT / "keima")
    return root


def worker_settings(name: str, **changes: Any) -> WorkerSettings:
    return WorkerSettings.model_validate({"host": name, "python": sys.executable, "processes": 1, **changes})


class Network:
    """Connections to folders that stand for machines. Operations are recorded, and any connection can be cut or made to
    fail.
    """

    opened: ClassVar[list["Network"]] = []

    def __init__(self, root: Path) -> None:
        self.opened.append(self)
        self.root = root
        self.cut: set[str] = set()
        self.failing: dict[
            str, Callable[[str, str], None]
        ] = {}  # machine -> is called with the operation and the file's name
        self.connections: list[str] = []
        self.cables: list[Cable] = []
        self.done: list[tuple[str, str, str]] = []  # (machine, operation, file)

    def connect(self, machine: WorkerSettings) -> Transport:
        self.connections.append(machine.name)
        self.check(machine.name, "connect", "")
        host = self.root / machine.name
        self.cables.append(Cable(self, machine.name, host if host.exists() else make_host(host)))
        return self.cables[-1]

    def close(self) -> None:
        """End the agents of connections that nobody has closed."""
        for cable in self.cables:
            cable.close()

    @property
    def polls(self) -> list[str]:
        """The folders of the workers that were polled, a line for each poll."""
        return [file for _, what, file in self.done if what == POLL.name]

    def check(self, machine: str, what: str, file: str) -> None:
        if machine in self.cut:
            raise Unreachable(machine, "the cable is out", "put it in")
        if machine in self.failing:
            self.failing[machine](what, file)
        self.done.append((machine, what, file))


class Cable(LocalTransport):
    """The connection to a machine."""

    def __init__(self, network: Network, worker: str, root: Path) -> None:
        super().__init__(root, worker=worker)
        self._network = network

    def put(self, data: bytes, name: str, *, durable: bool = True) -> None:
        self._network.check(self.worker, "put", name)
        super().put(data, name, durable=durable)

    def get(self, name: str, limit: int) -> bytes:
        self._network.check(self.worker, "get", name)
        return super().get(name, limit)

    def list_files(self, folder: str) -> list[Entry]:
        self._network.check(self.worker, "names", folder)
        return super().list_files(folder)

    def remove(self, name: str) -> None:
        self._network.check(self.worker, "remove", name)
        super().remove(name)

    def run(self, argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        self._network.check(self.worker, "run", " ".join(argv))
        return super().run(argv, seconds=max(seconds, 60.0))  # this machine may be busy with other tests

    def open(self, argv: Sequence[str]) -> Stream:
        self._network.check(self.worker, "open", argv[6])
        return Wire(self._network, self.worker, super().open(argv))


class Wire:
    """What goes to an agent; what its polls put and remove is recorded like the files of the cable."""

    def __init__(self, network: Network, worker: str, inner: Stream) -> None:
        self._network, self._worker, self._inner = network, worker, inner

    def send(self, data: bytes) -> None:
        _, command, request = json.loads(data[data.index(b"[") :])
        if command == POLL.name:
            self._network.check(self._worker, command, " ".join(each["place"] for each in request["workers"]))
            for each in request["workers"]:
                if each["assignment"] is not None:
                    self._network.check(self._worker, "put", f"{each['place']}/inbox/assignment.json")
                for name in each["remove"]:
                    self._network.check(self._worker, "remove", f"{each['place']}/outbox/{name}")
        else:
            self._network.check(self._worker, command, str(request.get("place")))
        self._inner.send(data)

    def receive(self, seconds: float) -> bytes:
        return self._inner.receive(seconds)

    def close(self) -> None:
        self._inner.close()


class ForkedWorkers:
    """A process manager whose workers are forked: they play for real, and need not import everything first."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._processes: dict[str, Process] = {}

    def prepare(
        self, transport: Transport, report: Callable[[str], None], should_continue: Callable[[], bool]
    ) -> tuple[WorkerSlot, ...]:
        return (WorkerSlot(transport.worker),)

    def start(self, transport: Transport, slot: WorkerSlot) -> None:
        folder = WorkerFolder(self._root / transport.worker / worker_place(slot.name)).create_folders()
        play = partial(play_in_folder, worker_class=WORKER_CLASS, device="auto", workers=1)
        self._processes[slot.name] = start_process(play, (folder.root,), preload=PRELOAD, name=slot.name)

    def stop(self, transport: Transport, worker: str, *, seconds: float = 10.0) -> None:
        if worker in self._processes:
            self._processes[worker].terminate()
            self._processes[worker].join(seconds)

    def process_status(self, transport: Transport, worker: str) -> ProcessStatus:
        return ProcessStatus(running=worker in self._processes and self._processes[worker].is_alive())

    def read_log_end(self, transport: Transport, worker: str) -> str:
        return ""


def fleet_settings(root: Path, **changes: Any) -> Settings:
    """Return ``small_settings`` with a cluster's times shortened."""
    distributed = {"sync_interval": 1, "heartbeat_seconds": 0.2, "retry_seconds": 1.0, "offline_seconds": 5.0}
    return small_settings(root, **{**changes, "distributed": {**distributed, **changes.get("distributed", {})}})


def open_fleet(
    root: Path,
    machines: Sequence[WorkerSettings],
    *,
    settings: Settings | None = None,
    network: Network | None = None,
    process_manager: Callable[[WorkerSettings], ProcessManager] | None = None,
    run_id: str = "run",
    **options: Any,
) -> Fleet:
    """Yield a fleet whose mirrors are in ``root`` / workers, and whose machines in ``root`` / hosts."""
    (root / "workers").mkdir(exist_ok=True)
    return Fleet(
        root / "workers",
        machines,
        game=GAME,
        settings=settings or fleet_settings(root),
        run_id=run_id,
        connect=(network or Network(root / "hosts")).connect,
        process_manager=process_manager
        or (lambda machine: RemoteProcessManager(machine, required=worker_requirements())),
        **options,
    )
