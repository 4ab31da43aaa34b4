"""What to expect of a run: a law of growth, refined by what runs have measured."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keima.base.reports.run_reports import EvaluationReport, ScoreReport
from keima.coach.forecast import (
    LAWS,
    Law,
    Measurement,
    add_forecast,
    count_random_plies,
    forecast_end,
    forecast_strength,
    make_elo_law,
    make_laws,
    positions_at,
    rate_versions,
    read_laws,
    read_measurements,
    refine_law,
)
from keima.coach.planning import find_first_beating
from keima.data.ledger import open_ledger
from keima.evaluation.elo import PairResult
from keima.games import load_game

LAW = Law(slope=70.0, slope_spread=30.0, decay=60.0, decay_spread=30.0, scatter=20.0)


def curve(slope: float, computes: list[float], *, error: float = 10.0, end: float = 1e6) -> list[Measurement]:
    """The measurements of a run whose learning rate does not decay."""
    return [Measurement(compute=c, share=0.0, strength=slope * math.log2(c), error=error) for c in computes]


def test_a_single_measurement_is_continued_by_the_law() -> None:
    (begin,) = curve(70.0, [1000.0])
    later = forecast_strength(LAW, [begin], compute=8000.0, share=0.0)
    assert later.strength == pytest.approx(begin.strength + 3 * 70.0, abs=1.0)
    later = forecast_strength(LAW, [begin], compute=1000.0, share=1.0)
    assert later.strength == pytest.approx(begin.strength + 60.0, abs=1.0), "the learning rate has decayed"


def test_a_run_that_grows_faster_than_others_is_expected_to_go_on_so() -> None:
    measured = curve(120.0, [2.0**each for each in range(10, 18)])
    expected = forecast_strength(LAW, measured, compute=2.0**19, share=0.0)
    assert expected.strength == pytest.approx(120.0 * 19, abs=20.0)


def test_the_interval_widens_with_the_distance_and_narrows_with_measurements() -> None:
    few, many = curve(70.0, [1000.0]), curve(70.0, [1000.0 * 1.2**each for each in range(10)])

    def margin(measured: list[Measurement], compute: float) -> float:
        return forecast_strength(LAW, measured, compute=compute, share=0.0).margin

    assert margin(few, 2000.0) < margin(few, 16_000.0)
    assert margin(many, 16_000.0) < margin(few, 16_000.0)


def test_intervals_hold_what_they_promise() -> None:
    random, inside = np.random.default_rng(1), 0
    for _ in range(400):
        slope, decay = random.normal(70.0, 30.0), random.normal(60.0, 30.0)
        at = [(2.0**each, each / 40) for each in range(10, 14)]

        def strength(compute: float, share: float, slope: float = slope, decay: float = decay) -> float:
            bonus = decay * (1 - math.cos(math.pi * share)) / 2
            return slope * math.log2(compute) + bonus + random.normal(0.0, LAW.scatter)

        measured = [
            Measurement(compute=c, share=p, strength=strength(c, p) + random.normal(0.0, 15.0), error=15.0)
            for c, p in at
        ]
        expected = forecast_strength(LAW, measured, compute=2.0**17, share=1.0)
        inside += abs(strength(2.0**17, 1.0) - expected.strength) <= expected.margin
    assert 0.92 < inside / 400 < 0.98


def test_earlier_runs_make_the_law_that_of_their_game() -> None:
    law = LAW
    for _ in range(3):
        law = refine_law(law, curve(130.0, [2.0**each for each in range(10, 16)]))
    assert law.slope == pytest.approx(130.0, abs=12.0)
    assert law.slope_spread < LAW.slope_spread / 2


def test_a_run_that_seems_to_get_weaker_does_not_make_a_law_of_it() -> None:
    at = [2.0**each for each in range(10, 16)]
    law = refine_law(LAW, curve(-300.0, at))
    assert law.slope == 0.0
    for _ in range(8):
        law = refine_law(law, curve(130.0, at))
    assert law.slope > 50.0, "it does not stay so"
    errors = refine_law(refine_law(LAWS["error"], curve(3.0, at)), curve(-3.0, at))
    assert errors.slope < 0.0


def test_each_doubling_adds_less_where_growth_does_not_last() -> None:
    law = replace(LAW, lasting=0.8)
    at = [forecast_strength(law, curve(0.0, [1.0]), compute=2.0**each, share=0.0).strength for each in range(4)]
    assert np.diff(at) == pytest.approx([70.0, 56.0, 44.8], abs=0.5)


def test_games_with_more_plies_have_more_elo_between_random_and_strong_play() -> None:
    short, long, longest = (make_elo_law(plies).slope for plies in (20.0, 40.0, 400.0))
    assert short < long < longest < 3 * long


def test_how_much_there_is_to_learn_is_told_by_random_games() -> None:
    connect_four, go = (load_game(name) for name in ("connect_four", "go"))
    assert 18 < count_random_plies(connect_four) < 26 and count_random_plies(go) > 100
    assert make_laws(connect_four)["elo"].slope < make_laws(go)["elo"].slope
    assert "elo" not in make_laws(load_game("twenty48")), "which one player plays for a score"


def row(iteration: int, *, evaluation: EvaluationReport | None = None) -> dict[str, Any]:
    """An iteration's report, at ten minutes and a thousand positions each."""
    return {
        "iteration": iteration,
        "seconds": 600.0 * iteration,
        "total_positions": 1000 * iteration,
        "model_version": 2 * iteration,
        "evaluation": vars(evaluation) if evaluation else None,
        "total_games": 25 * iteration,
    }


def match(first: int, second: int | None, wins: int, losses: int) -> PairResult:
    opponent = "random" if second is None else f"model-{second:06d}"
    return PairResult(first=f"model-{first:06d}", second=opponent, wins=wins, draws=0, losses=losses)


RESULTS = [match(2, None, 60, 40), match(4, None, 100, 0), match(6, 4, 70, 30), match(6, None, 100, 0)]


def test_versions_are_rated_from_the_first_that_beat_the_random_player() -> None:
    assert rate_versions(RESULTS[:1]) == []
    (first, elo, error), (newest, zero, none) = rate_versions(RESULTS)
    assert (first, newest, zero, none) == (4, 6, 0.0, 0.0)
    assert -200 < elo < -80 and 15 < error < 60


def test_what_a_run_measures_is_found_where_it_was_played() -> None:
    measured = EvaluationReport(model_version=4, num_simulations=8, search_error=0.1, search_error_margin=0.02)
    rows = [row(1), row(2), row(3, evaluation=measured)]
    found = read_measurements(rows, RESULTS, points=2, seconds=6000.0, decays=True)
    assert [(each.compute, each.share) for each in found["elo"]] == [(2000 / 1000, 0.2), (3000 / 1000, 0.3)]
    (error,) = found["error"]
    assert (error.compute, error.share, error.strength) == (2000 / 1000, 0.2, math.log(0.1))
    assert error.error == pytest.approx(0.2 / 1.96, rel=1e-3), "of the logarithm"
    assert "score" not in found


def test_the_end_is_foretold_at_the_speed_of_the_last_iterations() -> None:
    rows = [row(each) for each in range(1, 11)]
    for late in rows[5:]:  # five times as fast from then on
        late["total_positions"] = 5000 + 5000 * (int(str(late["iteration"])) - 5)
    assert positions_at(rows, 12_000.0) == 30_000 + 50_000
    measured = EvaluationReport(model_version=20, num_simulations=8, search_error=0.1, search_error_margin=0.02)
    rows[-1]["evaluation"] = vars(measured)
    found = read_measurements(rows, RESULTS, points=2, seconds=12_000.0, decays=False)
    laws = make_laws(load_game("connect_four"))
    expected = forecast_end(found, rows, points=2, seconds=12_000.0, decays=False, laws=laws)
    assert 0.0 < expected["error"].strength < 0.1 and expected["elo"].strength > 50
    report = add_forecast(measured, expected, gains=(40.0, None))
    assert (report.gain_of_hour, report.gain_of_machine) == (40.0, None)
    assert report.expected_gain == expected["elo"].strength and report.expected_error == expected["error"].strength
    assert replace(report, expected_score=None) == report


def test_a_score_near_zero_says_nothing_about_its_logarithm() -> None:
    vague = ScoreReport(games=20, mean=0.003, margin=5.0, median=0.0, best=1.0)
    rows = [row(1, evaluation=EvaluationReport(model_version=2, num_simulations=8, score=vague))]
    rows[0]["evaluation"] |= {"score": vars(vague)}
    assert read_measurements(rows, [], points=2, seconds=6000.0, decays=False) == {}


def test_damaged_runs_and_runs_of_other_games_do_not_count(tmp_path: Path) -> None:
    game, folders = load_game("tic_tac_toe"), [tmp_path / name for name in "abcd"]
    for folder in folders[:3]:
        folder.mkdir()
    (folders[0] / "run.db").write_bytes(b"no database")
    with open_ledger(folders[1], game) as ledger:  # of another version
        ledger.add_iteration(1, {"seconds": 1.0})
    with open_ledger(folders[2], game) as ledger:
        for number in range(200):
            ledger.add_iteration(number, {"text": "long" * 50})
    damaged = bytearray((folders[2] / "run.db").read_bytes())
    damaged[-4096:] = b"?" * 4096
    (folders[2] / "run.db").write_bytes(damaged)
    assert read_laws(folders, game) == make_laws(game)
    assert [find_first_beating(folder, game) for folder in folders] == [None] * 4


def test_a_rated_version_without_an_iteration_yet_does_not_count(tmp_path: Path) -> None:
    with open_ledger(tmp_path, load_game("tic_tac_toe")) as ledger:
        ledger.add_match("model-000004", "random", wins=100, draws=0, losses=0, num_simulations=8)
    assert find_first_beating(tmp_path, load_game("tic_tac_toe")) is None
