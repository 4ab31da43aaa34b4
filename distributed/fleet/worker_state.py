"""How a worker stands, as the main node sees it: a pure function from events to marks and to what is to be done about
it.

    (state, event, now) -> (state, actions)

Nothing here knows a clock, a network or a process; ``now`` is seconds by the main node's clock, which never goes back.
No clock of a worker is ever compared with it: a worker lives as long as its beat counter moves.
"""

from dataclasses import dataclass, replace
from enum import Enum

FIRST_RETRY_SECONDS = 0.5
MEMORY = 20  # doublings of the time between retries, at most
SILENT_STATES = ("starting", "compiling")  # states in which a worker says nothing for a while
NEVER = float("-inf")


class Mark(Enum):
    """How a worker stands."""

    ACTIVE = "Active"
    SYNCING = "Syncing"
    ERROR = "Error"
    OFFLINE = "Offline"


class Do(Enum):
    """What is to be done about it."""

    ASK = "ask whether its process runs"
    START = "start its process"
    STOP = "end its process"
    TAIL = "fetch the end of its log"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """All times are in seconds."""

    offline_seconds: float = 10.0  # of silence, and a worker is Offline
    retry_seconds: float = 60.0  # at most, between two attempts to connect
    ask_seconds: float = 2.0  # between two questions whether a silent worker's process runs
    frozen_seconds: float = 60.0  # of silence of a process that runs, and it is ended and started again
    restarts: int = 5  # so many within the window, and no more
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
class Failed:
    """Something did not work, though the machine is connected."""

    reason: str


@dataclass(frozen=True)
class Worked:
    """All that was to be done with the machine worked."""


@dataclass(frozen=True)
class Busy:
    """The machine is being made ready or sent a model, and nobody listens to the worker meanwhile; with no text, that
    is over.
    """

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
    """The worker has been told to play with this model version."""

    model_version: int


@dataclass(frozen=True)
class Found:
    """Whether the worker's process runs."""

    running: bool


@dataclass(frozen=True)
class Began:
    """The process has been started."""


@dataclass(frozen=True)
class Tailed:
    """The end of the worker's log."""

    text: str


@dataclass(frozen=True)
class Restart:
    """The user wants the worker to be started anew."""


@dataclass(frozen=True)
class Stop:
    """The user wants the worker not to play."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Connected
    | Lost
    | TurnedDown
    | Failed
    | Worked
    | Busy
    | HeartbeatSeen
    | Sent
    | Found
    | Began
    | Tailed
    | Restart
    | Stop
    | Tick
)


@dataclass(frozen=True, kw_only=True)
class WorkerState:
    """One worker. ``mark``, ``since`` and ``reason`` are for people, the rest is what they follow from."""

    mark: Mark = Mark.SYNCING
    since: float  # when the mark became what it is
    reason: str = "connecting"
    connected: bool = False
    lost: str = ""  # why it is not linked; empty before the first attempt has ended
    refusal: str = ""
    failure: str = ""
    busy: str = ""
    running: bool | None = None  # its process; None: not known
    asked: float = NEVER  # when that was last asked
    stopped: bool = False  # by the user
    again: bool = False  # the process that runs is to be ended, and another one started
    starts: tuple[float, ...] = ()  # of the process, within the window
    given_up: bool = False  # it ended again and again
    log: str = ""  # its end, when given up
    heard: float = NEVER  # when it last gave a sign of life
    talks: bool = False  # this process has been heard
    beat: tuple[int, int] | None = None  # process and beat counter last seen
    state: str = ""  # as the heartbeat has it
    error: str = ""
    model_version: int = 0
    sent_version: int = 0


def begin(now: float) -> WorkerState:
    """A worker of which nothing is known yet."""
    return WorkerState(since=now)


def advance(state: WorkerState, event: Event, now: float, *, timing: Timing) -> tuple[WorkerState, tuple[Do, ...]]:
    """What follows from an event. Actions that were not carried out are named again at the next event."""
    after, actions = _decide(_taken(state, event, now, timing), now, timing)
    return seen_at(after, now, timing=timing), actions


def seen_at(state: WorkerState, now: float, *, timing: Timing) -> WorkerState:
    """The state as time makes it look: silence alone can make a worker Offline."""
    mark, reason = _marked(state, now, timing)
    if (mark, reason) == (state.mark, state.reason):
        return state
    since = state.since if mark == state.mark else now
    return replace(state, mark=mark, reason=reason, since=since)


def retry_after(failures: int, *, draw: float, timing: Timing) -> float:
    """Seconds until the next attempt after so many failed ones in a row: anything (``draw``, in [0, 1)) up to a bound
    that doubles.
    """
    return draw * min(timing.retry_seconds, FIRST_RETRY_SECONDS * 2 ** min(failures, MEMORY))


def _taken(state: WorkerState, event: Event, now: float, timing: Timing) -> WorkerState:
    """The state with what the event says."""
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
        case Failed(reason):
            return replace(state, failure=reason, busy="")
        case Worked():
            return replace(state, failure="") if state.failure else state
        case Busy(text):
            return replace(state, busy=text, heard=max(state.heard, now))
        case HeartbeatSeen():
            return _listened(state, event, now)
        case Sent(version):
            return replace(state, sent_version=version)
        case Found(running):
            return replace(state, running=running, asked=now, again=state.again and running)
        case Began():
            starts = tuple(start for start in state.starts if now - start < timing.restart_window)
            return replace(
                state, running=True, asked=now, starts=(*starts, now), heard=now, talks=False, state="", error=""
            )
        case Tailed(text):
            return replace(state, log=text)
        case Restart():
            return replace(
                state, stopped=False, given_up=False, log="", starts=(), refusal="", again=state.running is not False
            )
        case Stop():
            return replace(state, stopped=True)


def _listened(state: WorkerState, heard: HeartbeatSeen, now: float) -> WorkerState:
    """A beat counts only when it has moved: what lies there may be left over from a process that is no longer."""
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
    )


def _decide(state: WorkerState, now: float, timing: Timing) -> tuple[WorkerState, tuple[Do, ...]]:
    """What to do about the worker's process."""
    if not state.connected:
        return state, ()
    silence = now - state.heard
    if state.running is None:
        return state, (Do.ASK,)
    if state.running:
        frozen = (
            state.talks and state.state not in SILENT_STATES and not state.busy and silence >= timing.frozen_seconds
        )
        if state.stopped or state.again or frozen:
            return state, (Do.STOP,)
        doubtful = silence >= timing.ask_seconds or state.state == "ended"
        return state, (Do.ASK,) if doubtful and now - state.asked >= timing.ask_seconds else ()
    if state.stopped:
        return state, ()
    if not state.given_up:
        recent = [start for start in state.starts if now - start < timing.restart_window]
        if len(recent) <= timing.restarts:
            return state, (Do.START,)
        state = replace(state, given_up=True)
    return state, () if state.log else (Do.TAIL,)


def _marked(state: WorkerState, now: float, timing: Timing) -> tuple[Mark, str]:
    """The mark, and why."""
    silence = now - state.heard
    if state.refusal:
        return Mark.ERROR, state.refusal
    if state.stopped and not (state.connected and state.running):
        return Mark.OFFLINE, "stopped; --restart starts it again"
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
    """The mark of a worker whose machine is connected."""
    if state.given_up:
        times = f"ended {timing.restarts + 1} times in {timing.restart_window / 60:.0f} minutes"
        return Mark.ERROR, f"{times}; put it right and --restart it; its log ends: {state.log or '(not fetched yet)'}"
    if state.failure:
        return Mark.ERROR, state.failure
    if not state.running:
        return Mark.SYNCING, "starting"
    if not state.talks or state.state in SILENT_STATES:
        return Mark.SYNCING, state.state or "starting"
    if silence >= timing.offline_seconds:
        return Mark.OFFLINE, "its process runs, but its heartbeat has stopped"
    if state.state == "error":
        return Mark.ERROR, state.error
    if state.model_version != state.sent_version:
        return Mark.SYNCING, f"changing over to model {state.sent_version}"
    return Mark.ACTIVE, ""
