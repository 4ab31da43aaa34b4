"""The fleet of the benchmarks beside this file, as the fleet's process opens it: its machines are simulated.

Real parts: the fleet with a connection and a thread for every machine, the agents' protocol, the mirrors, and
status.txt. Sockets to ``simulated_machines.py`` stand for SSH.
"""

import itertools
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keima.cluster.agent.client import AgentConnection, Reply
from keima.cluster.control.status import StatusFile
from keima.cluster.fleet.backend import Fleet
from keima.cluster.fleet.ownership import Claimant
from keima.cluster.fleet.process.messages import Opening
from keima.cluster.machines.machine import WorkerSlot, worker_place
from keima.cluster.machines.process_manager import ProcessStatus
from keima.cluster.ssh.errors import Unreachable
from keima.cluster.ssh.transport import Completed, Entry, Stream, StreamEnded, Transport, do_nothing
from keima.config.sections.workers import WorkerSettings

FACTORY = "benchmarks.cluster.simulated_fleet:open_simulated"
SOCKET, SLOTS = "socket", "slots"  # options of the factory
STOP_FILE = "stop"  # in a worker's folder: stands for the signal that stops a real worker
NONCE_AT = 5  # in the line that launches an agent
OPEN_SECONDS = CALL_SECONDS = 20.0  # for an answer
CHUNK = 2**18


def machine_name(number: int) -> str:
    """Return the name of a machine, numbered from 1."""
    return f"machine{number + 1}"


def worker_names(machine: str, slots: int) -> list[str]:
    """Return the names of a machine's workers."""
    return [machine] if slots == 1 else [f"{machine}-{slot + 1}" for slot in range(slots)]


class SimulatedTransport:
    """A ``Transport`` to a machine of ``simulated_machines.py``, which answers after a pause.

    Args:
        path: of the socket.
        worker: the machine's name.
    """

    def __init__(self, path: Path, *, worker: str) -> None:
        self.worker = worker
        self.sent = self.received = 0
        self.meanwhile: Callable[[], None] = do_nothing
        self._path = path
        self._numbers = itertools.count()
        self._streams: list[SocketStream] = []
        self._files = self._agent("0" * 16)

    def _agent(self, nonce: str) -> AgentConnection:
        agent = AgentConnection(self._stream(nonce), nonce, self.worker)
        agent.read_greeting(OPEN_SECONDS)
        return agent

    def _stream(self, nonce: str) -> Stream:
        self._streams.append(SocketStream(self._path, self.worker, nonce))
        return self._streams[-1]

    def put(self, data: bytes, name: str, *, durable: bool = True) -> None:
        """See ``Transport``; the content is of no interest there."""
        self._ask("put", name)
        self.sent += len(data)

    def get(self, name: str, limit: int) -> bytes:
        """See ``Transport``."""
        answer, data = self._ask("get", name)
        if answer["ok"]["missing"]:
            raise FileNotFoundError(name)
        self.received += len(data)
        return data

    def list_files(self, folder: str) -> list[Entry]:
        """See ``Transport``: nothing is needed there."""
        return []

    def remove(self, name: str) -> None:
        """See ``Transport``."""
        self._ask("remove", name)

    def run(self, argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        """See ``Transport``: nothing is run."""
        self._ask("run", list(argv))
        return Completed(0, b"", b"")

    def open(self, argv: Sequence[str]) -> Stream:
        """See ``Transport``: whatever the program, it is the machine's agent."""
        return self._stream(argv[NONCE_AT])

    def close(self) -> None:
        """See ``Transport``."""
        for stream in self._streams:
            stream.close()

    def _ask(self, command: str, request: Any) -> Reply:
        number = next(self._numbers)
        self._files.send_request(number, command, request)
        if (reply := self._files.wait_for_reply(number, CALL_SECONDS)) is None:
            raise Unreachable(self.worker, f"{command} has not been answered")
        return reply


class SocketStream:
    """A ``Stream`` over a Unix socket.

    Args:
        path: of the socket.
        worker: the machine's name, which is said first.
        nonce: that frames begin with.
    """

    def __init__(self, path: Path, worker: str, nonce: str) -> None:
        self._worker = worker
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            raise Unreachable(worker, f"the simulated machines are not there: {error}") from error
        self.send(f"{worker} {nonce}\n".encode())

    def send(self, data: bytes) -> None:
        """See ``Stream``."""
        try:
            self._socket.settimeout(CALL_SECONDS)
            self._socket.sendall(data)
        except OSError as error:
            raise Unreachable(self._worker, f"the connection was lost: {error}") from error

    def receive(self, seconds: float) -> bytes:
        """See ``Stream``."""
        try:
            self._socket.settimeout(max(seconds, 1e-6))
            data = self._socket.recv(CHUNK)
        except TimeoutError:
            return b""
        except OSError as error:
            raise Unreachable(self._worker, f"the connection was lost: {error}") from error
        if not data:
            raise StreamEnded(self._worker, "its program has ended")
        return data

    def close(self) -> None:
        """See ``Stream``."""
        self._socket.close()


class NobodyStarts:
    """A process manager for workers that are already running.

    Args:
        slots: workers on each machine.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots

    def prepare(
        self, transport: Transport, log_event: Callable[[str], None], should_continue: Callable[[], bool]
    ) -> tuple[WorkerSlot, ...]:
        """Return the machine's workers."""
        return tuple(WorkerSlot(name) for name in worker_names(transport.worker, self._slots))

    def start(self, transport: Transport, slot: WorkerSlot) -> None:
        """Do nothing."""

    def stop(self, transport: Transport, worker: str, *, seconds: float = 10.0) -> None:
        """Have the worker deliver its games and end, which it does at once."""
        transport.put(b"", f"{worker_place(worker)}/{STOP_FILE}")

    def process_status(self, transport: Transport, worker: str) -> ProcessStatus:
        """Return that it runs."""
        return ProcessStatus(running=True)

    def read_log_end(self, transport: Transport, worker: str) -> str:
        """Return nothing: there is no log."""
        return ""


class SimulatedCluster(Fleet):
    """The fleet of ``keima.cluster.control.cluster.Cluster``, without SSH and without requests."""

    def __init__(
        self, opening: Opening, *, log_event: Callable[[str], None], arrived: Callable[[str, str], None]
    ) -> None:
        path, slots = Path(opening.options[SOCKET]), int(opening.options[SLOTS])
        self._status = StatusFile(opening.root.parent, title="benchmark")

        def connect(machine: WorkerSettings) -> Transport:
            return SimulatedTransport(path, worker=machine.name)

        super().__init__(
            opening.root,
            opening.settings.distributed.workers,
            game=opening.game,
            settings=opening.settings,
            run_id=opening.run_id,
            connect=connect,
            process_manager=lambda machine: NobodyStarts(slots),
            claimant=Claimant(owner=opening.owner),
            log_event=log_event,
            arrived=arrived,
        )

    def step(self) -> None:
        """See ``Cluster``."""
        super().step()
        self._status.write_if_due(self.cluster)


def open_simulated(
    opening: Opening, *, log_event: Callable[[str], None], arrived: Callable[[str, str], None]
) -> SimulatedCluster:
    """Open the fleet: see ``keima.cluster.fleet.process.program.Factory``."""
    return SimulatedCluster(opening, log_event=log_event, arrived=arrived)
