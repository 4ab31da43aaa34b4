"""The table of benchmarks/strength/time_to_strength.py, from what runs have measured of themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.strength.time_to_strength import Contestant, Run, goal, show


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
