"""The numbers by which workers are checked, and what follows from them."""

from collections.abc import Sequence
from dataclasses import dataclass

from keima.coach.crowd.betting import Bet, observe
from keima.coach.crowd.ranking import NAMES, NUM_STATISTICS, RANKS_EACH_WAY


@dataclass(frozen=True, kw_only=True)
class CheckLimits:
    """How much is checked, and when a worker is distrusted.

    A worker's evidence is the weighted sum of the capitals of its bets (``keima.coach.crowd.betting``). The weights sum
    to 1, so the evidence against an honest worker ever reaches ``evidence`` with a probability of at most 1 / evidence.
    """

    # How much: all of the first games, a larger share of those after them, and then the share that the settings say.
    first_games: int = 8
    newcomer_games: int = 200
    newcomer_share: float = 0.1
    # A newcomer gets no more games than this until some have been checked: checks take time, and a fast liar does not
    # wait for them.
    newcomer_grant: int = 150
    passing_checks: int = 16  # of about 22 in so many games
    # Capital from which on all games of a worker are searched again, until it has fallen. One game of another search
    # multiplies the first capitals by 5 to 12.
    suspicious: float = 2.0
    evidence: float = 1000.0  # one false alarm in 1,000 workers
    # The largest expectation of an honest game's score (``keima.coach.crowd.scoring``). Measured means, by whichever of
    # the two number types is nearer: 0.002 with the same type on processors of other kinds, 0.019 where bfloat16 is
    # rounded elsewhere, 0.014 where the model changed; 0.033 by the wrong type alone.
    mean_score: float = 0.03
    score_sizes: tuple[float, ...] = (0.1, 0.3, 0.6)  # stakes: for lies of different sizes
    score_weight: float = 0.25
    # Lies in few games are small on average. So games of another search are counted as well: those with at least this
    # score, to which no honest game came close (0.2 at most), whatever the processor and however often its model
    # changed. One in 200 is allowed.
    gross_score: float = 0.5
    mean_gross: float = 0.005
    gross_sizes: tuple[float, ...] = (0.05, 0.5)
    gross_weight: float = 0.25
    # The largest expectation of an honest game's rank among others, from 0 to 1 and in either direction. It is 1/2 if
    # all others are honest and played the same models. A tenth of liars among them shifts it by up to 0.05, and as much
    # again covers machines that change their models at other times.
    mean_rank: float = 0.6
    rank_sizes: tuple[float, ...] = (0.25, 0.75)
    compared_games: int = 32  # of others that began with the same model, without which a game is not ranked
    close_score: float = 0.01  # scores up to which no other number type and no earlier settings are tried

    @property
    def rank_weight(self) -> float:
        """The weight of each of the bets on ranks: two for each statistic, for both directions."""
        return (1.0 - self.score_weight - self.gross_weight) / (2 * NUM_STATISTICS)

    def games_to_check(self, received: int, share: float) -> float:
        """Return how many of a worker's games are to be searched again, once so many were received."""
        first = min(received, self.first_games)
        newcomers = max(0, min(received, self.newcomer_games) - self.first_games)
        later = max(0, received - self.newcomer_games)
        return first + max(share, self.newcomer_share) * newcomers + share * later if share > 0 else 0.0

    def observe_score(self, bet: Bet, score: float) -> Bet:
        """Return the bet on scores after one more game."""
        return observe(bet, min(1.0, score), mean=self.mean_score, sizes=self.score_sizes)

    def observe_gross(self, bet: Bet, score: float) -> Bet:
        """Return the bet on how many games are of another search after one more game."""
        return observe(bet, float(score >= self.gross_score), mean=self.mean_gross, sizes=self.gross_sizes)

    def observe_rank(self, bets: tuple[Bet, Bet], rank: float) -> tuple[Bet, Bet]:
        """Return the bets on a statistic's ranks, that they are low and that they are high, after one more game."""
        low, high = (
            observe(bet, value, mean=self.mean_rank, sizes=self.rank_sizes)
            for bet, value in zip(bets, (1.0 - rank, rank), strict=True)
        )
        return low, high

    def weigh(self, scores: Bet, gross: Bet, ranks: Sequence[tuple[Bet, Bet]]) -> float:
        """Return the evidence against a worker."""
        searched = self.score_weight * scores.capital + self.gross_weight * gross.capital
        return searched + self.rank_weight * sum(low.capital + high.capital for low, high in ranks)

    def give_reason(self, scores: Bet, gross: Bet, ranks: Sequence[tuple[Bet, Bet]]) -> str:
        """Return what speaks against a worker most, for people."""
        statistic, way = max(
            ((statistic, way) for statistic in range(len(ranks)) for way in range(2)),
            key=lambda place: ranks[place[0]][place[1]].capital,
        )
        bet = ranks[statistic][way]
        searched = max(self.score_weight * scores.capital, self.gross_weight * gross.capital)
        if searched >= self.rank_weight * bet.capital:
            return (
                f"its games are not those of their seeds, models and settings: of {scores.observations:,} that were "
                f"checked {gross.total:.0f} are of another search, and they differ by {scores.average:.3f} on average, "
                f"where {self.mean_score:g} is allowed"
            )
        return (
            f"the {NAMES[statistic]} of its games are too {RANKS_EACH_WAY[statistic][way]}: of {bet.observations:,} "
            f"games the mean rank among those of other workers is "
            f"{bet.average if way else 1 - bet.average:.2f}, where {1 - self.mean_rank:g} to {self.mean_rank:g} are "
            "allowed"
        )


CHECK_LIMITS = CheckLimits()
