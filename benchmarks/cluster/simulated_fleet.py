"""The fleet of the benchmarks beside this file, as the fleet's process opens it: machines that are folders in memory.

Real parts: the fleet with a connection and a thread for every machine, its status.txt, and every file that is
transferred. A transport over folders stands for SSH, with a pause for each call.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from configs.schema import WorkerSettings
from distributed.fleet.fleet import Fleet
from distributed.fleet.fleet_messages import Opening
from distributed.fleet.ownership import Claimant
from distributed.operations.cluster import cluster_report
from distributed.operations.status import StatusFile
from distributed.setup.machine import WorkerSlot, worker_place
from distributed.setup.process_manager import ProcessStatus
from distributed.ssh.transport import Completed, Entry, LocalTransport, Stream, Transport
from training.common.reports import ClusterReport
from training.worker.worker_folder import MAX_JSON_BYTES

FACTORY = "benchmarks.cluster.simulated_fleet:open_simulated"
HOSTS, ROUND_TRIP, SEATS = "hosts", "round_trip", "seats"  # options of the factory
STOP_FILE = "stop"  # in a worker's folder: stands for the signal that stops a real worker


def machine_name(number: int) -> str:
    """Return the name of a machine, numbered from 1."""
    return f"machine{number + 1}"


def worker_names(machine: str, seats: int) -> list[str]:
    """Return the names of a machine's workers."""
    return [machine] if seats == 1 else [f"{machine}-{seat + 1}" for seat in range(seats)]


class DistantTransport(LocalTransport):
    """A folder that answers each call after a pause.

    Args:
        root: the folder.
        worker: the machine's name.
        round_trip: the pause in seconds.
    """

    def __init__(self, root: Path, *, worker: str, round_trip: float) -> None:
        super().__init__(root, worker=worker)
        self._round_trip = round_trip

    def put(self, data: bytes, name: str, *, durable: bool = True) -> None:
        """See ``Transport``."""
        time.sleep(self._round_trip)
        super().put(data, name, durable=durable)

    def get(self, name: str, limit: int) -> bytes:
        """See ``Transport``."""
        time.sleep(self._round_trip)
        return super().get(name, limit)

    def names(self, folder: str) -> list[Entry]:
        """See ``Transport``."""
        time.sleep(self._round_trip)
        return super().names(folder)

    def remove(self, name: str) -> None:
        """See ``Transport``."""
        time.sleep(self._round_trip)
        super().remove(name)

    def run(self, argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        """See ``Transport``."""
        time.sleep(self._round_trip)
        return super().run(argv, seconds=max(seconds, 60.0))  # hundreds begin at the same time

    def open(self, argv: Sequence[str]) -> Stream:
        """See ``Transport``."""
        return DistantStream(super().open(argv), self._round_trip)


class DistantStream:
    """A lasting program that answers after a pause.

    Args:
        stream: to the program.
        round_trip: the pause in seconds.
    """

    def __init__(self, stream: Stream, round_trip: float) -> None:
        self._stream, self._round_trip = stream, round_trip
        self._answers_at = 0.0

    def send(self, data: bytes) -> None:
        """See ``Stream``."""
        self._answers_at = time.monotonic() + self._round_trip
        self._stream.send(data)

    def receive(self, seconds: float) -> bytes:
        """See ``Stream``."""
        pause = self._answers_at - time.monotonic()
        if pause > seconds:
            time.sleep(seconds)
            return b""
        time.sleep(max(0.0, pause))
        return self._stream.receive(seconds - max(0.0, pause))

    def close(self) -> None:
        """See ``Stream``."""
        self._stream.close()


class NobodyStarts:
    """A process manager for workers that are already running.

    Args:
        seats: workers on each machine.
    """

    def __init__(self, seats: int) -> None:
        self._seats = seats

    def prepare(
        self, transport: Transport, log_event: Callable[[str], None], go_on: Callable[[], bool]
    ) -> tuple[WorkerSlot, ...]:
        """Return the machine's workers."""
        return tuple(WorkerSlot(name) for name in worker_names(transport.worker, self._seats))

    def start(self, transport: Transport, slot: WorkerSlot) -> None:
        """Do nothing."""

    def stop(self, transport: Transport, worker: str, *, seconds: float = 10.0) -> None:
        """Signal the worker, and wait until it has delivered its games."""
        transport.put(b"", f"{worker_place(worker)}/{STOP_FILE}")
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._has_ended(transport, worker):
            time.sleep(0.1)

    def _has_ended(self, transport: Transport, worker: str) -> bool:
        try:
            return b'"ended"' in transport.get(f"{worker_place(worker)}/worker.json", MAX_JSON_BYTES)
        except FileNotFoundError:
            return True

    def alive(self, transport: Transport, worker: str) -> ProcessStatus:
        """Return that it runs."""
        return ProcessStatus(running=True)

    def tail(self, transport: Transport, worker: str) -> str:
        """Return nothing: there is no log."""
        return ""


class SimulatedCluster(Fleet):
    """The fleet of ``distributed.operations.cluster.Cluster``, without SSH and without requests."""

    def __init__(
        self, opening: Opening, *, log_event: Callable[[str], None], arrived: Callable[[str, str], None]
    ) -> None:
        hosts, seats = Path(opening.options[HOSTS]), int(opening.options[SEATS])
        round_trip = float(opening.options[ROUND_TRIP])
        self._status = StatusFile(opening.root.parent, title="benchmark")

        def connect(machine: WorkerSettings) -> Transport:
            return DistantTransport(hosts / machine.name, worker=machine.name, round_trip=round_trip)

        super().__init__(
            opening.root,
            opening.settings.distributed.workers,
            game=opening.game,
            settings=opening.settings,
            run_id=opening.run_id,
            connect=connect,
            process_manager=lambda machine: NobodyStarts(seats),
            claimant=Claimant(owner=opening.owner),
            log_event=log_event,
            arrived=arrived,
        )

    def step(self) -> None:
        """See ``Cluster``."""
        super().step()
        self._status.show(self.view)

    def cluster(self) -> ClusterReport:
        """See ``Cluster``."""
        return cluster_report(self.view())


def open_simulated(
    opening: Opening, *, log_event: Callable[[str], None], arrived: Callable[[str, str], None]
) -> SimulatedCluster:
    """Open the fleet: see ``distributed.fleet.fleet_process.Factory``."""
    return SimulatedCluster(opening, log_event=log_event, arrived=arrived)
