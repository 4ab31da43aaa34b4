"""The commands of the agent: the one table of their names on the wire, their requests and their answers.

Both ends use it. The agent finds its handlers by it (``program.py``), and trusts the main node. The main node calls by
it, and checks every answer against its type (``call.py``), since nothing that comes from a machine is trusted.

On the wire a request and an answer are JSON objects with these fields. Like all of this folder, it runs on a worker's
machine before anything is installed, on Python 3.9: standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from keima.base.reports.text import printable_line

MOST_TEXT = 4000  # characters of a text for one line
MOST_PATH = 4096  # characters
MOST_HEARTBEAT = 64 * 2**10  # bytes
MOST_NAMES = 2000  # of files in one outbox, the oldest games first; the others are listed when these are gone
NAME_LENGTH = 255
MOST_STAMP = 100  # characters


class Rule:
    """A rule for a value in an answer, which the main node applies: pydantic finds it in the type.

    Args:
        check: returns the value, perhaps changed, or raises ValueError.
        bounds: of pydantic's schema for the value's type.
    """

    def __init__(self, check: Callable[[Any], Any] | None = None, **bounds: Any) -> None:
        self._check, self._bounds = check, bounds

    def __get_pydantic_core_schema__(self, kind: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        """Return pydantic's schema for the value."""
        schema = {**handler(kind), **self._bounds}
        if self._check is None:
            return schema
        return {"type": "function-after", "function": {"type": "no-info", "function": self._check}, "schema": schema}


def printable_start(text: str) -> str:
    """Return the start of a text on one line, without control characters."""
    return printable_line(text[:MOST_TEXT])


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has invalid characters")
    return text


PrintableText = Annotated[str, Rule(printable_start)]
PathText = Annotated[str, Rule(_check_printable, max_length=MOST_PATH)]
NonNegativeInt = Annotated[int, Rule(ge=0)]
FileName = Annotated[str, Rule(max_length=NAME_LENGTH)]
FileNames = Annotated[tuple[FileName, ...], Rule(max_length=MOST_NAMES)]
Files = Annotated[tuple[tuple[FileName, NonNegativeInt], ...], Rule(max_length=MOST_NAMES)]


@dataclass(frozen=True)
class Done:
    """The answer to a command that has nothing to tell but that it has been carried out."""


@dataclass(frozen=True)
class InspectRequest:
    """Asks an interpreter about itself; the agent asks, when it probes its machine."""

    packages: Sequence[str]


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs the workers of a machine."""

    version: Annotated[tuple[int, ...], Rule(max_length=5)]
    packages: dict[PrintableText, PrintableText | None]  # versions; None for one that is missing
    path: PathText = ""
    environment: bool = False  # a virtual or conda environment
    platforms: Annotated[tuple[PrintableText, ...], Rule(max_length=1000)] = ()  # of wheels that it can install


@dataclass(frozen=True)
class ProbeRequest:
    """Asks for all that is checked before a worker is started."""

    own: str | None  # the interpreter that the user has named
    environments: Sequence[str]  # the interpreters of those that bootstrap has made, best first
    clone: str  # the interpreter in a clone of the user's
    python: Sequence[str]  # other interpreters, best first
    packages: dict[str, str]  # versions by name
    code: Sequence[str]  # folders with code
    extra: str  # a module or package of the user's


@dataclass(frozen=True)
class Gpu:
    """One GPU, as nvidia-smi lists it."""

    index: NonNegativeInt
    name: PrintableText
    memory: NonNegativeInt  # bytes


@dataclass(frozen=True)
class Probe:
    """The result of probing a machine.

    A folder with code is named relative to the cluster's folder, or, for a clone beside it, by its absolute path.
    """

    root: PathText
    writable: bool
    disk_free: NonNegativeInt  # bytes, in the cluster's folder
    python: Interpreter | None
    platform: PrintableText
    machine: PrintableText  # the kind of processor
    cpus: Annotated[int, Rule(ge=1, le=100_000)]
    memory: NonNegativeInt  # bytes
    gpus: Annotated[tuple[Gpu, ...], Rule(max_length=1024)]
    gpu_error: PrintableText
    kills_processes: bool  # systemd ends what is left running at logout
    clock: Annotated[float, Rule(allow_inf_nan=False)]  # seconds since 1970
    boot_id: PrintableText
    code: dict[PrintableText, PrintableText]  # the hash of the code in each folder; empty if there is none
    whole: tuple[PrintableText, ...]  # the folders that bootstrap has completed
    releases: tuple[PrintableText, ...] = ()  # all that are complete, the newest last
    processor: PrintableText = ""  # equal only for processors that run each other's machine code

    def folder_of(self, code_hash: str) -> str | None:
        """Return the folder that has exactly this code, if there is one."""
        good = [
            folder
            for folder, found in self.code.items()
            if found == code_hash and (folder.startswith((".", "/")) or folder in self.whole)
        ]
        return good[0] if good else None


@dataclass(frozen=True)
class StartRequest:
    """Asks for a process at ``place`` that outlives the connection, unless one runs there."""

    place: str
    argv: list[str]
    env: dict[str, str]
    log: str
    coach: str = ""  # who must own the folder; empty: anyone
    logs: str = ""  # a folder into which the log is linked
    shared: bool = False  # one process serves all machines that share the folder
    nice: int = 0  # by how much its priority is lowered, to 19


@dataclass(frozen=True)
class Started:
    """A worker's process; ``already`` if it was running before."""

    pid: NonNegativeInt
    start_ticks: NonNegativeInt
    boot_id: PrintableText
    already: bool


@dataclass(frozen=True)
class StopRequest:
    """Asks for the end of the process at ``place`` and its group: by SIGTERM, after ``seconds`` by SIGKILL."""

    place: str
    seconds: float
    coach: str = ""  # who must own the folder; empty: anyone


@dataclass(frozen=True)
class Stopped:
    """Whether there was a process to stop, and whether it had to be killed."""

    found: bool
    killed: bool


@dataclass(frozen=True)
class AliveRequest:
    """Asks whether a process runs at ``place``."""

    place: str


@dataclass(frozen=True)
class Alive:
    """Whether a process runs, and the exit code of a long command that has ended."""

    running: bool
    pid: NonNegativeInt
    code: int | None = None


@dataclass(frozen=True)
class Owner:
    """The owner of a worker, as the record on its machine describes it."""

    run_id: PrintableText
    label: PrintableText  # of the run, in names of batches and folders
    host: PrintableText  # the main node; empty in a record of an earlier version
    user: PrintableText = ""  # whose run it is, there
    folder: PrintableText = ""  # the run's, there
    coach: PrintableText = ""  # unique for each session
    world: PrintableText = ""  # of the Coach's process: the main node since its last start
    pid: NonNegativeInt = 0
    start_ticks: NonNegativeInt = 0
    lease_seconds: Annotated[float, Rule(allow_inf_nan=False, ge=0)] = 0.0


@dataclass(frozen=True)
class OwnRequest:
    """Asks for the folder ``place`` to have this ``owner``; ``owner.enter_owner`` says when it gets it."""

    place: str
    owner: dict[str, Any]  # the fields of an ``Owner``
    fresh: bool  # it has not owned the folder before
    force: bool
    expired: dict[str, str] | None  # coach and token of an owner whose lease has expired
    labels: Sequence[str]  # of its run
    tagged: str  # a pattern that finds the run in a batch's name


@dataclass(frozen=True)
class Owned:
    """Whether the folder is the caller's now, and what was found there."""

    mine: bool
    owner: Owner | None  # the one before
    token: PrintableText  # its lease, which changes as long as it is renewed
    contents: PrintableText  # the label of the run whose files fill the folder
    unsorted: bool  # there are games to set aside or to bring back


@dataclass(frozen=True)
class GiveWayRequest:
    """Asks for what is not of the run with these ``labels`` to be moved out of ``place``, and what is to come back."""

    place: str
    coach: str
    contents: str
    labels: Sequence[str]
    tagged: str


@dataclass(frozen=True)
class TailRequest:
    """Asks for the last ``lines`` of a log that come after ``offset`` bytes."""

    log: str
    lines: int
    offset: int = 0


@dataclass(frozen=True)
class Tail:
    """The end of a log, and the log's size."""

    text: str
    end: NonNegativeInt


@dataclass(frozen=True)
class LinkRequest:
    """Asks for the file ``source`` to be hard-linked into the inbox of ``place``, which must be of ``coach``."""

    source: str
    place: str
    target: str
    coach: str


@dataclass(frozen=True)
class Linked:
    """Whether a file could be linked."""

    linked: bool


@dataclass(frozen=True)
class UnpackRequest:
    """Asks for the release ``hash`` to be made of the wheel ``archive``."""

    archive: str
    hash: str
    extra: str  # a module or package of the user's


@dataclass(frozen=True)
class UnpackCacheRequest:
    """Asks for the compiled code in ``archive`` to be added to ``folder``."""

    archive: str
    folder: str


@dataclass(frozen=True)
class FolderRequest:
    """What a poll is to do with one worker's folder, and what to tell of it."""

    place: str
    coach: str  # who must own the folder; empty: anyone
    seen: str  # the stamp of the last heartbeat
    assignment: str | None = None  # a text to put
    remove: Sequence[str] = ()  # names of files
    have: Sequence[str] = ()  # names of games not to send
    want: Sequence[str] = ()  # names of other files to send


@dataclass(frozen=True)
class PollRequest:
    """Asks for one poll of all workers of a machine. Of their games, those whose names match ``games`` are sent."""

    workers: Sequence[dict[str, Any]]  # the fields of a ``FolderRequest`` each
    games: str
    limit: int  # bytes of files in all


@dataclass(frozen=True)
class FolderAnswer:
    """What a poll tells of one worker's folder."""

    failed: PrintableText = ""  # why there is nothing else; empty: there is
    mine: bool = True  # the folder has the right owner; otherwise there is nothing else
    wrong: PrintableText = ""  # why the assignment was not put, or files were not removed
    stamp: Annotated[str, Rule(max_length=MOST_STAMP)] = ""  # of the heartbeat; empty: there is none
    heartbeat: Annotated[str, Rule(max_length=MOST_HEARTBEAT)] | None = None  # its text, if it has changed
    unreadable: PrintableText = ""  # why it has changed and cannot be read
    running: bool | None = None  # the process in the folder's record; None: there is no record
    names: Files = ()  # of the outbox, with their sizes
    files: Files = ()  # those whose contents follow the answer
    unread: FileNames = ()  # those that could not be read


@dataclass(frozen=True)
class PollAnswer:
    """An answer for each worker of the request, in the same order."""

    workers: tuple[FolderAnswer, ...]


Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True)
class Command(Generic[Q, A]):
    """A command: its name on the wire, and the types of its request and its answer."""

    name: str
    request: type[Q]
    answer: type[A]


INSPECT = Command("inspect", InspectRequest, Interpreter)
PROBE = Command("probe", ProbeRequest, Probe)
START = Command("start", StartRequest, Started)
STOP = Command("stop", StopRequest, Stopped)
ALIVE = Command("alive", AliveRequest, Alive)
OWN = Command("own", OwnRequest, Owned)
GIVE_WAY = Command("give_way", GiveWayRequest, Done)
TAIL = Command("tail", TailRequest, Tail)
LINK = Command("link", LinkRequest, Linked)
UNPACK = Command("unpack", UnpackRequest, Done)
UNPACK_CACHE = Command("unpack_cache", UnpackCacheRequest, Done)
POLL = Command("look", PollRequest, PollAnswer)

COMMANDS: dict[str, Command[Any, Any]] = {
    command.name: command
    for command in (INSPECT, PROBE, START, STOP, ALIVE, OWN, GIVE_WAY, TAIL, LINK, UNPACK, UNPACK_CACHE, POLL)
}


def to_json(value: Any) -> str:
    """Return a request, an answer, or what holds one, as JSON."""
    return json.dumps(value, default=vars)
