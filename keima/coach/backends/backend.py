"""The Coach's view of its workers, and the simplest backend: one worker in this process.

A backend has named workers. The Coach grants each a number of games (``grant``), publishes models, collects the
finished batches, and releases each batch once it is stored. ``tests/coach/test_backends.py`` tests every
backend.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from keima.base.files import remove_stale_parts, write_atomically
from keima.base.reports.worker_status import ClusterStatus
from keima.coach.backends.assignments import RESERVE_SECONDS, AssignmentBook
from keima.coach.backends.folder_matches import FolderMatches
from keima.coach.backends.pending_batch import PendingBatch, batch_in
from keima.config.schema import Settings
from keima.evaluation.match_jobs import Contestant
from keima.evaluation.remote_matches import MatchExecutors
from keima.games import Game
from keima.networks.files.heading import stored_sha256
from keima.worker.spool import salvage_games_if_idle
from keima.worker.worker_class import load_worker_class
from keima.worker.worker_folder import BrokenMessage, Heartbeat, WorkerFolder, is_batch_of_run

log = logging.getLogger(__name__)


class SelfPlayBackend(Protocol):
    """The workers of a run.

    Whatever cannot be written or reached now is retried at the next call; nothing is lost meanwhile.
    """

    @property
    def workers(self) -> Sequence[str]:
        """The workers that may be granted games. A worker that has failed for good is not among them."""

    def publish(self, version: int, model: bytes) -> None:
        """Give all workers a new model; they switch to it while they play.

        The first model starts the workers, so set their accounts before.
        """

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        """Let ``worker`` play up to ``granted`` games in all, of which ``delivered`` are stored here.

        The backend keeps this grant for a worker that leaves and comes back.
        """

    def plan_grants(self, outstanding: Mapping[str, int], ahead: int) -> dict[str, int]:
        """Return how many more games to grant each worker now, so that each has ``ahead`` games that it has not begun.

        Args:
            outstanding: games that each worker has been granted and has not delivered.
            ahead: 0: grant none.
        """

    def withdrawn(self) -> dict[str, int]:
        """Return, for each worker, how many of its granted games it has not begun and will not begin.

        A worker is listed until ``grant`` lowers its account.
        """

    def collect(self) -> list[PendingBatch]:
        """Return the batches that are ready, oldest first for each worker, and renew the leases.

        They include batches of workers that have failed or left. A backend without processes plays here.
        """

    def release(self, batch: PendingBatch, *, delivered: int, refused: str = "") -> None:
        """Acknowledge that the batch is stored: raise the worker's account to ``delivered`` games, then delete its
        copy.

        Args:
            refused: why the batch is in quarantine (empty: it is not). The worker shows it until a good batch comes.
        """

    def heartbeats(self) -> Mapping[str, Heartbeat | None]:
        """Return the last heartbeat of each worker, including the failed ones; a new mapping whenever one changes."""

    def cluster(self) -> ClusterStatus | None:
        """Return the state of the cluster; None if this machine plays."""

    def match_executors(self) -> MatchExecutors | None:
        """Return the executors of evaluation games on the workers; None: the caller must play these games itself."""

    def close(self) -> None:
        """Let the workers deliver their finished games, and end them."""


class FolderBackend:
    """Workers whose folders lie on this machine. Subclasses run the workers.

    Args:
        root: the folder of the worker folders.
        names: the workers' names.
        game: the game they play.
        settings: the run's settings.
        run_id: the run's id.

    Attributes:
        workers: the workers that may be granted games.
        folders: the folder of each worker.
        assignments: the assignments of the workers.
        reserve_seconds: of play that a worker has ahead at least.
    """

    reserve_seconds = RESERVE_SECONDS

    def __init__(self, root: Path, names: Sequence[str], *, game: Game, settings: Settings, run_id: str) -> None:
        self.root = root
        self.workers = tuple(names)
        self.folders = {name: WorkerFolder(root / name).create_folders() for name in names}
        for folder in self.folders.values():
            folder.forget_heartbeat()  # an earlier session's
        for outbox in root.glob("*/outbox"):
            salvage_games_if_idle(WorkerFolder(outbox.parent))
        self.assignments = AssignmentBook(names, game=game, settings=settings, run_id=run_id)
        self._batch_games = settings.distributed.batch_size
        self._unwritten: set[str] = set()  # workers whose assignment could not be written
        self.given_up: dict[str, str] = {}  # workers that will play no more, and why: nobody would empty their inboxes

    def publish(self, version: int, model: bytes) -> None:
        """See ``SelfPlayBackend``."""
        for name, folder in self.folders.items():
            if name not in self.given_up:
                write_atomically(folder.model_path(version), model)
        self.assignments.set_model(version, stored_sha256(model))
        for name in self.folders:
            self.assign(name)

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        """See ``SelfPlayBackend``."""
        if worker in self.folders and self.assignments.set_account(worker, granted=granted, delivered=delivered):
            self.assign(worker)

    def plan_grants(self, outstanding: Mapping[str, int], ahead: int) -> dict[str, int]:
        """See ``SelfPlayBackend``; all workers have as many games ahead, but fast ones at least for a few seconds.

        Outstanding are also the games that a worker plays side by side, and those that wait until their batch is full.
        If these counted, a worker with few games ahead would begin no others until all of them have ended.
        """
        if ahead == 0:
            return dict.fromkeys(self.workers, 0)
        wanted = {}
        for worker, beat in self.heartbeats().items():
            reserve, playing = (math.ceil(self.reserve_seconds * beat.speed), beat.parallel_games) if beat else (0, 0)
            wanted[worker] = max(ahead, reserve) + playing + self._batch_games
        return {worker: max(0, wanted[worker] - outstanding[worker]) for worker in self.workers}

    def withdrawn(self) -> dict[str, int]:
        """See ``SelfPlayBackend``."""
        return self.assignments.withdrawn(self.heartbeats)

    def collect(self) -> list[PendingBatch]:
        """See ``SelfPlayBackend``."""
        for name in self.folders:
            if self.assignments.is_due(name) or name in self._unwritten:
                self.assign(name)
        return [
            batch_in(self.root, outbox.parent.name, path.stem)
            for outbox in sorted(self.root.glob("*/outbox"))
            for path in WorkerFolder(outbox.parent).batch_files()
            if is_batch_of_run(path.name, self.assignments.run_id)
        ]

    def release(self, batch: PendingBatch, *, delivered: int, refused: str = "") -> None:
        """See ``SelfPlayBackend``."""
        self.assignments.record_receipt(batch.worker, batch.batch_id, refused)
        self.grant(batch.worker, granted=self.assignments.account(batch.worker).granted, delivered=delivered)
        if batch.worker not in self._unwritten:  # else the worker does not know yet: released at the next call
            (WorkerFolder(self.root / batch.worker).outbox / batch.file_name).unlink(missing_ok=True)

    def heartbeats(self) -> dict[str, Heartbeat | None]:
        """See ``SelfPlayBackend``; an unreadable heartbeat counts as missing."""
        heartbeats: dict[str, Heartbeat | None] = {}
        for name, folder in self.folders.items():
            try:
                heartbeats[name] = folder.read_heartbeat()
            except BrokenMessage:
                heartbeats[name] = None
        for name, reason in self.assignments.refusals.items():
            if heartbeat := heartbeats.get(name):
                heartbeats[name] = heartbeat.model_copy(update={"error": reason[:1000]})
        return heartbeats

    def cluster(self) -> ClusterStatus | None:
        """See ``SelfPlayBackend``."""
        return None

    def match_executors(self) -> MatchExecutors | None:
        """See ``SelfPlayBackend``."""
        return FolderMatches(
            self.root,
            self.assignments,
            assign=self.assign,
            send_players=self._send_players,
            ready_workers=self._ready_workers,
            heartbeats=self.heartbeats,
        )

    def lower_grant(self, worker: str, granted: int) -> None:
        """Keep ``worker`` from starting games beyond ``granted``; ``withdrawn`` lists it once it has confirmed that."""
        if self.assignments.lower_grant(worker, granted):
            self.assign(worker)

    def assign(self, name: str) -> None:
        """Write the current assignment of ``name``; if the disk does not take it, ``collect`` tries again."""
        if self.assignments.model_version == 0:
            return
        try:
            self.folders[name].write_assignment(self.assignments.next_assignment(name))
        except OSError as error:
            if name not in self._unwritten:  # it is tried at each poll
                log.warning("the assignment of %s cannot be written: %s", name, error)
            self._unwritten.add(name)
        else:
            self._unwritten.discard(name)

    def _ready_workers(self) -> list[str]:
        """Return the workers that can play now."""
        heartbeats = self.heartbeats()
        return [
            name
            for name in self.workers
            if (heartbeat := heartbeats.get(name)) and heartbeat.state in ("playing", "waiting")
        ]

    def _send_players(self, players: Mapping[Contestant, bytes]) -> None:
        """Write the model files of players into all inboxes; a worker removes those that its assignment no longer
        names.
        """
        for folder in (folder for name, folder in self.folders.items() if name not in self.given_up):
            for player, data in players.items():
                try:
                    write_atomically(folder.inbox / player.file_name, data)
                except OSError as error:
                    log.warning("the players of a match cannot be given to %s: %s", folder.root.name, error)


class InlineBackend(FolderBackend):
    """One worker that plays in ``collect``: no processes, and every step is reproducible.

    Args:
        cycles: steps of play in each call of ``collect``.
    """

    reserve_seconds = 0.0  # grants do not depend on time

    def __init__(self, root: Path, *, game: Game, settings: Settings, run_id: str, cycles: int = 200) -> None:
        super().__init__(root, ["inline"], game=game, settings=settings, run_id=run_id)
        self._cycles = cycles
        remove_stale_parts(self.folders["inline"].outbox)  # of a killed session; worker processes do this themselves
        self._worker = load_worker_class(settings.distributed.worker_class)(root / "inline")
        self._worker.device = "cpu" if settings.self_play.device == "cpu" else settings.training.device

    def collect(self) -> list[PendingBatch]:
        """See ``SelfPlayBackend``."""
        batches = super().collect()
        if self.assignments.is_stopped:
            return batches
        self._worker.poll()
        for _ in range(self._cycles):
            self._worker.cycle()
        return batches or super().collect()

    def match_executors(self) -> None:
        """See ``SelfPlayBackend``; there is no other process that could play these games."""

    def close(self) -> None:
        """See ``SelfPlayBackend``."""
        self.assignments.stop()
        self._worker.flush()
        self._worker.beat("ended")
