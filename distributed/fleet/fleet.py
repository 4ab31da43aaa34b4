"""The machines of a cluster as one backend: each is linked by a thread of its own, and none of them ever makes the
Coach wait.

The Coach's calls work on memory and on the mirrors, which lie on this machine. All of them come from one thread, the
Coach's; the threads of the links touch nothing but their links and mirrors.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from configs.schema import Settings, WorkerSettings
from distributed.fleet.balancer import Balance, Decision, WorkerLoad, balance
from distributed.fleet.machine_connection import MachineConnection
from distributed.fleet.mirror import waiting_files
from distributed.fleet.network_metrics import NetworkMetrics
from distributed.fleet.ownership import Claimant, owner_here
from distributed.fleet.remote_worker import READY, WorkerReport
from distributed.fleet.views import FleetView, WorkerView
from distributed.fleet.worker_state import Mark, Restart, Stop, WorkerState, seen_at
from distributed.fleet.worker_view import worker_view
from distributed.setup.process_manager import ProcessManager
from distributed.ssh.transport import Transport
from games import Game
from training.common.files import read_limited
from training.networks.model_file import content_sha256
from training.run.backend import FolderBackend, PendingBatch
from training.worker.model_push import ModelPush, PublishedModel
from training.worker.worker_folder import Assignment, Heartbeat

log = logging.getLogger(__name__)

CLOSE_SECONDS = 20.0  # the machines get so long to hand over what is finished
PATIENCE_SECONDS = 5.0  # and their threads so long beyond
DRAIN_SECONDS = 120.0  # a machine that is removed gets so long to finish the games under way
SHARES_SECONDS = 60.0  # between two lines about shares in the log
LOST = (Mark.ERROR, Mark.OFFLINE)


class _ConnectionThread:
    """A link and the thread that steps it."""

    def __init__(self, connection: MachineConnection) -> None:
        self.connection = connection
        self.leaving = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"connection-{connection.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Have the link look at once what is wanted."""
        self._wake.set()

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end; False when it has not come."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self.connection.done:
            delay = self.connection.step()
            self._wake.wait(delay)
            self._wake.clear()


class Fleet(FolderBackend):
    """The machines of the config, and those that are added later.

    Args:
        root: the folder of the mirrors.
        machines: as the config has them; all are connected at once.
        game: what they play.
        settings: the run's.
        run_id: the run's.
        connect: makes a transport to a machine; raises ClusterError.
        process_manager: who starts and ends the workers of a machine.
        claimant: who wants the workers; by default this process.
        log_event: is told, from the Coach's thread, what is worth a line in the log.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        root: Path,
        machines: Sequence[WorkerSettings],
        *,
        game: Game,
        settings: Settings,
        run_id: str,
        connect: Callable[[WorkerSettings], Transport],
        process_manager: Callable[[WorkerSettings], ProcessManager],
        claimant: Claimant | None = None,
        log_event: Callable[[str], None] = log.warning,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(root, (), game=game, settings=settings, run_id=run_id)
        self.workers: tuple[str, ...] = ()
        self._connect, self._process_manager, self._log_event, self._clock = connect, process_manager, log_event, clock
        self._claimant = claimant or Claimant(
            owner=owner_here(run_id, lease_seconds=settings.distributed.lease_seconds)
        )
        self._threads: dict[str, _ConnectionThread] = {}  # by machine
        self._places: dict[str, _ConnectionThread] = {}  # by worker
        self._shown: set[str] = set()  # workers whose account the Coach has told
        self._published: PublishedModel | None = None
        self._push = ModelPush(deltas=settings.distributed.compression, guard=threading.Lock())
        self._metrics, self._shares_logged = NetworkMetrics(clock()), clock()
        self._balance, self._decisions = Balance(), dict[str, Decision]()
        self._earlier_traffic = 0  # of machines that have been left
        self._waiting = waiting_files(root, run_id)  # worker -> files in its mirror's outbox
        for machine in machines:
            self.add(machine)
        self._claimant = replace(self._claimant, takeover=False)  # which was said of those that were listed then

    # What the Coach asks for.

    def publish(self, version: int, model: bytes) -> None:
        """See ``SelfPlayBackend``."""
        self._published = PublishedModel(version=version, data=model, sha256=content_sha256(model))
        self._model = (version, self._published.sha256)
        self._metrics.published(version, self._clock())
        for worker in self._places:
            self._accounts.setdefault(worker, (0, 0))
            self._shown.add(worker)
            self._assign(worker)
        for thread in self._threads.values():
            thread.connection.publish(self._published)
            thread.wake()

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        """See ``SelfPlayBackend``."""
        if worker in self._places and worker not in self._shown:
            self._accounts[worker] = (granted, delivered)
            self._shown.add(worker)
            self._assign(worker)
            self._places[worker].wake()
            return
        more = granted > self._accounts.get(worker, (granted, 0))[0]
        super().grant(worker, granted=granted, delivered=delivered)
        heartbeat = self._seen(worker)
        if more and heartbeat and heartbeat.state == "waiting":
            self._places[worker].wake()

    def share_out(self, outstanding: Mapping[str, int], ahead: int) -> dict[str, int]:
        """See ``SelfPlayBackend``; by weights and speeds, to those who can play now."""
        distributed = self._settings.distributed
        self._balance, self._decisions = balance(
            self._balance,
            self._loads(),
            self._clock(),
            ahead=ahead,
            batch_games=distributed.batch_size,
            load_balancing=distributed.load_balancing,
        )
        for worker, decision in self._decisions.items():
            if decision.lower is not None:
                self.lower(worker, decision.lower)
        if self._clock() - self._shares_logged >= SHARES_SECONDS and self._decisions:
            self._shares_logged = self._clock()
            log.info(
                "shares: %s",
                "; ".join(f"{name} {each.share:.1%} ({each.reason})" for name, each in self._decisions.items()),
            )
        return {worker: decision.grant for worker, decision in self._decisions.items()}

    def collect(self) -> list[PendingBatch]:
        """See ``SelfPlayBackend``."""
        self._take_in_reports()
        now = self._clock()
        for worker in self._shown & self._places.keys():
            if now >= self._renew_at.get(worker, 0.0):
                self._assign(worker)
        return [
            PendingBatch(
                worker=worker,
                batch_id=name.removesuffix(".games"),
                fetch=partial(read_limited, self.root / worker / "outbox" / name),
            )
            for worker in sorted(self._waiting)
            for name in sorted(self._waiting[worker])
        ]

    def release(self, batch: PendingBatch, *, delivered: int, refused: str = "") -> None:
        """See ``SelfPlayBackend``; the copy on the worker is deleted after it has been told of the raised account."""
        self._judge(batch, refused)
        if batch.worker in self._shown:  # else it is told nothing before its account is known
            self.grant(batch.worker, granted=self._accounts[batch.worker][0], delivered=delivered)
        (self.root / batch.worker / "outbox" / (name := f"{batch.batch_id}.games")).unlink(missing_ok=True)
        self._waiting.get(batch.worker, set()).discard(name)

    def hosts(self) -> list[str]:
        """See ``FolderBackend``."""
        return list(self._loads())

    def status(self) -> dict[str, Heartbeat | None]:
        """See ``SelfPlayBackend``; a worker that cannot play now says why, and plays nothing."""
        heartbeats: dict[str, Heartbeat | None] = {}
        for thread, report in self._reports():
            state, heartbeat = self._state(thread, report), report.heartbeat
            if state.mark in LOST:
                last = heartbeat or Heartbeat(run_id=self._run_id, worker=report.name, beat=0, pid=0, state="error")
                silent = {"games_per_second": 0.0, "evaluations_per_second": 0.0}
                heartbeat = last.model_copy(update={"state": "error", "error": state.reason[:1000], **silent})
            heartbeats[report.name] = heartbeat
        return heartbeats

    def close(self) -> None:
        """See ``SelfPlayBackend``; machines that cannot be reached are left as they are: their workers end by
        themselves.
        """
        self._stop = True
        for worker in self._shown & self._places.keys():
            self._assign(worker)
        deadline = self._clock() + CLOSE_SECONDS
        for thread in self._threads.values():
            thread.connection.leave(drain=False, seconds=deadline - self._clock())
            thread.wake()
        for name, thread in self._threads.items():
            if not thread.join(deadline + PATIENCE_SECONDS - self._clock()):
                self._log_event(
                    f"{name}: there was no time to end its workers; they end by themselves when nobody renews their lease"
                )
        self._take_in_reports()

    # What the user asks for.

    def add(self, machine: WorkerSettings) -> None:
        """Take in a machine, at any time.

        Raises:
            ValueError: there is one of this name, or the run ends.
            OSError: this machine's disk does not take its mirrors.
        """
        if self._stop:
            raise ValueError(f"{machine.name} cannot be added: the run ends")
        if machine.name in self._threads:
            raise ValueError(f"there is a worker {machine.name} already; if it is being removed, try again in a moment")
        connection = MachineConnection(
            machine,
            process_manager=self._process_manager(machine),
            connect=partial(self._connect, machine),
            root=self.root,
            run_id=self._run_id,
            settings=self._settings,
            claimant=self._claimant,
            push=self._push,
            clock=self._clock,
        )
        if self._published:
            connection.publish(self._published)
        connection.bring(self._players)
        self._threads[machine.name] = _ConnectionThread(connection)
        self._place()
        self._threads[machine.name].start()

    def remove(self, name: str) -> None:
        """Let a machine finish the games under way, take them in, and do without it from then on.

        Raises:
            ValueError: there is no such machine.
        """
        if name not in self._threads:
            raise ValueError(
                f"there is no machine {name} to remove; the machines are: {', '.join(self._threads) or 'none'}"
            )
        thread = self._threads[name]
        thread.leaving = True
        for worker in self._shown & {worker for worker, at in self._places.items() if at is thread}:
            self.lower(worker, 0)
        thread.connection.leave(drain=True, seconds=DRAIN_SECONDS)
        thread.wake()

    def restart(self, name: str) -> None:
        """End a worker, or all of a machine, and start it again, whatever has gone wrong before.

        Raises:
            ValueError: there is no such worker.
        """
        self._command(name, Restart())

    def stop(self, name: str) -> None:
        """End a worker, or all of a machine, until it is restarted.

        Raises:
            ValueError: there is no such worker.
        """
        self._command(name, Stop())

    def take_over(self, name: str) -> None:
        """Take a worker, or all of a machine, over from whoever has it; the games of that run are set aside for it.

        Raises:
            ValueError: there is no such worker.
        """
        self._command(name, None)

    @property
    def machines(self) -> tuple[WorkerSettings, ...]:
        """Those that are not being removed."""
        return tuple(thread.connection.machine for thread in self._threads.values() if not thread.leaving)

    def view(self) -> FleetView:
        """How everything stands, for people."""
        self._measure()
        views = tuple(self._worker_view(thread, report) for thread, report in self._reports())
        return FleetView(
            workers=views,
            games_per_second=sum(view.games_per_second for view in views),
            active=sum(view.mark is Mark.ACTIVE for view in views),
            total=len(views),
            sync_seconds=self._metrics.sync_seconds,
            network_mb_per_minute=self._metrics.mb_per_minute,
            model_version=self._model[0],
        )

    # What the links have to say.

    def _take_in_reports(self) -> None:
        """Take up what has happened since the last look."""
        for name, thread in list(self._threads.items()):
            done = thread.connection.done  # before the deques are emptied: nothing is added to them then
            while thread.connection.arrived:
                worker, file = thread.connection.arrived.popleft()
                self._waiting.setdefault(worker, set()).add(file)
            while thread.connection.news:
                self._log_event(thread.connection.news.popleft())
            if done and not self._stop:
                self._earlier_traffic += thread.connection.report.transferred
                del self._threads[name]
                self._log_event(f"{name} has been removed")
        self._place()
        if self._metrics.is_time(self._clock()):
            self._measure()

    def _place(self) -> None:
        """Which workers there are.

        One that has been lost for as long as a lease lasts is counted on no more, until it is back.
        """
        self._places = {
            report.name: thread for thread in self._threads.values() for report in thread.connection.report.workers
        }
        for worker in self._accounts.keys() - self._places.keys():
            del self._accounts[worker]
            self._lowered.pop(worker, None)
            self._shown.discard(worker)
        lease, now = self._settings.distributed.lease_seconds, self._clock()
        states = {report.name: self._state(thread, report) for thread, report in self._reports()}
        lost = {worker for worker, state in states.items() if state.mark in LOST and now - state.since > lease}
        self.workers = tuple(worker for worker in self._places if worker not in lost) or tuple(self._places)

    def _reports(self) -> list[tuple[_ConnectionThread, WorkerReport]]:
        return [(thread, report) for thread in self._threads.values() for report in thread.connection.report.workers]

    def _state(self, thread: _ConnectionThread, report: WorkerReport) -> WorkerState:
        """Its state now: a link that waits for a machine that does not answer cannot say so itself."""
        return seen_at(report.state, self._clock(), timing=thread.connection.timing)

    def _seen(self, worker: str) -> Heartbeat | None:
        if worker not in self._places:
            return None
        return next(
            (report.heartbeat for report in self._places[worker].connection.report.workers if report.name == worker),
            None,
        )

    def _loads(self) -> dict[str, WorkerLoad]:
        """Those who can be granted games: they play, and if they are being sent a model, play on meanwhile."""
        loads = {}
        weights = self._settings.distributed.worker_weights
        for thread, report in self._reports():
            state, heartbeat = self._state(thread, report), report.heartbeat
            able = state.mark is Mark.ACTIVE or (
                state.mark is Mark.SYNCING and state.connected and state.talks and state.state in READY
            )
            if able and heartbeat and not thread.leaving and report.name in self._shown:
                granted, delivered = self._accounts[report.name]
                loads[report.name] = WorkerLoad(
                    finished=min(
                        max(heartbeat.finished, delivered), granted
                    ),  # whatever it says, it was granted no more
                    granted=granted,
                    speed=heartbeat.speed,
                    parallel_games=heartbeat.parallel_games,
                    weight=weights.get(thread.connection.name, 1.0),
                )
        return loads

    def _worker_view(self, thread: _ConnectionThread, report: WorkerReport) -> WorkerView:
        return worker_view(
            report,
            self._state(thread, report),
            self._clock(),
            machine=thread.connection.name,
            leaving=thread.leaving,
            account=self._accounts.get(report.name, (0, 0)),
            decision=self._decisions.get(report.name),
            refused=self._refused.get(report.name, ""),
            weight=self._settings.distributed.worker_weights.get(thread.connection.name, 1.0),
        )

    def _measure(self) -> None:
        moved = self._earlier_traffic + sum(thread.connection.report.transferred for thread in self._threads.values())
        states = [(report, self._state(thread, report)) for thread, report in self._reports()]
        playing = [(state.model_version, report.model_since) for report, state in states if state.mark is Mark.ACTIVE]
        self._metrics.read(self._clock(), moved, playing)

    # Small things.

    def _assign(self, name: str) -> None:
        """Say what a worker is to do; its link writes it there."""
        if self._model[0] == 0 or name not in self._places:
            return
        self._places[name].connection.assign(name, self._assignment(name))
        if name in self._orders:
            self._places[name].wake()  # somebody waits for its games
        self._renew_at[name] = self._clock() + self._renewal_seconds()

    def _lay_players(self) -> None:
        for thread in self._threads.values():
            thread.connection.bring(self._players)

    def _assignment(self, name: str) -> Assignment:
        own = self._places[name].connection.machine.parallel_games
        assignment = super()._assignment(name)
        return assignment if own == "auto" else assignment.model_copy(update={"parallel_games": own})

    def _command(self, name: str, event: Restart | Stop | None) -> None:
        thread = self._threads.get(name) or self._places.get(name)
        if thread is None:
            raise ValueError(f"there is no worker {name}; the workers are: {', '.join(self._places) or 'none'}")
        thread.connection.command(name, event) if event else thread.connection.take_over(name)
        thread.wake()
