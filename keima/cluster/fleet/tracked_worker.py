"""The state of a worker, as the main node sees it: a pure function from events to states and actions.

    (worker, event, now) -> (worker, actions)

Nothing here uses a clock, a network or a process. ``now`` is in seconds by the main node's monotonic clock; no clock of
a worker is compared with it. A worker is alive as long as its beat counter changes.
"""

from dataclasses import dataclass, replace
from enum import Enum

from keima.base.worker_status import WorkerState
from keima.worker.worker_folder import Heartbeat

FIRST_RETRY_SECONDS = 0.5
MOST_DOUBLINGS = 20  # doublings of the time between retries, at most
SILENT_ACTIVITIES = ("starting", "compiling")  # in which a worker sends no heartbeats for a while
NEVER = float("-inf")
LOST_STATES = frozenset((WorkerState.ERROR, WorkerState.OFFLINE))


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
    activity: str
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
class TrackedWorker:
    """One worker. ``state``, ``since`` and ``reason`` are for people; the rest is what they follow from.

    Times are by the connection's clock.
    """

    name: str
    state: WorkerState = WorkerState.SYNCING
    since: float  # when the state last changed
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
    activity: str = ""  # from the heartbeat
    error: str = ""
    model_version: int = 0
    sent_version: int = 0
    model_since: float  # when it was first seen with this version
    heartbeat: Heartbeat | None = None  # the last one, from whichever process
    last_batch: float | None = None  # when the last file arrived


def new_tracked_worker(name: str, now: float) -> TrackedWorker:
    """Return the state of a worker of which nothing is known yet."""
    return TrackedWorker(name=name, since=now, model_since=now)


def advance(worker: TrackedWorker, event: Event, now: float, *, timing: Timing) -> tuple[TrackedWorker, tuple[Do, ...]]:
    """Process an event. Actions that are not carried out are returned again at the next event."""
    after, actions = _decide(_taken(worker, event, now, timing), now, timing)
    return seen_at(after, now, timing=timing), actions


def seen_at(worker: TrackedWorker, now: float, *, timing: Timing) -> TrackedWorker:
    """Return the state at a later time: silence alone can make a worker Offline."""
    state, reason = _state_now(worker, now, timing)
    if (state, reason) == (worker.state, worker.reason):
        return worker
    since = worker.since if state == worker.state else now
    return replace(worker, state=state, reason=reason, since=since)


def retry_after(failures: int, *, draw: float, timing: Timing) -> float:
    """Return the seconds until the next attempt after ``failures`` failed ones in a row.

    It is ``draw``, in [0, 1), times a bound that doubles with each failure.
    """
    return draw * min(timing.retry_seconds, FIRST_RETRY_SECONDS * 2 ** min(failures, MOST_DOUBLINGS))


def _taken(worker: TrackedWorker, event: Event, now: float, timing: Timing) -> TrackedWorker:
    """Return the state with what the event says."""
    match event:
        case Tick():  # by far the most frequent
            return worker
        case Connected():
            return replace(
                worker,
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
            return replace(worker, connected=False, lost=reason, busy="", refusal="")
        case TurnedDown(reason):
            return replace(worker, connected=False, lost=reason, busy="", refusal=reason)
        case ActionFailed(reason):
            return replace(worker, failure=reason, busy="")
        case Worked():
            return replace(worker, failure="") if worker.failure else worker
        case Busy(text):
            return replace(worker, busy=text, heard=max(worker.heard, now))
        case HeartbeatSeen():
            return _listened(worker, event, now)
        case Sent(version):
            return replace(worker, sent_version=version)
        case ProcessFound():
            return _found(worker, event, now)
        case Began():
            starts = tuple(start for start in worker.starts if now - start < timing.restart_window)
            return replace(
                _silent(worker, now), running=True, asked=now, starts=(*starts, now), waits="", process_error=""
            )
        case Tailed(text):
            return replace(worker, log=text)
        case Restart():
            return replace(
                worker,
                stopped=False,
                given_up=False,
                log="",
                starts=(),
                refusal="",
                process_error="",
                again=worker.running is not False,
            )
        case Stop():
            return replace(worker, stopped=True)


def _found(worker: TrackedWorker, found: ProcessFound, now: float) -> TrackedWorker:
    """Process what the process manager says. Somebody else may have ended the process and started another one."""
    other = bool(found.waits or (worker.start and found.start and found.start != worker.start))
    return replace(
        _silent(worker, now) if other else worker,
        running=found.running,
        asked=now,
        again=worker.again and found.running,
        waits=found.waits,
        start=found.start or worker.start,
        process_error=found.error,
    )


def _silent(worker: TrackedWorker, now: float) -> TrackedWorker:
    """Return the state with a new process, which has not sent a heartbeat yet."""
    return replace(worker, heard=now, talks=False, activity="", error="")


def _listened(worker: TrackedWorker, heard: HeartbeatSeen, now: float) -> TrackedWorker:
    """Process a heartbeat. It counts only if its beat has changed: it may be left over from an ended process."""
    beat = (heard.pid, heard.beat)
    if beat == worker.beat:
        return worker
    if worker.beat is None:
        return replace(worker, beat=beat)
    return replace(
        worker,
        beat=beat,
        heard=now,
        talks=True,
        activity=heard.activity,
        error=heard.error,
        model_version=heard.model_version,
        model_since=worker.model_since if heard.model_version == worker.model_version else now,
        waits="",
        process_error="" if worker.running else worker.process_error,
    )


def _decide(worker: TrackedWorker, now: float, timing: Timing) -> tuple[TrackedWorker, tuple[Do, ...]]:
    """Decide what to do about the worker's process."""
    if not worker.connected:
        return worker, ()
    silence = now - worker.heard
    if worker.running is None:
        return worker, (Do.ASK,)
    if worker.running:
        frozen = (
            worker.talks
            and worker.activity not in SILENT_ACTIVITIES
            and not (worker.busy or worker.process_error)
            and silence >= timing.frozen_seconds
        )
        if worker.stopped or worker.again or frozen:
            return worker, (Do.STOP,)
        doubtful = silence >= timing.ask_seconds or worker.activity == "ended"
        return worker, (Do.ASK,) if doubtful and now - worker.asked >= timing.ask_seconds else ()
    if worker.stopped or worker.process_error:
        return worker, ()
    if not worker.given_up:
        recent = [start for start in worker.starts if now - start < timing.restart_window]
        if len(recent) <= timing.restarts:
            return worker, (Do.START,)
        worker = replace(worker, given_up=True)
    return worker, () if worker.log else (Do.TAIL,)


def _state_now(worker: TrackedWorker, now: float, timing: Timing) -> tuple[WorkerState, str]:
    """Return the state and the reason."""
    silence = now - worker.heard
    if worker.refusal:
        return WorkerState.ERROR, worker.refusal
    if worker.stopped and not (worker.connected and worker.running):
        return WorkerState.OFFLINE, "stopped; keima cluster restart starts it again"
    if worker.busy:
        return WorkerState.SYNCING, worker.busy
    if not worker.connected:
        if not worker.lost:
            return WorkerState.SYNCING, "connecting"
        if silence >= timing.offline_seconds:
            return WorkerState.OFFLINE, worker.lost
        return worker.state, worker.reason
    return _state_by_process(worker, silence, timing)


def _state_by_process(worker: TrackedWorker, silence: float, timing: Timing) -> tuple[WorkerState, str]:
    """Return the state of a worker whose machine is connected."""
    if worker.process_error:
        return WorkerState.ERROR, worker.process_error
    if worker.given_up:
        times = f"ended {timing.restarts + 1} times in {timing.restart_window / 60:.0f} minutes"
        again = "put it right, and restart it by keima cluster restart"
        return WorkerState.ERROR, f"{times}; {again}; its log ends: {worker.log or '(not fetched yet)'}"
    if worker.failure:
        return WorkerState.ERROR, worker.failure
    if not worker.running:
        return WorkerState.SYNCING, "starting"
    if not worker.talks or worker.activity in SILENT_ACTIVITIES:
        return WorkerState.SYNCING, worker.activity or worker.waits or "starting"
    if silence >= timing.offline_seconds:
        return WorkerState.OFFLINE, "its process runs, but its heartbeat has stopped"
    if worker.activity == "error":
        return WorkerState.ERROR, worker.error
    if worker.model_version != worker.sent_version:
        return WorkerState.SYNCING, f"changing over to model {worker.sent_version}"
    return WorkerState.ACTIVE, ""
