"""From batches in the workers' outboxes to the ledger, the replay window and the iteration's tally."""

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from keima.base.reports.run_reports import SelfPlayReport
from keima.base.retry_log import RetryLog
from keima.coach.backends.backend import SelfPlayBackend
from keima.coach.backends.pending_batch import PendingBatch
from keima.coach.bounds import CoachState, window_capacity
from keima.coach.tally import IterationTally
from keima.config.schema import Settings
from keima.config.sections.training import SEED_ACCOUNTS
from keima.data.ledger import Ledger
from keima.data.ledger_rows import BatchRow
from keima.data.receive import Offer, Quarantined, Received, load_if_intact, receive_batches
from keima.data.records import GameBatch
from keima.games import Game
from keima.replay.window import ReplayWindow, sampling_weights

log = logging.getLogger(__name__)

ROWS_TOGETHER = 1000  # of the ledger, that are read together
BATCHES_TOGETHER = 16  # at most, that are received together: they are all in memory meanwhile


class Receiving:
    """Receives the games of a run.

    Args:
        run_dir: where the games are kept.
        game: what is played.
        settings: of the run.
        ledger: counts the games.
        backend: the workers.
        window: gets the games.
        state: of the Coach; its totals count the games.
        retries: logs what cannot be stored now.
        clock: seconds that never go back.
        log_event: called with each line for the log.

    Attributes:
        tally: the games of the present iteration.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        game: Game,
        settings: Settings,
        ledger: Ledger,
        backend: SelfPlayBackend,
        window: ReplayWindow,
        state: CoachState,
        retries: RetryLog,
        clock: Callable[[], float],
        log_event: Callable[[str], None],
    ) -> None:
        self._run_dir, self._game, self._settings, self._ledger = run_dir, game, settings, ledger
        self._backend, self._window, self._state = backend, window, state
        self._retries, self._clock, self._log_event = retries, clock, log_event
        self.tally = IterationTally(game, settings.search.resignation, since=clock())

    def restore(self) -> None:
        """Recount the games of the unfinished iteration, and take in batches received after the checkpoint."""
        has_lies = False
        for row in self._ledger.received_batches(after=self._state.iteration_sequence):
            batch = load_if_intact(self._run_dir, row, log_event=self._log_event)
            if batch and row.worker not in SEED_ACCOUNTS.values():
                self.tally.add(batch, row.bytes)
            if row.sequence > self._state.window_sequence:
                self._count(row.games, row.positions, row.sequence)
                if batch:
                    self._add_to_window(batch)
                    has_lies |= row.worker in self._ledger.distrusted()
        if has_lies:  # they counted before they were known as such
            self.rebuild_window()
        self.tally.earlier = self.tally.games

    def rebuild_window(self) -> None:
        """Fill the window anew from the ledger, without the games of distrusted workers."""
        self._window.clear()
        refill_window(self._window, self._ledger, self._settings, self._state, log_event=self._log_event)

    def close_iteration(self) -> SelfPlayReport:
        """Report the games of the iteration, and begin to count those of the next."""
        now = self._clock()
        tally, self.tally = self.tally, IterationTally(self._game, self._settings.search.resignation, since=now)
        return tally.report(now)

    def receive(self, batches: Sequence[PendingBatch]) -> int:
        """Receive batches, add the good ones to the window, and release them; return how many were received.

        What cannot be fetched or stored now, for example on a full disk, is retried at the next poll.
        """
        taken = 0
        for start in range(0, len(batches), BATCHES_TOGETHER):
            group = batches[start : start + BATCHES_TOGETHER]
            try:
                self._receive_together(group)
                taken += len(group)
            except (OSError, sqlite3.OperationalError):  # each for itself, to store the others and to name this one
                for batch in group:
                    complaint = f"batch {batch.batch_id} of {batch.worker} cannot be stored now"
                    with self._retries.log_failures(batch.batch_id, complaint):
                        self._receive_together([batch])
                        taken += 1
        return taken

    def _receive_together(self, batches: Sequence[PendingBatch]) -> None:
        """Receive several batches, all or none."""
        offers = [Offer(worker=batch.worker, batch_id=batch.batch_id, fetch=batch.fetch) for batch in batches]
        receipts = receive_batches(self._ledger, self._game, offers)
        for batch, receipt in zip(batches, receipts, strict=True):
            if isinstance(receipt, Received):
                self._count(receipt.batch.num_games, receipt.batch.num_positions, receipt.sequence)
                self._add_to_window(receipt.batch)
                self.tally.add(receipt.batch, receipt.bytes)
            elif isinstance(receipt, Quarantined):
                self._log_event(f"batch {receipt.batch_id} of {batch.worker} is in quarantine: {receipt.reason}")
        for batch, receipt in zip(batches, receipts, strict=True):
            refused = receipt.reason if isinstance(receipt, Quarantined) else ""
            self._backend.release(batch, delivered=receipt.next_game, refused=refused)

    def _count(self, games: int, positions: int, sequence: int) -> None:
        """Count a received batch that is new to the learner."""
        self._state.total_games += games
        self._state.total_positions += positions
        self._state.window_sequence = sequence

    def _add_to_window(self, batch: GameBatch) -> None:
        """Add a received batch to the window, which grows with the number of positions played."""
        samples = self._window.add(batch)
        self._state.total_samples += samples
        self._state.owed_samples += samples * self._settings.training.samples_per_position
        self._window.resize(window_capacity(self._settings.training.window, self._state.total_samples))


def _newest_first(ledger: Ledger, sequence: int) -> Iterator[BatchRow]:
    """Yield the trusted batches up to a sequence number, the newest first: a window needs few of a long run's."""
    for end in range(sequence, 0, -ROWS_TOGETHER):
        yield from reversed(ledger.trusted_batches(after=max(0, end - ROWS_TOGETHER), up_to=end))


def refill_window(
    window: ReplayWindow,
    ledger: Ledger,
    settings: Settings,
    state: CoachState,
    *,
    log_event: Callable[[str], None] = log.warning,
) -> ReplayWindow:
    """Fill an empty window with the newest batches up to the state's sequence number, without those of liars.

    After a checkpoint was read, ``Receiving.restore`` adds later batches as new.
    """
    capacity = window_capacity(settings.training.window, state.total_samples)
    window.resize(capacity)
    newest: list[GameBatch] = []
    samples = 0
    for row in _newest_first(ledger, state.window_sequence):
        batch = load_if_intact(ledger.folder, row, log_event=log_event)
        if batch is None:
            continue
        newest.append(batch)
        weights = sampling_weights(batch, policy_surprise_weight=settings.training.policy_surprise_weight)
        samples += int(np.count_nonzero(weights))
        if samples > capacity:
            break
    for batch in reversed(newest):
        window.add(batch)
    return window
