"""How many games each worker may play: enough that it never waits in vain, never so many that they are played for
nothing.
"""

import logging
from collections.abc import Callable, Sequence

from configs.schema import Settings
from training.data.ledger import Ledger
from training.data.ledger_rows import WorkerAccount
from training.run.backend import PendingBatch, SelfPlayBackend
from training.worker.worker_folder import Heartbeat

log = logging.getLogger(__name__)

BACKLOG_ITERATIONS = 3  # so many iterations' games may wait for the learner before the workers must wait too
GRACE_SECONDS = 10.0  # so long a worker must have nothing left to do before games that it was granted count as lost


class NobodyPlays(RuntimeError):
    """All workers have failed for good: no more games will come."""


class Granting:
    """Grants games to the workers of one run, and gives up those that will never come.

    Args:
        settings: the run's.
        ledger: where every grant is entered before the worker learns of it.
        backend: the workers.
        clock: seconds that never go back.
        log_event: is told what is worth a line in the log.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        ledger: Ledger,
        backend: SelfPlayBackend,
        clock: Callable[[], float],
        log_event: Callable[[str], None],
    ) -> None:
        self._training, self._ahead = settings.training, settings.self_play.games_per_worker
        self._ledger, self._backend, self._clock, self._log_event = ledger, backend, clock, log_event
        self._idle: dict[
            str, tuple[float, int]
        ] = {}  # worker -> since when it has had nothing to do, and its beat then

    def restore(self) -> None:
        """Tell the workers how their accounts stand; to be done before they start."""
        for worker in self._backend.workers:
            self._send_account(self._ledger.account(worker))

    def grant(self, games_here: int) -> None:
        """Keep every worker in work: so many games ahead each, or what the iteration still lacks in synchronous mode.

        Args:
            games_here: games that have come in for the iteration under way.

        Raises:
            NobodyPlays: there is no worker left.
        """
        self._take_back()
        workers = self._backend.workers
        if not workers:
            raise NobodyPlays(
                "no worker is left, all have failed again and again: see their logs in the run's folder, workers/*/logs"
            )
        accounts = self._ledger.accounts()
        if self._training.asynchronous:
            outstanding = {worker: accounts[worker].outstanding if worker in accounts else 0 for worker in workers}
            behind = games_here >= BACKLOG_ITERATIONS * self._training.games_per_iteration
            missing = self._backend.share_out(outstanding, 0 if behind else self._ahead)
        else:
            to_come = sum(
                account.outstanding for account in accounts.values()
            )  # also of those who may be granted none now
            left = self._training.games_per_iteration - games_here - to_come
            missing = {
                worker: left // len(workers) + (number < left % len(workers)) for number, worker in enumerate(workers)
            }
        granted = {worker: missing[worker] for worker in workers if missing.get(worker, 0) > 0}
        if granted:
            self._ledger.grant_all(granted)
            accounts = self._ledger.accounts()
        for worker in workers:
            self._send_account(accounts.get(worker) or WorkerAccount(name=worker))

    def give_up_lost(self, batches: Sequence[PendingBatch]) -> None:
        """Give up what will never come: games of workers that are gone, and of those that have done all and have
        nothing left.

        That happens when a batch was refused that does not even say which games it holds.

        Args:
            batches: all that lies in the outboxes.
        """
        full = {batch.worker for batch in batches}
        status, workers = self._backend.status(), set(self._backend.workers)
        for worker, account in self._ledger.accounts().items():
            outstanding = account.outstanding
            if outstanding <= 0 or worker in full:
                self._idle.pop(worker, None)
            elif worker not in workers:
                self._discard(worker, outstanding, "there is no such worker any more")
            elif self._has_long_done_all(account, status.get(worker)):
                self._discard(worker, outstanding, "it has handed over all that it has, and they were not among it")

    def in_turn(self, batches: Sequence[PendingBatch]) -> Sequence[PendingBatch]:
        """In synchronous mode, the batches of one worker after the other, so that the games come in the same order
        again.
        """
        workers = self._backend.workers
        if self._training.asynchronous:
            return batches
        turn = next((worker for worker in workers if self._ledger.account(worker).outstanding > 0), None)
        return [batch for batch in batches if batch.worker == turn or batch.worker not in workers]

    def _take_back(self) -> None:
        """Enter what workers have not begun and will not begin; only then may it be granted to anybody."""
        for worker, unstarted in self._backend.withdrawn().items():
            games = min(unstarted, self._ledger.account(worker).outstanding)
            if games > 0:
                self._ledger.withdraw(worker, games, "others play them")
                self._log_event(f"{games} games that worker {worker} will not play are handed on")
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

    def _send_account(self, account: WorkerAccount) -> None:
        self._backend.grant(account.name, granted=account.granted, delivered=account.next_game)
