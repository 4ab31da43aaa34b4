"""Elo ratings by maximum likelihood, and the sequential test of whether one player is stronger.

Elo is the logistic model of Bradley and Terry (1952): a player who is d points stronger scores
1 / (1 + 10 ** (-d / 400)) on average, where a draw is half a point. Margins are half the width of a 95 % interval, from
the curvature of the likelihood.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keima.base.reports.intervals import Z
from keima.evaluation.sparse import Matrix, SparseFactors, find_elimination_order

ELO_SCALE = math.log(10) / 400
MOST_STEPS = 100  # of Newton's method; ten are typical
PRIOR_GAMES = 1.0  # half a win and half a loss against each opponent, so that a clean sweep has a finite rating


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """Games between two players."""

    first: str
    second: str
    wins: int  # of the first
    draws: int
    losses: int


@dataclass(frozen=True, kw_only=True)
class Rating:
    """A player's rating in Elo; ``margin`` is infinite without a chain of games to the anchor."""

    elo: float
    margin: float


def expected_score(difference: float) -> float:
    """Return the expected score of a player who is ``difference`` Elo stronger."""
    # E(d) = 1 / (1 + 10**(-d / 400))
    return 1 / (1 + math.exp(-ELO_SCALE * difference))


def elo_difference(score: float) -> float:
    """Return the difference in Elo at which ``score`` is expected; infinite from a clean sweep on."""
    if not 0 < score < 1:
        return math.inf if score >= 1 else -math.inf
    # d = 400 * log10(s / (1 - s)), the inverse of E
    return math.log(score / (1 - score)) / ELO_SCALE


def rate_players(results: Sequence[PairResult], anchor: str) -> dict[str, Rating]:
    """Return the ratings of all players in ``results``, with ``anchor`` at 0.

    Newton's method on the concave log-likelihood. Pairings are sparse, so the time is nearly linear in the number of
    players.
    """
    return _maximize_likelihood(
        _tabulate_scores(results, [anchor], prior=PRIOR_GAMES), {anchor: Rating(elo=0.0, margin=0.0)}
    )


def rate_against_anchors(results: Sequence[PairResult], anchors: Mapping[str, Rating]) -> dict[str, Rating]:
    """Return the ratings of all players in ``results``, where the strengths of ``anchors`` are known in advance.

    An anchor with a margin of 0 keeps its strength. Another has a normal prior with this margin, and is rated together
    with the other players. There are no games beforehand, so a player who won or lost all of them has no finite rating.
    """
    return _maximize_likelihood(_tabulate_scores(results, list(anchors), prior=0.0), anchors)


def _maximize_likelihood(scores: "ScoreTable", anchors: Mapping[str, Rating]) -> dict[str, Rating]:
    """Return the ratings of all players of a table by Newton's method, as the two functions above describe them."""
    fixed = {name for name, rating in anchors.items() if rating.margin == 0}
    known = _find_connected_players(scores, anchors)
    start = ELO_SCALE * sum(rating.elo for rating in anchors.values()) / len(anchors)
    strengths = {name: ELO_SCALE * anchors[name].elo if name in anchors else start for name in known}
    priors = {
        # the mean, and the precision 1 / sd**2, where the margin is Z * sd
        name: (ELO_SCALE * rating.elo, (Z / (ELO_SCALE * rating.margin)) ** 2)
        for name, rating in anchors.items()
        if name not in fixed
    }
    order = find_elimination_order({name: scores[name].keys() - fixed for name in known - fixed})
    for _ in range(MOST_STEPS):
        gradient, information = _compute_derivatives(scores, strengths, order)
        for name, (mean, precision) in priors.items():
            gradient[name] += precision * (mean - strengths[name])
            information[name][name] += precision
        inverse = SparseFactors(information, order)
        step = inverse.solve(gradient)
        for name, change in step.items():
            # Newton: s += information**-1 * gradient, at most 1 in a step
            strengths[name] += max(-1.0, min(1.0, change))
        if all(abs(change) < 1e-9 for change in step.values()):
            break
    variances = {**dict.fromkeys(fixed, 0.0), **inverse.inverse_diagonal()}
    unknown = Rating(elo=0.0, margin=math.inf)
    rated = {
        name: Rating(elo=strengths[name] / ELO_SCALE, margin=Z * math.sqrt(variances[name]) / ELO_SCALE)
        for name in known
    }
    return {name: rated.get(name, unknown) for name in sorted(scores)}


ScoreTable = dict[str, dict[str, float]]  # of each player against each opponent, including the prior's points


def _tabulate_scores(results: Sequence[PairResult], anchors: Iterable[str], *, prior: float) -> ScoreTable:
    """Return the points of all players, with ``prior`` games beforehand between those that met."""
    scores: ScoreTable = {anchor: {} for anchor in anchors}
    for result in results:
        points = (result.wins + result.draws / 2, result.losses + result.draws / 2)
        for player, opponent, won in (
            (result.first, result.second, points[0]),
            (result.second, result.first, points[1]),
        ):
            row = scores.setdefault(player, {})
            if sum(points) > 0:
                row[opponent] = row.get(opponent, prior / 2) + won
    return scores


def _find_connected_players(scores: ScoreTable, starts: Iterable[str]) -> set[str]:
    """Return the players connected to one of ``starts`` by games."""
    reached, waiting = set(starts), list(starts)
    while waiting:
        new = scores[waiting.pop()].keys() - reached
        reached |= new
        waiting += new
    return reached


def _compute_derivatives(
    scores: ScoreTable, strengths: Mapping[str, float], names: Sequence[str]
) -> tuple[dict[str, float], Matrix]:
    """Return the gradient of the log-likelihood by the strengths of ``names``, and minus its second derivatives."""
    gradient, information = {}, {}
    for name in names:
        slope, row = 0.0, {name: 0.0}
        for opponent, points in scores[name].items():
            games = points + scores[opponent][name]
            # p = 1 / (1 + exp(s_opponent - s)); a game adds result - p to the gradient, p * (1 - p) to the information
            expected = 1 / (1 + math.exp(strengths[opponent] - strengths[name]))
            weight = games * expected * (1 - expected)
            slope += points - games * expected
            row[name] += weight
            row[opponent] = -weight
        gradient[name], information[name] = slope, row
    return gradient, information


def log_likelihood_ratio(pair_scores: NDArray[np.float64], *, elo0: float, elo1: float) -> float:
    """Return the log-likelihood ratio of ``elo1`` against ``elo0`` for these results.

    ``pair_scores`` ``[pairs]`` are mean scores of colour-swapped pairs, whose games are not independent. This is the
    normal approximation of the generalized sequential probability ratio test (Van den Bergh, "A practical introduction
    to the GSPRT").
    """
    if len(pair_scores) < 2:
        return 0.0
    low, high = expected_score(elo0), expected_score(elo1)
    # One pair of each outcome gives a clean sweep a variance, too.
    padded = np.concatenate([pair_scores, [0.0, 0.5, 1.0]])
    variance = float(padded.var())
    # LLR = n * (s1 - s0) * (2 * mean - s0 - s1) / (2 * variance)
    return float(len(pair_scores) * (high - low) * (2 * pair_scores.mean() - low - high) / (2 * variance))


def decide_sprt(
    pair_scores: NDArray[np.float64], *, elo0: float, elo1: float, alpha: float, beta: float
) -> bool | None:
    """Decide Wald's sequential test: True for ``elo1``, False for ``elo0``, None while it is undecided."""
    ratio = log_likelihood_ratio(pair_scores, elo0=elo0, elo1=elo1)
    # Accept at LLR >= log((1 - beta) / alpha), reject at LLR <= log(beta / (1 - alpha)) (Wald 1945)
    if ratio >= math.log((1 - beta) / alpha):
        return True
    if ratio <= math.log(beta / (1 - alpha)):
        return False
    return None
