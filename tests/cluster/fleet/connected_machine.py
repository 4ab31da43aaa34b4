"""A machine with its connection, on a clock of the tests.

The test plays the worker: it writes the files that a worker process would.
"""

import errno
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from keima.base.files import sha256_hex
from keima.base.reports.worker_status import WorkerState
from keima.cluster.fleet.machine_connection import MachineConnection
from keima.cluster.fleet.ownership import Claimant
from keima.cluster.machines.machine import WorkerSlot
from keima.cluster.machines.process_manager import ProcessStatus
from keima.cluster.ssh.transport import Transport
from keima.coach.backends.assignments import AssignmentBook
from keima.worker.model_push import PublishedModel
from keima.worker.worker_folder import Assignment, Heartbeat, WorkerFolder
from tests.cluster.local_fleet import Network, fleet_settings, worker_settings
from tests.small_run import GAME

NAME = "worker1"
GAMES = "{:09d}-10-worker1-00.games"


class Machine:
    """A machine with one connection, and its workers as the tests' process manager knows them."""

    def __init__(
        self,
        root: Path,
        *,
        slots: tuple[str, ...] = (NAME,),
        run_id: str = "run",
        claimant: Claimant | None = None,
        **changes: Any,
    ) -> None:
        self.root, self.run_id, self.claimant = root, run_id, claimant
        self.now = 1000.0
        self.local_time = datetime(2026, 11, 27, 12, 0)  # a Friday
        self.machine_settings = worker_settings(NAME)
        self.network = Network(root / "hosts")
        self.slots = tuple(WorkerSlot(name) for name in slots)
        self.running: set[str] = set()
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.refusal: Exception | None = None
        self.settings = fleet_settings(root, **changes)
        (root / "workers").mkdir(exist_ok=True)
        self.connection = self.open_connection()
        self.beats = 0

    def open_connection(self) -> MachineConnection:
        machine = self.machine_settings
        return MachineConnection(
            machine,
            process_manager=self,
            connect=lambda: self.network.connect(machine),
            root=self.root / "workers",
            run_id=self.run_id,
            settings=self.settings,
            claimant=self.claimant,
            clock=lambda: self.now,
            wall=lambda: self.local_time,
            draw=lambda: 1.0,
        )

    # The process manager.

    def prepare(
        self, transport: Transport, log_event: Callable[[str], None], should_continue: Callable[[], bool]
    ) -> tuple[WorkerSlot, ...]:
        log_event("checking the machine")
        if self.refusal:
            raise self.refusal
        return self.slots

    def start(self, transport: Transport, slot: WorkerSlot) -> None:
        self.running.add(slot.name)
        self.started.append(slot.name)

    def stop(self, transport: Transport, worker: str, *, seconds: float = 10.0) -> None:
        self.running.discard(worker)
        self.stopped.append(worker)

    def process_status(self, transport: Transport, worker: str) -> ProcessStatus:
        return ProcessStatus(running=worker in self.running)

    def read_log_end(self, transport: Transport, worker: str) -> str:
        return "Segmentation fault"

    # What happens.

    def step(self, *, after: float = 0.1, steps: int = 1) -> None:
        for _ in range(steps):
            self.now += after
            self.connection.step()

    def folder(self, name: str = NAME) -> WorkerFolder:
        return WorkerFolder(self.network.root / NAME / "workers" / name)

    def mirror(self, name: str = NAME) -> WorkerFolder:
        return WorkerFolder(self.root / "workers" / name)

    def beat(self, name: str = NAME, **values: Any) -> None:
        self.beats += 1
        given = {"run_id": self.run_id, "worker": name, "beat": self.beats, "pid": 1, "state": "playing", **values}
        self.folder(name).create_folders().write_heartbeat(Heartbeat.model_validate(given))

    def finish(self, first: int, name: str = NAME, *, data: bytes = b"games") -> str:
        file = GAMES.format(first)
        (self.folder(name).create_folders().outbox / file).write_bytes(data)
        return file

    def assign(self, name: str = NAME, *, granted: int = 100, delivered: int = 0) -> None:
        book = AssignmentBook(game=GAME, settings=self.settings, run_id=self.run_id)
        book.set_account(name, granted=granted, delivered=delivered)
        self.connection.assign(name, book.next_assignment(name))

    def publish(self, version: int) -> None:
        data = f"model {version}".encode()
        self.connection.publish(PublishedModel(version=version, data=data, sha256=sha256_hex(data)))

    def assignment(self, name: str = NAME) -> Assignment:
        found = self.folder(name).read_assignment()
        assert found
        return found

    def play(self, *names: str) -> None:
        """Bring everything to the point where the workers are Active with model 1."""
        self.publish(1)
        for name in names or (NAME,):
            self.assign(name)
        for _ in range(3):
            self.step()
            for name in names or (NAME,):
                self.beat(name, model_version=1)
        self.step()
        assert {worker.state for worker in self.connection.snapshot.workers} == {WorkerState.ACTIVE}

    def state(self) -> WorkerState:
        return self.connection.snapshot.workers[0].state

    @property
    def reason(self) -> str:
        return self.connection.snapshot.workers[0].reason

    def in_outbox(self) -> list[str]:
        return [path.name for path in self.folder().batch_files()]

    def in_mirror(self) -> list[str]:
        return [path.name for path in self.mirror().batch_files()]


def full(*arguments: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
