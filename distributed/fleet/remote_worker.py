"""One worker of a connected machine: what each poll exchanges with it, and how its process is managed."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from distributed.fleet.mirror import Mirror
from distributed.fleet.ownership import Moved, Owner, Taken
from distributed.fleet.worker_state import (
    ActionFailed,
    Began,
    Busy,
    Do,
    Event,
    HeartbeatSeen,
    ProcessFound,
    Sent,
    Stop,
    Tailed,
    Tick,
    Timing,
    Worked,
    WorkerState,
    advance,
    new_worker_state,
)
from distributed.setup.machine import PYTHON, WorkerSlot
from distributed.setup.process_manager import ProcessManager
from distributed.ssh.errors import ClusterError, Refused, RemoteFailure, Unreachable
from distributed.ssh.transport import Transport
from training.evaluation.orders import Contestant
from training.worker.model_push import ModelPush, PublishedModel, asks_for_whole
from training.worker.worker_folder import Assignment, Heartbeat

log = logging.getLogger(__name__)

RESEND_SECONDS = 60.0  # after which a model that a worker cannot play with is sent again ...
ASKED_SECONDS = 5.0  # ... or, if it asks for the model although it was sent whole: it was damaged there
HAND_OVER_SECONDS = 8.0  # for a worker to end by itself when the run does
STOP_SECONDS = 6.0  # for a worker to end after a signal
LAST_FETCH_SECONDS = 10.0
STARTED_STATES = ("playing", "waiting", "error")
MOST_ROUNDS = 4  # of actions and the actions that follow, in one poll


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """The machine is to be left: after the current games (``drain``), or once finished games have been fetched."""

    drain: bool
    begun: float
    until: float


@dataclass(frozen=True, kw_only=True)
class WorkerSnapshot:
    """The state of a worker, as its connection knows it. Times are by the connection's clock."""

    name: str
    state: WorkerState
    heartbeat: Heartbeat | None
    last_batch: float | None  # when the last file arrived
    model_since: float  # when the worker was first seen with its model version


@dataclass(frozen=True, kw_only=True)
class DesiredState:
    """What the Coach wants a worker to have."""

    assignment: Assignment
    model: PublishedModel
    sync_interval: int  # games with one model before the next is sent; 0: at once, before anything else
    players: Mapping[Contestant, bytes]  # the models of evaluation games, with their files
    push: ModelPush


class RemoteWorker:
    """The state of one worker, and what is done with it.

    Args:
        slot: the worker's name and GPU.
        mirror: the mirror of its folder.
        process_manager: starts and stops its process.
        timing: the times by which its mark is decided.
        arrived: called with the worker and the file when games have arrived.
        log_event: called with each line for the log.
        changed: called before something long begins.
        python: the machine's interpreter for our remote program.
        clock: a monotonic clock in seconds.

    Attributes:
        retired: whether the machine no longer has this worker.
        claimed: whether its folder has been claimed in this connection.
        ended: whether nothing remains to be done with it.
    """

    def __init__(
        self,
        slot: WorkerSlot,
        mirror: Mirror,
        *,
        process_manager: ProcessManager,
        timing: Timing,
        arrived: Callable[[tuple[str, str]], None],
        log_event: Callable[[str], None],
        changed: Callable[[], None],
        python: str = PYTHON,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slot, self.mirror = slot, mirror
        self.state = new_worker_state(clock())
        self.retired = False
        self.claimed = False
        self.ended = False
        self._heartbeat: Heartbeat | None = None
        self._last_batch: float | None = None
        self._model_since = self._model_sent = clock()
        self._finished_then: int | None = None  # finished games when it began to play with the last model
        self._process_manager, self._timing, self._clock = process_manager, timing, clock
        self._arrived, self._log_event, self._changed, self._python = arrived, log_event, changed, python
        self._logged_owner: Owner | None = None  # the owner that was last logged as having taken the worker

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.slot.name

    def snapshot(self) -> WorkerSnapshot:
        """Return the worker's state."""
        return WorkerSnapshot(
            name=self.name,
            state=self.state,
            heartbeat=self._heartbeat,
            last_batch=self._last_batch,
            model_since=self._model_since,
        )

    def feed(self, event: Event) -> tuple[Do, ...]:
        """Process an event; return the actions that follow."""
        before = self.state.mark
        self.state, actions = advance(self.state, event, self._clock(), timing=self._timing)
        if self.state.mark is not before:
            log.info(
                "%s: %s, after %s: %s",
                self.name,
                self.state.mark.value,
                before.value,
                self.state.reason or "all is well",
            )
        return actions

    def poll(
        self,
        transport: Transport,
        wanted: Callable[[], DesiredState | None],
        *,
        beside: Callable[[str], str | None],
        is_turn: Callable[[], bool],
    ) -> None:
        """Do whatever is due now.

        Args:
            transport: to the machine.
            wanted: returns what the worker is to have; called when it is time to send it.
            beside: returns another worker of the machine that has the model with this SHA-256, if there is one.
            is_turn: returns whether the worker's process may be started now.

        Raises:
            Unreachable, Refused: the machine cannot be used. All other errors are in the worker's state.
        """
        try:
            self._exchange(transport, wanted, beside, is_turn)
        except (Unreachable, Refused):
            raise
        except Taken as error:
            if self._logged_owner != error.owner:
                self._log_event(str(error))
            self._logged_owner = error.owner
            self.feed(ActionFailed(reason(error)))
        except RemoteFailure as error:
            if isinstance(error, Moved):
                self.claimed = False
            if self.state.failure != reason(error):
                self._log_event(str(error))
            self.feed(ActionFailed(reason(error)))
        else:
            self._logged_owner = None
            self.feed(Worked())

    def _exchange(
        self,
        transport: Transport,
        wanted: Callable[[], DesiredState | None],
        beside: Callable[[str], str | None],
        is_turn: Callable[[], bool],
    ) -> None:
        """Exchange everything, in the order that loses nothing: fetch, read what the Coach wants, send it, then forget.

        An unreadable heartbeat does not stop this: if its process has died, only a new process writes a better one.
        """
        if not self.claimed:
            self._claim_folder(transport)
        failure = self._read_heartbeat(transport)
        self._fetch(transport)
        desired = None if self.retired else wanted()
        if desired:
            self._send_players(desired, transport)
            self._send_desired(desired, transport, beside)
        self.mirror.forget(transport, counted=desired is not None or (self.retired and self.state.running is False))
        self._act(transport, may_start=lambda: desired is not None and is_turn())
        if failure:
            raise failure

    def _claim_folder(self, transport: Transport) -> None:
        """Claim the worker's folder; while another Coach has it, fetch the games that it has set aside for us."""
        try:
            self.mirror.claim_folder(
                transport, lambda: self._process_manager.stop(transport, self.name), python=self._python
            )
            self.claimed = True
        except Taken:
            self.feed(ProcessFound(False))  # no process of ours
            if self.mirror.fetch_aside(
                transport, came=lambda file: self._arrived((self.name, file)), clock=self._clock
            ):
                self._last_batch = self._clock()
            self.mirror.forget(transport, counted=True)
            raise

    def _read_heartbeat(self, transport: Transport) -> RemoteFailure | None:
        """Process the heartbeat; return the error if it cannot be read."""
        try:
            if heartbeat := self.mirror.read_heartbeat(transport):
                self._note(heartbeat)
        except Refused:
            raise
        except RemoteFailure as error:
            return error
        return None

    def _note(self, heartbeat: Heartbeat) -> None:
        before = self.state.model_version
        self._heartbeat = heartbeat
        self.feed(
            HeartbeatSeen(
                pid=heartbeat.pid,
                beat=heartbeat.beat,
                state=heartbeat.state,
                error=heartbeat.error,
                model_version=heartbeat.model_version,
            )
        )
        if self.state.model_version != before:
            self._model_since = self._clock()
        model = self.mirror.model
        if self._finished_then is None and self.state.talks and model and heartbeat.model_version == model.version:
            self._finished_then = heartbeat.finished

    def _fetch(self, transport: Transport) -> None:
        """Fetch finished games. A deleted folder is created again; a folder that another Coach has taken is left."""
        try:
            self._fetch_all(transport)
        except Moved:
            self.claimed = False
            self._claim_folder(transport)
            self._fetch_all(transport)

    def _fetch_all(self, transport: Transport) -> None:
        if self.mirror.fetch(transport, came=lambda file: self._arrived((self.name, file)), clock=self._clock):
            self._last_batch = self._clock()

    # What is sent.

    def _send_desired(self, desired: DesiredState, transport: Transport, beside: Callable[[str], str | None]) -> None:
        """Send the assignment, and the newest model when it is due."""
        due = self._is_due(desired)
        if self.mirror.model and not (due and desired.sync_interval == 0):
            self.mirror.send_assignment(transport, desired.assignment)  # assignments do not wait for a model's transfer
        if not due:
            return
        self.feed(Busy(f"model {desired.model.version} is being sent"))
        self._changed()
        model, heartbeat = desired.model, self._heartbeat
        again = model.sha256 == self.mirror.sha256
        played = heartbeat.model_version if heartbeat and self.state.talks and not again else None
        self.mirror.send_model(
            transport, model, push=desired.push, played=played, beside=None if again else beside(model.sha256)
        )
        self.mirror.send_assignment(transport, desired.assignment)
        self._finished_then, self._model_sent = None, self._clock()
        self.feed(Sent(desired.model.version))
        self.feed(Busy())

    def _send_players(self, desired: DesiredState, transport: Transport) -> None:
        """Send the models of evaluation games before the assignment names them."""
        if self.mirror.has_players(desired.assignment, desired.players):
            return
        self.feed(Busy("models of evaluation games are being sent"))
        self._changed()
        self.mirror.send_players(transport, desired.assignment, desired.players)
        self.feed(Busy())

    def _is_due(self, desired: DesiredState) -> bool:
        """Return whether to send this model now: the worker has none, idles, or has played enough with the last one."""
        last, heartbeat = self.mirror.model, self._heartbeat
        if last is None:
            return True
        if last.sha256 == desired.model.sha256:
            if heartbeat is None or heartbeat.state != "error" or heartbeat.model_version == last.version:
                return False
            asked = asks_for_whole(heartbeat.error, last.version)
            seconds = RESEND_SECONDS if not asked else 0.0 if self.mirror.can_send_whole else ASKED_SECONDS
            return self._clock() - self._model_sent >= seconds
        if desired.sync_interval == 0 or heartbeat is None or not self.state.talks or heartbeat.state != "playing":
            return True
        return self._finished_then is not None and heartbeat.finished - self._finished_then >= desired.sync_interval

    # Its process.

    def _act(self, transport: Transport, *, may_start: Callable[[], bool]) -> None:
        """Carry out the actions that the worker's state asks for, and those that follow from them."""
        actions = self.feed(Tick())
        for _ in range(MOST_ROUNDS):
            if not actions or (actions[0] is Do.START and not may_start()):
                return
            actions = self.feed(self._carried_out(actions[0], transport))

    def _carried_out(self, action: Do, transport: Transport) -> Event:
        match action:
            case Do.ASK:
                found = self._process_manager.alive(transport, self.name)
                return ProcessFound(found.running, waits=found.waits, start=found.start, error=found.error)
            case Do.START:
                again = self.state.starts or self.state.talks  # the latter: an earlier session started it
                self._log_event(
                    f"{self.name}: its process {'has ended and is started again' if again else 'is started'}"
                )
                self._process_manager.start(transport, self.slot)
                return Began()
            case Do.STOP:
                self._process_manager.stop(transport, self.name)
                return ProcessFound(False)
            case Do.TAIL:
                text = self._process_manager.tail(transport, self.name) or "(nothing)"
                self._log_event(
                    f"{self.name}: its process ended again and again and is given up; its log ends:\n{text}"
                )
                return Tailed(text)

    @property
    def is_ready(self) -> bool:
        """Whether its process has done what the first process on a machine does for all."""
        return bool(self.state.running) and self.state.talks and self.state.state in STARTED_STATES

    # Leaving.

    def goes_on(self, leaving: Leaving) -> bool:
        """Return whether the worker still has work to do, and time for it."""
        now, heartbeat, sent = self._clock(), self._heartbeat, self.mirror.sent
        if (
            now >= leaving.until
            or self.retired
            or self.mirror.claim.is_lost
            or not self.state.running
            or heartbeat is None
            or not self.state.talks
        ):
            return False
        if not leaving.drain:
            return now < leaving.begun + HAND_OVER_SECONDS and self.state.state in STARTED_STATES
        idle = heartbeat.state == "waiting" and heartbeat.finished == heartbeat.begun >= heartbeat.granted
        heard = sent is not None and sent.granted == heartbeat.granted
        return not (idle and heard and self.mirror.is_empty)

    def end(self, transport: Transport, leaving: Leaving) -> None:
        """End the worker and fetch what it delivers.

        Raises:
            ClusterError: the machine could not be used.
        """
        if self.mirror.claim.is_lost:  # nothing there is ours
            self.ended = True
            return
        self._process_manager.stop(
            transport, self.name, seconds=min(STOP_SECONDS, max(1.0, leaving.until - self._clock()))
        )
        self.feed(Stop())
        self.feed(ProcessFound(False))
        until = self._clock() + LAST_FETCH_SECONDS
        self._fetch(transport)
        while self.mirror.more and self._clock() < until:
            self._fetch(transport)
        if self.mirror.waiting:
            self._log_event(
                f"{self.name}: there was no time for the last {self.mirror.waiting} files of games, they stay there"
            )
        self.mirror.release(transport)
        self.ended = True


def reason(error: Exception) -> str:
    """Return what happened and what fixes it, without the machine's name."""
    if isinstance(error, ClusterError):
        return error.what + (f"; {error.remedy}" if error.remedy else "")
    return str(error)
