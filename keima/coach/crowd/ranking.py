"""What each game of a worker tells without being searched again, and how unusual it is among games of others.

Four numbers of a game: its length; whether it was resigned; how many opening moves it shares with one of the worker's
last games (long matches mean low entropy: Wyner and Ziv, "Some asymptotic properties of the entropy of a stationary
ergodic data source", 1989); and how far the values of its searches are from its result. Each is ranked among the same
number of other workers' games that began with the same model. For an honest worker the rank, as a share from 0 to 1,
is equally likely to lie anywhere, whatever the game and however strong the model: only its mean is tested.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keima.data.records import CHANCE_OUTCOME, RANDOM_MOVE, GameBatch
from keima.games import Game
from keima.games.authoring.kept_errors import raise_kept_error
from keima.replay.value_targets import ReturnParams, SearchedGames, write_value_targets

LENGTH, RESIGNED, REPEATED, SURPRISE = range(4)
NAMES = ("length", "resignations", "openings", "results")  # in reasons
NUM_STATISTICS = len(NAMES)
EARLIER_GAMES = 20  # with which the opening of a game is compared
OPENING_PLIES = 30  # at most, that are compared
RANKS_EACH_WAY = ("short", "long"), ("rare", "frequent"), ("unlike each other", "alike"), ("expected", "surprising")

Statistics = NDArray[np.float64]  # [NUM_STATISTICS]; NaN where a game has none
Openings = deque[NDArray[np.int32]]  # of a worker's last games


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """A game with which others are compared."""

    worker: str
    trusted: bool
    statistics: Statistics


def make_openings() -> Openings:
    """Return the openings of a worker without games."""
    return deque(maxlen=EARLIER_GAMES)


def measure_games(game: Game, batch: GameBatch) -> NDArray[np.float64]:
    """Return the statistics of the games of a batch, ``[G, NUM_STATISTICS]``, except those about earlier games."""
    found = np.full((batch.num_games, NUM_STATISTICS), np.nan)
    found[:, LENGTH] = batch.lengths
    found[:, RESIGNED] = batch.resigned != 0
    if batch.returns.shape[1] <= 2:
        results = find_results(game, batch)
        searched = (batch.flags & (CHANCE_OUTCOME | RANDOM_MOVE)) == 0
        starts = np.cumsum(batch.lengths) - batch.lengths
        errors = np.where(searched, (results - batch.root_values.astype(np.float64)) ** 2, 0.0)
        counts = np.add.reduceat(searched.astype(np.int64), starts)
        sums = np.add.reduceat(errors, starts)
        found[:, SURPRISE] = np.divide(sums, counts, out=np.full(batch.num_games, np.nan), where=counts > 0)
    return found


def find_results(game: Game, batch: GameBatch) -> NDArray[np.float64]:
    """Return the outcome of its game for the player to move in each position ``[M]``, or the points still to come."""
    targets = np.empty((batch.num_positions, game.num_values), np.float32)
    games = SearchedGames(
        lengths=batch.lengths,
        returns=batch.returns,
        actions=batch.actions,
        root_values=batch.root_values,
        random=np.zeros(batch.num_positions, np.bool_),
    )
    write_value_targets(game.rules, game.start, games, ReturnParams(td_lambda=1.0, discount=1.0), targets)
    raise_kept_error()
    return targets[:, 0].astype(np.float64)


def count_repeated(actions: NDArray[np.int32], earlier: Openings) -> float:
    """Return how many opening moves a game shares with one of the earlier games, and add its opening to them.

    Until there are enough earlier games, the number cannot be compared: NaN.
    """
    opening = actions[:OPENING_PLIES].copy()
    full, longest = len(earlier) == earlier.maxlen, 0
    for other in earlier:
        plies = min(len(opening), len(other))
        differ = np.flatnonzero(opening[:plies] != other[:plies])
        longest = max(longest, int(differ[0]) if len(differ) else plies)
    earlier.append(opening)
    return float(longest) if full else float("nan")


def find_rank(value: float, others: Sequence[float], draw: float) -> float:
    """Return the rank of a value among others, as a share from 0 to 1; ``draw``, from 0 to 1, decides among equals."""
    known = np.asarray([other for other in others if other == other])
    less, equal = int((known < value).sum()), int((known == value).sum())
    return (less + draw * (equal + 1)) / (len(known) + 1)
