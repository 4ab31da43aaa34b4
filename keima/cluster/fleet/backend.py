"""The machines of a cluster as one backend. Each machine has a connection and a thread of its own, so no machine makes
the Coach wait.

The Coach's thread makes all calls. They read and write memory and the mirrors, which are local folders. The threads of
the connections use only their own connection and its mirrors.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from keima.base.reports.worker_status import ClusterNetwork, ClusterStatus, WorkerState, WorkerStatus
from keima.base.system.threads import SteppingThread, new_lock
from keima.cluster.fleet.balancer import Balance, Decision, WorkerLoad, balance_games
from keima.cluster.fleet.machine_connection import MachineConnection
from keima.cluster.fleet.mirror import find_waiting_files, read_core_hours
from keima.cluster.fleet.network_metrics import NetworkMetrics
from keima.cluster.fleet.ownership import Claimant, make_owner
from keima.cluster.fleet.process.messages import MachineInFleet
from keima.cluster.fleet.remote_status import current_heartbeat, make_remote_status
from keima.cluster.fleet.remote_worker import STARTED_ACTIVITIES
from keima.cluster.fleet.tracked_worker import LOST_STATES, Restart, Stop, Tick, TrackedWorker, state_at
from keima.cluster.machines.process_manager import ProcessManager
from keima.cluster.ssh.transport import Transport
from keima.coach.backends.assignments import RESERVE_SECONDS, AssignmentBook, GameChoice, GamesAccount
from keima.coach.backends.folder_matches import FolderMatches
from keima.coach.backends.pending_batch import PendingBatch, pending_batches
from keima.config.schema import Settings
from keima.config.sections.workers import WorkerSettings
from keima.evaluation.match_jobs import Contestant
from keima.networks.files.heading import stored_sha256
from keima.worker.model_push import ModelPush, PublishedModel
from keima.worker.worker_folder import Heartbeat, is_crowd_worker

log = logging.getLogger(__name__)

CLOSE_SECONDS = 20.0  # for all machines to deliver their finished games at the end of a run
PATIENCE_SECONDS = 5.0  # for their threads to end after that
DRAIN_SECONDS = 120.0  # for a removed machine to finish its games
CROWD_ANSWER_SECONDS = 40.0  # until a worker from outside, which reports every 2 to 20 s, has an answer
SHARES_SECONDS = 60.0  # between two log lines about shares


class _ConnectionThread(SteppingThread):
    """A connection and the thread that steps it."""

    def __init__(self, connection: MachineConnection) -> None:
        super().__init__(f"connection-{connection.name}", connection.step, lambda: connection.done)
        self.connection = connection
        self.leaving = False


class Fleet:
    """The machines of the config, and those that are added later. It is a ``SelfPlayBackend``.

    Args:
        root: the folder of the mirrors.
        machines: the machines of the config; all are connected at once.
        game: the game they play.
        settings: the run's settings.
        run_id: the run's id.
        connect: opens a transport to a machine; raises ClusterError.
        process_manager: returns what starts and stops the workers of a machine.
        claimant: the owner of the workers; by default this process.
        log_event: called in the Coach's thread with each line for the log.
        arrived: called there with the worker and the file when games have arrived.
        clock: a monotonic clock in seconds.

    Attributes:
        workers: the workers that may be granted games.
        states: the state of each worker at the last step.
    """

    def __init__(
        self,
        root: Path,
        machines: Sequence[WorkerSettings],
        *,
        game: GameChoice,
        settings: Settings,
        run_id: str,
        connect: Callable[[WorkerSettings], Transport],
        process_manager: Callable[[WorkerSettings], ProcessManager],
        claimant: Claimant | None = None,
        log_event: Callable[[str], None] = log.warning,
        arrived: Callable[[str, str], None] = lambda worker, file: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root = root
        self.workers: tuple[str, ...] = ()
        self.states: dict[str, WorkerState] = {}
        self._assignments = AssignmentBook(game=game, settings=settings, run_id=run_id, clock=clock)
        self._settings = settings
        self._connect, self._process_manager, self._log_event, self._clock = connect, process_manager, log_event, clock
        self._arrived = arrived
        self._claimant = claimant or Claimant(
            owner=make_owner(run_id, run_dir=root.parent, lease_seconds=settings.distributed.lease_seconds)
        )
        self._threads: dict[str, _ConnectionThread] = {}  # by machine
        self._places: dict[str, _ConnectionThread] = {}  # by worker
        self._published: PublishedModel | None = None
        self._push = ModelPush(deltas=settings.distributed.compression, guard=new_lock())
        self._metrics, self._shares_logged = NetworkMetrics(clock()), clock()
        self._balance, self._decisions = Balance(), dict[str, Decision]()
        self._told: dict[str, GamesAccount] = {}  # the accounts that the Coach has set, also of workers that have left
        self._earlier_traffic = 0  # bytes, of machines that have left
        self._waiting = find_waiting_files(root, run_id)  # worker -> files in its mirror's outbox
        self._core_hours = read_core_hours(root, run_id)  # by worker, also of those that have left
        for machine in machines:
            self.add(machine)
        self._claimant = replace(self._claimant, takeover=False)  # applies only to the machines of the config

    # What the Coach calls.

    def publish(self, version: int, model: bytes) -> None:
        """See ``SelfPlayBackend``."""
        self._published = PublishedModel(version=version, data=model, sha256=stored_sha256(model))
        self._assignments.set_model(version, self._published.sha256)
        self._metrics.note_publication(version, self._clock())
        for worker in self._places:
            account = self._assignments.account(worker)
            self._assignments.set_account(worker, granted=account.granted, delivered=account.delivered)
            self._send_assignment(worker)
        for thread in self._threads.values():
            thread.connection.publish(self._published)
            thread.wake()

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        """See ``SelfPlayBackend``."""
        self._told[worker] = GamesAccount(granted=granted, delivered=delivered)
        if worker not in self._places:
            return
        is_new = not self._assignments.has_account(worker)
        more = granted > self._assignments.account(worker).granted
        if self._assignments.set_account(worker, granted=granted, delivered=delivered):
            self._send_assignment(worker)
        heartbeat = self._last_heartbeat(worker)
        if is_new or (more and heartbeat and heartbeat.state == "waiting"):
            self._places[worker].wake()

    def plan_grants(self, outstanding: Mapping[str, int], ahead: int) -> dict[str, int]:
        """See ``SelfPlayBackend``; shares follow weights and speeds, among the workers that can play now."""
        distributed = self._settings.distributed
        self._balance, self._decisions = balance_games(
            self._balance,
            self._worker_loads(),
            self._clock(),
            ahead=ahead,
            batch_games=distributed.batch_size,
            load_balancing=distributed.load_balancing,
        )
        for worker, decision in self._decisions.items():
            if decision.lower is not None:
                self.lower_grant(worker, decision.lower)
        if self._clock() - self._shares_logged >= SHARES_SECONDS and self._decisions:
            self._shares_logged = self._clock()
            log.info(
                "shares: %s",
                "; ".join(f"{name} {each.share:.1%} ({each.reason})" for name, each in self._decisions.items()),
            )
        return {worker: decision.grant for worker, decision in self._decisions.items()}

    def withdrawn(self) -> dict[str, int]:
        """See ``SelfPlayBackend``."""
        return self._assignments.withdrawn(self.heartbeats)

    def step(self) -> None:
        """Process everything that has happened since the last call, and renew the leases that are due."""
        self._process_events()
        for worker in self._assignments.workers:
            if self._assignments.is_due(worker):
                self._send_assignment(worker)

    def collect(self) -> list[PendingBatch]:
        """See ``SelfPlayBackend``."""
        self.step()
        return pending_batches(self.root, self._waiting)

    def release(self, batch: PendingBatch, *, delivered: int, refused: str = "") -> None:
        """See ``SelfPlayBackend``; the worker's copy is deleted after its assignment counts the games."""
        self._assignments.record_receipt(batch.worker, batch.batch_id, refused)
        if batch.worker in self._told:  # else nothing is assigned before the Coach has set the account
            self.grant(batch.worker, granted=self._told[batch.worker].granted, delivered=delivered)
        name = batch.file_name
        (self.root / batch.worker / "outbox" / name).unlink(missing_ok=True)
        self._waiting.get(batch.worker, set()).discard(name)

    def heartbeats(self) -> dict[str, Heartbeat | None]:
        """See ``SelfPlayBackend``; the heartbeat of a worker that cannot play has the reason and no speed."""
        run_id = self._assignments.run_id
        return {worker.name: current_heartbeat(worker, run_id) for _, worker in self._tracked_workers()}

    def cluster(self) -> ClusterStatus:
        """See ``SelfPlayBackend``."""
        self._measure_network()
        workers = tuple(self._worker_status(thread, worker) for thread, worker in self._tracked_workers())
        left = self._core_hours.keys() - {worker.name for worker in workers}
        return ClusterStatus(
            workers=workers,
            earlier_core_hours=sum(self._core_hours[name] for name in left),
            network=ClusterNetwork(
                model_version=self._assignments.model_version,
                sync_seconds=self._metrics.sync_seconds,
                network_mb_per_minute=self._metrics.mb_per_minute,
            ),
        )

    def match_executors(self) -> FolderMatches:
        """See ``SelfPlayBackend``."""
        return FolderMatches(
            self.root,
            self._assignments,
            assign=self._send_assignment,
            send_players=self._send_players,
            ready_workers=self.ready_workers,
            heartbeats=self.heartbeats,
        )

    def close(self) -> None:
        """See ``SelfPlayBackend``; workers on unreachable machines end by themselves."""
        self._assignments.stop()
        for worker in self._assignments.workers:
            self._send_assignment(worker)
        deadline = self._clock() + CLOSE_SECONDS
        for thread in self._threads.values():
            thread.connection.leave(drain=False, seconds=deadline - self._clock())
            thread.wake()
        for name, thread in self._threads.items():
            if not thread.join(deadline + PATIENCE_SECONDS - self._clock()):
                self._log_event(
                    f"{name}: there was no time to end its workers; they exit on their own when their lease expires"
                )
        self._process_events()

    # What the user asks for.

    def add(self, machine: WorkerSettings) -> None:
        """Add a machine, at any time.

        Raises:
            ValueError: there is a machine of this name, or the run is ending.
            OSError: the machine's mirrors cannot be written.
        """
        if self._assignments.is_stopped:
            raise ValueError(f"{machine.name} cannot be added: the run is ending")
        if machine.name in self._threads:
            raise ValueError(f"there is a worker {machine.name} already; if it is being removed, try again in a moment")
        connection = MachineConnection(
            machine,
            process_manager=self._process_manager(machine),
            connect=partial(self._connect, machine),
            root=self.root,
            run_id=self._assignments.run_id,
            settings=self._settings,
            claimant=self._claimant,
            push=self._push,
            clock=self._clock,
        )
        if self._published:
            connection.publish(self._published)
        connection.set_players(self._assignments.players)
        self._threads[machine.name] = _ConnectionThread(connection)
        self._update_workers()
        self._threads[machine.name].start()

    def remove(self, name: str) -> None:
        """Remove a machine after it has finished and delivered its current games.

        Raises:
            ValueError: there is no such machine.
        """
        if name not in self._threads:
            raise ValueError(
                f"there is no machine {name} to remove; the machines are: {', '.join(self._threads) or 'none'}"
            )
        thread = self._threads[name]
        thread.leaving = True
        for worker in self._assignments.workers:
            if self._places[worker] is thread:
                self.lower_grant(worker, 0)
        thread.connection.leave(drain=True, seconds=DRAIN_SECONDS)
        thread.wake()

    def restart(self, name: str) -> None:
        """End and restart a worker, or all workers of a machine, whatever state they are in.

        Raises:
            ValueError: there is no such worker.
        """
        self._send_command(name, Restart())

    def stop(self, name: str) -> None:
        """End a worker, or all workers of a machine, until ``restart``.

        Raises:
            ValueError: there is no such worker.
        """
        self._send_command(name, Stop())

    def take_over(self, name: str) -> None:
        """Take a worker, or all workers of a machine, from another Coach; games of that Coach's run are set aside.

        Raises:
            ValueError: there is no such worker.
        """
        self._send_command(name, None)

    def retry(self, name: str) -> None:
        """Try a machine again at once, because what was wrong with it may be put right.

        Raises:
            ValueError: there is no such worker.
        """
        self._send_command(name, Tick())

    @property
    def machines(self) -> tuple[WorkerSettings, ...]:
        """The machines that are not being removed."""
        return tuple(thread.connection.machine for thread in self._threads.values() if not thread.leaving)

    def export_machines(self) -> tuple[MachineInFleet, ...]:
        """Return all machines, with what users have asked for, so that another fleet can adopt them."""
        return tuple(
            MachineInFleet(
                machine=thread.connection.machine,
                leaving=thread.leaving,
                stopped=tuple(each.name for each in thread.connection.snapshot.workers if each.stopped),
            )
            for thread in self._threads.values()
        )

    def import_machines(self, machines: Iterable[MachineInFleet]) -> None:
        """Adopt another fleet's machines, with what users have asked for."""
        for each in machines:
            for worker in each.stopped:
                self.stop(worker)
            if each.leaving:
                self.remove(each.machine.name)

    # What the connections report.

    def _process_events(self) -> None:
        """Process everything that has happened since the last call."""
        for name, thread in list(self._threads.items()):
            done = thread.connection.done  # read before the deques are emptied: nothing is added to them afterwards
            while thread.connection.arrived:
                worker, file = thread.connection.arrived.popleft()
                self._waiting.setdefault(worker, set()).add(file)
                self._arrived(worker, file)
            while thread.connection.news:
                self._log_event(thread.connection.news.popleft())
            if done and not self._assignments.is_stopped:
                self._earlier_traffic += thread.connection.snapshot.bytes_transferred
                del self._threads[name]
                self._log_event(f"{name} has been removed")
        self._update_workers()
        if self._metrics.is_reading_due(self._clock()):
            self._measure_network()

    def _update_workers(self) -> None:
        """Update which workers there are, and which of them may be granted games.

        A worker that has been lost, or has waited in a scheduler's queue, for longer than a lease gets no games until
        it is back.
        """
        tracked = self._tracked_workers()
        self._places = {worker.name: thread for thread, worker in tracked}
        for worker in self._assignments.workers:
            if worker not in self._places:
                self._assignments.close_account(worker)
        for worker in self._places.keys() & self._told.keys() - set(self._assignments.workers):  # it has come back
            account = self._told[worker]
            self._assignments.set_account(worker, granted=account.granted, delivered=account.delivered)
            self._send_assignment(worker)
        for _, each in tracked:
            if each.quiet_until and self._assignments.has_account(each.name):
                self.lower_grant(each.name, 0)  # it finishes its games, and others get the rest
        lease, now = self._settings.distributed.lease_seconds, self._clock()
        self.states = {worker.name: worker.state for _, worker in tracked}
        lost = {
            worker.name
            for _, worker in tracked
            if (worker.state in LOST_STATES or worker.waits_for) and now - worker.since > lease
        }
        self.workers = tuple(worker for worker in self._places if worker not in lost) or tuple(self._places)

    def _tracked_workers(self) -> list[tuple[_ConnectionThread, TrackedWorker]]:
        """Return all workers as they are now: a connection that waits for a silent machine cannot update them."""
        now = self._clock()
        return [
            (thread, state_at(worker, now, timing=thread.connection.timing))
            for thread in self._threads.values()
            for worker in thread.connection.snapshot.workers
        ]

    def ready_workers(self) -> list[str]:
        """Return the workers that can play evaluation games now; those that joined from outside are not believed."""
        return [worker for worker in self._worker_loads() if not is_crowd_worker(worker)]

    def _last_heartbeat(self, worker: str) -> Heartbeat | None:
        workers = self._places[worker].connection.snapshot.workers
        return next((each.heartbeat for each in workers if each.name == worker), None)

    def _worker_loads(self) -> dict[str, WorkerLoad]:
        """Return the workers that can be granted games: Active ones, and those that play while a model is sent."""
        loads = {}
        for thread, worker in self._tracked_workers():
            heartbeat = worker.heartbeat
            can_play = worker.state is WorkerState.ACTIVE or (
                worker.state is WorkerState.SYNCING
                and worker.connected
                and worker.has_reported
                and worker.activity in STARTED_ACTIVITIES
            )
            is_leaving = thread.leaving or worker.quiet_until
            if can_play and heartbeat and not is_leaving and self._assignments.has_account(worker.name):
                account = self._assignments.account(worker.name)
                finished = max(heartbeat.finished, account.delivered)
                answer_seconds = 2 * self._settings.distributed.heartbeat_seconds + RESERVE_SECONDS
                if is_crowd_worker(worker.name):  # only what has come counts, and a batch that may be on its way
                    finished = min(finished, account.delivered + self._settings.distributed.batch_size)
                    answer_seconds = CROWD_ANSWER_SECONDS
                loads[worker.name] = WorkerLoad(
                    finished=min(finished, account.granted),  # a worker cannot claim more than it was granted
                    granted=account.granted,
                    speed=heartbeat.speed,
                    parallel_games=heartbeat.parallel_games,
                    weight=self._machine_weight(thread),
                    answer_seconds=answer_seconds,
                )
        return loads

    def _worker_status(self, thread: _ConnectionThread, worker: TrackedWorker) -> WorkerStatus:
        account, decision = self._assignments.account(worker.name), self._decisions.get(worker.name)
        heartbeat = current_heartbeat(worker, self._assignments.run_id)
        used = max(self._core_hours.get(worker.name, 0.0), heartbeat.core_hours if heartbeat else 0.0)
        self._core_hours[worker.name] = used
        return make_remote_status(
            worker,
            heartbeat,
            self._clock(),
            core_hours=used,
            leaving=thread.leaving,
            refused=self._assignments.refusals.get(worker.name, ""),
            machine=thread.connection.name,
            outstanding=account.granted - account.delivered,
            share=decision.share if decision else 0.0,
            weight=self._machine_weight(thread),
            sent=thread.connection.snapshot.sent,
            received=thread.connection.snapshot.received,
        )

    def _machine_weight(self, thread: _ConnectionThread) -> float:
        return self._settings.distributed.worker_weights.get(thread.connection.name, 1.0)

    def _measure_network(self) -> None:
        moved = self._earlier_traffic + sum(
            thread.connection.snapshot.bytes_transferred for thread in self._threads.values()
        )
        playing = [
            (worker.model_version, worker.model_since)
            for _, worker in self._tracked_workers()
            if worker.state is WorkerState.ACTIVE
        ]
        self._metrics.add_reading(self._clock(), moved, playing)

    # What the connections are given.

    def lower_grant(self, worker: str, granted: int) -> None:
        """Keep a worker from starting games beyond ``granted``: see ``AssignmentBook.lower_grant``."""
        if self._assignments.lower_grant(worker, granted):
            self._send_assignment(worker)

    def _send_assignment(self, worker: str) -> None:
        """Pass the worker's current assignment to its connection, which writes it on the machine."""
        if self._assignments.model_version == 0 or worker not in self._places:
            return
        thread = self._places[worker]
        own = thread.connection.machine.parallel_games
        assignment = self._assignments.next_assignment(worker, parallel_games=None if own == "auto" else own)
        if is_crowd_worker(worker):  # they play no matches, and nobody would empty their inboxes of players
            assignment = assignment.model_copy(update={"players": (), "matches": ()})
        thread.connection.assign(worker, assignment)
        if worker in self._assignments.jobs:
            thread.wake()  # the Coach is waiting for evaluation games

    def _send_players(self, players: Mapping[Contestant, bytes]) -> None:
        for thread in self._threads.values():
            thread.connection.set_players(players)

    def _send_command(self, name: str, event: Restart | Stop | Tick | None) -> None:
        thread = self._threads.get(name) or self._places.get(name)
        if thread is None:
            raise ValueError(f"there is no worker {name}; the workers are: {', '.join(self._places) or 'none'}")
        thread.connection.queue_command(name, event) if event else thread.connection.take_over(name)
        thread.wake()
