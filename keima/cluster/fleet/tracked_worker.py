"""The state of a worker, as the main node sees it: a pure function from events to states and actions.

    (worker, event, now) -> (worker, actions)

Nothing here uses a clock, a network or a process. ``now`` is in seconds by the main node's monotonic clock; no clock of
a worker is compared with it. A worker is alive as long as its beat counter changes.
"""

from dataclasses import dataclass, replace
from enum import Enum

from keima.base.reports.worker_status import WorkerState
from keima.worker.model_push import asks_for_whole_model
from keima.worker.worker_folder import Heartbeat

FIRST_RETRY_SECONDS = 0.5
MOST_DOUBLINGS = 20  # doublings of the time between retries, at most
SILENT_ACTIVITIES = ("starting", "compiling")  # in which a worker sends no heartbeats for a while
NEVER = float("-inf")
LOST_STATES = frozenset((WorkerState.ERROR, WorkerState.OFFLINE))


class Action(Enum):
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
    last_games_seconds: float = 60.0  # for games in progress when quiet hours begin
    model_seconds: float = 60.0  # for a whole model to help a worker that asks for it
    restarts: int = 5  # at most, within the window
    restart_window: float = 600.0


@dataclass(frozen=True)
class Connected:
    """The machine is connected, checked, and ready to play."""


@dataclass(frozen=True)
class ConnectionLost:
    """There is no connection."""

    reason: str


@dataclass(frozen=True)
class MachineRefused:
    """The machine cannot be used until somebody changes something."""

    reason: str


@dataclass(frozen=True)
class ActionFailed:
    """Something failed, although the machine is connected."""

    reason: str


@dataclass(frozen=True)
class AllActionsDone:
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
class ModelSent:
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
class ProcessStarted:
    """The process has been started."""


@dataclass(frozen=True)
class LogRead:
    """The end of the worker's log."""

    text: str


@dataclass(frozen=True)
class Restart:
    """The user wants the worker to be restarted."""


@dataclass(frozen=True)
class Stop:
    """The user wants the worker to stop."""


@dataclass(frozen=True)
class QuietHours:
    """The worker is not to play until the time in ``until``; with no text, it may play again."""

    until: str = ""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    Connected
    | ConnectionLost
    | MachineRefused
    | ActionFailed
    | AllActionsDone
    | Busy
    | HeartbeatSeen
    | ModelSent
    | ProcessFound
    | ProcessStarted
    | LogRead
    | Restart
    | Stop
    | QuietHours
    | Tick
)


@dataclass(frozen=True, kw_only=True)
class TrackedWorker:
    """One worker. ``state``, ``since`` and ``reason`` are for people and follow from the other fields.

    Times are by the connection's clock.
    """

    name: str
    state: WorkerState = WorkerState.SYNCING
    since: float  # when the state last changed
    reason: str = "connecting"
    connected: bool = False
    connection_error: str = ""  # why it is not connected; empty before the first attempt has ended
    refusal: str = ""
    failure: str = ""
    busy: str = ""
    running: bool | None = None  # its process; None: unknown
    process_checked_at: float = NEVER  # when that was last checked
    waits_for: str = ""  # what its process waits for
    start: str = ""  # which start of its process is running
    process_error: str = ""  # what is wrong with its process; one that has ended is then not started again
    stopped: bool = False  # by the user
    quiet_until: str = ""  # in quiet hours, when they end
    quiet_since: float = NEVER
    restart_wanted: bool = False  # the running process is to be ended and another one started
    starts: tuple[float, ...] = ()  # times of the process's starts, within the window
    given_up: bool = False  # the process ended again and again
    log_end: str = ""  # its end, if given up
    heard_at: float = NEVER  # when it last gave a sign of life
    has_reported: bool = False  # this process has sent a heartbeat
    beat: tuple[int, int] | None = None  # process id and beat counter last seen
    activity: str = ""  # from the heartbeat
    error: str = ""
    model_wanted_at: float | None = None  # since when it has asked for a whole model, with which it can play again
    model_version: int = 0
    sent_version: int = 0
    model_since: float  # when it was first seen with this version
    heartbeat: Heartbeat | None = None  # the last one, from whichever process
    last_batch: float | None = None  # when the last file arrived


def new_tracked_worker(name: str, now: float) -> TrackedWorker:
    """Return the state of a worker about which nothing is known yet."""
    return TrackedWorker(name=name, since=now, model_since=now)


def process_event(
    worker: TrackedWorker, event: Event, now: float, *, timing: Timing
) -> tuple[TrackedWorker, tuple[Action, ...]]:
    """Process an event. Actions that are not carried out are returned again at the next event."""
    after, actions = _decide_actions(_with_event(worker, event, now, timing), now, timing)
    return state_at(after, now, timing=timing), actions


def state_at(worker: TrackedWorker, now: float, *, timing: Timing) -> TrackedWorker:
    """Return the state at a later time: silence alone can make a worker Offline."""
    state, reason = _derive_state(worker, now, timing)
    if (state, reason) == (worker.state, worker.reason):
        return worker
    since = worker.since if state == worker.state else now
    return replace(worker, state=state, reason=reason, since=since)


def retry_seconds(failures: int, *, outage: float, draw: float, timing: Timing) -> float:
    """Return the seconds until the next attempt after ``failures`` failed ones in a row.

    It is ``draw``, in [0, 1), times a bound that doubles with each failure, and is at most half of the time that the
    machine has been away (``outage``, in seconds): one that is back is missed for at most half as long again.
    """
    bound = min(timing.retry_seconds, FIRST_RETRY_SECONDS * 2 ** min(failures, MOST_DOUBLINGS))
    return draw * min(bound, max(FIRST_RETRY_SECONDS, outage / 2))


def _with_event(worker: TrackedWorker, event: Event, now: float, timing: Timing) -> TrackedWorker:
    """Return the state after the event."""
    match event:
        case Tick():  # by far the most frequent
            return worker
        case Connected():
            return replace(
                worker,
                connected=True,
                connection_error="",
                refusal="",
                failure="",
                busy="",
                running=None,
                process_checked_at=NEVER,
                heard_at=now,
                has_reported=False,
            )
        case ConnectionLost(reason):
            return replace(worker, connected=False, connection_error=reason, busy="", refusal="")
        case MachineRefused(reason):
            return replace(worker, connected=False, connection_error=reason, busy="", refusal=reason)
        case ActionFailed(reason):
            return replace(worker, failure=reason, busy="")
        case AllActionsDone():
            return replace(worker, failure="") if worker.failure else worker
        case Busy(text):
            return replace(worker, busy=text, heard_at=max(worker.heard_at, now))
        case HeartbeatSeen():
            return _with_heartbeat(worker, event, now)
        case ModelSent(version):
            return replace(worker, sent_version=version)
        case ProcessFound():
            return _with_process_status(worker, event, now)
        case ProcessStarted():
            starts = tuple(start for start in worker.starts if now - start < timing.restart_window)
            return replace(
                _with_new_process(worker, now),
                running=True,
                process_checked_at=now,
                starts=(*starts, now),
                waits_for="",
                process_error="",
            )
        case LogRead(text):
            return replace(worker, log_end=text)
        case Restart():
            return replace(
                worker,
                stopped=False,
                given_up=False,
                log_end="",
                starts=(),
                refusal="",
                process_error="",
                restart_wanted=worker.running is not False,
            )
        case Stop():
            return replace(worker, stopped=True)
        case QuietHours(until):
            return replace(worker, quiet_until=until, quiet_since=worker.quiet_since if worker.quiet_until else now)


def _with_process_status(worker: TrackedWorker, found: ProcessFound, now: float) -> TrackedWorker:
    """Apply the process manager's status. The process may have been ended and replaced by someone else."""
    other = bool(found.waits or (worker.start and found.start and found.start != worker.start))
    return replace(
        _with_new_process(worker, now) if other else worker,
        running=found.running,
        process_checked_at=now,
        restart_wanted=worker.restart_wanted and found.running,
        waits_for=found.waits,
        start=found.start or worker.start,
        process_error=found.error,
    )


def _with_new_process(worker: TrackedWorker, now: float) -> TrackedWorker:
    """Return the state with a new process, which has not sent a heartbeat yet."""
    return replace(worker, heard_at=now, has_reported=False, activity="", error="", model_wanted_at=None)


def _with_heartbeat(worker: TrackedWorker, heard: HeartbeatSeen, now: float) -> TrackedWorker:
    """Process a heartbeat. It counts only if its beat has changed: it may be left over from an ended process."""
    beat = (heard.pid, heard.beat)
    if beat == worker.beat:
        return worker
    if worker.beat is None:
        return replace(worker, beat=beat)
    model_wanted_at = None
    if heard.activity == "error" and asks_for_whole_model(heard.error, worker.sent_version):
        model_wanted_at = now if worker.model_wanted_at is None else worker.model_wanted_at
    return replace(
        worker,
        beat=beat,
        heard_at=now,
        has_reported=True,
        activity=heard.activity,
        error=heard.error,
        model_wanted_at=model_wanted_at,
        model_version=heard.model_version,
        model_since=worker.model_since if heard.model_version == worker.model_version else now,
        waits_for="",
        process_error="" if worker.running else worker.process_error,
    )


def _decide_actions(worker: TrackedWorker, now: float, timing: Timing) -> tuple[TrackedWorker, tuple[Action, ...]]:
    """Decide on the actions for the worker's process."""
    if not worker.connected:
        return worker, ()
    silence = now - worker.heard_at
    if worker.running is None:
        return worker, (Action.ASK,)
    if worker.running:
        frozen = (
            worker.has_reported
            and worker.activity not in SILENT_ACTIVITIES
            and not (worker.busy or worker.process_error)
            and silence >= timing.frozen_seconds
        )
        quiet = worker.quiet_until and (
            worker.activity != "playing" or now - worker.quiet_since >= timing.last_games_seconds
        )
        if worker.stopped or worker.restart_wanted or frozen or quiet:
            return worker, (Action.STOP,)
        doubtful = silence >= timing.ask_seconds or worker.activity == "ended"
        return worker, (Action.ASK,) if doubtful and now - worker.process_checked_at >= timing.ask_seconds else ()
    if worker.stopped or worker.process_error or worker.quiet_until:
        return worker, ()
    if not worker.given_up:
        recent = [start for start in worker.starts if now - start < timing.restart_window]
        if len(recent) <= timing.restarts:
            return worker, (Action.START,)
        worker = replace(worker, given_up=True)
    return worker, () if worker.log_end else (Action.TAIL,)


def _derive_state(worker: TrackedWorker, now: float, timing: Timing) -> tuple[WorkerState, str]:
    """Return the state and the reason."""
    silence = now - worker.heard_at
    if worker.refusal:
        return WorkerState.ERROR, worker.refusal
    if worker.stopped and not (worker.connected and worker.running):
        return WorkerState.OFFLINE, "stopped; keima cluster restart starts it again"
    if worker.quiet_until and not (worker.connected and worker.running):
        return WorkerState.OFFLINE, f"quiet hours until {worker.quiet_until}"
    if worker.busy:
        return WorkerState.SYNCING, worker.busy
    if not worker.connected:
        if not worker.connection_error:
            return WorkerState.SYNCING, "connecting"
        if silence >= timing.offline_seconds:
            return WorkerState.OFFLINE, worker.connection_error
        return worker.state, worker.reason
    return _derive_connected_state(worker, silence, timing)


def _derive_connected_state(worker: TrackedWorker, silence: float, timing: Timing) -> tuple[WorkerState, str]:
    """Return the state of a worker whose machine is connected."""
    if worker.process_error:
        return WorkerState.ERROR, worker.process_error
    if worker.given_up:
        times = f"ended {timing.restarts + 1} times in {timing.restart_window / 60:.0f} minutes"
        again = "fix the cause, then run keima cluster restart"
        return WorkerState.ERROR, f"{times}; {again}; its log ends: {worker.log_end or '(not fetched yet)'}"
    if worker.failure:
        return WorkerState.ERROR, worker.failure
    if not worker.running:
        return WorkerState.SYNCING, "starting"
    if not worker.has_reported or worker.activity in SILENT_ACTIVITIES:
        return WorkerState.SYNCING, worker.activity or worker.waits_for or "starting"
    if silence >= timing.offline_seconds:
        return WorkerState.OFFLINE, "its process runs, but its heartbeat has stopped"
    if worker.model_wanted_at is not None and worker.heard_at - worker.model_wanted_at < timing.model_seconds:
        return WorkerState.SYNCING, f"waits for the whole file of model {worker.sent_version}"
    if worker.activity == "error":
        return WorkerState.ERROR, worker.error
    if worker.model_version != worker.sent_version:
        return WorkerState.SYNCING, f"switching to model {worker.sent_version}"
    return WorkerState.ACTIVE, ""
