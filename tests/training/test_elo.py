import math

import numpy as np
import pytest

from training.evaluation.elo import Result, expected_score, log_likelihood_ratio, rate, sprt


def played(first: str, second: str, wins: int, draws: int, losses: int) -> Result:
    return Result(first=first, second=second, wins=wins, draws=draws, losses=losses)


def test_the_anchor_is_at_zero_and_equal_players_are_equal() -> None:
    ratings = rate([played("a", "random", 50, 0, 50)], "random")
    assert ratings["random"].elo == 0
    assert ratings["a"].elo == pytest.approx(0, abs=1e-6)


def test_three_wins_in_four_are_191_elo() -> None:
    ratings = rate([played("a", "random", 7_500, 0, 2_500)], "random")
    assert ratings["a"].elo == pytest.approx(400 * math.log10(3), abs=0.1)


def test_a_draw_is_half_a_win() -> None:
    won = rate([played("a", "random", 60, 0, 40)], "random")["a"]
    drawn = rate([played("a", "random", 20, 80, 0)], "random")["a"]
    assert drawn.elo == pytest.approx(won.elo)


def test_ratings_add_up_along_a_chain_of_opponents() -> None:
    chain = [played("a", "random", 3_000, 0, 1_000), played("b", "a", 3_000, 0, 1_000)]
    ratings = rate(chain, "random")
    assert ratings["b"].elo == pytest.approx(2 * ratings["a"].elo, rel=1e-3)
    assert ratings["b"].margin > ratings["a"].margin


def test_a_clean_sweep_has_a_finite_rating_with_a_wide_margin() -> None:
    rating = rate([played("a", "random", 100, 0, 0)], "random")["a"]
    assert 700 < rating.elo < 1200
    assert 200 < rating.margin < 1200


def test_four_times_the_games_halve_the_margin() -> None:
    few = rate([played("a", "random", 300, 0, 100)], "random")["a"]
    many = rate([played("a", "random", 1_200, 0, 400)], "random")["a"]
    assert many.margin == pytest.approx(few.margin / 2, rel=0.01)


def test_the_margin_covers_the_truth_about_nineteen_times_in_twenty() -> None:
    generator = np.random.default_rng(1)
    truth, covered = 120.0, 0
    for _ in range(400):
        wins = int(generator.binomial(200, expected_score(truth)))
        rating = rate([played("a", "random", wins, 0, 200 - wins)], "random")["a"]
        covered += abs(rating.elo - truth) <= rating.margin
    assert 0.92 <= covered / 400 <= 0.98


def test_a_player_whom_nobody_has_met_has_no_rating() -> None:
    ratings = rate([played("a", "random", 5, 0, 5), played("c", "d", 5, 0, 5)], "random")
    assert math.isinf(ratings["c"].margin)
    assert math.isfinite(ratings["a"].margin)


def pairs(difference: float, count: int, generator: np.random.Generator) -> np.ndarray:
    return generator.binomial(2, expected_score(difference), count) / 2


def test_the_sequential_test_decides_for_the_stronger_and_against_the_weaker_player() -> None:
    generator = np.random.default_rng(2)
    options = {"elo0": 0.0, "elo1": 30.0, "alpha": 0.05, "beta": 0.05}
    assert sprt(pairs(80, 1_000, generator), **options) is True
    assert sprt(pairs(-80, 1_000, generator), **options) is False
    assert sprt(pairs(15, 4, generator), **options) is None


def test_the_sequential_test_is_wrong_as_seldom_as_it_promises() -> None:
    generator = np.random.default_rng(3)
    wrong = 0
    for _ in range(300):
        scores = pairs(0, 3_000, generator)
        verdicts = (sprt(scores[:n], elo0=0.0, elo1=30.0, alpha=0.05, beta=0.05) for n in range(16, 3_000, 16))
        wrong += next((verdict for verdict in verdicts if verdict is not None), False)
    assert wrong / 300 < 0.09


def test_no_pairs_say_nothing() -> None:
    assert log_likelihood_ratio(np.zeros(0), elo0=0, elo1=30) == 0
