"""The table of benchmarks/strength/time_to_strength.py, from what runs have measured of themselves."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.strength import time_to_strength
from benchmarks.strength.time_to_strength import Contestant, Run, fit_rising, read_changes, read_goal, time_reached


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
    run.file("rate").write_text(f"{rate}\n")


def test_runs_of_settings_with_dots_have_files_of_their_own(tmp_path: Path) -> None:
    names = ["as-is", "search.c_puct=1.25", "search.c_puct=1.5", "search.fpu_reduction=0.4"]
    runs = [Run(Contestant(name, tmp_path, {}), seed, tmp_path) for name in names for seed in (1, 2)]
    assert len({run.file(ending) for run in runs for ending in ("rate", "yaml")}) == 16


def test_a_goal_is_an_error_or_a_rating() -> None:
    assert (read_goal("2%").measure, read_goal("2%").wanted) == ("search_error", -0.02)
    assert (read_goal("900").measure, read_goal("900").wanted) == ("elo", 900.0)
    with pytest.raises(ValueError, match="strong"):
        read_goal("strong")


def test_changes_are_read_as_settings_files_are() -> None:
    assert read_changes("search.c_puct=2,run.name=a") == {"search.c_puct": 2, "run.name": "a"}
    assert read_changes("") == {}


def test_the_table_compares_times_by_seed_and_says_who_never_got_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Contestant("as-is", tmp_path, {})
    second = Contestant("search.num_simulations=64", tmp_path, {"search.num_simulations": 64})
    folder = tmp_path / "quickstart"
    runs = [Run(contestant, seed, folder) for seed in (1, 2) for contestant in (first, second)]
    leave(runs[0], errors={30.0: None, 60.0: 0.04, 120.0: 0.02, 180.0: 0.01}, rate=10_000.0)
    leave(runs[1], errors={60.0: 0.04, 240.0: 0.02}, rate=10_000.0)
    leave(runs[2], errors={60.0: 0.04, 120.0: 0.02}, rate=20_000.0)
    leave(runs[3], errors={60.0: 0.04, 240.0: 0.03}, rate=20_000.0)
    words = ["configs/quickstart.yaml", "--to", "2%", "--try", second.name, "--seeds", "1", "2", "--show"]
    monkeypatch.setattr(sys, "argv", ["time_to_strength.py", *words, "--folder", str(tmp_path)])
    time_to_strength.main()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| ")
    ]
    assert rows[1:] == [
        ["as-is", "2.0, 2.0", "1.200, 2.400", "-"],
        ["search.num_simulations=64", "4.0, more than 4.0", "2.400, 4.800", "2.000 (2.000 to 2.000)"],
    ]


def test_a_monotone_fit_takes_the_mean_where_the_values_fall() -> None:
    assert fit_rising([0.1, 0.5, 0.3, 0.9, 0.8, 0.7]) == pytest.approx([0.1, 0.4, 0.4, 0.8, 0.8, 0.8])
    assert fit_rising([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]


def test_the_time_is_between_the_strengths_below_and_above_the_goal() -> None:
    assert time_reached([100, 400], [0.4, 0.6], 0.5) == (pytest.approx(200), True)
    assert time_reached([50, 100], [0.5, 0.6], 0.5) == (50, True)


def test_a_run_that_was_never_as_strong_gets_its_last_time() -> None:
    assert time_reached([50, 100, 400], [0.0, 0.6, 0.2], 0.5) == (400, False)
