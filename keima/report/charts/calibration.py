"""The calibration of search: its predicted win rates in self-play, compared with the actual ones."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keima.base.reports.intervals import mean_margin_of_groups
from keima.config.sections.training import SEED_ACCOUNTS
from keima.data.ledger import read_ledger
from keima.data.receive import load_if_intact
from keima.data.records import RANDOM_MOVE, GameBatch
from keima.report.games.game_view import load_game_of_run

BINS = 10
EXAMINED_POSITIONS = 50_000  # examined, of the newest games
FEWEST_GAMES = 10  # in a bin that is shown


@dataclass(frozen=True, kw_only=True)
class CalibrationBin:
    """Positions with similar expectations of search; a draw is half a win."""

    expected: float  # the share of wins that search expected for the player to move, on average
    won: float  # the share that the player won
    margin: float  # half the width of the latter's 95 % interval; positions of one game count as one observation


def measure_calibration(run: Path, *, log_event: Callable[[str], None]) -> list[CalibrationBin]:
    """Return the calibration in a run's newest self-play games; empty for one-player games, or too few games.

    Positions with a random move are left out, because the search's value was of another move.

    Args:
        run: the run's folder.
        log_event: called with a line about each damaged file.

    Raises:
        ValueError: there is no such run, or this program does not play it.
    """
    with read_ledger(run) as ledger:
        game, rows = load_game_of_run(ledger), ledger.received_batches()
    if game.num_players != 2 or game.num_outcomes:
        return []
    batches, positions = list[GameBatch](), 0
    for row in reversed([row for row in rows if row.worker not in SEED_ACCOUNTS.values()]):
        batch = load_if_intact(run, row, log_event=log_event)
        batches += [batch] if batch else []
        positions += row.positions
        if positions >= EXAMINED_POSITIONS:
            break
    return make_bins(batches)


def make_bins(batches: list[GameBatch]) -> list[CalibrationBin]:
    """Return the positions of two-player games without chance, by search's expectation in ascending order; small bins
    are left out.
    """
    if not batches:
        return []
    parts = [_positions_with_results(batch) for batch in batches]
    expected, won = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    firsts = np.cumsum([0, *(batch.num_games for batch in batches)])
    games = np.concatenate([first + part[2] for first, part in zip(firsts, parts, strict=False)])
    place = np.minimum((expected * BINS).astype(int), BINS - 1)
    found = []
    for each in range(BINS):
        here = place == each
        if len(np.unique(games[here])) >= FEWEST_GAMES:
            margin = mean_margin_of_groups(won[here], games[here])
            found.append(
                CalibrationBin(expected=float(expected[here].mean()), won=float(won[here].mean()), margin=margin)
            )
    return found


def _positions_with_results(batch: GameBatch) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return expectation, result and game of each position after the last random move.

    Players take turns, and player 0 begins.
    """
    games = np.repeat(np.arange(batch.num_games), batch.lengths)
    movers = (np.arange(batch.num_positions) - np.repeat(np.cumsum(batch.lengths) - batch.lengths, batch.lengths)) % 2
    random = np.cumsum(np.concatenate(([0], batch.flags & RANDOM_MOVE != 0)))
    chosen = random[:-1] == np.repeat(random[np.cumsum(batch.lengths)], batch.lengths)
    expected, won = (
        (1 + batch.root_values.astype(np.float64)) / 2,
        (1 + batch.returns[games, movers].astype(np.float64)) / 2,
    )
    return expected[chosen], won[chosen], games[chosen]
