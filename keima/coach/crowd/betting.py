"""Sequential tests by betting: how strongly a stream of observations speaks against a bound on their mean.

A bet starts with a capital of 1. Before each observation x, from 0 to 1, it stakes a part of the capital at odds that
are fair if the mean of x is ``mean``: the capital is multiplied by 1 + stake * (x - mean) / mean. As long as the
expectation of x, given everything before, is at most ``mean``, the capital is expected not to grow, and by Ville's
inequality it ever reaches C with a probability of at most 1 / C, however long the stream is and whenever one looks
(Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2024).

Who begins to lie late would find a capital that many honest games have eaten up. So at every observation t a new bet
begins with 1 / (t * (t + 1)) of the capital, and the sum over all bets is what counts: these parts sum to 1, so the
bound holds for it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_CAPITAL = 1e12  # more is not counted


@dataclass(frozen=True, kw_only=True)
class Bet:
    """A bet after some observations."""

    observations: int = 0
    total: float = 0.0  # of the observations
    stakes: tuple[float, ...] = ()  # the capital in play for each size of stake; the rest is not staked yet

    @property
    def capital(self) -> float:
        """What 1 has become: the strength of the evidence against the bound."""
        waiting = 1.0 / (self.observations + 1)
        return waiting + sum(self.stakes) / len(self.stakes) if self.stakes else 1.0

    @property
    def average(self) -> float:
        """The mean of the observations; 0 without any."""
        return self.total / self.observations if self.observations else 0.0


def observe(bet: Bet, value: float, *, mean: float, sizes: Sequence[float]) -> Bet:
    """Return the bet after one more observation.

    Args:
        bet: before it.
        value: the observation, from 0 to 1.
        mean: the largest expectation that honest observations have.
        sizes: the stakes as shares of the capital, each from 0 to 1; what is won is averaged over them.
    """
    number = bet.observations + 1
    begun = 1.0 / (number * (number + 1))
    stakes = bet.stakes or (0.0,) * len(sizes)
    return Bet(
        observations=number,
        total=bet.total + value,
        stakes=tuple(
            min(MOST_CAPITAL, (stake + begun) * (1.0 + size * (value - mean) / mean))
            for stake, size in zip(stakes, sizes, strict=True)
        ),
    )
