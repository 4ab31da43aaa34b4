"""One worker of a connected machine: its part of each poll, what is sent to it, and how its process is managed."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from keima.cluster.agent.commands import FolderRequest, Owner
from keima.cluster.agent.packing import PYTHON
from keima.cluster.fleet.mirror import Mirror
from keima.cluster.fleet.ownership import FolderMoved, FolderTaken
from keima.cluster.fleet.poll import PollResult
from keima.cluster.fleet.tracked_worker import (
    Action,
    ActionFailed,
    AllActionsDone,
    Busy,
    Event,
    HeartbeatSeen,
    LogRead,
    ModelSent,
    ProcessFound,
    ProcessStarted,
    Stop,
    Tick,
    Timing,
    new_tracked_worker,
    process_event,
)
from keima.cluster.machines.machine import WorkerSlot
from keima.cluster.machines.process_manager import ProcessManager
from keima.cluster.ssh.errors import Refused, RemoteFailure, Unreachable, describe_failure
from keima.cluster.ssh.transport import Transport
from keima.evaluation.match_jobs import Contestant
from keima.worker.model_push import ModelPush, PublishedModel, asks_for_whole_model
from keima.worker.worker_folder import Assignment, Heartbeat

log = logging.getLogger(__name__)

RESEND_SECONDS = 60.0  # after which a model that a worker cannot play with is sent again ...
ASKED_SECONDS = 5.0  # ... or, if it asks for the model although it was sent whole: it was damaged there
HAND_OVER_SECONDS = 8.0  # for a worker to end by itself when the run does
STOP_SECONDS = 6.0  # for a worker to end after a signal
LAST_FETCH_SECONDS = 10.0
STARTED_ACTIVITIES = ("playing", "waiting", "error")
MOST_ROUNDS = 4  # of actions and the actions that follow, in one poll


@dataclass(frozen=True, kw_only=True)
class Leaving:
    """The machine is to be left: after the current games (``drain``), or once finished games have been fetched."""

    drain: bool
    begun: float
    until: float


@dataclass(frozen=True, kw_only=True)
class DesiredState:
    """What the Coach wants a worker to have."""

    assignment: Assignment
    model: PublishedModel
    sync_interval: int  # games with one model before the next is sent; 0: at once, before anything else
    players: Mapping[Contestant, bytes]  # the models of evaluation games, with their files
    push: ModelPush


class RemoteWorker:
    """The state of one worker, and the actions on it.

    Args:
        slot: the worker's name and GPU.
        mirror: the mirror of its folder.
        process_manager: starts and stops its process.
        timing: the times by which its state is decided.
        arrived: called with the worker and the file when games have arrived.
        log_event: called with each line for the log.
        changed: called before something long begins.
        python: the machine's interpreter for our remote program.
        clock: a monotonic clock in seconds.

    Attributes:
        retired: whether the machine no longer has this worker.
        claimed: whether its folder has been claimed in this connection.
        ended: whether nothing remains to be done with it.
        moved: whether its folder was found not to be ours in this step, and is to be claimed again.
        error: what was not possible in this step.
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
        self.tracked = new_tracked_worker(slot.name, clock())
        self.retired = False
        self.claimed = False
        self.ended = False
        self.moved = False
        self.error: RemoteFailure | None = None
        self._desired: Callable[[], DesiredState | None] = lambda: None
        self._unreadable: RemoteFailure | None = None  # its heartbeat
        self._model_sent = clock()
        self._finished_then: int | None = None  # finished games when it began to play with the last model
        self._process_manager, self._timing, self._clock = process_manager, timing, clock
        self._arrived, self._log_event, self._changed, self._python = arrived, log_event, changed, python
        self._logged_owner: Owner | None = None  # the owner that was last logged as having taken the worker

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.slot.name

    def process_event(self, event: Event) -> tuple[Action, ...]:
        """Process an event; return the actions that follow."""
        before = self.tracked.state
        self.tracked, actions = process_event(self.tracked, event, self._clock(), timing=self._timing)
        if self.tracked.state is not before:
            log.info(
                "%s: %s, after %s: %s",
                self.name,
                self.tracked.state.value,
                before.value,
                self.tracked.reason or "all is well",
            )
        return actions

    # A step: ``begin_step``, ``claim_folder``, ``make_poll_request`` and ``process_poll`` for each poll,
    # ``send_files``, ``carry_out_actions``, ``finish_step``.

    def begin_step(self, desired: Callable[[], DesiredState | None]) -> None:
        """Begin a step; ``desired`` returns what the worker is to have, and is called when it is time to send it."""
        self._desired, self.moved, self.error = desired, False, None

    def attempt_action(self, action: Callable[[], object]) -> None:
        """Carry out an action; an error of this worker alone goes into its state.

        Raises:
            Unreachable, Refused: the machine cannot be used.
        """
        try:
            action()
        except (Unreachable, Refused):
            raise
        except RemoteFailure as error:
            self._note_failure(error)

    def _note_failure(self, error: RemoteFailure) -> None:
        self.error = error
        owner = error.owner if isinstance(error, FolderTaken) else None
        if isinstance(error, FolderMoved):
            self.claimed = False
        if self._logged_owner != owner if owner else self.tracked.failure != describe_failure(error):
            self._log_event(str(error))
        self._logged_owner = owner or self._logged_owner
        self.process_event(ActionFailed(describe_failure(error)))

    def claim_folder(self, transport: Transport) -> None:
        """Claim the worker's folder, unless it is ours.

        Raises:
            FolderTaken: another Coach has it; polls then bring the games that it has set aside for us.
            ClusterError: it could not be done.
        """
        if self.claimed:
            return
        try:
            self.mirror.claim_folder(
                transport, lambda: self._process_manager.stop(transport, self.name), python=self._python
            )
            self.claimed = True
        except FolderTaken:
            self.process_event(ProcessFound(False))  # no process of ours
            raise

    def make_poll_request(self) -> FolderRequest | None:
        """Return what the next poll is to do here; None: nothing, as the folder is not ours."""
        if not self.claimed and not self.mirror.claim.is_lost:
            return None
        return self.mirror.make_poll_request(
            self._next_assignment, unassigned=self.retired and self.tracked.running is False
        )

    def make_read_only_request(self) -> FolderRequest | None:
        """Return a request that changes nothing; None: the folder is not ours."""
        return self.mirror.make_read_only_request() if self.claimed and not self.ended else None

    def _next_assignment(self) -> Assignment | None:
        """Return the assignment for the next poll; None: there is none, or it must wait for files.

        It does not wait for a model's transfer, unless all games are played with one model.
        """
        desired = self._wanted_state()
        if desired is None or self.mirror.model is None or (desired.sync_interval == 0 and self._is_model_due(desired)):
            return None
        wanted = desired.assignment
        complete = self.mirror.has_players(wanted, desired.players) and self.mirror.has_modules(wanted)
        return wanted if complete else None

    def _wanted_state(self) -> DesiredState | None:
        rests = self.tracked.quiet_until and self.tracked.running is False
        return None if self.retired or rests else self._desired()

    def process_poll(self, found: PollResult, *, limit: int, machine: str) -> None:
        """Process the result of a poll. A folder that is not ours is left, and claimed again the first time.

        Raises:
            RemoteFailure: something was not possible there or here; the next poll tries again.
        """
        if not self.mirror.claim.is_lost:
            self.process_heartbeat(found, machine=machine)
        try:
            count = self.mirror.store_files(found, limit=limit, machine=machine, report_file=self._note_arrival)
        except FolderMoved:
            if self.moved:
                raise
            self.moved, self.claimed = True, False
            return
        if count:
            self.tracked = replace(self.tracked, last_batch=self._clock())

    def _note_arrival(self, file: str) -> None:
        self._arrived((self.name, file))

    def process_heartbeat(self, found: PollResult, *, machine: str) -> None:
        """Process the heartbeat, if the poll shows it.

        An unreadable heartbeat stops nothing: if its process has died, only a new process writes a better one.
        """
        if not found.answer.mine or found.answer.failed:
            return
        try:
            heartbeat = self.mirror.read_heartbeat(found, machine=machine)
            self._unreadable = None
        except RemoteFailure as error:
            self._unreadable = error
        else:
            if heartbeat:
                self._process_new_heartbeat(heartbeat)

    def fetch_large(self, transport: Transport) -> None:
        """Fetch the files that no poll brings.

        Raises:
            ClusterError: one could not be fetched; the next step tries again.
        """
        if self.mirror.fetch_large(transport, report_file=self._note_arrival, clock=self._clock):
            self.tracked = replace(self.tracked, last_batch=self._clock())

    def _process_new_heartbeat(self, heartbeat: Heartbeat) -> None:
        self.tracked = replace(self.tracked, heartbeat=heartbeat)
        self.process_event(
            HeartbeatSeen(
                pid=heartbeat.pid,
                beat=heartbeat.beat,
                activity=heartbeat.state,
                error=heartbeat.error,
                model_version=heartbeat.model_version,
            )
        )
        model = self.mirror.model
        if (
            self._finished_then is None
            and self.tracked.has_reported
            and model
            and heartbeat.model_version == model.version
        ):
            self._finished_then = heartbeat.finished

    # What is sent.

    def has_to_send(self) -> bool:
        """Return whether models or modules are due, which no poll carries."""
        desired = self._wanted_state() if self.claimed and not self.error else None
        return (
            desired is not None
            and not self._leaves_files_lying()
            and (
                self._is_model_due(desired)
                or not self.mirror.has_players(desired.assignment, desired.players)
                or not self.mirror.has_modules(desired.assignment)
            )
        )

    def _leaves_files_lying(self) -> bool:
        """Return whether a worker that was stopped, given up or waits for its job has a model: no process would remove
        the next ones, until its disk is full. It gets the newest once it runs.
        """
        tracked = self.tracked
        lies = bool(tracked.waits_for) or (tracked.running is False and (tracked.stopped or tracked.given_up))
        return lies and self.mirror.model is not None

    def send_files(self, transport: Transport, beside: Callable[[str], str | None]) -> None:
        """Send models and modules; the next poll puts the assignment that names them.

        Args:
            transport: to the machine.
            beside: returns another worker of the machine that has the model with this SHA-256, if there is one.

        Raises:
            ClusterError: something did not arrive; what did arrive is not sent again.
        """
        desired = self._wanted_state()
        if desired is None:
            return
        if not self.mirror.has_players(desired.assignment, desired.players):
            self._report_busy("models of evaluation games are being sent")
            self.mirror.send_players(transport, desired.assignment, desired.players)
        self.mirror.send_modules(transport, desired.assignment)
        if self._is_model_due(desired):
            self._report_busy(f"model {desired.model.version} is being sent")
            self._send_model(desired, transport, beside)
        self.process_event(Busy())

    def _report_busy(self, busy: str) -> None:
        self.process_event(Busy(busy))
        self._changed()

    def _send_model(self, desired: DesiredState, transport: Transport, beside: Callable[[str], str | None]) -> None:
        model, heartbeat = desired.model, self.tracked.heartbeat
        again = model.sha256 == self.mirror.model_sha256
        played = heartbeat.model_version if heartbeat and self.tracked.has_reported and not again else None
        takes_delta = self.slot.far and played is not None
        linked = None if again or takes_delta else beside(model.sha256)
        self.mirror.send_model(transport, model, push=desired.push, played=played, beside=linked)
        self._finished_then, self._model_sent = None, self._clock()
        self.process_event(ModelSent(model.version))

    def _is_model_due(self, desired: DesiredState) -> bool:
        """Return whether to send this model now: the worker has none, idles, or has played enough with the last one."""
        last, heartbeat = self.mirror.model, self.tracked.heartbeat
        if last is None:
            return True
        if last.sha256 == desired.model.sha256:
            if heartbeat is None or heartbeat.state != "error" or heartbeat.model_version == last.version:
                return False
            asked = asks_for_whole_model(heartbeat.error, last.version)
            seconds = RESEND_SECONDS if not asked else 0.0 if self.mirror.can_send_whole else ASKED_SECONDS
            return self._clock() - self._model_sent >= seconds
        if (
            desired.sync_interval == 0
            or heartbeat is None
            or not self.tracked.has_reported
            or heartbeat.state != "playing"
        ):
            return True
        return self._finished_then is not None and heartbeat.finished - self._finished_then >= desired.sync_interval

    # Its process.

    def carry_out_actions(self, transport: Transport, *, is_turn: Callable[[], bool]) -> None:
        """Carry out the actions that the worker's state asks for, and those that follow from them.

        Args:
            transport: to the machine.
            is_turn: returns whether the worker's process may be started now.

        Raises:
            ClusterError: an action failed.
        """
        if self.error or not self.claimed:
            return

        def may_start() -> bool:
            desired = self._wanted_state()
            return desired is not None and is_turn()

        actions = self.process_event(Tick())
        for _ in range(MOST_ROUNDS):
            if not actions or (actions[0] is Action.START and not may_start()):
                return
            actions = self.process_event(self._carry_out(actions[0], transport))

    def finish_step(self) -> None:
        """End a step: report what failed in it, or that all succeeded."""
        if self._unreadable and self.claimed and not self.error:
            self._note_failure(self._unreadable)
        if not self.error:
            self._logged_owner = None
            self.process_event(AllActionsDone())

    def _carry_out(self, action: Action, transport: Transport) -> Event:
        match action:
            case Action.ASK:
                found = self._process_manager.process_status(transport, self.name)
                return ProcessFound(found.running, waits=found.waits, start=found.start, error=found.error)
            case Action.START:
                again = self.tracked.starts or self.tracked.has_reported  # the latter: an earlier session started it
                self._log_event(
                    f"{self.name}: its process {'has ended and is started again' if again else 'is started'}"
                )
                self._process_manager.start(transport, self.slot)
                return ProcessStarted()
            case Action.STOP:
                self._process_manager.stop(transport, self.name)
                return ProcessFound(False)
            case Action.TAIL:
                text = self._process_manager.read_log_end(transport, self.name) or "(nothing)"
                self._log_event(f"{self.name}: its process ended repeatedly and is given up; its log ends:\n{text}")
                return LogRead(text)

    @property
    def is_ready(self) -> bool:
        """Whether its process has done the one-time work that the first process on a machine does for all."""
        return bool(self.tracked.running) and self.tracked.has_reported and self.tracked.activity in STARTED_ACTIVITIES

    # Leaving.

    def has_work_left(self, leaving: Leaving) -> bool:
        """Return whether the worker still has work to do, and time for it."""
        now, heartbeat, sent = self._clock(), self.tracked.heartbeat, self.mirror.sent
        if (
            now >= leaving.until
            or self.retired
            or self.mirror.claim.is_lost
            or not self.tracked.running
            or heartbeat is None
            or not (self.tracked.has_reported or self._has_read_ours(heartbeat))
        ):
            return False
        if not leaving.drain:
            return now < leaving.begun + HAND_OVER_SECONDS and self.tracked.activity in STARTED_ACTIVITIES
        idle = heartbeat.state == "waiting" and heartbeat.finished == heartbeat.begun >= heartbeat.granted
        heard = sent is not None and sent.granted == heartbeat.granted
        return not (idle and heard and self.mirror.is_empty)

    def _has_read_ours(self, heartbeat: Heartbeat) -> bool:
        """Return whether a heartbeat, perhaps the first, is from a process that has read this fleet's assignment."""
        sent = self.mirror.sent
        return sent is not None and heartbeat.lease.rpartition("-")[0] == sent.lease.rpartition("-")[0]

    def end_worker(self, transport: Transport, leaving: Leaving, poll: Callable[[], None]) -> None:
        """End the worker and fetch what it delivers.

        Args:
            transport: to the machine.
            leaving: when all must be done.
            poll: polls this worker once more.

        Raises:
            ClusterError: the machine could not be used.
        """
        if self.mirror.claim.is_lost:  # nothing there is ours
            self.ended = True
            return
        self._process_manager.stop(
            transport, self.name, seconds=min(STOP_SECONDS, max(1.0, leaving.until - self._clock()))
        )
        self.process_event(Stop())
        self.process_event(ProcessFound(False))
        until, more = self._clock() + LAST_FETCH_SECONDS, True
        while more:
            poll()
            if self.error:
                raise self.error
            self.fetch_large(transport)
            more = self.mirror.more and self._clock() < until
        if self.mirror.waiting:
            self._log_event(
                f"{self.name}: there was no time to fetch the last {self.mirror.waiting} files of games; they stay "
                "there"
            )
        self.mirror.release(transport)
        self.ended = True
