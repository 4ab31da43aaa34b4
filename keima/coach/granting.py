"""Grant games to workers: enough that none waits, few enough that none is wasted."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from keima.coach.backends.backend import SelfPlayBackend
from keima.coach.backends.pending_batch import PendingBatch
from keima.config.schema import Settings
from keima.data.ledger import Ledger
from keima.data.ledger_rows import WorkerAccount
from keima.worker.worker_folder import Heartbeat

log = logging.getLogger(__name__)

BACKLOG_ITERATIONS = 3  # workers pause when this many iterations of games wait for the learner
GRACE_SECONDS = 10.0  # a worker must be idle for this long before its outstanding games count as lost


class NobodyPlays(RuntimeError):
    """All workers have failed for good: no more games will arrive."""


@dataclass(frozen=True)
class _Outstanding(Mapping[str, int]):
    """The outstanding games of each worker, computed only on demand."""

    workers: Sequence[str]
    accounts: Mapping[str, WorkerAccount]

    def __getitem__(self, worker: str) -> int:
        return self.accounts[worker].outstanding if worker in self.accounts else 0

    def __iter__(self) -> Iterator[str]:
        return iter(self.workers)

    def __len__(self) -> int:
        return len(self.workers)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """The state seen by the last search for lost games."""

    heartbeats: Mapping[str, Heartbeat | None]
    accounts: Mapping[str, WorkerAccount]
    workers: Sequence[str]
    full: set[str]  # workers with batches in their outboxes

    def is_unchanged(self, now: "_Seen") -> bool:
        """Return whether nothing has changed since; heartbeats and accounts are compared as objects, which is quick."""
        same = self.heartbeats is now.heartbeats and self.accounts is now.accounts
        return same and self.full == now.full and self.workers == now.workers


class Granting:
    """Grants games to the workers of one run, and gives up games that will never arrive.

    Args:
        settings: the run's.
        ledger: every grant is entered there before the worker gets it.
        backend: the workers.
        clock: seconds that never go back.
        log_event: called for events worth a log line.
        limit: how many games a worker may be granted now, by its account, where there is a limit.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        ledger: Ledger,
        backend: SelfPlayBackend,
        clock: Callable[[], float],
        log_event: Callable[[str], None],
        limit: Callable[[WorkerAccount], int | None] = lambda account: None,
    ) -> None:
        self._training, self._ahead = settings.training, settings.self_play.games_per_worker
        self._may_others_join = settings.distributed.enabled and settings.distributed.crowd is not None
        self._ledger, self._backend, self._clock, self._log_event = ledger, backend, clock, log_event
        self._limit = limit
        self._idle: dict[
            str, tuple[float, int]
        ] = {}  # worker -> since when it has had nothing to do, and its beat then
        self._seen: _Seen | None = None
        self._sent: dict[str, WorkerAccount] = {}  # the accounts that the backend has, of its workers
        self._sent_of: Mapping[str, WorkerAccount] | None = None  # all accounts, when they were sent

    def restore_accounts(self) -> None:
        """Send all workers their accounts; call it before they start."""
        for worker in self._backend.workers:
            self._send_account(self._ledger.account(worker))

    def grant(self, games_here: int) -> None:
        """Grant every worker games in advance or, in synchronous mode, what the iteration still needs.

        Args:
            games_here: games received for the current iteration.

        Raises:
            NobodyPlays: no worker is left, and none can join.
        """
        self._take_back()
        distrusted = self._ledger.distrusted()
        workers = [worker for worker in self._backend.workers if worker not in distrusted]
        if not workers and (self._may_others_join or distrusted):
            return
        if not workers:
            raise NobodyPlays(
                "no workers are left: all have failed repeatedly; see their logs in the run's folder, workers/*/logs"
            )
        accounts = self._ledger.accounts()
        if self._training.asynchronous:
            behind = games_here >= BACKLOG_ITERATIONS * self._training.games_per_iteration
            missing = self._backend.plan_grants(_Outstanding(workers, accounts), 0 if behind else self._ahead)
        else:
            to_come = sum(account.outstanding for account in accounts.values())  # including workers that left
            left = self._training.games_per_iteration - games_here - to_come
            able = [worker for worker in workers if self._limit_grant(worker, left, accounts) > 0]
            missing = {worker: left // len(able) + (number < left % len(able)) for number, worker in enumerate(able)}
        wanted = {worker: missing[worker] for worker in workers if missing.get(worker, 0) > 0} if missing else {}
        limited = {worker: self._limit_grant(worker, games, accounts) for worker, games in wanted.items()}
        granted = {worker: games for worker, games in limited.items() if games > 0}
        if granted:
            self._ledger.grant_all(granted)
            accounts = self._ledger.accounts()
        self._send_accounts(workers, accounts)

    def _limit_grant(self, worker: str, games: int, accounts: Mapping[str, WorkerAccount]) -> int:
        """Return how many of so many games a worker may be granted now."""
        most = self._limit(accounts.get(worker) or WorkerAccount(name=worker))
        return games if most is None else min(games, most)

    def give_up_lost(self, batches: Sequence[PendingBatch]) -> None:
        """Give up games that will never arrive: of workers that are gone, and of idle workers with nothing left.

        The latter happens after a rejected batch that does not say which games it holds.

        Args:
            batches: all batches in the outboxes.
        """
        seen = _Seen(
            heartbeats=self._backend.heartbeats(),
            accounts=self._ledger.accounts(),
            workers=self._backend.workers,
            full={batch.worker for batch in batches},
        )
        if not self._idle and self._seen and self._seen.is_unchanged(seen):
            return
        self._seen, heartbeats, full, workers = seen, seen.heartbeats, seen.full, set(seen.workers)
        for worker, account in seen.accounts.items():
            outstanding = account.outstanding
            if outstanding <= 0 or worker in full:
                self._idle.pop(worker, None)
            elif worker not in workers:
                self._discard(worker, outstanding, "the worker is gone")
            elif self._has_long_done_all(account, heartbeats.get(worker)):
                self._discard(worker, outstanding, "it has delivered all its other games, and has none left to play")

    def in_turn(self, batches: Sequence[PendingBatch]) -> Sequence[PendingBatch]:
        """Return the batches to receive now; in synchronous mode one worker at a time, for a reproducible order."""
        if self._training.asynchronous:
            return batches
        workers = [worker for worker in self._backend.workers if worker not in self._ledger.distrusted()]
        turn = next((worker for worker in workers if self._ledger.account(worker).outstanding > 0), None)
        return [batch for batch in batches if batch.worker == turn or batch.worker not in workers]

    def _take_back(self) -> None:
        """Withdraw games that workers will not begin; only then may others get them."""
        for worker, unstarted in self._backend.withdrawn().items():
            if worker in self._ledger.distrusted():  # which owes nothing any more
                continue
            games = min(unstarted, self._ledger.account(worker).outstanding)
            if games > 0:
                self._ledger.withdraw(worker, games, "others play them")
                self._log_event(f"{games} games that worker {worker} has not begun are reassigned")
            self._send_account(self._ledger.account(worker))

    def _has_long_done_all(self, account: WorkerAccount, heartbeat: Heartbeat | None) -> bool:
        if heartbeat is None or heartbeat.state != "waiting" or heartbeat.finished < account.granted:
            self._idle.pop(account.name, None)
            return False
        since, beat = self._idle.setdefault(account.name, (self._clock(), heartbeat.beat))
        return self._clock() - since >= GRACE_SECONDS and heartbeat.beat != beat

    def _discard(self, worker: str, games: int, reason: str) -> None:
        self._idle.pop(worker, None)
        self._ledger.discard(worker, games, reason)
        self._log_event(f"{games} games of worker {worker} are given up: {reason}")

    def _send_accounts(self, workers: Sequence[str], accounts: Mapping[str, WorkerAccount]) -> None:
        """Send the accounts that have changed since they were sent."""
        if accounts is self._sent_of and self._sent.keys() == set(workers):
            return
        self._sent = {worker: self._sent[worker] for worker in workers if worker in self._sent}
        for worker in workers:
            if worker not in self._sent or accounts.get(worker, self._sent[worker]) is not self._sent[worker]:
                self._send_account(accounts.get(worker) or WorkerAccount(name=worker))
        self._sent_of = accounts

    def _send_account(self, account: WorkerAccount) -> None:
        granted = account.next_game if account.name in self._ledger.distrusted() else account.granted
        self._backend.grant(account.name, granted=granted, delivered=account.next_game)
        self._sent[account.name] = account
