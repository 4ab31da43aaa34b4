"""Where games come from: the contract between the Coach and those who play, and its simplest form, one worker in this
process.

A backend has named workers. The Coach says how many games each may play in all (``grant``), publishes models, collects
the batches that lie in the outboxes, and releases each once it is safe. ``tests/training/run/test_backends.py`` holds
every backend to this.
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from configs.schema import Settings
from games import Game
from training.common.files import FileTooLarge, read_limited, remove_stale_parts, write_atomically
from training.common.reports import ClusterReport
from training.evaluation.orders import MAX_RESULT_BYTES, RESULT_SUFFIX, Contestant, MatchOrder
from training.evaluation.remote_matches import MatchExecutors
from training.networks.model_file import content_sha256
from training.worker.spool import salvage_if_left
from training.worker.worker_class import load_worker_class
from training.worker.worker_folder import Assignment, BrokenMessage, Heartbeat, WorkerFolder, is_of_run

log = logging.getLogger(__name__)

LEASES_PER_LEASE = 20  # so often a lease is renewed before it would run out ...
RENEW_SECONDS = 5.0  # ... and at least at this interval
SAME_PARALLEL_GAMES = (
    64  # in synchronous mode, instead of what a measurement finds: it decides in which order games are finished
)


@dataclass(frozen=True, kw_only=True)
class PendingBatch:
    """A batch in a worker's outbox."""

    worker: str
    batch_id: str
    fetch: Callable[[int], bytes]  # (limit) -> the file; raises FileTooLarge, OSError


class SelfPlayBackend(Protocol):
    """Those who play.

    What cannot be written or reached now is tried again at the next call; nothing is lost meanwhile.
    """

    @property
    def workers(self) -> Sequence[str]:
        """The names of those who may be granted games; one that fails for good is no longer among them."""

    def publish(self, version: int, model: bytes) -> None:
        """Give all workers a new model; they change over while they play.

        The first one starts them: set their accounts before.
        """

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        """Let ``worker`` play up to ``granted`` games in all, of which ``delivered`` are safe here."""

    def share_out(self, outstanding: Mapping[str, int], ahead: int) -> dict[str, int]:
        """How many more games each worker is to be granted now, so that ``ahead`` games a worker are outstanding.

        Args:
            outstanding: games that each worker has been granted and has not handed over.
            ahead: 0 when nobody is to be granted any.
        """

    def withdrawn(self) -> dict[str, int]:
        """For each worker, how many of the games last granted it has not begun and will not begin.

        They are named until ``grant`` shows the worker the lower number that is then in the ledger.
        """

    def collect(self) -> list[PendingBatch]:
        """The batches that wait, each worker's oldest first; plays meanwhile, if nobody else does. Renews the leases.

        Among them are those of workers that are no longer: of earlier sessions, or failed.
        """

    def release(self, batch: PendingBatch, *, delivered: int, refused: str = "") -> None:
        """The batch is safe: raise the worker's account to ``delivered`` games, then delete its copy.

        Args:
            refused: why the batch was put into quarantine; the worker is shown in error until a good one comes.
        """

    def status(self) -> dict[str, Heartbeat | None]:
        """The last heartbeat of each worker, of the failed ones too."""

    def cluster(self) -> ClusterReport | None:
        """How the machines of a cluster stand; None when this machine plays."""

    def match_hosts(self) -> MatchExecutors | None:
        """Those who can be given evaluation games; None: they must be played here."""

    def close(self) -> None:
        """Let the workers hand over what they have finished, and end them."""


@dataclass(frozen=True, kw_only=True)
class _Lowered:
    """What a worker's grant is lowered to, and the number of the first assignment that says so."""

    granted: int
    since: int


class FolderBackend:
    """Workers whose folders lie on this machine; whoever derives from it says who runs them.

    Args:
        root: the folder of the worker folders.
        names: of the workers.
        game: what they play.
        settings: the run's.
        run_id: the run's.
    """

    def __init__(self, root: Path, names: Sequence[str], *, game: Game, settings: Settings, run_id: str) -> None:
        self.root = root
        self.workers = tuple(names)
        self.folders = {name: WorkerFolder(root / name).make() for name in names}
        for folder in self.folders.values():
            folder.forget_heartbeat()  # an earlier session's
        for outbox in root.glob("*/outbox"):
            salvage_if_left(WorkerFolder(outbox.parent))
        self._game, self._settings, self._run_id = game, settings, run_id
        self._accounts = dict.fromkeys(names, (0, 0))
        self._renew_at = dict.fromkeys(names, 0.0)  # by this process's clock
        self._lowered: dict[str, _Lowered] = {}
        self._refused: dict[str, str] = {}  # worker -> why the last batch of it was refused
        self._session = secrets.token_hex(
            8
        )  # with a count, it names every assignment, so that no other session's is taken for it
        self._leases = 0
        self._unwritten: set[str] = set()  # whose assignment the disk has refused
        self._model = (0, "")
        self._players: dict[Contestant, bytes] = {}
        self._orders: dict[str, tuple[MatchOrder, ...]] = {}
        self._stop = False

    def publish(self, version: int, model: bytes) -> None:
        """See ``SelfPlayBackend``."""
        for folder in self.folders.values():
            write_atomically(folder.model_path(version), model)
        self._model = (version, content_sha256(model))
        for name in self.folders:
            self._assign(name)

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        """See ``SelfPlayBackend``."""
        if worker in self._accounts and self._accounts[worker] != (granted, delivered):
            if granted < self._accounts[worker][0]:
                self._lowered.pop(worker, None)  # what was withdrawn is in the ledger
            self._accounts[worker] = (granted, delivered)
            self._assign(worker)

    def share_out(self, outstanding: Mapping[str, int], ahead: int) -> dict[str, int]:
        """See ``SelfPlayBackend``; the same for all, whatever their speed."""
        return {worker: max(0, ahead - outstanding[worker]) for worker in self.workers}

    def lower(self, worker: str, granted: int) -> None:
        """Have ``worker`` begin no game beyond ``granted``, although the ledger has more; ``withdrawn`` says when it
        has heard of it.

        Nothing is entered anywhere: a main node that is started anew shows the worker again what the ledger has.
        """
        entered, _ = self._accounts[worker]
        standing = self._lowered.get(worker)
        if granted < (standing.granted if standing else entered):
            self._lowered[worker] = _Lowered(granted=granted, since=self._leases)
            self._assign(worker)

    def withdrawn(self) -> dict[str, int]:
        """See ``SelfPlayBackend``."""
        found: dict[str, int] = {}
        heartbeats = self.status() if self._lowered else {}
        for worker, lowered in list(self._lowered.items()):
            heartbeat = heartbeats.get(worker)
            if (
                heartbeat is None
                or self._lease_number(heartbeat.lease) < lowered.since
                or heartbeat.granted != lowered.granted
            ):
                continue  # it may still be beginning games by an earlier assignment
            entered, _ = self._accounts[worker]
            games = entered - max(lowered.granted, heartbeat.begun)
            if games > 0:
                found[worker] = games
            else:
                del self._lowered[worker]  # it has begun them all
        return found

    def collect(self) -> list[PendingBatch]:
        """See ``SelfPlayBackend``."""
        now = time.monotonic()
        for name in self.folders:
            if now >= self._renew_at[name] or name in self._unwritten:
                self._assign(name)
        return [
            PendingBatch(worker=outbox.parent.name, batch_id=path.stem, fetch=partial(read_limited, path))
            for outbox in sorted(self.root.glob("*/outbox"))
            for path in WorkerFolder(outbox.parent).batches()
            if is_of_run(path.name, self._run_id)
        ]

    def release(self, batch: PendingBatch, *, delivered: int, refused: str = "") -> None:
        """See ``SelfPlayBackend``."""
        self._judge(batch, refused)
        granted, _ = self._accounts.get(batch.worker, (0, 0))
        self.grant(batch.worker, granted=granted, delivered=delivered)
        if batch.worker not in self._unwritten:  # else it does not know yet, and the next look releases the batch
            (WorkerFolder(self.root / batch.worker).outbox / f"{batch.batch_id}.games").unlink(missing_ok=True)

    def _judge(self, batch: PendingBatch, refused: str) -> None:
        self._refused.pop(batch.worker, None)
        if refused:
            self._refused[batch.worker] = f"batch {batch.batch_id} is in the run's quarantine/: {refused}"

    def status(self) -> dict[str, Heartbeat | None]:
        """See ``SelfPlayBackend``; a heartbeat that cannot be read counts as none."""
        heartbeats: dict[str, Heartbeat | None] = {}
        for name, folder in self.folders.items():
            try:
                heartbeats[name] = folder.read_heartbeat()
            except BrokenMessage:
                heartbeats[name] = None
        for name, reason in self._refused.items():
            if heartbeat := heartbeats.get(name):
                heartbeats[name] = heartbeat.model_copy(update={"error": reason[:1000]})
        return heartbeats

    def cluster(self) -> ClusterReport | None:
        """See ``SelfPlayBackend``."""
        return None

    def match_hosts(self) -> MatchExecutors | None:
        """See ``SelfPlayBackend``."""
        return self

    def bring(self, players: Mapping[Contestant, bytes]) -> None:
        """See ``MatchExecutors``."""
        self._players = dict(players)
        self._orders.clear()
        for path in self.root.glob(f"*/outbox/*{RESULT_SUFFIX}"):
            path.unlink(missing_ok=True)  # too late
        self._lay_players()
        for name in tuple(self._accounts):
            self._assign(name)

    def order(self, worker: str, orders: Sequence[MatchOrder]) -> None:
        """See ``MatchExecutors``."""
        before = self._orders.get(worker, ())
        if worker not in self._accounts or tuple(orders) == before:
            return
        self._orders[worker] = tuple(orders)
        self._assign(worker)
        for dropped in set(before) - set(orders):
            (self.root / worker / "outbox" / dropped.file_name).unlink(missing_ok=True)

    def results(self) -> list[tuple[str, MatchOrder, bytes]]:
        """See ``MatchExecutors``."""
        found = []
        for worker, orders in self._orders.items():
            for order in orders:
                try:
                    found.append(
                        (worker, order, read_limited(self.root / worker / "outbox" / order.file_name, MAX_RESULT_BYTES))
                    )
                except FileTooLarge:
                    found.append((worker, order, b""))
                except OSError:
                    continue  # not there yet
        return found

    def hosts(self) -> list[str]:
        """See ``MatchExecutors``."""
        heartbeats = self.status()
        return [
            name
            for name in self.workers
            if (heartbeat := heartbeats.get(name)) and heartbeat.state in ("playing", "waiting")
        ]

    def _lay_players(self) -> None:
        """Put the files of players into all inboxes; the workers remove those that the assignment names no more."""
        for folder in self.folders.values():
            for player, data in self._players.items():
                try:
                    write_atomically(folder.inbox / player.file_name, data)
                except OSError as error:
                    log.warning("the players of a match cannot be given to %s: %s", folder.root.name, error)

    def _lease_number(self, lease: str) -> int:
        """Which of this session's assignments has this lease; -1 for none of them."""
        session, _, number = lease.rpartition("-")
        return int(number) if session == self._session and number.isdecimal() else -1

    def _assign(self, name: str) -> None:
        """Write the assignment of ``name``; when the disk does not take it, the next look tries again."""
        if self._model[0] == 0:
            return
        try:
            self.folders[name].write_assignment(self._assignment(name))
        except OSError as error:
            log.warning("the assignment of %s cannot be written: %s", name, error)
            self._unwritten.add(name)
            return
        self._unwritten.discard(name)
        self._renew_at[name] = time.monotonic() + self._renewal_seconds()

    def _renewal_seconds(self) -> float:
        """How long after an assignment the next one is due, which renews the lease."""
        return min(RENEW_SECONDS, self._settings.distributed.lease_seconds / LEASES_PER_LEASE)

    def _assignment(self, name: str) -> Assignment:
        (version, digest), (granted, delivered) = self._model, self._accounts[name]
        self_play, distributed = self._settings.self_play, self._settings.distributed
        asynchronous = self._settings.training.asynchronous
        lowered = self._lowered.get(name)
        lease = f"{self._session}-{self._leases}"
        self._leases += 1
        measured = 0 if asynchronous else SAME_PARALLEL_GAMES
        return Assignment(
            run_id=self._run_id,
            worker=name,
            lease=lease,
            lease_seconds=distributed.lease_seconds,
            stop=self._stop,
            granted=min(granted, lowered.granted) if lowered else granted,
            promised=granted,
            delivered=delivered,
            model_version=version,
            model_sha256=digest,
            game=self._game.name,
            options=self._game.options,
            search=self._settings.search,
            seed=self._settings.run.seed,
            parallel_games=measured if self_play.parallel_games == "auto" else self_play.parallel_games,
            max_positions=0 if self_play.batch_size == "auto" else self_play.batch_size,
            cache_positions=self_play.cache_positions,
            batch_games=distributed.batch_size,
            flush_seconds=self_play.flush_seconds if asynchronous else None,
            players=tuple(self._players),
            matches=self._orders.get(name, ()),
        )


class InlineBackend(FolderBackend):
    """One worker, played by whoever calls ``collect``: no processes, nothing to start, every step repeatable.

    Args:
        cycles: how many steps of play a call of ``collect`` makes.
    """

    def __init__(self, root: Path, *, game: Game, settings: Settings, run_id: str, cycles: int = 200) -> None:
        super().__init__(root, ["inline"], game=game, settings=settings, run_id=run_id)
        self._cycles = cycles
        remove_stale_parts(
            self.folders["inline"].outbox
        )  # of a session that was killed; other workers do so themselves
        self._worker = load_worker_class(settings.distributed.worker_class)(root / "inline")

    def collect(self) -> list[PendingBatch]:
        """See ``SelfPlayBackend``."""
        batches = super().collect()
        if self._stop:
            return batches
        self._worker.poll()
        for _ in range(self._cycles):
            self._worker.cycle()
        return batches or super().collect()

    def match_hosts(self) -> None:
        """See ``SelfPlayBackend``; whoever waits here is the one who would have to play."""

    def close(self) -> None:
        """See ``SelfPlayBackend``."""
        self._stop = True
        self._worker.flush()
        self._worker.beat("ended")
