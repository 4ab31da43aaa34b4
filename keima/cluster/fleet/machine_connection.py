"""The connection to one machine: it keeps the machine's workers playing, and copies files between them and their
mirrors.

A connection has no thread of its own; one thread of the caller steps it. The Coach's thread sets what is wanted
(``assign``, ``publish``, ``queue_command``, ``leave``) and reads ``snapshot``, ``arrived`` and ``news``. Each of these
is an object that is replaced whole, or a deque, so no lock is needed.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from keima.cluster.agent.client import AgentTransport
from keima.cluster.agent.commands import POLL, FolderRequest
from keima.cluster.fleet.bandwidth import BandwidthLimit
from keima.cluster.fleet.mirror import RUN_MARK, Mirror
from keima.cluster.fleet.ownership import Claim, Claimant, make_owner
from keima.cluster.fleet.poll import make_poll, parse_poll_answer, poll_workers
from keima.cluster.fleet.remote_worker import DesiredState, Leaving, RemoteWorker
from keima.cluster.fleet.tracked_worker import (
    NEVER,
    Busy,
    Connected,
    ConnectionLost,
    Event,
    MachineRefused,
    QuietHours,
    Restart,
    Stop,
    Tick,
    Timing,
    TrackedWorker,
    retry_seconds,
)
from keima.cluster.machines.machine import WorkerSlot
from keima.cluster.machines.process_manager import ChangingWorkers, ProcessManager
from keima.cluster.ssh.errors import ClusterError, NotReadyYet, Refused, RemoteFailure, Unreachable, describe_failure
from keima.cluster.ssh.transport import Transport
from keima.config.quiet_hours import quiet_until
from keima.config.schema import Settings
from keima.config.sections.workers import WorkerSettings
from keima.evaluation.match_jobs import Contestant
from keima.worker.model_push import ModelPush, PublishedModel
from keima.worker.worker_folder import Assignment

log = logging.getLogger(__name__)

SLOW_RETRY_SECONDS = 60.0  # after a refusal: somebody has to change something first
SOON_SECONDS = 1.0  # for a machine that will come without anybody's doing
UNREACHABLE_SECONDS = 15.0  # for an unreachable machine to come back when it is to be left
LEAVING_POLL_SECONDS = 0.3
SILENCE_POLLS = 30  # in the time for which workers that report rarely may be silent
POLL_AGE_SECONDS = 1.0  # of a poll that is recent enough before a file is sent
POLL_BYTES = (2**16, 2**20, 2**22)  # bytes of games that a poll may bring: at least, at first, at most
LONG_POLL_SECONDS = 1.0  # a poll that takes longer brings less the next time

Asked = list[tuple[RemoteWorker, FolderRequest]]  # of one poll


@dataclass(frozen=True, kw_only=True)
class MachineSnapshot:
    """The state of a machine, as its connection knows it."""

    workers: tuple[TrackedWorker, ...]
    inspected: bool  # the machine itself has listed its workers
    sent: int  # bytes of files to it so far
    received: int  # bytes of files from it

    @property
    def bytes_transferred(self) -> int:
        """Bytes of files in both directions so far."""
        return self.sent + self.received


class MachineConnection:
    """The connection to one machine.

    Args:
        machine: the machine's settings.
        process_manager: starts and stops the workers there.
        connect: opens a transport; raises ClusterError.
        root: the folder of the mirrors.
        run_id: the run's id.
        settings: the run's settings.
        claimant: the owner of the workers; by default this process.
        push: encodes models as deltas, for all connections of the run.
        clock: a monotonic clock in seconds.
        wall: returns the local time.
        draw: returns a uniform random number in [0, 1).

    Attributes:
        arrived: (worker, file) pairs that have come into a mirror's outbox.
        news: lines for the log.
        snapshot: the machine's current state.
        done: whether disconnected from the machine, so that nothing remains to be done.

    Raises:
        OSError: the mirrors cannot be written.
    """

    def __init__(
        self,
        machine: WorkerSettings,
        *,
        process_manager: ProcessManager,
        connect: Callable[[], Transport],
        root: Path,
        run_id: str,
        settings: Settings,
        claimant: Claimant | None = None,
        push: ModelPush | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = datetime.now,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.machine, self.name = machine, machine.name
        self.arrived: deque[tuple[str, str]] = deque()
        self.news: deque[str] = deque()
        self.done = False
        distributed = settings.distributed
        silence = process_manager.usual_silence if isinstance(process_manager, ChangingWorkers) else 0.0
        self.timing = Timing(
            offline_seconds=max(distributed.offline_seconds, silence),
            retry_seconds=distributed.retry_seconds,
            ask_seconds=max(Timing.ask_seconds, silence / 4),
            frozen_seconds=max(Timing.frozen_seconds, 2 * silence),
        )
        self._poll_seconds = max(distributed.heartbeat_seconds / 2, silence / SILENCE_POLLS)
        # In synchronous mode all games of an iteration are played with one model.
        self._sync_interval = distributed.sync_interval if settings.training.asynchronous else 0
        self._process_manager, self._connect, self._root, self._run_id = process_manager, connect, root, run_id
        self._clock, self._wall, self._draw = clock, wall, draw
        owner = make_owner(run_id, run_dir=root.parent, lease_seconds=distributed.lease_seconds)
        self._claimant = claimant or Claimant(owner=owner)
        self._wanted: dict[str, Assignment] = {}
        self._model: PublishedModel | None = None
        self._players: Mapping[Contestant, bytes] = {}
        self._push = push or ModelPush()
        self._commands: deque[tuple[str, Restart | Stop | Tick | None]] = deque()  # None: take over
        self._leaving: Leaving | None = None
        self._transport: AgentTransport | None = None
        self._polled_at = NEVER
        self._poll_bytes = POLL_BYTES[1]
        self._posted: tuple[int, Asked] | None = None  # a poll whose answer has not come yet
        self._sent = self._received = 0  # bytes, by earlier connections
        self._failures, self._retry_at, self._tried_at = 0, clock(), NEVER
        self._told = ""  # why there is no connection
        self._lost_at = clock()  # the last connection
        self._bandwidth = BandwidthLimit(machine.bandwidth and machine.bandwidth * 10**6, clock=clock)
        least, _, most = POLL_BYTES
        self._most_poll_bytes = max(least, int(machine.bandwidth * 10**6)) if machine.bandwidth else most
        self._inspected = False
        self._workers = {
            name: self._remote_worker(WorkerSlot(name))
            for name in ([] if isinstance(process_manager, ChangingWorkers) else expected_workers(machine, root))
        }
        self.snapshot = self._new_snapshot()

    # Called by the Coach's thread.

    def assign(self, worker: str, assignment: Assignment) -> None:
        """Give a worker this assignment; its model is replaced by the one that the worker has."""
        self._wanted[worker] = assignment

    def publish(self, model: PublishedModel) -> None:
        """Have all workers play with this model, each when its turn comes."""
        self._model = model

    def set_players(self, players: Mapping[Contestant, bytes]) -> None:
        """Send all workers these models for evaluation games, before an assignment that names them."""
        self._players = dict(players)

    def queue_command(self, name: str, event: Restart | Stop | Tick) -> None:
        """Restart or stop a worker, or only try its machine again at once; with the machine's name, all its workers."""
        self._commands.append((name, event))

    def take_over(self, name: str) -> None:
        """Take a worker from its owner, or all with the machine's name; that run's games are set aside."""
        self._commands.append((name, None))

    def leave(self, *, drain: bool, seconds: float) -> None:
        """Leave the machine: nothing of ours runs there after ``seconds`` at the latest.

        Args:
            drain: finish the current games first.
            seconds: the time that this may take.
        """
        now = self._clock()
        self._leaving = Leaving(drain=drain, begun=now, until=now + seconds)

    # The step.

    def step(self) -> float:
        """Do whatever is due now; return the seconds until the next step.

        It raises nothing: errors are in the snapshot.
        """
        try:
            delay = self._step()
        except Refused as error:
            delay = self._drop_connection(MachineRefused(describe_failure(error)), SLOW_RETRY_SECONDS)
        except NotReadyYet as error:
            delay = self._drop_connection(ConnectionLost(describe_failure(error)), SOON_SECONDS)
        except Unreachable as error:
            delay = self._drop_connection(ConnectionLost(describe_failure(error)), self._retry_seconds())
        except (RemoteFailure, OSError) as error:
            delay = self._drop_connection(MachineRefused(describe_failure(error)), self._retry_seconds())
        except Exception as error:
            log.exception("%s: unexpected", self.name)
            text = f"unexpected {type(error).__name__}: {error}; please report it, with the log"
            delay = self._drop_connection(MachineRefused(text), SLOW_RETRY_SECONDS)
        self._renew_snapshot()
        return delay

    def _step(self) -> float:
        self._process_commands()
        self._observe_quiet_hours()
        if self._transport is None:
            if self._is_given_up():
                self.done = True
                return 0.0
            if self._clock() < self._retry_at and not self._leaving_at_once:
                self._notify_all_workers(Tick())
                return min(self._poll_seconds, self._retry_at - self._clock())
            self._tried_at = self._clock()
            self._transport = AgentTransport(self._connect(), python=self.machine.python)
            self._transport.meanwhile = self._poll_meanwhile
            self._prepare_machine(self._transport)
        elif isinstance(self._process_manager, ChangingWorkers) and self._process_manager.has_other_slots():
            self._change_slots(self._process_manager.find_slots())
        self._exchange_with_workers(self._transport)
        if self._leaving:
            self._end_workers(self._leaving, self._transport)
            return LEAVING_POLL_SECONDS
        more = any(worker.mirror.more for worker in self._workers.values())
        return 0.0 if more and not self._bandwidth.seconds_due(sum(self._traffic())) else self._poll_seconds

    def _exchange_with_workers(self, transport: AgentTransport) -> None:
        """Exchange everything with all workers, in the order that loses nothing: a poll reads what the Coach has taken
        and then what it wants, puts that, and then removes; what no poll carries follows, and the assignment that
        counts on it goes with another poll.
        """
        workers = [worker for worker in self._workers.values() if not worker.ended]
        for worker in workers:
            worker.begin_step(lambda worker=worker: self._desired_state(worker.name))  # type: ignore[misc]
        self._poll_workers(transport, workers)
        self._poll_workers(transport, [worker for worker in workers if worker.moved])
        for worker in workers:
            worker.attempt_action(lambda worker=worker: worker.fetch_large(transport))  # type: ignore[misc]
        if sent := [worker for worker in workers if worker.has_to_send()]:
            for worker in sent:
                self._send_files(worker, transport, workers)
            self._poll_workers(transport, workers)
        for worker in workers:
            worker.attempt_action(
                lambda worker=worker: worker.carry_out_actions(  # type: ignore[misc]
                    transport, is_turn=lambda: self._may_start(worker)
                )
            )
            worker.finish_step()
        self._failures, self._told = 0, ""  # only now: a machine that lets us in may answer nothing else

    def _send_files(self, worker: RemoteWorker, transport: AgentTransport, workers: list[RemoteWorker]) -> None:
        """Send a worker what no poll carries, after a recent poll: another Coach may have taken the folder."""
        if self._clock() - self._polled_at >= POLL_AGE_SECONDS:
            self._poll_workers(transport, workers)
        if worker.has_to_send():
            worker.attempt_action(lambda: worker.send_files(transport, self._worker_with_model))

    # Polls.

    def _poll_workers(self, transport: AgentTransport, workers: list[RemoteWorker]) -> None:
        """Poll workers whose folders are ours, or have games of ours; others are claimed first."""
        for worker in workers:
            worker.attempt_action(lambda worker=worker: worker.claim_folder(transport))  # type: ignore[misc]
        asked = [(worker, request) for worker in workers if (request := worker.make_poll_request())]
        if not asked:
            return
        if self._posted:
            transport.discard_reply(self._posted[0])
            self._posted = None
        began, limit = time.monotonic(), min(self._poll_bytes, self._most_poll_bytes)
        brings = 0 if self._bandwidth.seconds_due(sum(self._traffic())) else limit
        requests = [request for _, request in asked]
        results = poll_workers(transport, requests, limit=brings, python=self.machine.python)
        self._adjust_poll_limit(time.monotonic() - began, full=any(result.files for result in results))
        for (worker, _), result in zip(asked, results, strict=True):
            worker.attempt_action(
                lambda worker=worker, result=result: worker.process_poll(result, limit=limit, machine=self.name)  # type: ignore[misc]
            )
        self._polled_at = self._clock()
        self._renew_snapshot()

    def _traffic(self) -> tuple[int, int]:
        """Return the bytes of files to the machine and from it so far, by this connection and earlier ones."""
        sent, received = (self._transport.sent, self._transport.received) if self._transport else (0, 0)
        return self._sent + sent, self._received + received

    def _adjust_poll_limit(self, seconds: float, *, full: bool) -> None:
        """Let polls bring fewer bytes of games on a slow link, since heartbeats wait for them."""
        least, _, most = POLL_BYTES
        if seconds > LONG_POLL_SECONDS:
            self._poll_bytes = max(least, self._poll_bytes // 2)
        elif full and seconds < LONG_POLL_SECONDS / 4:
            self._poll_bytes = min(most, self._poll_bytes * 2)

    def _poll_meanwhile(self) -> None:
        """Keep all heartbeats fresh during a long transfer or command, without waiting for answers."""
        transport = self._transport
        try:
            self._bandwidth.wait(sum(self._traffic()))
            if transport is None or self._clock() - self._polled_at < self._poll_seconds:
                return
            if self._posted is None:
                asked = [
                    (worker, request)
                    for worker in self._workers.values()
                    if (request := worker.make_read_only_request())
                ]
                if asked:
                    number = transport.post_request(POLL, make_poll([request for _, request in asked], 0))
                    self._posted = number, asked
            elif (reply := transport.check_for_reply(self._posted[0])) is not None:
                (_, asked), self._posted = self._posted, None
                results = parse_poll_answer(
                    transport, [request for _, request in asked], *reply, python=self.machine.python
                )
                for (worker, _), result in zip(asked, results, strict=True):
                    worker.process_heartbeat(result, machine=self.name)
                self._polled_at = self._clock()
                self._renew_snapshot()
        except (ClusterError, OSError):
            self._posted = None  # the next poll tells

    def _process_commands(self) -> None:
        while self._commands:
            name, event = self._commands.popleft()
            for worker in self._workers.values():
                if name in (self.name, worker.name):
                    worker.process_event(event) if event else worker.mirror.claim.take_over()
            self._failures, self._retry_at = 0, self._clock()

    def _observe_quiet_hours(self) -> None:
        """Tell the workers when quiet hours begin and end."""
        end = quiet_until(self.machine.quiet_hours or "", self._wall())
        until = f"{end:%a %H:%M}" if end else ""
        for worker in self._workers.values():
            if worker.tracked.quiet_until != until:
                self._log_event(f"{worker.name}: quiet hours {f'until {until}' if until else 'are over'}")
                worker.process_event(QuietHours(until))

    def _prepare_machine(self, transport: AgentTransport) -> None:
        """Prepare the machine, and learn which workers it has."""
        slots = self._process_manager.prepare(transport, self._report_busy, lambda: self._leaving is None)
        for slot in slots:
            worker = self._workers.setdefault(slot.name, self._remote_worker(slot))
            worker.slot, worker.retired = slot, False
        self._inspected = True
        for worker in self._workers.values():
            worker.claimed = False
            worker.process_event(Connected())
        self._observe_quiet_hours()
        for name in self._workers.keys() - {
            slot.name for slot in slots
        }:  # of earlier sessions; their games are fetched
            self._workers[name].retired = True
            self._workers[name].process_event(Stop())
        names = ", ".join(slot.name for slot in slots)
        self._log_event(f"connected; {'its worker is' if len(slots) == 1 else 'its workers are'} {names or 'none yet'}")

    def _change_slots(self, slots: Sequence[WorkerSlot]) -> None:
        """Let workers join that are new, and those leave that have gone, while the others play on."""
        present = {slot.name: slot for slot in slots}
        for name, worker in list(self._workers.items()):
            if name in present:
                worker.retired = False
            elif not worker.retired:
                worker.retired = True
                worker.process_event(Stop())
            elif worker.mirror.is_empty:
                del self._workers[name]
        for name in present.keys() - self._workers.keys():
            self._workers[name] = self._remote_worker(present[name])
        for name in present:
            worker = self._workers[name]
            if not worker.tracked.connected:
                worker.process_event(Connected())
            if worker.tracked.stopped:
                worker.process_event(Restart())

    def _desired_state(self, name: str) -> DesiredState | None:
        wanted, model = self._wanted.get(name), self._model
        if wanted is None or model is None:
            return None
        return DesiredState(
            assignment=wanted, model=model, sync_interval=self._sync_interval, players=self._players, push=self._push
        )

    def _worker_with_model(self, sha256: str) -> str | None:
        """Return a worker of this machine that has received this model in this connection."""
        return next(
            (
                worker.name
                for worker in self._workers.values()
                if worker.claimed and worker.mirror.model_sha256 == sha256
            ),
            None,
        )

    def _may_start(self, worker: RemoteWorker) -> bool:
        """Return whether the worker may be started now.

        No worker starts while the run ends. Until one is ready, they start one at a time: the first compiles for all.
        """
        if self._leaving and (not self._leaving.drain or self._clock() >= self._leaving.until):
            return False
        if worker.slot.alone:
            return True
        others = [
            other
            for other in self._workers.values()
            if other is not worker and other.tracked.running and not other.retired
        ]
        return not others or any(other.is_ready for other in others)

    # Leaving.

    def _is_given_up(self) -> bool:
        """Return whether to give up an unreachable machine that is being left.

        At the end of a run, it is tried once more first.
        """
        if self._leaving is None:
            return False
        if self._leaving_at_once:
            return self._tried_at >= self._leaving.begun
        return not self._inspected or self._clock() >= self._leaving.begun + UNREACHABLE_SECONDS

    @property
    def _leaving_at_once(self) -> bool:
        """Whether the run is ending."""
        return self._leaving is not None and not self._leaving.drain

    def _end_workers(self, leaving: Leaving, transport: AgentTransport) -> None:
        """End each worker that has no work or no time left."""
        for worker in self._workers.values():
            if not worker.ended and not worker.has_work_left(leaving):
                worker.end_worker(transport, leaving, lambda worker=worker: self._poll_workers(transport, [worker]))  # type: ignore[misc]
        if all(worker.ended for worker in self._workers.values()):
            self._disconnect()
            self._notify_all_workers(ConnectionLost("disconnected from the machine"))
            self.done = True

    # Helpers.

    def _drop_connection(self, event: ConnectionLost | MachineRefused, seconds: float) -> float:
        """Drop the connection, and retry after ``seconds``."""
        if event.reason != self._told:
            self._log_event(event.reason)
            self._told = event.reason
        if self._transport is not None and self._failures == 0:
            self._lost_at = self._clock()
        self._disconnect()
        self._failures += 1
        self._retry_at = self._clock() + seconds
        self._notify_all_workers(event)
        return 0.0 if self._is_given_up() else min(seconds, self._poll_seconds)

    def _disconnect(self) -> None:
        if self._transport is not None:
            self._sent += self._transport.sent
            self._received += self._transport.received
            self._transport.close()
            self._transport = self._posted = None

    def _retry_seconds(self) -> float:
        outage = self._clock() - self._lost_at
        return retry_seconds(self._failures, outage=outage, draw=self._draw(), timing=self.timing)

    def _report_busy(self, text: str) -> None:
        self._notify_all_workers(Busy(text))
        self._renew_snapshot()

    def _notify_all_workers(self, event: Event) -> None:
        for worker in self._workers.values():
            worker.process_event(event)

    def _log_event(self, text: str) -> None:
        self.news.append(f"{self.name}: {text}")

    def _remote_worker(self, slot: WorkerSlot) -> RemoteWorker:
        return RemoteWorker(
            slot,
            Mirror(
                slot.name,
                root=self._root,
                run_id=self._run_id,
                claim=Claim(slot.name, self._claimant, clock=self._clock),
            ),
            process_manager=self._process_manager,
            timing=self.timing,
            arrived=self.arrived.append,
            log_event=self.news.append,
            changed=self._renew_snapshot,
            python=self.machine.python,
            clock=self._clock,
        )

    def _renew_snapshot(self) -> None:
        self.snapshot = self._new_snapshot()

    def _new_snapshot(self) -> MachineSnapshot:
        sent, received = self._traffic()
        workers = tuple(worker.tracked for worker in self._workers.values() if not worker.retired)
        return MachineSnapshot(
            workers=workers,
            inspected=self._inspected,
            sent=sent,
            received=received,
        )


def expected_workers(machine: WorkerSettings, root: Path) -> list[str]:
    """Return the workers that a machine had in an earlier session, or else those that it most likely has."""
    if machine.gpu_ids and (each := 1 if machine.processes == "auto" else machine.processes) * len(machine.gpu_ids) > 1:
        return [f"{machine.name}-{number}" for number in range(1, each * len(machine.gpu_ids) + 1)]
    split = [path.parent.name.rpartition("-") for path in root.glob(f"*/{RUN_MARK}")]
    numbers = sorted(int(number) for name, _, number in split if name == machine.name and number.isdecimal())
    return [f"{machine.name}-{number}" for number in numbers] or [machine.name]
