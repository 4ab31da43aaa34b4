"""The rating of a network from its games against rungs whose strengths are known in advance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keima.base.reports.intervals import Z
from keima.evaluation.elo import ELO_SCALE, PairResult, Rating, expected_score, rate_against_anchors
from keima.play.rating.rungs import Rung
from keima.play.rating.scale import Scale, birge_ratio

NETWORK = "network"
MOST_LIKELY_REACH = 400.0  # Elo beyond the ladder, before any games


@dataclass(frozen=True, kw_only=True)
class Points:
    """A network's games against a rung."""

    wins: int = 0
    draws: int = 0
    losses: int = 0

    @property
    def games(self) -> int:
        """Their number."""
        return self.wins + self.draws + self.losses

    @property
    def points(self) -> float:
        """The network's points."""
        return self.wins + self.draws / 2

    def __add__(self, other: "Points") -> "Points":
        return Points(wins=self.wins + other.wins, draws=self.draws + other.draws, losses=self.losses + other.losses)


@dataclass(frozen=True, kw_only=True)
class NetworkRating:
    """A network's rating on the scale of a ladder.

    Attributes:
        elo: the most likely strength.
        margin: half the width of its 95 % interval.
        bound: "least" if the network has lost no point to an anchor, "most" if it has won none: the strength is
            then bounded from one side only, by ``low`` or ``high``. Else "".
        rungs: the rating of each rung that has played.
    """

    elo: float
    margin: float
    bound: str
    rungs: Mapping[str, Rating]

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.elo - self.margin

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.elo + self.margin


def fit_rating(rungs: Sequence[Rung], points: Mapping[str, Points], scale: Scale | None = None) -> NetworkRating | None:
    """Return the rating by maximum likelihood, together with those of the rungs.

    One draw is added against the anchor with the most even score, so that a clean sweep has a finite rating, and one
    against each rung of unknown strength. If anchors disagree by more than chance, the margin is enlarged in the same
    proportion (``birge_ratio``).

    Args:
        rungs: the ladder; those with a strength are anchors.
        points: the network's, by the names of rungs.
        scale: what is known of the rungs; None: the strength of each anchor, independently.

    Returns:
        The rating; None without a game against an anchor.
    """
    played = [rung for rung in rungs if points.get(rung.name, Points()).games]
    anchors = [rung for rung in played if rung.elo is not None]
    if not anchors:
        return None
    results = [_as_result(rung.name, points[rung.name]) for rung in played]
    even = min(anchors, key=lambda rung: _unevenness(rung, points[rung.name]))
    beforehand = [even, *(rung for rung in played if rung.elo is None)]
    results += [_as_result(rung.name, Points(draws=1)) for rung in beforehand]
    if scale is None:
        scale = Scale(known={rung.name: Rating(elo=rung.elo or 0.0, margin=rung.margin) for rung in anchors})
    rated = rate_against_anchors([*results, *scale.matches], scale.known)
    me = rated[NETWORK]
    # Chi squared: the squared deviations of the scores in units of their variances, and twice the loss of the scale's
    # log-likelihood, which is that of the anchors from where they were known to be.
    disagreement = _sum_deviations(anchors, points, rated)
    disagreement += 2 * (scale.log_likelihood(scale.rated) - scale.log_likelihood(rated))
    return NetworkRating(
        elo=me.elo,
        margin=me.margin * birge_ratio(disagreement, len(anchors)),
        bound=_find_bound([points[rung.name] for rung in anchors]),
        rungs={rung.name: rated[rung.name] for rung in played},
    )


def _as_result(rung: str, points: Points) -> PairResult:
    return PairResult(first=NETWORK, second=rung, wins=points.wins, draws=points.draws, losses=points.losses)


def _unevenness(rung: Rung, points: Points) -> tuple[float, float]:
    """Return how far a score is from even; of clean sweeps, the most telling comes first: that of the strongest rung
    beaten, or of the weakest lost to.
    """
    score, elo = points.points / points.games, rung.elo or 0.0
    return abs(score - 0.5), -elo if score > 0.5 else elo


def _sum_deviations(anchors: Sequence[Rung], points: Mapping[str, Points], rated: Mapping[str, Rating]) -> float:
    """Return the sum of the squared deviations of the network's scores, in units of their variances."""
    total = 0.0
    for rung in anchors:
        found = points[rung.name]
        share = expected_score(rated[NETWORK].elo - rated[rung.name].elo)
        # (points - n p)^2 / (n p (1 - p)), where a game that counts for little adds at most what one surprise may
        total += (found.points - found.games * share) ** 2 / max(0.5, found.games * share * (1 - share))
    return total


def _find_bound(points: Sequence[Points]) -> str:
    if all(each.points == each.games for each in points):
        return "least"
    return "most" if all(each.points == 0 for each in points) else ""


def expected_information(rung: Rung, games: int, rating: NetworkRating | None, rungs: Sequence[Rung]) -> float:
    """Return how much the given number of games against a rung would tell of the network: the inverse variance of its
    strength, per Elo squared. It grows slower and slower if the rung's own strength is uncertain.

    Args:
        rung: the opponent.
        games: all games against it.
        rating: what is known of the network's strength; None: only that it is likely to be on the ladder.
        rungs: the ladder.
    """
    if rung.elo is None or games == 0:
        return 0.0
    evenness = expected_evenness(rung, rating, rungs)
    # Fisher information of n games: n p (1 - p) (ln(10) / 400)^2
    variance = 1 / (games * evenness * ELO_SCALE**2) + (rung.margin / Z) ** 2
    return 1 / variance


def expected_evenness(rung: Rung, rating: NetworkRating | None, rungs: Sequence[Rung]) -> float:
    """Return the expected p (1 - p) of a game against an anchor, where p is the network's expected score: 0.25 at an
    even score.
    """
    mean, deviation = _describe_belief(rating, rungs)
    total = 0.0
    for step in (-1.5, -0.75, 0.0, 0.75, 1.5):
        share = expected_score(mean + step * deviation - (rung.elo or 0.0))
        total += share * (1 - share) / 5
    return total


def _describe_belief(rating: NetworkRating | None, rungs: Sequence[Rung]) -> tuple[float, float]:
    """Return the mean and the standard deviation of what is known of the network's strength."""
    if rating is not None:
        return rating.elo, rating.margin / Z
    known = sorted(rung.elo for rung in rungs if rung.elo is not None)
    return known[len(known) // 2], (known[-1] - known[0] + MOST_LIKELY_REACH) / 4
