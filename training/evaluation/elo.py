"""Ratings from results: Elo by maximum likelihood, and the sequential test that decides whether one player is the stronger.

Elo is the logistic model of Bradley and Terry (1952): a player who is d points stronger scores 1 / (1 + 10 ** (-d / 400)) on average,
a draw being half a point. Margins are half the width of a 95 % interval, from the curvature of the likelihood.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.intervals import Z

SCALE = math.log(10) / 400
PRIOR_GAMES = 1.0  # half a game won and half lost against every opponent met, so that a clean sweep has a finite rating


@dataclass(frozen=True, kw_only=True)
class Result:
    """Games between two players."""

    first: str
    second: str
    wins: int  # of the first
    draws: int
    losses: int


@dataclass(frozen=True, kw_only=True)
class Rating:
    """A player's strength in Elo; ``margin`` is infinite for one who is not connected to the anchor by games."""

    elo: float
    margin: float


def expected_score(difference: float) -> float:
    """The mean score of a player who is ``difference`` Elo stronger."""
    return 1 / (1 + math.exp(-SCALE * difference))


def rate(results: Sequence[Result], anchor: str) -> dict[str, Rating]:
    """The ratings of all players in ``results``, with ``anchor`` at 0.

    Newton's method on the log-likelihood, which is concave.
    """
    names = sorted({anchor, *(result.first for result in results), *(result.second for result in results)})
    index = {name: number for number, name in enumerate(names)}
    points, games = _table(results, index)
    free = np.array([number for name, number in index.items() if name != anchor], np.int64)
    strengths = np.zeros(len(names))
    information = np.eye(len(names))
    for _ in range(100):
        expected = 1 / (1 + np.exp(strengths[None, :] - strengths[:, None]))
        gradient = (points - games * expected).sum(1)
        weights = games * expected * (1 - expected)
        information = np.diag(weights.sum(1)) - weights
        step = np.linalg.lstsq(information[np.ix_(free, free)], gradient[free], rcond=None)[0]
        strengths[free] += np.clip(step, -1, 1)
        if not len(free) or np.abs(step).max() < 1e-9:
            break
    variances = np.zeros(len(names))
    if len(free):
        variances[free] = np.diag(np.linalg.pinv(information[np.ix_(free, free)]))
    known = _connected(games, index[anchor])
    return {
        name: Rating(
            elo=float(strengths[i] / SCALE) if known[i] else 0.0,
            margin=float(Z * math.sqrt(max(variances[i], 0.0)) / SCALE) if known[i] else math.inf,
        )
        for name, i in index.items()
    }


def _table(results: Sequence[Result], index: dict[str, int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points ``[P, P]`` of each player against each other, and games between them."""
    points = np.zeros((len(index), len(index)))
    for result in results:
        i, j = index[result.first], index[result.second]
        points[i, j] += result.wins + result.draws / 2
        points[j, i] += result.losses + result.draws / 2
    met = (points + points.T) > 0
    points += met * PRIOR_GAMES / 2
    return points, points + points.T


def _connected(games: NDArray[np.float64], start: int) -> NDArray[np.bool_]:
    reached = np.zeros(len(games), np.bool_)
    reached[start] = True
    for _ in range(len(games)):
        reached |= (games[reached] > 0).any(0)
    return reached


def log_likelihood_ratio(pair_scores: NDArray[np.float64], *, elo0: float, elo1: float) -> float:
    """How much likelier these results are for a player ``elo1`` stronger than for one ``elo0`` stronger (natural logarithm).

    ``pair_scores`` ``[pairs]`` are mean scores of colour-swapped pairs, whose games are not independent of each other; the normal
    approximation of the generalized sequential probability ratio test (Van den Bergh, "A practical introduction to the GSPRT").
    """
    if len(pair_scores) < 2:
        return 0.0
    low, high = expected_score(elo0), expected_score(elo1)
    # One pair of each outcome is added, so that a clean sweep has a variance too.
    padded = np.concatenate([pair_scores, [0.0, 0.5, 1.0]])
    variance = float(padded.var())
    return float(len(pair_scores) * (high - low) * (2 * pair_scores.mean() - low - high) / (2 * variance))


def sprt(pair_scores: NDArray[np.float64], *, elo0: float, elo1: float, alpha: float, beta: float) -> bool | None:
    """Wald's test: True when the player is ``elo1`` stronger rather than ``elo0``, False for the opposite, None for go on."""
    ratio = log_likelihood_ratio(pair_scores, elo0=elo0, elo1=elo1)
    if ratio >= math.log((1 - beta) / alpha):
        return True
    if ratio <= math.log(beta / (1 - alpha)):
        return False
    return None
