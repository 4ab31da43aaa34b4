"""What the Coach does about verdicts: the liar is distrusted in the ledger, and its games leave the replay window."""

from collections.abc import Callable
from pathlib import Path

from keima.base.retry_log import RetryLog
from keima.coach.backends.backend import SelfPlayBackend
from keima.coach.crowd.limits import CHECK_LIMITS
from keima.coach.crowd.process import CheckerProcess
from keima.coach.crowd.verdicts import VerdictReader, write_refused
from keima.coach.receiving import Receiving
from keima.config.schema import Settings
from keima.data.ledger import Ledger
from keima.data.ledger_rows import WorkerAccount
from keima.worker.worker_folder import is_crowd_worker, machine_of

POLL_SECONDS = 1.0  # between two looks for verdicts
FIRST_BATCHES = 2  # that a worker from outside may owe before it has delivered any


class Distrusting:
    """Acts on the verdicts of the checker, and keeps the checker running; does nothing in a run without a crowd.

    Args:
        run_dir: the run's folder.
        settings: the run's.
        ledger: gets the distrusted workers.
        backend: the workers.
        receiving: whose window loses their games.
        retries: logs what cannot be stored now.
        clock: seconds that never go back.
        log_event: called with each line for the log.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        settings: Settings,
        ledger: Ledger,
        backend: SelfPlayBackend,
        receiving: Receiving,
        retries: RetryLog,
        clock: Callable[[], float],
        log_event: Callable[[str], None],
    ) -> None:
        crowd = settings.distributed.crowd if settings.distributed.enabled else None
        self._run_dir, self._ledger, self._backend = run_dir, ledger, backend
        self._receiving, self._retries, self._clock, self._log_event = receiving, retries, clock, log_event
        self._verdicts, self._looked = VerdictReader(run_dir), -POLL_SECONDS
        self._new: dict[str, str] = {}  # verdicts that the ledger does not have yet
        self._unwritten = crowd is not None  # the door's list differs from the ledger
        self._checker = (
            CheckerProcess(run_dir, crowd.check_share, log_event=log_event, clock=clock)
            if crowd and crowd.check_share > 0
            else None
        )
        self._has_crowd, self._batch_games = crowd is not None, settings.distributed.batch_size

    def poll(self) -> None:
        """Act on new verdicts; what cannot be stored now is tried again."""
        now = self._clock()
        if not self._has_crowd or now - self._looked < POLL_SECONDS:
            return
        self._looked = now
        if self._checker:
            self._checker.poll()
        with self._retries.log_failures("verdicts", "workers cannot be distrusted now"):
            found = self._verdicts.read_new()
            if self._verdicts.waiting:
                self._log_event(
                    f"{self._verdicts.waiting:,} games of the crowd wait for their check: this machine cannot check as "
                    "many as distributed.crowd.check_share says"
                )
            self._new |= {
                worker: why
                for worker, why in self._with_machines(found).items()
                if worker not in self._ledger.distrusted()
            }
            if self._new:
                self.distrust(self._new)
                self._new = {}
            if self._unwritten:
                write_refused(self._run_dir, self._ledger.distrusted())
                self._unwritten = False

    def limit_grant(self, account: WorkerAccount) -> int | None:
        """Return how many games a worker may be granted now; None: any number.

        A worker from outside owes no more than it has delivered before, and has few games in all until some of them
        have been checked. What was given up, as its machine was away, counts: it may still come.
        """
        if not is_crowd_worker(account.name):
            return None
        most = max(FIRST_BATCHES * self._batch_games, account.next_game) - account.undelivered
        if self._checker and account.name not in self._verdicts.passed:
            most = min(most, CHECK_LIMITS.newcomer_grant - account.granted)
        return most

    def _with_machines(self, verdicts: dict[str, str]) -> dict[str, str]:
        """Return verdicts with those on the other workers of the same machines: one program plays on all of them."""
        liars = {machine_of(worker): worker for worker in verdicts if is_crowd_worker(worker)}
        others = {
            worker: f"{liars[machine_of(worker)]} of the same machine is distrusted"
            for worker in self._ledger.workers()
            if is_crowd_worker(worker) and machine_of(worker) in liars
        }
        return others | verdicts

    def distrust(self, workers: dict[str, str]) -> None:
        """Distrust these workers, for the reasons given: their games leave the window, and they get no others.

        Raises:
            OSError, sqlite3.Error: it cannot be stored now; nothing was changed.
        """
        self._ledger.distrust(workers)
        self._unwritten = True
        for worker, reason in workers.items():
            account = self._ledger.account(worker)
            self._log_event(f"worker {worker} is distrusted, and its {account.received:,} games are left out: {reason}")
            self._backend.grant(worker, granted=account.next_game, delivered=account.next_game)
        if any(self._ledger.account(worker).received for worker in workers):
            self._receiving.rebuild_window()

    def close(self) -> None:
        """End the checker."""
        if self._checker:
            self._checker.close()
