"""What is known of the strengths of a ladder's rungs before a network plays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from keima.base.reports.intervals import Z
from keima.evaluation.elo import PairResult, Rating, expected_score, rate_against_anchors


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What is known of rungs before a network plays.

    Attributes:
        known: the strengths that define the scale; those with a margin are not exact.
        matches: games between rungs, which place the others. What one of them leaves open is open for all rungs behind
            it: they are rated together with the network, as their errors are not independent.
    """

    known: Mapping[str, Rating]
    matches: Sequence[PairResult] = ()

    @cached_property
    def rated(self) -> Mapping[str, Rating]:
        """The rungs' ratings without the network."""
        placed = rate_against_anchors(self.matches, self.known) if self.matches else {}
        return {**self.known, **placed}

    def log_likelihood(self, ratings: Mapping[str, Rating]) -> float:
        """Return the logarithm of the likelihood of the rungs' ratings, without constant terms."""
        total = 0.0
        for name, known in self.known.items():
            if known.margin > 0:
                total -= 0.5 * _count_deviations(ratings[name], known) ** 2
        for match in self.matches:
            share = expected_score(ratings[match.first].elo - ratings[match.second].elo)
            total += (match.wins + match.draws / 2) * math.log(share)
            total += (match.losses + match.draws / 2) * math.log(1 - share)
        return total


def make_scale(known: Mapping[str, Rating], matches: Sequence[PairResult]) -> Scale:
    """Return the scale of these matches, with one draw beforehand where a chain of them needs it: a clean sweep then
    has a finite rating, and a match between rungs that are connected already adds no more than its games say. Where the
    matches place the known strengths further from each other than their margins allow, all of these margins are
    enlarged in proportion.

    Args:
        known: the strengths that define the scale.
        matches: between rungs; those of the same two count together.
    """
    sums = dict[frozenset[str], PairResult]()
    for match in matches:
        pair = frozenset((match.first, match.second))
        before = sums.get(pair, PairResult(first=match.first, second=match.second, wins=0, draws=0, losses=0))
        wins, losses = (match.wins, match.losses) if match.first == before.first else (match.losses, match.wins)
        sums[pair] = replace(
            before, wins=before.wins + wins, draws=before.draws + match.draws, losses=before.losses + losses
        )
    found = sorted(sums.values(), key=_measure_unevenness)
    connected, left = set(known), list(found)
    while bridge := next((each for each in left if len({each.first, each.second} & connected) == 1), None):
        left.remove(bridge)
        connected |= {bridge.first, bridge.second}
        found[found.index(bridge)] = replace(bridge, draws=bridge.draws + 1)
    scale = Scale(known=known, matches=found)
    uncertain = [name for name, each in known.items() if each.margin > 0]
    chi_squared = sum(_count_deviations(scale.rated[name], known[name]) ** 2 for name in uncertain)
    excess = birge_ratio(chi_squared, len(uncertain))
    return replace(scale, known={name: replace(each, margin=each.margin * excess) for name, each in known.items()})


def birge_ratio(chi_squared: float, values: int) -> float:
    """Return by how much to enlarge the margins of values that disagree by more than they allow; at least 1.

    Birge, "The calculation of errors by the method of least squares", 1932. One of the values is used up by what they
    have in common: sqrt(chi squared / (values - 1)).
    """
    return math.sqrt(max(1.0, chi_squared / max(1, values - 1)))


def _count_deviations(found: Rating, known: Rating) -> float:
    """Return how many standard deviations lie between where a rung was found and where it was known to be."""
    return Z * (found.elo - known.elo) / known.margin


def _measure_unevenness(match: PairResult) -> float:
    return abs(match.wins - match.losses) / (match.wins + match.draws + match.losses)
