"""The link to one machine: connects, sees that its workers play, and copies between them and their mirrors.

It has no thread of its own.

Whoever steps it does so from one thread. The Coach's thread says what is wanted (``assign``, ``publish``, ``command``,
``leave``) and reads ``report``, ``arrived`` and ``news``: each of them is one object that is replaced whole, or a
deque, so that no lock is needed.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from configs.schema import Settings, WorkerSettings
from distributed.fleet.mirror import MARK, Mirror
from distributed.fleet.ownership import Claim, Claimant, owner_here
from distributed.fleet.remote_worker import DesiredState, Leaving, RemoteWorker, WorkerReport, reason
from distributed.fleet.worker_state import (
    NEVER,
    Busy,
    Connected,
    Event,
    Lost,
    Restart,
    Stop,
    Tick,
    Timing,
    TurnedDown,
    retry_after,
)
from distributed.setup.machine import WorkerSlot
from distributed.setup.process_manager import ProcessManager
from distributed.ssh.errors import Refused, RemoteFailure, Unreachable
from distributed.ssh.transport import Transport
from training.evaluation.orders import Contestant
from training.worker.model_push import ModelPush, PublishedModel
from training.worker.worker_folder import Assignment

log = logging.getLogger(__name__)

SLOW_RETRY_SECONDS = 60.0  # after a refusal: somebody has to change something first
UNREACHABLE_SECONDS = 15.0  # a machine that is to be left and cannot be reached gets so long to come back
LEAVING_POLL_SECONDS = 0.3


@dataclass(frozen=True, kw_only=True)
class MachineReport:
    """A machine as its link sees it."""

    workers: tuple[WorkerReport, ...]
    inspected: bool  # the machine itself has said which workers it has
    transferred: int  # bytes of files in both directions, so far


class MachineConnection:
    """One machine.

    Args:
        machine: as the config has it.
        process_manager: who starts and ends workers there.
        connect: makes a transport; raises ClusterError.
        root: the folder of the mirrors.
        run_id: the run's.
        settings: the run's.
        claimant: who wants the workers; by default this process.
        push: makes deltas of models, for all links of the run.
        clock: seconds that never go back.
        draw: uniformly random in [0, 1).

    Raises:
        OSError: this machine's disk does not take the mirrors.
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
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.machine, self.name = machine, machine.name
        self.arrived: deque[tuple[str, str]] = deque()  # (seat, file) that have come into a mirror's outbox
        self.news: deque[str] = deque()  # what is worth a line in the log
        self.done = False  # the machine has been left; nothing more is to be done
        distributed = settings.distributed
        self.timing = Timing(offline_seconds=distributed.offline_seconds, retry_seconds=distributed.retry_seconds)
        self._poll_seconds = distributed.heartbeat_seconds / 2
        self._sync_interval = (
            distributed.sync_interval if settings.training.asynchronous else 0
        )  # else an iteration has one model
        self._process_manager, self._connect, self._root, self._run_id = process_manager, connect, root, run_id
        self._clock, self._draw = clock, draw
        self._claimant = claimant or Claimant(owner=owner_here(run_id, lease_seconds=distributed.lease_seconds))
        self._wanted: dict[str, Assignment] = {}
        self._model: PublishedModel | None = None
        self._players: Mapping[Contestant, bytes] = {}
        self._push = push or ModelPush()
        self._commands: deque[tuple[str, Restart | Stop | None]] = deque()  # None: take it over
        self._leaving: Leaving | None = None
        self._transport: Transport | None = None
        self._transferred = 0  # by earlier connections
        self._failures, self._retry_at, self._tried_at = 0, clock(), NEVER
        self._inspected = False
        self._workers = {name: self._remote_worker(WorkerSlot(name)) for name in expected_workers(machine, root)}
        self.report = self._reported()

    # What the Coach's thread wants.

    def assign(self, worker: str, assignment: Assignment) -> None:
        """Have a worker be given this assignment; the model that it names is replaced by the one that lies there."""
        self._wanted[worker] = assignment

    def publish(self, model: PublishedModel) -> None:
        """Have all workers play with this model, each when it is its turn."""
        self._model = model

    def bring(self, players: Mapping[Contestant, bytes]) -> None:
        """Have all workers be given these models for evaluation games, before an assignment that names them."""
        self._players = dict(players)

    def command(self, name: str, event: Restart | Stop) -> None:
        """Restart or stop a worker, or with the machine's name, all of them."""
        self._commands.append((name, event))

    def take_over(self, name: str) -> None:
        """Take a worker over, or with the machine's name, all of them, whoever has it; its games are set aside for that
        run.
        """
        self._commands.append((name, None))

    def leave(self, *, drain: bool, seconds: float) -> None:
        """Leave the machine, with ``drain`` after the games under way; after ``seconds`` at the latest nothing of ours
        is to run there.
        """
        now = self._clock()
        self._leaving = Leaving(drain=drain, begun=now, until=now + seconds)

    # The step.

    def step(self) -> float:
        """Do what is to be done now; returns the seconds after which to step again.

        Raises nothing: what goes wrong is in the report.
        """
        try:
            delay = self._step()
        except Refused as error:
            delay = self._cut(TurnedDown(reason(error)), SLOW_RETRY_SECONDS)
        except Unreachable as error:
            delay = self._cut(Lost(reason(error)), self._retry_seconds())
        except (RemoteFailure, OSError) as error:
            delay = self._cut(TurnedDown(reason(error)), self._retry_seconds())
        except Exception as error:
            log.exception("%s: unexpected", self.name)
            text = f"unexpected {type(error).__name__}: {error}; please report it, with the log"
            delay = self._cut(TurnedDown(text), SLOW_RETRY_SECONDS)
        self._renew_report()
        return delay

    def _step(self) -> float:
        self._take_commands()
        if self._transport is None:
            if self._is_given_up():
                self.done = True
                return 0.0
            if self._clock() < self._retry_at and not self._leaving_at_once:
                self._feed_all(Tick())
                return min(self._poll_seconds, self._retry_at - self._clock())
            self._tried_at = self._clock()
            self._transport = self._connect()
            self._make_ready(self._transport)
        for worker in list(self._workers.values()):
            if not worker.ended:
                worker.poll(
                    self._transport,
                    lambda worker=worker: self._desired(worker.name),  # type: ignore[misc]
                    beside=self._holder,
                    is_turn=lambda worker=worker: self._is_turn(worker),  # type: ignore[misc]
                )
        if self._leaving:
            self._end_workers(self._leaving, self._transport)
            return LEAVING_POLL_SECONDS
        return 0.0 if any(worker.mirror.more for worker in self._workers.values()) else self._poll_seconds

    def _take_commands(self) -> None:
        while self._commands:
            name, event = self._commands.popleft()
            for worker in self._workers.values():
                if name in (self.name, worker.name):
                    worker.feed(event) if event else worker.mirror.claim.take_over()
            self._failures, self._retry_at = 0, self._clock()

    def _make_ready(self, transport: Transport) -> None:
        """See that the machine can play, and where."""
        slots = self._process_manager.prepare(transport, self._busy_with, lambda: self._leaving is None)
        for slot in slots:
            worker = self._workers.setdefault(slot.name, self._remote_worker(slot))
            worker.slot, worker.retired = slot, False
        self._inspected, self._failures = True, 0
        for worker in self._workers.values():
            worker.claimed = False
            worker.feed(Connected())
        for name in self._workers.keys() - {
            slot.name for slot in slots
        }:  # an earlier session's: their games are still fetched
            self._workers[name].retired = True
            self._workers[name].feed(Stop())
        names = ", ".join(slot.name for slot in slots)
        self._log_event(f"connected; {'its worker is' if len(slots) == 1 else 'its workers are'} {names}")

    def _desired(self, name: str) -> DesiredState | None:
        wanted, model = self._wanted.get(name), self._model
        if wanted is None or model is None:
            return None
        return DesiredState(
            assignment=wanted, model=model, sync_interval=self._sync_interval, players=self._players, push=self._push
        )

    def _holder(self, sha256: str) -> str | None:
        """A worker of this machine that has been given the model in this connection."""
        return next(
            (worker.name for worker in self._workers.values() if worker.claimed and worker.mirror.sha256 == sha256),
            None,
        )

    def _is_turn(self, worker: RemoteWorker) -> bool:
        """Whether the worker may be started: not while the run ends; and until one is ready, one at a time: the first
        compiles for all.
        """
        if self._leaving and (not self._leaving.drain or self._clock() >= self._leaving.until):
            return False
        others = [
            other
            for other in self._workers.values()
            if other is not worker and other.state.running and not other.retired
        ]
        return not others or any(other.is_ready for other in others)

    # The end.

    def _is_given_up(self) -> bool:
        """Whether a machine that is to be left and cannot be reached is left as it is; at the end of a run, after one
        more try.
        """
        if self._leaving is None:
            return False
        if self._leaving_at_once:
            return self._tried_at >= self._leaving.begun
        return not self._inspected or self._clock() >= self._leaving.begun + UNREACHABLE_SECONDS

    @property
    def _leaving_at_once(self) -> bool:
        """Whether the run ends."""
        return self._leaving is not None and not self._leaving.drain

    def _end_workers(self, leaving: Leaving, transport: Transport) -> None:
        """End each worker that has nothing more to do, or no more time."""
        for worker in self._workers.values():
            if not worker.ended and not worker.goes_on(leaving):
                worker.end(transport, leaving)
        if all(worker.ended for worker in self._workers.values()):
            self._disconnect()
            self._feed_all(Lost("the machine has been left"))
            self.done = True

    # Small things.

    def _cut(self, event: Lost | TurnedDown, seconds: float) -> float:
        """Drop the connection, and try again after so long."""
        if event.reason not in (worker.state.lost for worker in self._workers.values()):
            self._log_event(event.reason)
        self._disconnect()
        self._failures += 1
        self._retry_at = self._clock() + seconds
        self._feed_all(event)
        return 0.0 if self._is_given_up() else min(seconds, self._poll_seconds)

    def _disconnect(self) -> None:
        if self._transport is not None:
            self._transferred += self._transport.sent + self._transport.received
            self._transport.close()
            self._transport = None

    def _retry_seconds(self) -> float:
        return retry_after(self._failures, draw=self._draw(), timing=self.timing)

    def _busy_with(self, text: str) -> None:
        self._feed_all(Busy(text))
        self._renew_report()

    def _feed_all(self, event: Event) -> None:
        for worker in self._workers.values():
            worker.feed(event)

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
            changed=self._renew_report,
            python=self.machine.python,
            clock=self._clock,
        )

    def _renew_report(self) -> None:
        self.report = self._reported()

    def _reported(self) -> MachineReport:
        now = 0 if self._transport is None else self._transport.sent + self._transport.received
        reports = tuple(worker.report() for worker in self._workers.values() if not worker.retired)
        return MachineReport(workers=reports, inspected=self._inspected, transferred=self._transferred + now)


def expected_workers(machine: WorkerSettings, root: Path) -> list[str]:
    """The seats that a machine had in an earlier session; else those that it most likely has."""
    if machine.gpu_ids and len(machine.gpu_ids) > 1:
        return [f"{machine.name}-{number}" for number, _ in enumerate(machine.gpu_ids, start=1)]
    split = [path.parent.name.rpartition("-") for path in root.glob(f"*/{MARK}")]
    numbers = sorted(int(number) for name, _, number in split if name == machine.name and number.isdecimal())
    return [f"{machine.name}-{number}" for number in numbers] or [machine.name]
