"""The protocol between the main node and a worker: a folder of files that appear whole.

    <worker folder>/
      inbox/   model-000007.model    a model, checked by its SHA-256 before use
               assignment.json       the worker's task; the main node replaces it
               player-000007-<sha>.model   a model for evaluation games, as long as the assignment names it
               othello-1a2b3c4d5e6f.py     a user's own game or network, which the assignment names
      outbox/  <batch id>.games      finished games; the main node removes them once they are safe there
               <job id>.match        evaluation games; removed once the assignment no longer names the job
               <coach>.owner         the owner of the folder, where several Coaches could reach it
      spool                          finished games that wait for their batch (``keima.worker.spool``)
      worker.json                    the worker's heartbeat; the worker replaces it
      processor_time.json            the processor time of all its processes for the run
      worker.lock                    held while a worker process runs: one process per folder

The worker plays until it has delivered ``granted`` games in all: those in the outbox plus ``delivered``, which the main
node has. The main node raises ``delivered`` before it removes a file, so that no crash on either side makes a game
count twice or not at all.

``granted`` may be lowered. The worker then begins no game beyond it and finishes those that it has begun. Its heartbeat
says which assignment it has read and how many games it has begun; games above both were never started and may go to
others.

Evaluation games are independent of this: the assignment names jobs (``keima.evaluation.match_jobs``), and the worker
plays each as soon as it reads it, while its own games wait, and writes the result to its outbox. Nothing depends on
these results.
"""

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from keima.base.files import read_limited, write_atomically
from keima.config.sections.search import SearchSettings
from keima.evaluation.match_jobs import JOB_ID, MAX_JOBS, MAX_PLAYERS, RESULT_SUFFIX, Contestant, EvaluationJob

MAX_JSON_BYTES = 64 * 2**10
# First game, number of games, worker and content.
BATCH_NAME = re.compile(r"([0-9]{9,12})-([0-9]{1,5})-[a-z0-9-]{1,60}\.games")
# Also the run; names of earlier versions lack it.
TAGGED = re.compile(r"^[0-9]{9,12}-[0-9]{1,5}-[a-z0-9][a-z0-9-]*--([a-z0-9]{1,16})-[0-9a-f]{1,16}\.games$")
PLAIN = re.compile(r"[a-z0-9]{1,16}")
CROWD = "crowd-"  # how the names of workers begin that joined from outside (docs/crowd.md)
OWNERS = "*.owner"  # in an outbox: see ``keima/cluster/agent/owner.py``
RESULT_NAME = re.compile(JOB_ID + re.escape(RESULT_SUFFIX))
LOCK_SECONDS = 30.0  # a new process waits this long for an old one to hand over its games

Count = Annotated[int, Field(ge=0, le=2**53)]
Text = Annotated[str, Field(max_length=1000)]
Rate = Annotated[float, Field(ge=0, le=1e9)]  # per second; bounded, so that sums stay finite
Slots = Annotated[int, Field(ge=0, le=2**20)]


class BrokenMessage(ValueError):
    """An assignment or heartbeat is invalid."""


class AlreadyRunning(RuntimeError):
    """Another worker process uses this folder."""


class FolderGone(RuntimeError):
    """The folder was deleted or moved while its worker played."""


class Message(BaseModel):
    """Base of assignments and heartbeats."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True, serialize_by_alias=True
    )

    protocol: Literal[1] = 1
    run_id: Text
    worker: Text


class Assignment(Message):
    """The task of a worker; the main node replaces it at every contact."""

    lease: Text  # changes at every contact, so the worker knows that a Coach still wants its games
    lease_seconds: Annotated[float, Field(gt=0)]
    stop: bool = False  # hand over finished games and exit
    granted: Count  # games in all, since the run started; no game beyond is begun
    promised: Count = 0  # the ledger's grant, where ``granted`` is lower: games up to it may have been begun
    delivered: Count  # games in all that are safe on the main node
    model_version: Count
    model_sha256: Text
    game: Text
    options: dict[str, Any]
    modules: Annotated[tuple[Text, ...], Field(max_length=4)] = ()  # users' own files (keima/config/own_modules.py)
    search: SearchSettings
    seed: Count
    parallel_games: Count  # 0: the worker measures the fastest number
    max_positions: Count = 0  # per network call; 0: no limit
    cache_positions: Count
    batch_games: Annotated[int, Field(ge=1, le=10_000)]
    flush_seconds: Annotated[float, Field(gt=0)] | None  # longest wait for a batch to fill; None: no limit
    players: Annotated[tuple[Contestant, ...], Field(max_length=MAX_PLAYERS)] = ()  # of current or coming matches
    matches: Annotated[tuple[EvaluationJob, ...], Field(max_length=MAX_JOBS)] = ()


class Heartbeat(Message):
    """The state of a worker, about once a second."""

    beat: Count  # counts up
    pid: Count
    state: Literal["starting", "compiling", "playing", "waiting", "error", "ended"]
    error: Text = ""
    model_version: Count = 0
    lease: Text = ""  # of the last assignment that it has read ...
    granted: Count = 0  # ... and its granted games
    begun: Count = 0  # games in all
    finished: Count = 0  # games in all, including those that wait for their batch
    parallel_games: Slots = 0  # 0: not known yet
    evaluations: Count = 0  # by this process
    games_per_second: Rate = 0.0
    speed: Rate = 0.0  # games per second at full load; 0: not measured yet
    evaluations_per_second: Rate = 0.0
    # The id of the evaluation games that it plays now. Its key is that of all versions: others refuse unknown keys.
    job: Annotated[Text, Field(validation_alias="order", serialization_alias="order")] = ""
    note: Text = ""
    disk_free: Count | None = None  # bytes, where the folder is; None: unknown
    processor_seconds: Rate = 0.0  # used in this folder for the run, by this process and earlier ones

    @property
    def core_hours(self) -> float:
        """The processor time in core hours."""
        return self.processor_seconds / 3600

    @property
    def idle(self) -> float:
        """The share of its places for games of its own that are empty; 1: it waits for games."""
        if self.state == "waiting":
            return 1.0
        if self.state != "playing" or self.job or not self.parallel_games:
            return 0.0
        return min(1.0, max(0.0, 1 - (self.begun - self.finished) / self.parallel_games))


class ProcessorTime(Message):
    """The processor time of a worker's processes for a run.

    In a worker's own folder ``earlier`` is 0. In its mirror it is what was used in folders that have been deleted or
    went to another run in between, so that the sum never falls.
    """

    seconds: Rate = 0.0
    earlier: Rate = 0.0

    @property
    def total(self) -> float:
        """Seconds in this folder and in earlier ones."""
        return self.seconds + self.earlier

    def with_reading(self, seconds: float) -> "ProcessorTime":
        """Return this with what the worker says now; if it says less than before, its folder is a new one."""
        earlier = self.earlier + (self.seconds if seconds < self.seconds else 0.0)
        return self.model_copy(update={"seconds": seconds, "earlier": earlier})


M = TypeVar("M", bound=Message)


class WorkerFolder:
    """The folder of one worker, for both sides."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inbox = root / "inbox"
        self.outbox = root / "outbox"

    def create_folders(self) -> Self:
        """Create missing folders."""
        for folder in (self.inbox, self.outbox, self.root / "logs"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self

    def model_path(self, version: int) -> Path:
        """Return the file of model ``version``."""
        return self.inbox / f"model-{version:06d}.model"

    def module_path(self, name: str) -> Path:
        """Return the copy of a user's own file."""
        return self.inbox / f"{name}.py"

    def write_assignment(self, assignment: Assignment) -> None:
        """Replace the assignment."""
        write_atomically(self.inbox / "assignment.json", assignment.model_dump_json(indent=1).encode())

    def read_assignment(self) -> Assignment | None:
        """Return the assignment, if there is one.

        Raises:
            BrokenMessage: it cannot be read or is invalid.
        """
        return _read_message(self.inbox / "assignment.json", Assignment)

    def write_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Replace the heartbeat."""
        write_atomically(self.root / "worker.json", heartbeat.model_dump_json(indent=1).encode())

    def read_heartbeat(self) -> Heartbeat | None:
        """Return the heartbeat, if there is one.

        Raises:
            BrokenMessage: it cannot be read or is invalid.
        """
        return _read_message(self.root / "worker.json", Heartbeat)

    def forget_heartbeat(self) -> None:
        """Remove the heartbeat of an earlier process."""
        (self.root / "worker.json").unlink(missing_ok=True)

    def write_processor_time(self, used: ProcessorTime) -> None:
        """Store the processor time that the worker's processes have used for a run."""
        content = used.model_dump_json(exclude_defaults=True).encode()  # earlier versions do not know ``earlier``
        write_atomically(self.root / "processor_time.json", content, durable=False)

    def read_processor_time(self, run_id: str) -> ProcessorTime:
        """Return the processor time that earlier processes have used for a run; 0 if that is unknown."""
        with suppress(BrokenMessage):
            used = _read_message(self.root / "processor_time.json", ProcessorTime)
            if used and used.run_id == run_id:
                return used
        return ProcessorTime(run_id=run_id, worker=self.root.name)

    def batch_files(self) -> list[Path]:
        """Return the batches in the outbox, oldest first."""
        return sorted(path for path in self.outbox.iterdir() if BATCH_NAME.fullmatch(path.name))

    def batch_ends(self) -> list[int]:
        """Return, for each batch in the outbox, the number after its last game, from its name."""
        return [batch_end(path.stem) for path in self.batch_files()]

    def owner_run(self) -> str:
        """Return the id of the run that owns the folder; empty if no run has claimed it."""
        for path in sorted(self.outbox.glob(OWNERS)):
            with suppress(ValueError, OSError, TypeError, LookupError):
                return str(json.loads(read_limited(path, MAX_JSON_BYTES))["run_id"])
        return ""

    def result_files(self) -> list[Path]:
        """Return the results of evaluation games in the outbox, sorted."""
        return sorted(path for path in self.outbox.iterdir() if RESULT_NAME.fullmatch(path.name))

    @contextmanager
    def lock(self, *, seconds: float = LOCK_SECONDS) -> Iterator[Callable[[], None]]:
        """Lock the folder for this worker process, after waiting for an earlier one to end.

        Yields a check that raises FolderGone if the folder was deleted or replaced: another process may play there now.

        Raises:
            AlreadyRunning: the earlier process has not ended within ``seconds``.
        """
        path = self.root / "worker.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        ours = os.fstat(descriptor)

        def check() -> None:
            try:
                same = os.path.samestat(ours, path.stat())
            except OSError:
                same = False
            if not same:
                raise FolderGone(f"{self.root} was deleted or moved: this process cannot reach its files, and exits")

        try:
            self._wait_for_lock(descriptor, time.monotonic() + seconds)
            yield check
        finally:
            os.close(descriptor)

    def _wait_for_lock(self, descriptor: int, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise AlreadyRunning(f"{self.root}: another worker process is using this folder") from error
            time.sleep(0.1)


def is_crowd_worker(worker: str) -> bool:
    """Return whether a worker joined from outside, so that nothing that it says is believed."""
    return worker.startswith(CROWD)


def machine_of(worker: str) -> str:
    """Return what the names of a machine's workers begin with, of a worker that joined from outside."""
    return worker.rpartition("-")[0]


def run_tag(run_id: str) -> str:
    """Return the part of batch ids that names the run: its id, or the hash of an unusual id."""
    return run_id if PLAIN.fullmatch(run_id) else hashlib.sha256(run_id.encode()).hexdigest()[:16]


def batch_name(run_id: str, worker: str, first_game: int, games: int, digest: str) -> str:
    """Return a unique batch id: first game, number of games, worker, run, and a digest of the content."""
    player = re.sub("[^a-z0-9]+", "-", worker.lower())[:24].strip("-") or "w"
    return f"{first_game:09d}-{games}-{player}--{run_tag(run_id)}-{digest[:16]}"


def is_batch_of_run(name: str, run_id: str) -> bool:
    """Return whether a batch can be of this run, by its file name; names of earlier versions lack the run."""
    found = TAGGED.search(name)
    return found is None or found[1] == run_tag(run_id)


def batch_end(batch_id: str) -> int:
    """Return the number after a batch's last game, from its id; 0 if the id has none."""
    match = BATCH_NAME.fullmatch(f"{batch_id}.games")
    return int(match[1]) + int(match[2]) if match else 0


def last_batch_ends(batches: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return, for each worker of the (worker, batch id) pairs, the number after its last game."""
    ends: dict[str, int] = {}
    for worker, batch_id in batches:
        ends[worker] = max(ends.get(worker, 0), batch_end(batch_id))
    return ends


def _read_message(path: Path, kind: type[M]) -> M | None:
    try:
        text = read_limited(path, MAX_JSON_BYTES)
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise BrokenMessage(str(error)) from error
    try:
        return kind.model_validate(json.loads(text))
    except (ValidationError, ValueError, RecursionError) as error:
        raise BrokenMessage(f"{path}: {error}") from error
