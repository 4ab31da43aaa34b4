"""The state of a worker, as the main node sees it: a pure function from events to marks and actions.

    (state, event, now) -> (state, actions)

Nothing here uses a clock, a network or a process. ``now`` is in seconds by the main node's monotonic clock; no clock of
a worker is compared with it. A worker is alive as long as its beat counter changes.
"""

from dataclasses import dataclass, replace
from enum import Enum

FIRST_RETRY_SECONDS = 0.5
MOST_DOUBLINGS = 20  # doublings of the time between retries, at most
SILENT_STATES = ("starting", "compiling")  # states in which a worker sends no heartbeats for a while
NEVER = float("-inf")


class Mark(Enum):
    """The state of a worker in one word."""

    ACTIVE = "Active"
    SYNCING = "Syncing"
    ERROR = "Error"
    OFFLINE = "Offline"


LOST_MARKS = frozenset((Mark.ERROR, Mark.OFFLINE))


class Do(Enum):
    """An action on a worker's process."""

    ASK = "ask whether its process runs"
    START = "start its process"
    STOP = "end its process"
    TAIL = "fetch the end of its log"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """All times are in seconds."""

    offline_seconds: float = 10.0  # of silence until a worker is Offline
    retry_seconds: float = 60.0  # the maximum between two attempts to connect
    ask_seconds: float = 2.0  # between two checks whether a silent worker's process runs
    frozen_seconds: float = 60.0  # of silence until a running process is ended and restarted
    restarts: int = 5  # at most, within the window
    restart_window: float = 600.0


@dataclass(frozen=True)
class Connected:
    """The machine is connected, checked, and ready to play."""


@dataclass(frozen=True)
class Lost:
    """There is no connection."""

    reason: str


@dataclass(frozen=True)
class TurnedDown:
    """The machine cannot be used until somebody changes something."""

    reason: str


@dataclass(frozen=True)
class ActionFailed:
    """Something failed, although the machine is connected."""

    reason: str


@dataclass(frozen=True)
class Worked:
    """Everything that was due on the machine worked."""


@dataclass(frozen=True)
class Busy:
    """The machine is being prepared or sent a model, so heartbeats are not read; with no text, that is over."""

    text: str = ""


@dataclass(frozen=True, kw_only=True)
class HeartbeatSeen:
    """A heartbeat was read; it need not be a new one."""

    pid: int
    beat: int
    state: str
    error: str = ""
    model_version: int = 0


@dataclass(frozen=True)
class Sent:
    """The worker's assignment names this model version."""

    model_version: int


@dataclass(frozen=True)
class ProcessFound:
    """Whether the worker's process runs; the fields are those of ``ProcessStatus``."""

    running: bool
    waits: str = ""
    start: str = ""
    error: str = ""


@dataclass(frozen=True)
class Began:
    """The process has been started."""


@dataclass(frozen=True)
class Tailed:
    """The end of the worker's log."""

    text: str


@dataclass(frozen=True)
class Restart:
    """The user wants the worker to be restarted."""


@dataclass(frozen=True)
class Stop:
    """The user wants the worker to stop."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Connected
    | Lost
    | TurnedDown
    | ActionFailed
    | Worked
    | Busy
    | HeartbeatSeen
    | Sent
    | ProcessFound
    | Began
    | Tailed
    | Restart
    | Stop
    | Tick
)


@dataclass(frozen=True, kw_only=True)
class WorkerState:
    """One worker. ``mark``, ``since`` and ``reason`` are for people; the rest is what they follow from."""

    mark: Mark = Mark.SYNCING
    since: float  # when the mark last changed
    reason: str = "connecting"
    connected: bool = False
    lost: str = ""  # why it is not connected; empty before the first attempt has ended
    refusal: str = ""
    failure: str = ""
    busy: str = ""
    running: bool | None = None  # its process; None: unknown
    asked: float = NEVER  # when that was last checked
    waits: str = ""  # what its process waits for
    start: str = ""  # which start of its process is running
    process_error: str = ""  # what is wrong with its process; one that has ended is then not started again
    stopped: bool = False  # by the user
    again: bool = False  # the running process is to be ended and another one started
    starts: tuple[float, ...] = ()  # times of the process's starts, within the window
    given_up: bool = False  # the process ended again and again
    log: str = ""  # its end, if given up
    heard: float = NEVER  # when it last gave a sign of life
    talks: bool = False  # this process has sent a heartbeat
    beat: tuple[int, int] | None = None  # process id and beat counter last seen
    state: str = ""  # from the heartbeat
    error: str = ""
    model_version: int = 0
    sent_version: int = 0


def new_worker_state(now: float) -> WorkerState:
    """Return the state of a worker of which nothing is known yet."""
    return WorkerState(since=now)


def advance(state: WorkerState, event: Event, now: float, *, timing: Timing) -> tuple[WorkerState, tuple[Do, ...]]:
    """Process an event. Actions that are not carried out are returned again at the next event."""
    after, actions = _decide(_taken(state, event, now, timing), now, timing)
    return seen_at(after, now, timing=timing), actions


def seen_at(state: WorkerState, now: float, *, timing: Timing) -> WorkerState:
    """Return the state at a later time: silence alone can make a worker Offline."""
    mark, reason = _marked(state, now, timing)
    if (mark, reason) == (state.mark, state.reason):
        return state
    since = state.since if mark == state.mark else now
    return replace(state, mark=mark, reason=reason, since=since)


def retry_after(failures: int, *, draw: float, timing: Timing) -> float:
    """Return the seconds until the next attempt after ``failures`` failed ones in a row.

    It is ``draw``, in [0, 1), times a bound that doubles with each failure.
    """
    return draw * min(timing.retry_seconds, FIRST_RETRY_SECONDS * 2 ** min(failures, MOST_DOUBLINGS))


def _taken(state: WorkerState, event: Event, now: float, timing: Timing) -> WorkerState:
    """Return the state with what the event says."""
    match event:
        case Tick():  # by far the most frequent
            return state
        case Connected():
            return replace(
                state,
                connected=True,
                lost="",
                refusal="",
                failure="",
                busy="",
                running=None,
                asked=NEVER,
                heard=now,
                talks=False,
            )
        case Lost(reason):
            return replace(state, connected=False, lost=reason, busy="", refusal="")
        case TurnedDown(reason):
            return replace(state, connected=False, lost=reason, busy="", refusal=reason)
        case ActionFailed(reason):
            return replace(state, failure=reason, busy="")
        case Worked():
            return replace(state, failure="") if state.failure else state
        case Busy(text):
            return replace(state, busy=text, heard=max(state.heard, now))
        case HeartbeatSeen():
            return _listened(state, event, now)
        case Sent(version):
            return replace(state, sent_version=version)
        case ProcessFound():
            return _found(state, event, now)
        case Began():
            starts = tuple(start for start in state.starts if now - start < timing.restart_window)
            return replace(
                _silent(state, now), running=True, asked=now, starts=(*starts, now), waits="", process_error=""
            )
        case Tailed(text):
            return replace(state, log=text)
        case Restart():
            return replace(
                state,
                stopped=False,
                given_up=False,
                log="",
                starts=(),
                refusal="",
                process_error="",
                again=state.running is not False,
            )
        case Stop():
            return replace(state, stopped=True)


def _found(state: WorkerState, found: ProcessFound, now: float) -> WorkerState:
    """Process what the process manager says. Somebody else may have ended the process and started another one."""
    other = bool(found.waits or (state.start and found.start and found.start != state.start))
    return replace(
        _silent(state, now) if other else state,
        running=found.running,
        asked=now,
        again=state.again and found.running,
        waits=found.waits,
        start=found.start or state.start,
        process_error=found.error,
    )


def _silent(state: WorkerState, now: float) -> WorkerState:
    """Return the state with a new process, which has not sent a heartbeat yet."""
    return replace(state, heard=now, talks=False, state="", error="")


def _listened(state: WorkerState, heard: HeartbeatSeen, now: float) -> WorkerState:
    """Process a heartbeat. It counts only if its beat has changed: it may be left over from an ended process."""
    beat = (heard.pid, heard.beat)
    if beat == state.beat:
        return state
    if state.beat is None:
        return replace(state, beat=beat)
    return replace(
        state,
        beat=beat,
        heard=now,
        talks=True,
        state=heard.state,
        error=heard.error,
        model_version=heard.model_version,
        waits="",
        process_error="" if state.running else state.process_error,
    )


def _decide(state: WorkerState, now: float, timing: Timing) -> tuple[WorkerState, tuple[Do, ...]]:
    """Decide what to do about the worker's process."""
    if not state.connected:
        return state, ()
    silence = now - state.heard
    if state.running is None:
        return state, (Do.ASK,)
    if state.running:
        frozen = (
            state.talks
            and state.state not in SILENT_STATES
            and not (state.busy or state.process_error)
            and silence >= timing.frozen_seconds
        )
        if state.stopped or state.again or frozen:
            return state, (Do.STOP,)
        doubtful = silence >= timing.ask_seconds or state.state == "ended"
        return state, (Do.ASK,) if doubtful and now - state.asked >= timing.ask_seconds else ()
    if state.stopped or state.process_error:
        return state, ()
    if not state.given_up:
        recent = [start for start in state.starts if now - start < timing.restart_window]
        if len(recent) <= timing.restarts:
            return state, (Do.START,)
        state = replace(state, given_up=True)
    return state, () if state.log else (Do.TAIL,)


def _marked(state: WorkerState, now: float, timing: Timing) -> tuple[Mark, str]:
    """Return the mark and the reason."""
    silence = now - state.heard
    if state.refusal:
        return Mark.ERROR, state.refusal
    if state.stopped and not (state.connected and state.running):
        return Mark.OFFLINE, "stopped; keima cluster restart starts it again"
    if state.busy:
        return Mark.SYNCING, state.busy
    if not state.connected:
        if not state.lost:
            return Mark.SYNCING, "connecting"
        if silence >= timing.offline_seconds:
            return Mark.OFFLINE, state.lost
        return state.mark, state.reason
    return _marked_by_process(state, silence, timing)


def _marked_by_process(state: WorkerState, silence: float, timing: Timing) -> tuple[Mark, str]:
    """Return the mark of a worker whose machine is connected."""
    if state.process_error:
        return Mark.ERROR, state.process_error
    if state.given_up:
        times = f"ended {timing.restarts + 1} times in {timing.restart_window / 60:.0f} minutes"
        again = "put it right, and restart it by keima cluster restart"
        return Mark.ERROR, f"{times}; {again}; its log ends: {state.log or '(not fetched yet)'}"
    if state.failure:
        return Mark.ERROR, state.failure
    if not state.running:
        return Mark.SYNCING, "starting"
    if not state.talks or state.state in SILENT_STATES:
        return Mark.SYNCING, state.state or state.waits or "starting"
    if silence >= timing.offline_seconds:
        return Mark.OFFLINE, "its process runs, but its heartbeat has stopped"
    if state.state == "error":
        return Mark.ERROR, state.error
    if state.model_version != state.sent_version:
        return Mark.SYNCING, f"changing over to model {state.sent_version}"
    return Mark.ACTIVE, ""
