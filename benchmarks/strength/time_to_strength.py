"""Measure the time that training needs to reach a strength, for several seeds; compare settings, or two checkouts.

    python benchmarks/strength/time_to_strength.py configs/quickstart.yaml --to 2%
    python benchmarks/strength/time_to_strength.py configs/quickstart.yaml --to 2% --try search.num_simulations=64
    python benchmarks/strength/time_to_strength.py configs/chess.yaml --to 900 --against ../before --minutes 60
    python benchmarks/strength/time_to_strength.py configs/quickstart.yaml --to 3% --show       of the finished runs

--to is the search error as the solver counts it (2%), or the Elo rating over the random player (900). Each contestant
trains once with each of the --seeds: the settings as they are, each --try of changed settings, and the settings by the
code of the checkout --against. The contestants take turns, each with the whole machine for --minutes. A run measures
itself after every --every iterations, in the same way for all contestants; that is part of its time. A monotonic curve
through what it measured gives the time at which it was strong enough. A run that never was counts as if it had been at
its end, and the table says so.

So that machines can be compared, the table also has the times in units of the machine's own: a unit is the time in
which its cores make a million evaluations of the settings' network, in batches of 256 and without anything else. That
is measured before each run. The ratios to the first contestant are the geometric means over the seeds, with 95 %
intervals by Student's distribution.

Runs are in --folder; finished runs are not repeated and interrupted ones are resumed, so Ctrl-C loses little.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.speed.evaluator import evaluation_rate
from benchmarks.strength.curves import time_reached
from benchmarks.strength.target_quality import settings_in
from configs.flags import number, whole
from configs.load import ConfigError, load_settings, override
from configs.schema import Settings
from games import load_game
from training.common.files import write_atomically
from training.common.intervals import mean_margin
from training.networks.evaluator import Evaluator
from training.networks.model_file import canary_positions
from training.networks.network import build_network

BATCH, RATE_ROUNDS = 256, 5
UNIT = 1_000_000  # evaluations


@dataclass(frozen=True)
class Goal:
    """A strength: a search error, or an Elo rating."""

    measure: str  # the key in an evaluation's report
    wanted: float  # larger is stronger

    def strength(self, measured: float) -> float:
        """What was measured, on the scale of ``wanted``."""
        return -measured if self.measure == "search_error" else measured


def goal(text: str) -> Goal:
    """The goal named as 2% or 900.

    Raises:
        ValueError: it is neither.
    """
    if text.endswith("%"):
        return Goal("search_error", -float(text[:-1]) / 100)
    return Goal("elo", float(text))


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

    @property
    def rate_path(self) -> Path:
        """The file with the evaluations per second of the machine before it."""
        return self.path.with_suffix(".rate")

    def curve(self, goal: Goal) -> tuple[list[float], list[float]]:
        """The strengths as it measured them, and the seconds since its start at which it had the models."""
        stats = self.path / "training_stats.json"
        rows = json.loads(stats.read_text()) if stats.exists() else []
        reports = [row["evaluation"] for row in rows if row["evaluation"]]
        found = [  # a report comes after its model, since strength is measured beside playing
            (
                next(row["seconds"] for row in rows if row["model_version"] >= report["model_version"]),
                report[goal.measure],
            )
            for report in reports
            if report[goal.measure] is not None
        ]
        return [seconds for seconds, _ in found], [goal.strength(measured) for _, measured in found]

    def over(self, minutes: float) -> bool:
        """Whether its time is over."""
        stats = self.path / "training_stats.json"
        return stats.exists() and json.loads(stats.read_text())[-1]["seconds"] >= 60 * minutes * 0.95


def machine_rate(settings: Settings) -> float:
    """Evaluations per second of the bare network by all cores of this machine, each as fast as one by itself."""
    game = load_game(settings.game.name, **settings.game.options)
    torch.set_num_threads(1)
    evaluate = Evaluator(build_network(game, **settings.network.arguments()), game, max_batch=BATCH)
    observations = canary_positions(game, BATCH)
    evaluate(observations)
    rates = [evaluation_rate(evaluate, observations) for _ in range(RATE_ROUNDS)]
    return statistics.median(rates) * len(os.sched_getaffinity(0))


def complete_run(run: Run, config: Path, settings: Settings, changes: Mapping[str, Any], minutes: float) -> None:
    """Start or resume a run, and wait for its end; a finished one stays as it is."""
    if run.over(minutes):
        return
    if not run.rate_path.exists():
        write_atomically(run.rate_path, f"{machine_rate(settings):.1f}\n".encode())
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    for section in ("game", "network"):
        if module := document.get(section, {}).get("module"):
            document[section]["module"] = str((config.parent / module).resolve())
    for key, value in {**changes, **run.contestant.changes, "run.seed": run.seed, "run.minutes": minutes}.items():
        override(document, key.split("."), value)
    file = run.path.with_suffix(".yaml")
    write_atomically(file, yaml.safe_dump(document).encode())
    line = [sys.executable, str(run.contestant.checkout / "start_main.py"), "--config", str(file)]
    begun = ["--resume"] if (run.path / "run.db").exists() else []
    with run.path.with_suffix(".log").open("a") as log:
        subprocess.run(
            [*line, "--run-dir", str(run.path), *begun],
            cwd=run.contestant.checkout,
            check=True,
            stdout=log,
            stderr=log,
        )


def show(contestants: Sequence[Contestant], runs: Sequence[Run], wanted: Goal) -> None:
    """Print the table of the runs that have measured themselves."""
    reached = dict[tuple[str, int], tuple[float, bool]]()
    for run in runs:
        times, strengths = run.curve(wanted)
        if times:
            reached[run.contestant.name, run.seed] = time_reached(times, strengths, wanted.wanted)
    print("| settings | minutes, by seed | units, by seed | times as long as the first |\n|---|---|---|---|")
    first = contestants[0].name
    for contestant in contestants:
        mine = [run for run in runs if run.contestant == contestant and (contestant.name, run.seed) in reached]
        found = {run.seed: reached[contestant.name, run.seed] for run in mine}
        units = [found[run.seed][0] * float(run.rate_path.read_text()) / UNIT for run in mine]
        pairs = [math.log(found[seed][0] / reached[first, seed][0]) for seed in found if (first, seed) in reached]
        minutes = ", ".join(f"{'' if was else 'more than '}{seconds / 60:.1f}" for seconds, was in found.values())
        ratio = "1" if contestant.name == first else ratio_with_interval(pairs)
        print(f"| {contestant.name} | {minutes} | {', '.join(f'{each:.1f}' for each in units)} | {ratio} |")


def ratio_with_interval(logarithms: Sequence[float]) -> str:
    """The geometric mean of ratios given by their logarithms, with its 95 % interval if there are two or more."""
    if not logarithms:
        return ""
    mean, margin = float(np.mean(logarithms)), mean_margin(np.array(logarithms))
    if margin is None:
        return f"{math.exp(mean):.2f}"
    return f"{math.exp(mean):.2f} ({math.exp(mean - margin):.2f} to {math.exp(mean + margin):.2f})"


def main() -> None:
    """Train, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="a settings file")
    parser.add_argument("--to", type=goal, required=True, metavar="ELO|ERROR", help="the strength, as 900 or as 2%%")
    parser.add_argument("--try", dest="tries", action="append", default=[], metavar="KEY=VALUE[,KEY=VALUE]")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of Keima")
    parser.add_argument("--seeds", type=whole(0), nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--minutes", type=number(above=0), help="of each run (default: the settings')")
    parser.add_argument("--every", type=whole(), help="iterations between two measurements (default: the settings')")
    parser.add_argument("--folder", type=Path, default=Path("runs/time_to_strength"), help="default: %(default)s")
    parser.add_argument("--show", action="store_true", help="print the table of the finished runs")
    arguments = parser.parse_args()
    try:
        settings = load_settings(arguments.config)
        changes = {"evaluation.every": arguments.every} if arguments.every else {}
        for each in ({}, *map(settings_in, arguments.tries)):
            load_settings(arguments.config, overrides={**changes, **each})
    except (ConfigError, ValueError) as error:
        parser.error(str(error))
    minutes = arguments.minutes or settings.run.minutes
    if minutes is None:
        parser.error(f"{arguments.config} sets no run.minutes: give --minutes")
    if arguments.against and not (arguments.against / "start_main.py").is_file():
        parser.error(f"--against: {arguments.against} is no checkout of Keima")
    contestants = [Contestant("as-is", ROOT, {})]
    contestants += [Contestant(text, ROOT, settings_in(text)) for text in arguments.tries]
    if arguments.against:
        contestants.append(Contestant(arguments.against.resolve().name, arguments.against.resolve(), {}))
    folder = arguments.folder.resolve() / arguments.config.stem
    folder.mkdir(parents=True, exist_ok=True)
    runs = [Run(contestant, seed, folder) for seed in arguments.seeds for contestant in contestants]
    for run in () if arguments.show else runs:
        complete_run(run, arguments.config, settings, changes, minutes)
    show(contestants, runs, arguments.to)


if __name__ == "__main__":
    main()
