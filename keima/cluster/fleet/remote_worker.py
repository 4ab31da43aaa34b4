"""One worker of a connected machine: its part of each look, what is sent to it, and how its process is managed."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from keima.cluster.agent.packing import PYTHON
from keima.cluster.fleet.look import Look, LookRequest
from keima.cluster.fleet.mirror import Mirror
from keima.cluster.fleet.ownership import Moved, Owner, Taken
from keima.cluster.fleet.tracked_worker import (
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
    advance,
    new_tracked_worker,
)
from keima.cluster.machines.machine import WorkerSlot
from keima.cluster.machines.process_manager import ProcessManager
from keima.cluster.ssh.errors import ClusterError, Refused, RemoteFailure, Unreachable
from keima.cluster.ssh.transport import Transport
from keima.evaluation.match_jobs import Contestant
from keima.worker.model_push import ModelPush, PublishedModel, asks_for_whole
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
    """The state of one worker, and what is done with it.

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

    def feed(self, event: Event) -> tuple[Do, ...]:
        """Process an event; return the actions that follow."""
        before = self.tracked.state
        self.tracked, actions = advance(self.tracked, event, self._clock(), timing=self._timing)
        if self.tracked.state is not before:
            log.info(
                "%s: %s, after %s: %s",
                self.name,
                self.tracked.state.value,
                before.value,
                self.tracked.reason or "all is well",
            )
        return actions

    # A step: ``begin``, ``claim``, ``request`` and ``take`` for each look, ``send``, ``act``, ``finish``.

    def begin(self, desired: Callable[[], DesiredState | None]) -> None:
        """Begin a step; ``desired`` returns what the worker is to have, and is called when it is time to send it."""
        self._desired, self.moved, self.error = desired, False, None

    def attempt(self, action: Callable[[], object]) -> None:
        """Do something; what is wrong with this worker alone goes into its state.

        Raises:
            Unreachable, Refused: the machine cannot be used.
        """
        try:
            action()
        except (Unreachable, Refused):
            raise
        except RemoteFailure as error:
            self._fail(error)

    def _fail(self, error: RemoteFailure) -> None:
        self.error = error
        owner = error.owner if isinstance(error, Taken) else None
        if isinstance(error, Moved):
            self.claimed = False
        if self._logged_owner != owner if owner else self.tracked.failure != reason(error):
            self._log_event(str(error))
        self._logged_owner = owner or self._logged_owner
        self.feed(ActionFailed(reason(error)))

    def claim(self, transport: Transport) -> None:
        """Claim the worker's folder, unless it is ours.

        Raises:
            Taken: another Coach has it; looks then bring the games that it has set aside for us.
            ClusterError: it could not be done.
        """
        if self.claimed:
            return
        try:
            self.mirror.claim_folder(
                transport, lambda: self._process_manager.stop(transport, self.name), python=self._python
            )
            self.claimed = True
        except Taken:
            self.feed(ProcessFound(False))  # no process of ours
            raise

    def request(self) -> LookRequest | None:
        """Return what the next look is to do here; None: nothing, as the folder is not ours."""
        if not self.claimed and not self.mirror.claim.is_lost:
            return None
        return self.mirror.request(self._assignment, unassigned=self.retired and self.tracked.running is False)

    def glance(self) -> LookRequest | None:
        """Return a request that changes nothing; None: the folder is not ours."""
        return self.mirror.glance() if self.claimed and not self.ended else None

    def _assignment(self) -> Assignment | None:
        """Return the assignment for the next look; None: there is none, or it must wait for files.

        It does not wait for a model's transfer, unless all games are played with one model.
        """
        desired = self._wanted()
        if desired is None or self.mirror.model is None or (desired.sync_interval == 0 and self._is_due(desired)):
            return None
        wanted = desired.assignment
        complete = self.mirror.has_players(wanted, desired.players) and self.mirror.has_modules(wanted)
        return wanted if complete else None

    def _wanted(self) -> DesiredState | None:
        return None if self.retired else self._desired()

    def take(self, found: Look, *, limit: int, machine: str) -> None:
        """Take what a look has shown. A folder that is not ours is left, and claimed again the first time.

        Raises:
            RemoteFailure: something was not possible there or here; the next look tries again.
        """
        if not self.mirror.claim.is_lost:
            self.note(found, machine=machine)
        try:
            count = self.mirror.take(found, limit=limit, machine=machine, came=self._came)
        except Moved:
            if self.moved:
                raise
            self.moved, self.claimed = True, False
            return
        if count:
            self.tracked = replace(self.tracked, last_batch=self._clock())

    def _came(self, file: str) -> None:
        self._arrived((self.name, file))

    def note(self, found: Look, *, machine: str) -> None:
        """Process the heartbeat, if the look shows it.

        An unreadable heartbeat stops nothing: if its process has died, only a new process writes a better one.
        """
        if not found.mine or found.failed:
            return
        try:
            heartbeat = self.mirror.heartbeat(found, machine=machine)
            self._unreadable = None
        except RemoteFailure as error:
            self._unreadable = error
        else:
            if heartbeat:
                self._note(heartbeat)

    def fetch_large(self, transport: Transport) -> None:
        """Fetch the files that no look brings.

        Raises:
            ClusterError: one could not be fetched; the next step tries again.
        """
        if self.mirror.fetch_large(transport, came=self._came, clock=self._clock):
            self.tracked = replace(self.tracked, last_batch=self._clock())

    def _note(self, heartbeat: Heartbeat) -> None:
        self.tracked = replace(self.tracked, heartbeat=heartbeat)
        self.feed(
            HeartbeatSeen(
                pid=heartbeat.pid,
                beat=heartbeat.beat,
                activity=heartbeat.state,
                error=heartbeat.error,
                model_version=heartbeat.model_version,
            )
        )
        model = self.mirror.model
        if self._finished_then is None and self.tracked.talks and model and heartbeat.model_version == model.version:
            self._finished_then = heartbeat.finished

    # What is sent.

    def has_to_send(self) -> bool:
        """Return whether models or modules are due, which no look carries."""
        desired = self._wanted() if self.claimed and not self.error else None
        return desired is not None and (
            self._is_due(desired)
            or not self.mirror.has_players(desired.assignment, desired.players)
            or not self.mirror.has_modules(desired.assignment)
        )

    def send(self, transport: Transport, beside: Callable[[str], str | None]) -> None:
        """Send models and modules; the next look puts the assignment that names them.

        Args:
            transport: to the machine.
            beside: returns another worker of the machine that has the model with this SHA-256, if there is one.

        Raises:
            ClusterError: something did not arrive; what did arrive is not sent again.
        """
        desired = self._wanted()
        if desired is None:
            return
        if not self.mirror.has_players(desired.assignment, desired.players):
            self._report("models of evaluation games are being sent")
            self.mirror.send_players(transport, desired.assignment, desired.players)
        self.mirror.send_modules(transport, desired.assignment)
        if self._is_due(desired):
            self._report(f"model {desired.model.version} is being sent")
            self._send_model(desired, transport, beside)
        self.feed(Busy())

    def _report(self, busy: str) -> None:
        self.feed(Busy(busy))
        self._changed()

    def _send_model(self, desired: DesiredState, transport: Transport, beside: Callable[[str], str | None]) -> None:
        model, heartbeat = desired.model, self.tracked.heartbeat
        again = model.sha256 == self.mirror.sha256
        played = heartbeat.model_version if heartbeat and self.tracked.talks and not again else None
        self.mirror.send_model(
            transport, model, push=desired.push, played=played, beside=None if again else beside(model.sha256)
        )
        self._finished_then, self._model_sent = None, self._clock()
        self.feed(Sent(model.version))

    def _is_due(self, desired: DesiredState) -> bool:
        """Return whether to send this model now: the worker has none, idles, or has played enough with the last one."""
        last, heartbeat = self.mirror.model, self.tracked.heartbeat
        if last is None:
            return True
        if last.sha256 == desired.model.sha256:
            if heartbeat is None or heartbeat.state != "error" or heartbeat.model_version == last.version:
                return False
            asked = asks_for_whole(heartbeat.error, last.version)
            seconds = RESEND_SECONDS if not asked else 0.0 if self.mirror.can_send_whole else ASKED_SECONDS
            return self._clock() - self._model_sent >= seconds
        if desired.sync_interval == 0 or heartbeat is None or not self.tracked.talks or heartbeat.state != "playing":
            return True
        return self._finished_then is not None and heartbeat.finished - self._finished_then >= desired.sync_interval

    # Its process.

    def act(self, transport: Transport, *, is_turn: Callable[[], bool]) -> None:
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
            desired = self._wanted()
            return desired is not None and is_turn()

        actions = self.feed(Tick())
        for _ in range(MOST_ROUNDS):
            if not actions or (actions[0] is Do.START and not may_start()):
                return
            actions = self.feed(self._carried_out(actions[0], transport))

    def finish(self) -> None:
        """End a step: report what was not possible in it, or that all was."""
        if self._unreadable and self.claimed and not self.error:
            self._fail(self._unreadable)
        if not self.error:
            self._logged_owner = None
            self.feed(Worked())

    def _carried_out(self, action: Do, transport: Transport) -> Event:
        match action:
            case Do.ASK:
                found = self._process_manager.alive(transport, self.name)
                return ProcessFound(found.running, waits=found.waits, start=found.start, error=found.error)
            case Do.START:
                again = self.tracked.starts or self.tracked.talks  # the latter: an earlier session started it
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
        return bool(self.tracked.running) and self.tracked.talks and self.tracked.activity in STARTED_ACTIVITIES

    # Leaving.

    def goes_on(self, leaving: Leaving) -> bool:
        """Return whether the worker still has work to do, and time for it."""
        now, heartbeat, sent = self._clock(), self.tracked.heartbeat, self.mirror.sent
        if (
            now >= leaving.until
            or self.retired
            or self.mirror.claim.is_lost
            or not self.tracked.running
            or heartbeat is None
            or not (self.tracked.talks or self._has_read_ours(heartbeat))
        ):
            return False
        if not leaving.drain:
            return now < leaving.begun + HAND_OVER_SECONDS and self.tracked.activity in STARTED_ACTIVITIES
        idle = heartbeat.state == "waiting" and heartbeat.finished == heartbeat.begun >= heartbeat.granted
        heard = sent is not None and sent.granted == heartbeat.granted
        return not (idle and heard and self.mirror.is_empty)

    def _has_read_ours(self, heartbeat: Heartbeat) -> bool:
        """Return whether a heartbeat, perhaps the first, is of a process that has read an assignment of this fleet."""
        sent = self.mirror.sent
        return sent is not None and heartbeat.lease.rpartition("-")[0] == sent.lease.rpartition("-")[0]

    def end(self, transport: Transport, leaving: Leaving, look: Callable[[], None]) -> None:
        """End the worker and fetch what it delivers.

        Args:
            transport: to the machine.
            leaving: when all must be done.
            look: looks at this worker once more.

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
        until, more = self._clock() + LAST_FETCH_SECONDS, True
        while more:
            look()
            if self.error:
                raise self.error
            self.fetch_large(transport)
            more = self.mirror.more and self._clock() < until
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
