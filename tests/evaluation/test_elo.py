import math

import numpy as np
import pytest

from keima.evaluation.elo import PairResult, decide_sprt, expected_score, log_likelihood_ratio, rate_players
from keima.evaluation.sparse import SparseFactors, find_elimination_order
from keima.evaluation.strength import find_elo_gain, find_first_to_beat_anchor, opponent_shares


def played(first: str, second: str, wins: int, draws: int, losses: int) -> PairResult:
    return PairResult(first=first, second=second, wins=wins, draws=draws, losses=losses)


def test_the_anchor_is_at_zero_and_equal_players_are_equal() -> None:
    ratings = rate_players([played("a", "random", 50, 0, 50)], "random")
    assert ratings["random"].elo == 0
    assert ratings["a"].elo == pytest.approx(0, abs=1e-6)


def test_three_wins_in_four_are_191_elo() -> None:
    ratings = rate_players([played("a", "random", 7_500, 0, 2_500)], "random")
    assert ratings["a"].elo == pytest.approx(400 * math.log10(3), abs=0.1)


def test_a_draw_is_half_a_win() -> None:
    won = rate_players([played("a", "random", 60, 0, 40)], "random")["a"]
    drawn = rate_players([played("a", "random", 20, 80, 0)], "random")["a"]
    assert drawn.elo == pytest.approx(won.elo)


def test_ratings_add_up_along_a_chain_of_opponents() -> None:
    chain = [played("a", "random", 3_000, 0, 1_000), played("b", "a", 3_000, 0, 1_000)]
    ratings = rate_players(chain, "random")
    assert ratings["b"].elo == pytest.approx(2 * ratings["a"].elo, rel=1e-3)
    assert ratings["b"].margin > ratings["a"].margin


def test_a_clean_sweep_has_a_finite_rating_with_a_wide_margin() -> None:
    rating = rate_players([played("a", "random", 100, 0, 0)], "random")["a"]
    assert 700 < rating.elo < 1200
    assert 200 < rating.margin < 1200


def test_four_times_the_games_halve_the_margin() -> None:
    few = rate_players([played("a", "random", 300, 0, 100)], "random")["a"]
    many = rate_players([played("a", "random", 1_200, 0, 400)], "random")["a"]
    assert many.margin == pytest.approx(few.margin / 2, rel=0.01)


def test_the_margin_covers_the_truth_about_nineteen_times_in_twenty() -> None:
    generator = np.random.default_rng(1)
    truth, covered = 120.0, 0
    for _ in range(400):
        wins = int(generator.binomial(200, expected_score(truth)))
        rating = rate_players([played("a", "random", wins, 0, 200 - wins)], "random")["a"]
        covered += abs(rating.elo - truth) <= rating.margin
    assert 0.92 <= covered / 400 <= 0.98


def test_a_player_without_games_has_no_rating() -> None:
    ratings = rate_players([played("a", "random", 5, 0, 5), played("c", "d", 5, 0, 5)], "random")
    assert math.isinf(ratings["c"].margin)
    assert math.isfinite(ratings["a"].margin)


def a_long_run(versions: int) -> list[PairResult]:
    """Return a run in which each version meets the anchor, its predecessor, and the version half as old."""
    generator = np.random.default_rng(4)
    met = [(version, opponent) for version in range(1, versions + 1) for opponent in {0, version - 1, version // 2}]
    strength = [400 * math.log10(1 + version) for version in range(versions + 1)]
    won = [int(generator.binomial(20, expected_score(strength[a] - strength[b]))) for a, b in met]
    return [played(f"{a:04d}", f"{b:04d}", wins, 0, 20 - wins) for (a, b), wins in zip(met, won, strict=True)]


def test_ratings_maximize_the_likelihood_and_margins_follow_from_its_curvature() -> None:
    results = a_long_run(40)
    ratings = rate_players(results, "0000")
    names = sorted(ratings)
    gradient, curvature = np.zeros(len(names)), np.zeros((len(names), len(names)))
    for result in results:
        i, j = names.index(result.first), names.index(result.second)
        games = result.wins + result.losses + 1  # one game of the prior
        expected = expected_score(ratings[result.first].elo - ratings[result.second].elo)
        slope, weight = result.wins + 0.5 - games * expected, games * expected * (1 - expected)
        gradient[[i, j]] += slope, -slope
        curvature[np.ix_([i, j], [i, j])] += weight * np.array([[1, -1], [-1, 1]])
    assert np.abs(gradient[1:]).max() < 1e-6
    margins = 1.959964 * np.sqrt(np.diag(np.linalg.inv(curvature[1:, 1:]))) * 400 / math.log(10)
    np.testing.assert_allclose([ratings[name].margin for name in names[1:]], margins, rtol=1e-6)


def test_ratings_of_a_long_run_take_work_in_proportion_to_its_length() -> None:
    met: dict[str, set[str]] = {}
    for result in a_long_run(2_000):
        met.setdefault(result.first, set()).add(result.second)
        met.setdefault(result.second, set()).add(result.first)
    neighbours = {name: others - {"0000"} for name, others in met.items() if name != "0000"}
    unit = {name: {name: 10.0, **dict.fromkeys(others, -1.0)} for name, others in neighbours.items()}
    assert SparseFactors(unit, find_elimination_order(neighbours)).num_entries < 20 * len(neighbours)


def pairs(difference: float, count: int, generator: np.random.Generator) -> np.ndarray:
    return generator.binomial(2, expected_score(difference), count) / 2


def test_the_sequential_test_decides_for_the_stronger_and_against_the_weaker_player() -> None:
    generator = np.random.default_rng(2)
    options = {"elo0": 0.0, "elo1": 30.0, "alpha": 0.05, "beta": 0.05}
    assert decide_sprt(pairs(80, 1_000, generator), **options) is True
    assert decide_sprt(pairs(-80, 1_000, generator), **options) is False
    assert decide_sprt(pairs(15, 4, generator), **options) is None


def test_the_sequential_test_is_wrong_as_rarely_as_it_promises() -> None:
    generator = np.random.default_rng(3)
    wrong = 0
    for _ in range(300):
        scores = pairs(0, 3_000, generator)
        verdicts = (decide_sprt(scores[:n], elo0=0.0, elo1=30.0, alpha=0.05, beta=0.05) for n in range(16, 3_000, 16))
        wrong += next((verdict for verdict in verdicts if verdict is not None), False)
    assert wrong / 300 < 0.09


def test_pairs_with_equal_results_decide_nothing_until_there_are_enough() -> None:
    options = {"elo0": 0.0, "elo1": 30.0, "alpha": 0.05, "beta": 0.05}
    sweeps = {count: decide_sprt(np.ones(count), **options) for count in (2, 5, 40)}
    assert sweeps == {2: None, 5: None, 40: True}
    # By hand: one pair of each outcome is added to the two that were won.
    low, high = 0.5, expected_score(30.0)
    ratio = log_likelihood_ratio(np.ones(2), elo0=0.0, elo1=30.0)
    assert ratio == pytest.approx(2 * (high - low) * (2 - low - high) / (2 * np.var([1, 1, 0, 0.5, 1])))


def test_without_pairs_nothing_is_decided() -> None:
    assert log_likelihood_ratio(np.zeros(0), elo0=0, elo1=30) == 0


def test_the_margin_of_a_gain_is_that_of_the_games_between_the_versions_and_not_the_random_player_s() -> None:
    """Two versions that never lose to the random player: their ratings are uncertain, their difference is not."""
    results = [
        played("model-000001", "random", 100, 0, 0),
        played("model-000002", "random", 100, 0, 0),
        played("model-000002", "model-000001", 300, 0, 100),
    ]
    gain = find_elo_gain(results, 2, 1)
    assert gain and gain.elo == pytest.approx(190, abs=10)
    assert gain.margin < 45 < 300 < rate_players(results, "random")["model-000002"].margin


def test_the_first_version_that_beats_a_random_player_is_found() -> None:
    results = [
        played("model-000012", "random", 40, 0, 0),
        played("model-000002", "random", 39, 0, 1),
        played("model-000004", "random", 99, 2, 0),
        played("model-000004", "model-000002", 0, 0, 9),
        played("model-000001", "random", 0, 0, 0),
    ]
    assert find_first_to_beat_anchor(results) == 4
    assert find_first_to_beat_anchor(results[1:2]) is None


def test_versions_that_no_games_connect_have_no_gain() -> None:
    assert find_elo_gain([played("model-000002", "random", 5, 0, 5)], 2, 1) is None


def test_most_games_are_with_the_version_of_a_tenth_of_the_run_ago() -> None:
    assert opponent_shares([], 10) == {}
    assert opponent_shares([1], 2) == {1: 1.0}
    assert opponent_shares([10, 20, 30, 40], 50) == {40: 0.75, 30: 0.25}
    assert opponent_shares([10, 20, 30, 98], 100) == {30: 1.0}  # 98 is too recent
    assert opponent_shares([99], 100) == {99: 1.0}  # but better than none
