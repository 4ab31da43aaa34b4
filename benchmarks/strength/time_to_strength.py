"""Measure the time that training needs to reach a strength, for several seeds; compare settings, or two checkouts.

    python benchmarks/strength/time_to_strength.py configs/quickstart.yaml --to 2%
    python benchmarks/strength/time_to_strength.py configs/quickstart.yaml --to 2% --try search.num_simulations=64
    python benchmarks/strength/time_to_strength.py configs/chess.yaml --to 900 --against ../before --minutes 60
    python benchmarks/strength/time_to_strength.py configs/quickstart.yaml --to 3% --show       of the finished runs

--to is the search error as the solver counts it (2%), or the Elo rating over the random player (900). Each contestant
trains once with each of the --seeds: the settings as they are, each --try of changed settings, and the settings by the
code of the checkout --against. The contestants take turns, each with the whole machine for --minutes. A run measures
itself as evaluation.every says, in the same way for all contestants; that is part of its time. A monotonic curve
through what it measured gives the time at which it was strong enough. A run that never was counts as if it had been at
its end, and the table says so.

So that machines can be compared, the table also has the times in units of the machine's own: a unit is the time in
which its cores make a million evaluations of the settings' network, in batches of 256 and without anything else. That
is measured before each run. The ratios to the first contestant are the geometric means over the seeds, with 95 %
intervals by Student's distribution.

Runs are in --folder; finished runs are not repeated and interrupted ones are resumed, so Ctrl-C loses little.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import Parser, Ratio, Report, measure_rates
from benchmarks.speed.evaluator import make_call
from keima.base.files import write_atomically
from keima.base.reports.intervals import mean_margin
from keima.config.flags import number, whole
from keima.config.load import ConfigError, apply_overrides, load_settings
from keima.config.schema import Settings
from keima.games import load_game
from keima.networks.files.model import canary_positions
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network

BATCH, RATE_ROUNDS, RATE_SECONDS = 256, 5, 0.3
UNIT = 1_000_000  # evaluations
QUICK = {
    "search.num_simulations": 8,
    "search.cheap_simulations": 4,
    "training.games_per_iteration": 50,
    "evaluation.every": 1,
}


@dataclass(frozen=True)
class Goal:
    """A strength: a search error, or an Elo rating."""

    measure: str  # the key in an evaluation's report
    wanted: float  # larger is stronger

    def strength(self, measured: float) -> float:
        """Return what was measured, on the scale of ``wanted``."""
        return -measured if self.measure == "search_error" else measured


def read_goal(text: str) -> Goal:
    """Read a goal written as 2% or 900.

    Raises:
        ValueError: it is neither.
    """
    if text.endswith("%"):
        return Goal("search_error", -float(text[:-1]) / 100)
    return Goal("elo", float(text))


def read_changes(text: str) -> dict[str, Any]:
    """Read settings written as KEY=VALUE,KEY=VALUE."""
    return {key: yaml.safe_load(value) for key, _, value in (part.partition("=") for part in text.split(",") if part)}


@dataclass(frozen=True)
class Contestant:
    """Settings, and the code that they are trained by."""

    name: str
    checkout: Path
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """A contestant's run with one seed."""

    contestant: Contestant
    seed: int
    folder: Path

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.folder / f"{self.contestant.name}-{self.seed}"

    def file(self, ending: str) -> Path:
        """Return its file next to the folder."""
        return self.folder / f"{self.path.name}.{ending}"

    def rows(self) -> list[dict[str, Any]]:
        """Read its iterations, as it has left them."""
        stats = self.path / "training_stats.json"
        return json.loads(stats.read_text()) if stats.exists() else []

    def curve(self, goal: Goal) -> tuple[list[float], list[float]]:
        """Return the seconds since its start at which it had its models, and their strengths as it measured them."""
        rows = self.rows()
        reports = [row["evaluation"] for row in rows if row["evaluation"]]
        found = [  # a report comes after its model, since strength is measured beside playing
            (
                next(row["seconds"] for row in rows if row["model_version"] >= report["model_version"]),
                goal.strength(report[goal.measure]),
            )
            for report in reports
            if report[goal.measure] is not None
        ]
        return [seconds for seconds, _ in found], [strength for _, strength in found]

    def rate(self) -> float:
        """Read the evaluations per second of the machine before it."""
        return float(self.file("rate").read_text())


def measure_machine(settings: Settings) -> float:
    """Return the evaluations per second of the bare network by all cores, each as fast as one by itself."""
    game = load_game(settings.game.name, **settings.game.options)
    torch.set_num_threads(1)
    evaluate = Evaluator(build_network(game, **settings.network.arguments()), game, max_batch=BATCH)
    (rates,) = measure_rates(
        [make_call(evaluate, canary_positions(game, BATCH))], rounds=RATE_ROUNDS, seconds=RATE_SECONDS
    )
    return median(rates) * len(os.sched_getaffinity(0))


def complete_run(run: Run, config: Path, settings: Settings, changes: Mapping[str, Any]) -> None:
    """Start or resume a run, and wait for its end; a finished one stays as it is."""
    rows = run.rows()
    if rows and rows[-1]["seconds"] >= 60 * changes["run.minutes"] * 0.95:
        return
    if not run.file("rate").exists():
        write_atomically(run.file("rate"), f"{measure_machine(settings):.1f}\n".encode())
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    for section in ("game", "network"):
        if module := document.get(section, {}).get("module"):
            document[section]["module"] = str((config.parent / module).resolve())
    apply_overrides(document, {**changes, **run.contestant.changes, "run.seed": run.seed})
    write_atomically(run.file("yaml"), yaml.safe_dump(document).encode())
    line = [sys.executable, "-m", "keima", "train", "--config", str(run.file("yaml")), "--run-dir", str(run.path)]
    begun = ["--resume"] if (run.path / "run.db").exists() else []
    checkout = run.contestant.checkout
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with run.file("log").open("a") as log:
        subprocess.run([*line, *begun], cwd=checkout, env=environment, check=True, stdout=log, stderr=log)


def fit_rising(values: Sequence[float]) -> list[float]:
    """Return the nearest non-decreasing values, by least squares (pool adjacent violators)."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([value])
        while len(pools) > 1 and np.mean(pools[-2]) >= np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    return [float(np.mean(pool)) for pool in pools for _ in pool]


def time_reached(times: Sequence[float], strengths: Sequence[float], wanted: float) -> tuple[float, bool]:
    """Return the time at which a run was as strong as wanted, and True; or its last time, and False.

    Interpolates the monotonic curve nearest to the strengths over the logarithm of the time.

    Args:
        times: ascending, above zero.
        strengths: at these times; larger is stronger.
        wanted: on the same scale.
    """
    curve = fit_rising(strengths)
    after = next((i for i, strength in enumerate(curve) if strength >= wanted), None)
    if after is None:
        return times[-1], False
    if after == 0:
        return times[0], True
    between = np.interp(wanted, curve[after - 1 : after + 1], np.log(times[after - 1 : after + 1]))
    return math.exp(between), True


def show(report: Report, contestants: Sequence[Contestant], runs: Sequence[Run], goal: Goal) -> None:
    """Print the table of the runs that have measured themselves."""
    reached = dict[tuple[str, int], tuple[float, bool]]()
    for run in runs:
        times, strengths = run.curve(goal)
        if times:
            reached[run.contestant.name, run.seed] = time_reached(times, strengths, goal.wanted)
    columns = ("settings", "minutes, by seed", "units, by seed", "times as long as the first")
    table, first = report.table(f"Time to {goal.measure} {abs(goal.wanted):g}", *columns), contestants[0].name
    for contestant in contestants:
        mine = [run for run in runs if run.contestant == contestant and (contestant.name, run.seed) in reached]
        found = {run.seed: reached[contestant.name, run.seed] for run in mine}
        minutes = ", ".join(f"{'' if was else 'more than '}{seconds / 60:.1f}" for seconds, was in found.values())
        units = tuple(found[run.seed][0] * run.rate() / UNIT for run in mine)
        logarithms = [math.log(found[seed][0] / reached[first, seed][0]) for seed in found if (first, seed) in reached]
        table.add(contestant.name, minutes, units, None if contestant.name == first else mean_ratio(logarithms))


def mean_ratio(logarithms: Sequence[float]) -> float | Ratio | None:
    """Return the geometric mean of ratios given by their logarithms, with its 95 % interval from two on."""
    if not logarithms:
        return None
    mean, margin = float(np.mean(logarithms)), mean_margin(np.array(logarithms))
    return math.exp(mean) if margin is None else Ratio(*map(math.exp, (mean, mean - margin, mean + margin)))


def main() -> None:
    """Train, measure and print."""
    parser = Parser(__doc__)
    parser.add_argument("config", type=Path, help="a settings file")
    parser.add_argument("--to", type=read_goal, required=True, metavar="ELO|ERROR", help="the strength: 900, or 2%%")
    parser.add_argument("--try", dest="tries", action="append", default=[], metavar="KEY=VALUE[,KEY=VALUE]")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of Keima")
    parser.add_argument("--set", dest="common", default="", metavar="KEY=VALUE,...", help="settings of all contestants")
    parser.option("--seeds", whole(0), (1, 2, 3), quick=(1,), help="a run of each contestant with each")
    parser.add_argument("--minutes", type=number(above=0), help="of each run (default: the settings')")
    parser.add_argument("--folder", type=Path, default=Path("runs/time_to_strength"), help="default: %(default)s")
    parser.add_argument("--show", action="store_true", help="print the table of the finished runs")
    arguments = parser.parse()
    contestants = [Contestant("as-is", ROOT, {})]
    try:
        settings = load_settings(arguments.config)
        contestants += [Contestant(text, ROOT, read_changes(text)) for text in arguments.tries]
        minutes = arguments.minutes or (1.0 if arguments.quick else settings.run.minutes)
        if minutes is None:
            parser.error(f"{arguments.config} sets no run.minutes: give --minutes")
        changes = {"run.minutes": minutes, **(QUICK if arguments.quick else {}), **read_changes(arguments.common)}
        for each in contestants:
            load_settings(arguments.config, overrides={**changes, **each.changes})
    except (ConfigError, ValueError) as error:
        parser.error(str(error))
    if checkout := arguments.against and arguments.against.resolve():
        if not (checkout / "keima" / "__main__.py").is_file():
            parser.error(f"--against: {arguments.against} is no checkout of Keima")
        contestants.append(Contestant(checkout.name, checkout, {}))
    folder = arguments.folder.resolve() / arguments.config.stem
    folder.mkdir(parents=True, exist_ok=True)
    runs = [Run(contestant, seed, folder) for seed in arguments.seeds for contestant in contestants]
    with Report(arguments) as report:
        for run in () if arguments.show else runs:
            complete_run(run, arguments.config.resolve(), settings, changes)
        show(report, contestants, runs, arguments.to)


if __name__ == "__main__":
    main()
