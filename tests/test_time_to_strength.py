"""The table of benchmarks/strength/time_to_strength.py, from what runs have measured of themselves."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.strength.curves import never_falling, time_reached
from benchmarks.strength.models_of_a_run import Moment, spaced_moments
from benchmarks.strength.time_to_strength import Contestant, Run, all_contestants, goal, show, show_effects, show_ends


def leave(run: Run, *, errors: dict[float, float | None], rate: float) -> None:
    """Leave a run whose models of these seconds had these search errors; None: it measured something else.

    The reports come with the next iteration.
    """
    rows, report = list[dict[str, Any]](), None
    for version, (seconds, error) in enumerate(errors.items(), start=1):
        rows.append({"seconds": seconds, "model_version": version, "evaluation": report})
        report = {"model_version": version, "search_error": error, "elo": 100.0}
    rows.append({"seconds": 1000.0, "model_version": len(errors), "evaluation": report})
    run.path.mkdir(parents=True)
    (run.path / "training_stats.json").write_text(json.dumps(rows))
    run.rate_path.write_text(f"{rate}\n")


def test_runs_of_settings_with_dots_have_files_of_their_own(tmp_path: Path) -> None:
    names = ["as-is", "search.c_puct=1.25", "search.c_puct=1.5", "search.fpu_reduction=0.4"]
    runs = [Run(Contestant(name, tmp_path, {}), seed, tmp_path) for name in names for seed in (1, 2)]
    assert len({run.rate_path for run in runs} | {run.measured_path for run in runs}) == 16


def test_a_goal_is_an_error_or_a_rating() -> None:
    assert (goal("2%").measure, goal("2%").wanted) == ("search_error", -0.02)
    assert (goal("900").measure, goal("900").wanted) == ("elo", 900.0)
    with pytest.raises(ValueError, match="strong"):
        goal("strong")


def test_the_table_compares_times_by_seed_and_says_who_never_got_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = Contestant("as-is", tmp_path, {}), Contestant("other", tmp_path, {"search.num_simulations": 64})
    runs = [Run(contestant, seed, tmp_path) for seed in (1, 2) for contestant in (first, second)]
    leave(runs[0], errors={30.0: None, 60.0: 0.04, 120.0: 0.02, 180.0: 0.01}, rate=10_000.0)
    leave(runs[1], errors={60.0: 0.04, 240.0: 0.02}, rate=10_000.0)
    leave(runs[2], errors={60.0: 0.04, 120.0: 0.02}, rate=20_000.0)
    leave(runs[3], errors={60.0: 0.04, 240.0: 0.03}, rate=20_000.0)
    show([first, second], runs, goal("2%"))
    table = capsys.readouterr().out.splitlines()[2:]
    assert table == [
        "| as-is | 2.0, 2.0 | 1.2, 2.4 | 1 |",
        "| other | 4.0, more than 4.0 | 2.4, 4.8 | 2.00 (2.00 to 2.00) |",
    ]


def moment(seconds: float, *, policy: float, search: float | None) -> Moment:
    """Return a model of a run after this time; the value's squared error is ten times the policy's error."""
    errors = {"policy_error": policy, "squared_error": 10 * policy, "search_error": search}
    return Moment(seconds=seconds, games=int(10 * seconds), model_version=int(seconds), **errors)


def test_runs_beside_each_other_are_compared_by_what_was_measured_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = Contestant("as-is", tmp_path, {}), Contestant("other", tmp_path, {}, ("other",))
    runs = [Run(contestant, seed, tmp_path) for seed in (1, 2) for contestant in (first, second)]
    for run, policy, search in zip(runs, (0.05, 0.03, 0.06, 0.04), (0.04, 0.01, 0.04, None), strict=True):
        moments = [moment(60, policy=0.2, search=0.1), moment(240, policy=policy, search=search)]
        run.measured_path.write_text(json.dumps([asdict(each) for each in moments]))
        run.rate_path.write_text("10000.0\n")
    show([first, second], runs, goal("5%"))
    show_ends([first, second], runs)
    show_effects([first, second], runs)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == [
        "| as-is | 3.2, 3.2 | 1.9, 1.9 | 1 |",
        "| other | 2.2 | 1.3 | 0.68 |",  # of the second seed only the last model's network has been measured
    ]
    assert lines[7:] == [
        "| as-is | 2,400, 2,400 | 5.50% | 0.5500 | 4.00% |",
        "| other | 2,400, 2,400 | 3.50% | 0.3500 | 1.00% |",
        "",
        "| change | pairs | policy error | value's squared error | search error |",
        "|---|---|---|---|---|",
        "| other | 2 | -2.00% ± 0.00% | -0.2000 ± 0.0000 | -3.00% |",
    ]


def test_changes_may_be_combined_and_are_judged_by_all_pairs_that_differ_in_them_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contestants = all_contestants(["search.c_puct=2", "search.discount=0.5,search.c_puct=3"], 2, None)
    assert [each.name for each in contestants] == [
        "as-is",
        "search.c_puct=2",
        "search.discount=0.5,search.c_puct=3",
        "search.c_puct=2+search.discount=0.5,search.c_puct=3",
    ]
    assert contestants[3].changes == {"search.c_puct": 3, "search.discount": 0.5}
    assert len(all_contestants(["a=1", "b=1", "c=1"], 2, None)) == 7
    for contestant, error in zip(contestants, (0.5, 0.4, 0.3, 0.1), strict=True):
        Run(contestant, 1, tmp_path).measured_path.write_text(
            json.dumps([asdict(moment(9, policy=error, search=None))])
        )
    show_effects(contestants, [Run(each, 1, tmp_path) for each in contestants])
    assert capsys.readouterr().out.splitlines()[3:] == [
        "| search.c_puct=2 | 2 | -15.00% ± 63.53% | -1.5000 ± 6.3531 |  |",
        "| search.discount=0.5,search.c_puct=3 | 2 | -25.00% ± 63.53% | -2.5000 ± 6.3531 |  |",
    ]


def test_models_are_measured_evenly_over_the_logarithm_of_time_and_the_last_one_always(tmp_path: Path) -> None:
    rows = [{"seconds": 10.0 * i, "total_games": i, "model_version": max(1, i - 1)} for i in range(1, 81)]
    (tmp_path / "training_stats.json").write_text(json.dumps(rows))
    assert [each.seconds for each in spaced_moments(tmp_path, 4)] == [100.0, 200.0, 400.0, 800.0]
    assert [each.seconds for each in spaced_moments(tmp_path, 1000)] == [10.0 * i for i in range(10, 81)]
    assert [each.seconds for each in spaced_moments(tmp_path, 2)] == [100.0, 800.0]
    assert [each.seconds for each in spaced_moments(tmp_path, 1)] == [800.0]
    (tmp_path / "training_stats.json").write_text(json.dumps(rows[:1]))
    assert [each.model_version for each in spaced_moments(tmp_path, 4)] == [1]


def test_a_monotone_fit_takes_the_mean_where_the_values_fall() -> None:
    assert never_falling([0.1, 0.5, 0.3, 0.9, 0.8, 0.7]) == pytest.approx([0.1, 0.4, 0.4, 0.8, 0.8, 0.8])
    assert never_falling([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]


def test_the_time_is_between_the_strengths_below_and_above_the_goal() -> None:
    assert time_reached([100, 400], [0.4, 0.6], 0.5) == (pytest.approx(200), True)
    assert time_reached([50, 100], [0.5, 0.6], 0.5) == (50, True)


def test_a_run_that_was_never_as_strong_gets_its_last_time() -> None:
    assert time_reached([50, 100, 400], [0.0, 0.6, 0.2], 0.5) == (400, False)
