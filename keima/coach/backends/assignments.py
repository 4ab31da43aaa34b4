"""A backend's assignments to its workers: accounts, the current model, evaluation games, and leases.

``AssignmentBook`` does no I/O. A backend asks it for the ``Assignment`` of a worker and delivers that, as a file in a
local folder or over a connection.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from keima.config.schema import Settings
from keima.evaluation.match_jobs import Contestant, EvaluationJob
from keima.worker.worker_folder import Assignment, Heartbeat

LEASES_PER_LEASE = 20  # a lease is renewed this many times before it would expire ...
RENEW_SECONDS = 5.0  # ... and at least at this interval
# Share of a run that a finished game waits at most for its batch to fill, within bounds in seconds.
FLUSH_SHARE, FEWEST_FLUSH_SECONDS, MOST_FLUSH_SECONDS = 1 / 200, 2.0, 30.0
RESERVE_SECONDS = 3.0  # of play that a worker has ahead at least: a grant may take so long
SAME_PARALLEL_GAMES = 64  # in synchronous mode, instead of a measured number: it decides the order of finished games


class GameChoice(Protocol):
    """Which game is played, such as a ``Game``; a process that only names the game need not compile it."""

    @property
    def name(self) -> str:
        """The name of a shipped game, or of a user's own file."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the game."""


@dataclass(frozen=True, kw_only=True)
class GamesAccount:
    """The games of one worker, counted from the start of the run."""

    granted: int = 0
    delivered: int = 0


@dataclass(frozen=True, kw_only=True)
class _Lowered:
    """A limit below the granted games, and the number of the first assignment that contains it."""

    granted: int
    since: int


class AssignmentBook:
    """The assignments of a run's workers.

    Args:
        workers: the workers that have accounts from the start.
        game: the game they play.
        settings: the run's settings.
        run_id: the run's id.
        clock: a monotonic clock in seconds, for the renewal of leases.
    """

    def __init__(
        self,
        workers: Iterable[str] = (),
        *,
        game: GameChoice,
        settings: Settings,
        run_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_id = run_id
        self.model_version = 0  # 0: no model yet, so there is nothing to assign
        self.players: Mapping[Contestant, bytes] = {}  # the models of evaluation games, with their files
        self.jobs: dict[str, tuple[EvaluationJob, ...]] = {}  # evaluation games, by worker
        self.refusals: dict[str, str] = {}  # worker -> why its last batch was refused
        self._game, self._settings, self._clock = game, settings, clock
        self._model_sha256 = ""
        self._accounts = {worker: GamesAccount() for worker in workers}
        self._lowered: dict[str, _Lowered] = {}
        self._renew_at: dict[str, float] = {}
        self._session = secrets.token_hex(8)  # with the count below, it makes every lease unique across sessions
        self._leases = 0
        self._stopped = False

    # Accounts.

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that have an account."""
        return tuple(self._accounts)

    def has_account(self, worker: str) -> bool:
        """Return whether a worker has an account."""
        return worker in self._accounts

    def account(self, worker: str) -> GamesAccount:
        """Return the account of a worker; a new one is empty."""
        return self._accounts.get(worker, GamesAccount())

    def set_account(self, worker: str, *, granted: int, delivered: int) -> bool:
        """Open or change an account; return whether that changed it."""
        before = self._accounts.get(worker)
        after = GamesAccount(granted=granted, delivered=delivered)
        if after == before:
            return False
        if before and granted < before.granted:
            self._lowered.pop(worker, None)  # the ledger has taken the withdrawn games back
        self._accounts[worker] = after
        return True

    def close_account(self, worker: str) -> None:
        """Forget a worker that has left."""
        self._accounts.pop(worker, None)
        self._lowered.pop(worker, None)

    def lower_grant(self, worker: str, granted: int) -> bool:
        """Keep ``worker`` from starting games beyond ``granted``, although its account has more; return whether that is
        new.

        This is not stored: after a restart, the main node shows the worker its whole account again.
        """
        lowered = self._lowered.get(worker)
        if granted >= (lowered.granted if lowered else self.account(worker).granted):
            return False
        self._lowered[worker] = _Lowered(granted=granted, since=self._leases)
        return True

    def withdrawn(self, heartbeats: Callable[[], Mapping[str, Heartbeat | None]]) -> dict[str, int]:
        """Return, for each lowered worker that has confirmed it, how many of its granted games it has not begun and
        will not begin.

        Args:
            heartbeats: returns the last heartbeat of each worker; called only if there is a lowered worker.
        """
        found: dict[str, int] = {}
        last = heartbeats() if self._lowered else {}
        for worker, lowered in list(self._lowered.items()):
            heartbeat = last.get(worker)
            if (
                heartbeat is None
                or self._lease_number(heartbeat.lease) < lowered.since
                or heartbeat.granted != lowered.granted
            ):
                continue  # it may still start games by an earlier assignment
            games = self.account(worker).granted - max(lowered.granted, heartbeat.begun)
            if games > 0:
                found[worker] = games
            else:
                del self._lowered[worker]  # it has begun all of them
        return found

    def record_receipt(self, worker: str, batch_id: str, refused: str) -> None:
        """Record whether the last batch of ``worker`` was refused, and why (empty: it was accepted)."""
        self.refusals.pop(worker, None)
        if refused:
            self.refusals[worker] = f"batch {batch_id} is in the run's quarantine/: {refused}"

    # Models and evaluation games.

    def set_model(self, version: int, sha256: str) -> None:
        """Have all workers play with this model."""
        self.model_version, self._model_sha256 = version, sha256

    def set_players(self, players: Mapping[Contestant, bytes]) -> None:
        """Replace the models of evaluation games; all jobs are dropped."""
        self.players = dict(players)
        self.jobs.clear()

    def set_jobs(self, worker: str, jobs: Sequence[EvaluationJob]) -> set[EvaluationJob] | None:
        """Replace the evaluation games of ``worker``; return the dropped jobs, or None if nothing changes."""
        before = self.jobs.get(worker, ())
        if worker not in self._accounts or tuple(jobs) == before:
            return None
        self.jobs[worker] = tuple(jobs)
        return set(before) - set(jobs)

    # Assignments.

    def stop(self) -> None:
        """End the run: every assignment from now on tells its worker to stop."""
        self._stopped = True

    @property
    def is_stopped(self) -> bool:
        """Whether the run has ended."""
        return self._stopped

    def is_due(self, worker: str) -> bool:
        """Return whether the lease of ``worker`` must be renewed now."""
        return self._clock() >= self._renew_at.get(worker, float("-inf"))

    def next_assignment(self, worker: str, *, parallel_games: int | None = None) -> Assignment:
        """Return the current assignment of ``worker``, with a new lease.

        Args:
            worker: a worker with an account.
            parallel_games: the number for this worker; None: as the settings have it.
        """
        account, lowered = self.account(worker), self._lowered.get(worker)
        self_play, distributed = self._settings.self_play, self._settings.distributed
        asynchronous = self._settings.training.asynchronous
        lease = f"{self._session}-{self._leases}"
        self._leases += 1
        self._renew_at[worker] = self._clock() + min(RENEW_SECONDS, distributed.lease_seconds / LEASES_PER_LEASE)
        if parallel_games is None:
            measured = 0 if asynchronous else SAME_PARALLEL_GAMES
            parallel_games = measured if self_play.parallel_games == "auto" else self_play.parallel_games
        return Assignment(
            run_id=self.run_id,
            worker=worker,
            lease=lease,
            lease_seconds=distributed.lease_seconds,
            stop=self._stopped,
            granted=min(account.granted, lowered.granted) if lowered else account.granted,
            promised=account.granted,
            delivered=account.delivered,
            model_version=self.model_version,
            model_sha256=self._model_sha256,
            game=self._game.name,
            options=self._game.options,
            modules=self._settings.own_modules,
            search=self._settings.search,
            seed=self._settings.run.seed,
            parallel_games=parallel_games,
            max_positions=0 if self_play.batch_size == "auto" else self_play.batch_size,
            cache_positions=self_play.cache_positions,
            batch_games=distributed.batch_size,
            flush_seconds=find_flush_seconds(self._settings) if asynchronous else None,
            players=tuple(self.players),
            matches=self.jobs.get(worker, ()),
        )

    def _lease_number(self, lease: str) -> int:
        """Return the number of one of this session's leases; -1 for any other."""
        session, _, number = lease.rpartition("-")
        return int(number) if session == self._session and number.isdecimal() else -1


def find_flush_seconds(settings: Settings) -> float:
    """Return how long a finished game waits at most for its batch to fill.

    The learner of a short run on this machine waits less for its first games. Longer runs have fewer files, and other
    machines, of which there may be many, send fewer.
    """
    given, minutes = settings.self_play.flush_seconds, settings.run.minutes
    if given != "auto":
        return given
    if settings.distributed.enabled or minutes is None:
        return MOST_FLUSH_SECONDS
    return max(FEWEST_FLUSH_SECONDS, min(MOST_FLUSH_SECONDS, minutes * 60 * FLUSH_SHARE))
