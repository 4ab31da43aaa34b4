"""The rating of a network from its games against rungs of known strength."""

import numpy as np
import pytest

from keima.evaluation.elo import PairResult, Rating, expected_score
from keima.play.arena.match_benchmark import Entrant
from keima.play.arena.players import RandomSpec
from keima.play.rating.fit import Points, expected_information, fit_rating
from keima.play.rating.rungs import Rung
from keima.play.rating.scale import Scale, make_scale


def rung(name: str, elo: float | None, margin: float = 0.0) -> Rung:
    return Rung(entrant=Entrant(name=name, spec=RandomSpec()), elo=elo, margin=margin)


LADDER = [rung(str(elo), elo) for elo in (0, 400, 800, 1200, 1600)]


@pytest.mark.parametrize("true", [300, 1000, 1500])
def test_the_true_strength_lies_in_nineteen_of_twenty_intervals(true: float) -> None:
    random, hits = np.random.default_rng(1), 0
    for _ in range(200):
        points = dict[str, Points]()
        for each in LADDER:
            wins = int(random.binomial(20, expected_score(true - (each.elo or 0.0))))
            points[each.name] = Points(wins=wins, losses=20 - wins)
        rating = fit_rating(LADDER, points)
        assert rating is not None
        hits += rating.low <= true <= rating.high
    assert hits >= 180


def test_a_clean_sweep_is_a_bound_near_the_rung_that_tells_most() -> None:
    swept = fit_rating(LADDER, {each.name: Points(wins=20) for each in LADDER})
    lost = fit_rating(LADDER, {each.name: Points(losses=20) for each in LADDER})
    assert swept and swept.bound == "least" and 1600 < swept.low < swept.elo < 2400
    assert lost and lost.bound == "most" and -800 < lost.elo < lost.high < 0
    even = fit_rating(LADDER, {"800": Points(wins=10, losses=10)})
    assert even and even.bound == "" and even.elo == pytest.approx(800)


def test_wins_against_far_weaker_rungs_do_not_pull_the_rating_down() -> None:
    alone = fit_rating(LADDER, {"1600": Points(wins=10, losses=10)})
    beside = fit_rating(LADDER, {"1600": Points(wins=10, losses=10), "0": Points(wins=4)})
    assert alone and beside and abs(alone.elo - beside.elo) < 2


def test_a_rung_of_unknown_strength_is_estimated_and_does_not_anchor() -> None:
    new = rung("new", None)
    points = {"800": Points(wins=60, losses=40), "new": Points(wins=90, losses=10)}
    rating = fit_rating([*LADDER, new], points)
    alone = fit_rating(LADDER, points)
    assert rating and alone and rating.elo == pytest.approx(alone.elo)
    assert rating.rungs["new"].elo < 600
    assert fit_rating([new], {"new": Points(wins=3)}) is None


def test_anchors_that_disagree_widen_the_interval() -> None:
    agreed = fit_rating(LADDER, {"400": Points(wins=76, losses=24), "800": Points(wins=24, losses=76)})
    torn = fit_rating(LADDER, {"400": Points(wins=24, losses=76), "800": Points(wins=76, losses=24)})
    assert agreed and torn and torn.margin > 2 * agreed.margin


def test_an_even_opponent_tells_most_and_an_uncertain_one_less_and_less() -> None:
    points = {"800": Points(wins=10, losses=10)}
    rating = fit_rating(LADDER, points)
    told = {each.name: expected_information(each, 10, rating, LADDER) for each in LADDER}
    assert max(told, key=lambda name: told[name]) == "800" and told["0"] < told["400"] < told["800"]
    unsure = rung("unsure", 800, margin=100)
    few, many = (expected_information(unsure, games, rating, LADDER) for games in (10, 1000))
    assert few < told["800"] and many < 6 * few
    assert expected_information(rung("new", None), 10, rating, LADDER) == 0


def chain(margin: float) -> tuple[list[Rung], Scale]:
    """A ladder of three rungs, of which the last two are placed by one close and one wide match."""
    known = {"first": Rating(elo=0.0, margin=margin)}
    matches = [
        PairResult(first="second", second="first", wins=39, draws=0, losses=1),
        PairResult(first="third", second="second", wins=20, draws=0, losses=20),
    ]
    scale = Scale(known=known, matches=matches)
    return [rung(name, rating.elo, rating.margin) for name, rating in scale.rated.items()], scale


def test_what_a_match_leaves_open_is_open_for_all_rungs_behind_it() -> None:
    rungs, scale = chain(0.0)
    points = {"second": Points(wins=50, losses=50), "third": Points(wins=50, losses=50)}
    rating, apart = fit_rating(rungs, points, scale), fit_rating(rungs, points)
    assert rating and apart and rating.elo == pytest.approx(apart.elo, abs=60)
    assert rating.margin > 0.95 * scale.rated["second"].margin > apart.margin, "two uncertain anchors are not two views"


def test_an_uncertain_scale_moves_all_rungs_together() -> None:
    (exact, sure), (vague, unsure) = chain(0.0), chain(150.0)
    points = {"third": Points(wins=50, losses=50)}
    one, other = fit_rating(exact, points, sure), fit_rating(vague, points, unsure)
    assert one and other and other.margin == pytest.approx((one.margin**2 + 150**2) ** 0.5, rel=0.02)


def test_matches_are_fitted_with_the_network_s_games_and_their_disagreement_widens_the_interval() -> None:
    rungs, scale = chain(0.0)
    agreed = fit_rating(rungs, {"second": Points(wins=50, losses=50), "third": Points(wins=50, losses=50)}, scale)
    torn = fit_rating(rungs, {"second": Points(wins=90, losses=10), "third": Points(wins=10, losses=90)}, scale)
    assert agreed and torn and torn.margin > 1.5 * agreed.margin
    assert torn.rungs["third"].elo - torn.rungs["second"].elo > 100, "they are equals by their own match alone"


def test_the_interval_holds_the_true_strength_also_where_matches_place_the_rungs() -> None:
    random, hits, true = np.random.default_rng(1), 0, {"first": 0.0, "second": 350.0, "third": 500.0, "me": 420.0}
    for _ in range(200):

        def play(first: str, second: str, games: int) -> int:
            return int(random.binomial(games, expected_score(true[first] - true[second])))

        matches = [
            PairResult(first=first, second=second, wins=(wins := play(first, second, 40)), draws=0, losses=40 - wins)
            for first, second in (("second", "first"), ("third", "second"))
        ]
        scale = Scale(known={"first": Rating(elo=0.0, margin=0.0)}, matches=matches)
        rungs = [rung(name, rating.elo, rating.margin) for name, rating in scale.rated.items()]
        wins = {name: play("me", name, 60) for name in ("second", "third")}
        rating = fit_rating(rungs, {name: Points(wins=won, losses=60 - won) for name, won in wins.items()}, scale)
        hits += rating is not None and rating.low <= true["me"] <= rating.high
    assert hits >= 180


def test_a_match_between_rungs_that_are_connected_adds_no_more_than_its_games_say() -> None:
    def match(first: str, second: str, wins: int, losses: int) -> PairResult:
        return PairResult(first=first, second=second, wins=wins, draws=0, losses=losses)

    known = {"a": Rating(elo=0.0, margin=0.0)}
    chain = [match("b", "a", 39, 1), match("c", "b", 39, 1)]
    alone, confirmed = make_scale(known, chain).rated, make_scale(known, [*chain, match("c", "a", 40, 0)]).rated
    assert confirmed["c"].elo >= alone["c"].elo
    assert confirmed["c"].margin > 0.9 * alone["c"].margin
    split = [match("b", "a", 20, 0), match("a", "b", 1, 19), match("c", "b", 39, 1)]
    assert make_scale(known, split).rated["c"].elo == pytest.approx(alone["c"].elo)
    swept = make_scale(known, [match("b", "a", 40, 0)]).rated["b"]
    assert 600 < swept.elo < 1200 and swept.margin < 1000


@pytest.mark.parametrize(("wins", "factor"), [(70, 1.0), (99, 2.0)])
def test_known_strengths_that_matches_contradict_are_less_certain(wins: int, factor: float) -> None:
    known = {name: Rating(elo=elo, margin=60.0) for name, elo in (("weak", 0.0), ("strong", 150.0))}
    match = PairResult(first="strong", second="weak", wins=wins, draws=0, losses=100 - wins)
    margins = [rating.margin for rating in make_scale(known, [match]).known.values()]
    assert min(margins) >= 60 * factor and (factor > 1 or max(margins) == 60)
