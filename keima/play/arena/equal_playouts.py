"""How many playouts a move MCTS needs to play as well as a network: a strength for any game, which no opponent bounds.

The number of playouts is doubled until the network scores no more than half. A player gains about as much Elo with each
doubling (Jones, "Scaling Scaling Laws with Board Games", 2021), so all scores together say where the half is:

    expected score at N playouts = 1 / (1 + 10 ** (gain * log2(N / N50) / 400))

with an unknown N50, and a gain of 20 to 300 Elo a doubling.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from keima.base.reports.intervals import wilson_interval

FIRST_PLAYOUTS = 64
PROBE_FACTOR = 4  # between the first, few games
PROBE_GAMES = 4  # or the number of games, if that is less
FEWEST_SURE = 6  # games, all of which the weaker player wins in 1 of 64 cases
MOST_DOUBLINGS = 30.0
GAINS = np.linspace(20.0, 300.0, 57)  # Elo a doubling
USUAL_GAIN, GAIN_SPREAD = 80.0, 0.5  # the prior: the median, and the standard deviation of the logarithm
INTERVAL = (0.025, 0.5, 0.975)


@dataclass(frozen=True, kw_only=True)
class PlayoutScore:
    """The network's score against MCTS with so many playouts."""

    playouts: int
    points: float
    games: int


@dataclass(frozen=True, kw_only=True)
class EqualPlayouts:
    """The playouts a move with which MCTS plays as well, with a 95 % interval."""

    playouts: float
    low: float
    high: float
    surely_beaten: int  # playouts that it surely beats, where none were too many: it may be worth far more; else 0
    scores: tuple[PlayoutScore, ...]

    @property
    def is_bound(self) -> bool:
        """Whether the network is only known to be stronger than some playouts."""
        return self.surely_beaten > 0


def find_equal_playouts(
    play: Callable[[int, int], float],
    *,
    games: int,
    most: int,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> EqualPlayouts:
    """Play MCTS with more and more playouts until the network scores no more than half, or the time is not enough for
    the next number of playouts, which takes as much longer as it has more playouts.

    A few games find where to begin.

    Args:
        play: plays so many games against MCTS with so many playouts, and returns the network's points.
        games: against each number of playouts.
        most: the most playouts.
        seconds: for all games.
        clock: a monotonic clock in seconds.
    """
    scores, until, cost = list[PlayoutScore](), clock() + seconds, 0.0  # cost: seconds a game and playout

    def fits(playouts: int, count: int) -> bool:
        return playouts <= most and clock() + cost * playouts * count <= until

    def score(playouts: int, count: int) -> float:
        nonlocal cost
        began = clock()
        scores.append(PlayoutScore(playouts=playouts, points=play(playouts, count), games=count))
        cost = (clock() - began) / (playouts * count)
        return scores[-1].points / count

    playouts, probe = FIRST_PLAYOUTS, min(PROBE_GAMES, games)
    while fits(playouts, probe) and score(playouts, probe) >= 0.75:
        playouts *= PROBE_FACTOR
    playouts = max(FIRST_PLAYOUTS // PROBE_FACTOR, playouts // PROBE_FACTOR)
    while count := next((count for count in (games, probe) if fits(playouts, count)), 0):
        if score(playouts, count) <= 0.5:
            break
        playouts *= 2
    return estimate_equal_playouts(scores)


def estimate_equal_playouts(scores: Sequence[PlayoutScore]) -> EqualPlayouts:
    """Estimate the playouts of an even score from scores against several numbers of them: the median of the posterior.

    A draw counts as half a win and half a loss.
    """
    halves = np.linspace(0.0, MOST_DOUBLINGS, 601)  # log2 of N50, equally likely beforehand
    posterior = -0.5 * (np.log(GAINS / USUAL_GAIN) / GAIN_SPREAD)[:, None] ** 2 + np.zeros((len(GAINS), len(halves)))
    for score in scores:
        # log odds of a win at N: gain * (log2(N50) - log2(N)) / 400 * ln(10)
        odds = GAINS[:, None] * (halves - np.log2(score.playouts)) * (np.log(10) / 400)
        posterior += score.points * -np.log1p(np.exp(-odds)) + (score.games - score.points) * -np.log1p(np.exp(odds))
    weights = np.exp(posterior - posterior.max()).sum(0)
    low, median, high = 2 ** np.interp(INTERVAL, np.cumsum(weights) / weights.sum(), halves)
    return EqualPlayouts(
        playouts=float(median),
        low=float(low),
        high=float(high),
        surely_beaten=_find_surely_beaten(scores),
        scores=tuple(scores),
    )


def _find_surely_beaten(scores: Sequence[PlayoutScore]) -> int:
    """Return the most playouts that it surely beats; 0 if there are none, or if it scored no more than half against
    any number of them.
    """
    sums = dict[int, tuple[float, int]]()
    for score in scores:
        points, games = sums.get(score.playouts, (0.0, 0))
        sums[score.playouts] = points + score.points, games + score.games
    if any(points <= 0.5 * games for points, games in sums.values()):
        return 0
    sure = [playouts for playouts, (points, games) in sums.items() if wilson_interval(points, games)[0] > 0.5]
    return max((playouts for playouts in sure if sums[playouts][1] >= FEWEST_SURE), default=0)


def equal_playouts_text(found: EqualPlayouts) -> str:
    """Return the result in words, with two digits."""
    if found.surely_beaten:
        return f"stronger than MCTS with {found.surely_beaten:,} playouts a move"
    low, median, high = (round_to_two_digits(number) for number in (found.low, found.playouts, found.high))
    return f"as strong as MCTS with {median:,} playouts a move ({low:,} to {high:,})"


def round_to_two_digits(number: float) -> int:
    """Round to two significant digits."""
    return int(float(f"{number:.1e}"))
