"""The results of an evaluation are worded the same everywhere; missing measurements are left out."""

import pytest

from keima.base.reports.formats import game_title
from keima.base.reports.run_reports import EvaluationReport
from keima.report.strength import strength_fields, strength_pairs, strength_sentences
from keima.web.run_state import describe_forecast

MEASURED = EvaluationReport(
    model_version=3,
    num_simulations=128,
    search_error=0.02,
    search_error_margin=0.01,
    policy_error=0.1,
    elo=812.0,
    elo_margin=40.0,
    elo_gain=120.4,
    elo_gain_margin=30.0,
    gain_over=2,
    elo_progress=310.0,
    elo_progress_margin=50.0,
    progress_since=1,
    random_not_lost=0.99,
)


def test_metrics_are_fields_pairs_and_sentences() -> None:
    assert strength_fields(MEASURED) == [
        "elo 812 ± 40",
        "+120 ± 30 on model 2",
        "+310 ± 50 since model 1",
        "search error 2.0 ± 1.0 %",
        "policy error 10.0 %",
    ]
    assert strength_pairs(MEASURED) == ["elo=812 ± 40", "not_lost_to_random=0.990"]
    assert strength_sentences(MEASURED) == [
        "Elo 812 ± 40, where a random player is 0",
        "Elo +120 ± 30 compared with model 2",
        "Elo +310 ± 50 compared with model 1, the first that beat a random player",
        "99.0 % of its games with a random player were not lost",
        "It throws away game value in 2.0 ± 1.0 % of solved positions, 10.0 % without search",
    ]


def test_missing_measurements_are_left_out() -> None:
    nothing = EvaluationReport(model_version=3, num_simulations=128)
    assert strength_fields(nothing) == strength_pairs(nothing) == strength_sentences(nothing) == []


@pytest.mark.parametrize(
    ("name", "options", "title"),
    [
        ("go", {"size": 9}, "go"),
        ("othello-1a2b3c4d5e6f", {"size": 6}, "othello"),
        ("openspiel", {"game": "hex(board_size=5)"}, "hex(board_size=5)"),
    ],
)
def test_people_read_a_game_s_own_name(name: str, options: dict[str, object], title: str) -> None:
    assert game_title(name, options) == title


def test_mean_returns_stand_where_ratings_do() -> None:
    measured = EvaluationReport(
        model_version=3, num_simulations=10, random_return=0.4, random_return_margin=0.1, earlier_return=-0.05
    )
    assert strength_fields(measured) == ["return vs random +0.40 ± 0.10", "vs earlier -0.05"]
    assert strength_sentences(measured) == [
        "Mean return +0.40 ± 0.10 against random players in all other seats",
        "Mean return -0.05 against earlier versions in all other seats",
    ]


def test_what_to_expect_at_the_end_is_told_with_its_interval() -> None:
    measured = EvaluationReport(
        model_version=3,
        num_simulations=10,
        expected_gain=151.0,
        expected_gain_margin=60.0,
        gain_of_hour=42.0,
        gain_of_machine=55.0,
        expected_error=0.018,
        expected_error_margin=0.006,
        expected_score=31_000.0,
    )
    texts = ["+151 ± 60 Elo, +42 by another hour, +55 by another machine", "search error 1.8 ± 0.6 %", "score 31,000"]
    assert strength_fields(measured) == [f"expected at the end: {text}" for text in texts]
    assert describe_forecast([{}, {"evaluation/expected_gain": 151.0}, {}]) == "+151 Elo", "the last that there is"
    assert describe_forecast([]) == ""
