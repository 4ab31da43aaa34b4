"""What is known of the strengths of a ladder's rungs before a network plays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
                total -= 0.5 * (Z * (ratings[name].elo - known.elo) / known.margin) ** 2
        for match in self.matches:
            share = expected_score(ratings[match.first].elo - ratings[match.second].elo)
            total += (match.wins + match.draws / 2) * math.log(share)
            total += (match.losses + match.draws / 2) * math.log(1 - share)
        return total
