"""The messages between the Coach and the fleet's process, over two pipes: length-framed JSON.

The Coach opens the fleet with ``Opening``, then sends ``Update``: what has changed since the last one. Models travel as
files in a folder beside the mirrors, and games are in the mirrors. The fleet answers with ``News``, as things happen,
and with ``FleetState``, at an interval that follows its cost.

``Update.number`` counts the changes of what workers are granted. A state names the last one that it has heard of, so
that no decision is used that was made before.
"""

import os
import select
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from keima.base.reports.worker_status import ClusterStatus
from keima.cluster.agent.commands import Owner
from keima.config.schema import Settings
from keima.config.sections.workers import WorkerSettings
from keima.evaluation.match_jobs import Contestant, EvaluationJob
from keima.worker.worker_folder import Heartbeat

MODELS = ".models"  # the folder beside the mirrors with the models that the fleet sends
HEAD = struct.Struct(">IB")  # before a message: its length, and its kind
MOST_BYTES = 2**28  # bytes of a message; one with the heartbeats of 1,600 workers has 2 MB
PIPE_BYTES = 2**20  # of each pipe, where the system allows it
CHUNK = 2**18


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GameName(_Message):
    """Which game is played; see ``GameChoice``."""

    name: str
    options: dict[str, Any]


class MachineInFleet(_Message):
    """A machine of the fleet, for a new process that takes its place."""

    machine: WorkerSettings
    leaving: bool = False
    stopped: tuple[str, ...] = ()  # the workers that a user has stopped


# From the Coach.


class Opening(_Message):
    """Everything that a fleet needs to start."""

    factory: str  # builds the fleet: "module:function", see ``fleet_process.Factory``
    root: Path  # of the mirrors
    config: Path
    run_dir: Path
    settings: Settings
    game: GameName
    run_id: str
    owner: Owner
    takeover: bool = False
    machines: tuple[MachineInFleet, ...] | None = None  # of the process that ended; None: those of the settings
    options: dict[str, str] = {}  # of the factory


class ModelFile(_Message):
    """A published model: a file in ``MODELS``."""

    version: int
    name: str
    sha256: str


class Release(_Message):
    """A batch that the Coach has stored."""

    worker: str
    batch_id: str
    delivered: int
    refused: str = ""


class Update(_Message):
    """What has changed since the last update; None: that has not."""

    number: int  # of the last change of what workers are granted
    accounts: dict[str, tuple[int, int]] = {}  # granted and delivered games
    releases: tuple[Release, ...] = ()
    ahead: int | None = None  # games per worker to grant in advance
    model: ModelFile | None = None
    players: tuple[Contestant, ...] | None = None  # their files are in ``MODELS``
    jobs: dict[str, tuple[EvaluationJob, ...]] = {}


class Close(_Message):
    """The run ends: fetch what is finished, and end the workers."""


# From the fleet.


class Opened(_Message):
    """The fleet has started."""


class Failed(_Message):
    """The fleet cannot start or continue, and its process ends."""

    errors: tuple[str, ...]  # the names of the exception's classes, from the exception's own
    text: str


class LogLine(_Message):
    """A line of the log, or an event if it names no logger."""

    logger: str = ""
    level: int = 0
    time: float = 0.0  # seconds since 1970
    text: str


class News(_Message):
    """What has happened, in order."""

    lines: tuple[LogLine, ...] = ()
    arrived: tuple[tuple[str, str], ...] = ()  # (worker, file) in the mirrors


class FleetState(_Message):
    """The state of all workers."""

    heard: int  # ``Update.number``
    workers: tuple[str, ...]  # that may be granted games
    ready_workers: tuple[str, ...]  # that can play now
    heartbeats: dict[str, Heartbeat | None]
    cluster: ClusterStatus
    decisions: dict[str, int]  # games to grant
    withdrawn: dict[str, int]  # games that workers will not begin
    machines: tuple[MachineInFleet, ...] | None = None  # None: as before


class Closed(_Message):
    """The fleet has ended; its process ends too."""


KINDS: tuple[type[BaseModel], ...] = (Opening, Update, Close, Opened, Failed, News, FleetState, Closed)


class Channel:
    """Messages over a pair of pipes, which never waits to read or to write.

    Args:
        reads: the file descriptor to read from.
        writes: the file descriptor to write to.

    Attributes:
        has_ended: whether the other process has ended or closed its pipe.
    """

    def __init__(self, reads: int, writes: int) -> None:
        self.has_ended = False
        self._reads, self._writes = reads, writes
        self._in, self._out = bytearray(), bytearray()
        os.set_blocking(reads, False)
        os.set_blocking(writes, False)

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the pipe has not taken yet."""
        return len(self._out)

    def send(self, message: BaseModel) -> None:
        """Send a message, as far as the pipe takes it; ``flush`` sends the rest."""
        # Defaults are left out where they are most of a message. Settings have all values: a default may mean "unset".
        data = message.model_dump_json(exclude_defaults=isinstance(message, FleetState)).encode()
        self._out += HEAD.pack(len(data), KINDS.index(type(message))) + data
        self.flush()

    def flush(self) -> None:
        """Send what the pipe takes now."""
        try:
            while self._out:
                del self._out[: os.write(self._writes, self._out)]
        except BlockingIOError:
            return
        except OSError:  # what has come can still be read
            self._out.clear()

    def receive_messages(self) -> Iterator[BaseModel]:
        """Yield the messages that have come.

        Raises:
            ValueError: what has come is not a message.
        """
        self._read_pipe()
        while len(self._in) >= HEAD.size:
            size, kind = HEAD.unpack_from(self._in)
            if size > MOST_BYTES or kind >= len(KINDS):
                raise ValueError(f"no message has {size:,} bytes and kind {kind}")
            end = HEAD.size + size
            if len(self._in) < end:
                return
            message = KINDS[kind].model_validate_json(bytes(self._in[HEAD.size : end]))
            del self._in[:end]
            yield message

    def wait(self, seconds: float) -> None:
        """Wait until something has come, the pipe takes more, or the time is over."""
        poller = select.poll()
        poller.register(self._reads, select.POLLIN)
        if self._out:
            poller.register(self._writes, select.POLLOUT)
        poller.poll(max(0.0, seconds) * 1000)

    def close(self) -> None:
        """Close both pipes."""
        self.has_ended = True
        for pipe in {self._reads, self._writes}:
            with suppress(OSError):
                os.close(pipe)

    def _read_pipe(self) -> None:
        try:
            while not self.has_ended and len(self._in) < MOST_BYTES:
                chunk = os.read(self._reads, CHUNK)
                if not chunk:
                    self.has_ended = True
                self._in += chunk
        except BlockingIOError:
            return
        except OSError:
            self.has_ended = True
