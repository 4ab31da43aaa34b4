"""What all benchmarks share (benchmarks/harness.py), and what each of them has."""

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness import Parser, Report, divide_rounds, find_median, measure_rate, measure_rates, take_turns
from benchmarks.strength.growth_fit import RatedModel, fit_growth
from keima.config.flags import whole
from tests.sources import ROOT, python_files

PROGRAMS = [path for path in python_files("benchmarks") if '__name__ == "__main__"' in path.read_text()]
PARTS = {  # started by other programs
    "simulated_machines.py",
    "playing_volunteers.py",
    "gpu_paths.py",
    "keima_peer.py",
    "openspiel_peer.py",
    "pgx_peer.py",
}


def test_ways_take_turns_in_being_first() -> None:
    calls: list[str] = []

    def calling(name: str) -> Callable[[], int]:
        return lambda: calls.append(name) or len(calls)  # type: ignore[func-returns-value]

    assert take_turns([calling("a"), calling("b")], 3) == [[1, 4, 5], [2, 3, 6]]
    assert "".join(calls) == "abbaab"


def test_a_rate_is_what_was_done_in_the_time_that_it_took() -> None:
    now = [0.0]

    def work() -> int:
        now[0] += 0.4
        return 10

    assert measure_rate(work, 1.0, clock=lambda: now[0]) == pytest.approx(25)
    assert measure_rates([work], rounds=2, seconds=0.1, clock=lambda: now[0]) == [pytest.approx([25, 25])]


def test_a_ratio_is_the_median_of_the_rounds_with_its_interval() -> None:
    assert divide_rounds([2, 6, 4], [1, 2, 4]) == (2, 1, 3)
    assert find_median([5, 3, 1, 2, 4, 6]) == (3.5, 1, 6)  # six values: 97 % is between the extremes
    assert find_median(range(1, 41)) == (20.5, 14, 27)


def test_quick_has_defaults_of_its_own_which_flags_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(*words: str) -> tuple[object, ...]:
        monkeypatch.setattr(sys, "argv", ["benchmark", *words])
        parser = Parser("text", rounds=5)
        parser.option("--sizes", whole(), [9, 19], quick=[7], help="of boards")
        arguments = parser.parse()
        return arguments.rounds, arguments.sizes

    assert parsed() == (5, [9, 19])
    assert parsed("--quick") == (2, [7])
    assert parsed("--quick", "--rounds", "3", "--sizes", "5", "6") == (3, [5, 6])


def test_tables_are_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["benchmark", "--json", str(path)])
    with Report(Parser("text").parse()) as report:
        table = report.table("Speed", "game", "moves/s", "ratio", "other")
        table.add("go", 12_345.6, divide_rounds([1.0, 3.0], [2.0, 3.0]), None)
    assert "| go                         |    12,346 | 0.750 (0.500 to 1.000) |         - |" in capsys.readouterr().out
    (written,) = json.loads(path.read_text())["tables"]
    assert written["rows"] == [["go", 12_345.6, [0.75, 0.5, 1.0], None]]


def test_each_benchmark_is_in_the_table_and_the_table_names_no_other() -> None:
    table = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w/]+\.py)", table, re.MULTILINE))
    assert named == {str(path.relative_to(ROOT / "benchmarks")) for path in PROGRAMS if path.name not in PARTS}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_each_benchmark_has_the_harness_s_command_line(path: Path) -> None:
    assert path.name in PARTS or "Parser(__doc__" in path.read_text(encoding="utf-8")


def test_the_law_of_growth_is_found_again_in_models_that_follow_it() -> None:
    def strength(positions: float, simulations: int, size: float, begins: float, slope: float) -> float:
        compute = positions / begins * (simulations / 64) ** 0.4 * (size / (3 * 32**2)) ** 0.2
        return 800 + slope * (1 - 0.9 ** math.log2(compute)) / (1 - 0.9)

    models = [
        RatedModel(
            game=game,
            run=f"{game}-{simulations}-{size}",
            points=49,
            plies=30.0,
            simulations=simulations,
            size=size,
            positions=49 * positions,
            elo=strength(positions, simulations, size, begins, slope),
        )
        for game, begins, slope in (("hex", 300.0, 200.0), ("go", 700.0, 350.0))
        for simulations, size in ((64, 3072.0), (32, 3072.0), (64, 512.0))
        for positions in (400, 1_600, 6_400, 25_600)
    ]
    growth = fit_growth(models)
    shared = growth.of_simulations.value, growth.of_size.value, growth.lasting.value
    assert shared == pytest.approx((0.4, 0.2, 0.9), rel=1e-3)
    assert [(each.game, each.begins.value, each.slope.value) for each in growth.games] == [
        ("go", pytest.approx(700, rel=1e-3), pytest.approx(350, rel=1e-3)),
        ("hex", pytest.approx(300, rel=1e-3), pytest.approx(200, rel=1e-3)),
    ]
    assert growth.scatter < 1 and growth.of_size.margin < 0.01
    noise = {run: 60 * (-1) ** number for number, run in enumerate(dict.fromkeys(model.run for model in models))}
    noisy = [replace(model, elo=model.elo + noise[model.run]) for model in models]
    assert fit_growth(noisy).of_size.margin > 0.05
    one = [model for model in models if model.game == "go" or model.run == models[0].run]
    assert [each.game for each in fit_growth(one).games] == ["go"], "a single run has no margin"
    with pytest.raises(ValueError, match="two runs"):
        fit_growth(models[:3])
