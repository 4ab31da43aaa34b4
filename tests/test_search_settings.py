"""The figures of benchmarks/strength/search_settings.py, from games made by hand."""

import numpy as np
import pytest

from benchmarks.strength.search_settings import Outcome, changed, leads_of_first, rounds
from keima.config.sections.search import SearchSettings
from keima.evaluation.elo import elo_difference, expected_score
from keima.games import load_game
from keima.play.arena.match_benchmark import Match

GO = load_game("go", size=5, komi=3.5)


def passed_match(scores: list[float], *, seconds: tuple[float, float] = (0.2, 0.1)) -> Match:
    """Return a match of games in which both players only passed, with these scores."""
    return Match(
        first="tried",
        second="as they are",
        players=2,
        seed=1,
        opening_plies=0,
        scores=np.array(scores),
        games=tuple((25, 25) for _ in scores),
        move_seconds=seconds,
        seconds=1.0,
    )


def test_the_lead_is_that_of_the_tried_settings_with_both_colours() -> None:
    assert leads_of_first(GO, passed_match([0.0, 1.0])) == [-3.5, 3.5]
    assert leads_of_first(load_game("connect_four"), passed_match([0.0, 1.0])) == []


def test_rounds_add_up_to_one_result_with_an_interval_over_pairs() -> None:
    outcome = Outcome("tried")
    outcome.add(GO, passed_match([1.0, 0.0, 1.0, 1.0]), 100)
    outcome.add(GO, passed_match([1.0, 0.0, 0.0, 1.0], seconds=(0.4, 0.2)), 50)
    said = outcome.as_dict()
    assert outcome.pair_scores == [0.5, 1.0, 0.5, 0.5]
    assert said["score"] == 0.625 and said["time_ratio"] == pytest.approx(2.0)
    assert said["elo"] == pytest.approx(elo_difference(0.625)) and said["low"] < said["elo"]
    assert (said["won_by"], said["lost_by"]) == (3.5, 3.5)
    assert "| tried | 8 | 62.5%" in outcome.line() and "| 50 | 2.00 |" in outcome.line()


def test_a_clean_sweep_has_no_finite_difference() -> None:
    outcome = Outcome("tried")
    outcome.add(GO, passed_match([1.0, 1.0]), 100)
    assert outcome.as_dict()["elo"] is None
    assert outcome.line().startswith("| tried | 2 | 100.0%")


def test_settings_are_changed_by_their_keys() -> None:
    found = changed(SearchSettings(), "search.c_puct=1.4,search.gumbel.c_scale=0.5")
    assert (found.c_puct, found.gumbel.c_scale) == (1.4, 0.5)
    assert changed(found, "") == found
    with pytest.raises(ValueError, match="no setting of the search"):
        changed(found, "network.blocks=3")
    with pytest.raises(ValueError, match="fpu_reduction"):
        changed(found, "search.fpu_reduction=3")


def test_the_last_round_has_what_is_left() -> None:
    assert list(rounds(25, 10)) == [(0, 10), (1, 10), (2, 5)]


@pytest.mark.parametrize("difference", [-300.0, 0.0, 25.0])
def test_an_elo_difference_is_what_its_score_says(difference: float) -> None:
    assert elo_difference(expected_score(difference)) == pytest.approx(difference)
