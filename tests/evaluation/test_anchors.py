"""Ratings against players whose strengths are known in advance."""

import numpy as np
import pytest

from keima.evaluation.elo import PairResult, Rating, expected_score, rate_against_anchors, rate_players


def games(first: str, second: str, wins: int, losses: int) -> PairResult:
    return PairResult(first=first, second=second, wins=wins, draws=0, losses=losses)


def test_a_player_who_scores_half_against_an_anchor_is_as_strong_as_it_is() -> None:
    rated = rate_against_anchors([games("me", "a", 50, 50)], {"a": Rating(elo=1800, margin=0)})
    assert rated["me"].elo == pytest.approx(1800)
    assert rated["a"].elo == pytest.approx(1800) and rated["a"].margin == 0
    assert 60 < rated["me"].margin < 75  # 1.96 / (0.25 * 100)**0.5 * 400 / ln(10)


def test_several_anchors_are_fitted_together() -> None:
    anchors = {"a": Rating(elo=1000, margin=0), "b": Rating(elo=1400, margin=0)}
    results = [games("me", "a", 760, 240), games("me", "b", 240, 760)]
    assert rate_against_anchors(results, anchors)["me"].elo == pytest.approx(1200, abs=5)


def test_an_uncertain_anchor_widens_the_interval_and_moves_with_the_games() -> None:
    sure = rate_against_anchors([games("me", "a", 500, 500)], {"a": Rating(elo=1000, margin=0)})
    unsure = rate_against_anchors([games("me", "a", 500, 500)], {"a": Rating(elo=1000, margin=100)})
    assert unsure["me"].margin == pytest.approx(np.hypot(sure["me"].margin, 100))
    anchors = {"a": Rating(elo=1000, margin=0), "b": Rating(elo=1000, margin=200)}
    moved = rate_against_anchors([games("me", "a", 500, 500), games("me", "b", 240, 760)], anchors)
    assert 1100 < moved["b"].elo < 1200 and abs(moved["me"].elo - 1000) < 20


def test_a_player_of_unknown_strength_says_nothing_of_the_others() -> None:
    anchors = {"a": Rating(elo=1000, margin=0)}
    alone = rate_against_anchors([games("me", "a", 60, 40)], anchors)["me"]
    beside = rate_against_anchors([games("me", "a", 60, 40), games("me", "new", 90, 10)], anchors)
    assert beside["me"].elo == pytest.approx(alone.elo) and beside["me"].margin == pytest.approx(alone.margin)
    assert expected_score(beside["me"].elo - beside["new"].elo) == pytest.approx(0.9)


def test_a_scale_far_from_0_gives_the_same_distances_as_one_anchor_at_0() -> None:
    results = [games("b", "a", 70, 30), games("c", "b", 60, 40)]
    far, near = rate_against_anchors(results, {"a": Rating(elo=2500, margin=0)}), rate_players(results * 1000, "a")
    for name in "abc":
        assert far[name].elo - 2500 == pytest.approx(near[name].elo, abs=0.5)
