"""Measure the time that training needs to reach a strength, for several seeds; compare settings, or two checkouts.

    python benchmarks/strength/time_to_strength.py configs/quickstart.yaml --to 2%
    python benchmarks/strength/time_to_strength.py configs/quickstart.yaml --to 2% --try search.num_simulations=64
    python benchmarks/strength/time_to_strength.py configs/chess.yaml --to 900 --against ../before --minutes 60
    python benchmarks/strength/time_to_strength.py configs/quickstart.yaml --to 3% --show       of the finished runs
    taskset -c 0-13 python benchmarks/strength/time_to_strength.py configs/quickstart.yaml --to 5% --beside --minutes 8

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

With --beside runs do not take turns: each has a core of its own, as many beside each other as there are cores, and
nothing is measured in their time. Afterwards --points models of each, the last one and others evenly spaced in the
logarithm of time, are measured on all solved positions, with the simulations of the settings' evaluation. A second
table has the last models: the network's policy and value alone, and the moves of the search. A third has the effect of
each change: the mean difference of the pairs of runs that differ in this change alone. What was measured is in a JSON
file next to each run's folder. Before the runs a smoke test of the settings compiles what is not compiled yet.

With --combine 2 or more, so many --try are also trained together, so that each change is judged by more pairs: three
changes, none, one or two at a time, are seven contestants, and with two seeds six pairs for each change.

Runs are in --folder; finished runs are not repeated and interrupted ones are resumed, so Ctrl-C loses little.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.speed.evaluator import evaluation_rate
from benchmarks.strength.cores import all_cores, on_a_core
from benchmarks.strength.curves import time_reached
from benchmarks.strength.models_of_a_run import Moment, measure_models, read_moments
from benchmarks.strength.target_quality import settings_in
from keima.base.files import write_atomically
from keima.base.intervals import mean_margin
from keima.config.flags import number, whole
from keima.config.load import ConfigError, load_settings, override
from keima.config.schema import Settings
from keima.evaluation.perfect_play import load_positions
from keima.games import load_game
from keima.networks.files.model_file import canary_positions
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network

BATCH, RATE_ROUNDS = 256, 5
MEASURES = {"policy_error": ".2%", "squared_error": ".4f", "search_error": ".2%"}  # of a last model, and formats
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
    tries: tuple[str, ...] = ()  # what differs from the first contestant


def all_contestants(tries: Sequence[str], most: int, against: Path | None) -> list[Contestant]:
    """The settings as they are, with each of ``tries`` and up to ``most`` of them together, and another checkout."""
    contestants = []
    for chosen in chain.from_iterable(combinations(tries, count) for count in range(most + 1)):
        changes = {key: value for text in chosen for key, value in settings_in(text).items()}
        contestants.append(Contestant("+".join(chosen) or "as-is", ROOT, changes, chosen))
    if against:
        checkout = against.resolve()
        contestants.append(Contestant(checkout.name, checkout, {}, (checkout.name,)))
    return contestants


@dataclass(frozen=True)
class Run:
    """A contestant's run with one seed."""

    contestant: Contestant
    seed: int
    folder: Path

    @property
    def label(self) -> str:
        """The name of its folder, and the beginning of its files' names."""
        return f"{self.contestant.name}-{self.seed}"

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.folder / self.label

    def file(self, ending: str) -> Path:
        """Its file next to the folder."""
        return self.folder / f"{self.label}.{ending}"

    @property
    def measured_path(self) -> Path:
        """The file with what was measured of its models afterwards, with --beside."""
        return self.file("json")

    @property
    def rate_path(self) -> Path:
        """The file with the evaluations per second of the machine before it."""
        return self.file("rate")

    def curve(self, goal: Goal) -> tuple[list[float], list[float]]:
        """The strengths as it measured them, and the seconds since its start at which it had the models."""
        if moments := read_moments(self.measured_path):
            errors = [each.search_error for each in moments if each.search_error is not None]
            complete = len(errors) == len(moments)
            return [each.seconds for each in moments if complete], [goal.strength(each) for each in errors if complete]
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


@dataclass(frozen=True)
class Plan:
    """What is the same for all runs."""

    config: Path
    settings: Settings
    changes: Mapping[str, Any]
    minutes: float

    def measure_rate(self, run: Run) -> None:
        """Measure the machine, if that has not been done for this run."""
        if not run.rate_path.exists():
            write_atomically(run.rate_path, f"{machine_rate(self.settings):.1f}\n".encode())


def complete_run(run: Run, plan: Plan) -> None:
    """Start or resume a run, and wait for its end; a finished one stays as it is."""
    if run.over(plan.minutes):
        return
    plan.measure_rate(run)
    line = command_line(run, plan)
    with run.file("log").open("a") as log:
        subprocess.run(line, cwd=run.contestant.checkout, check=True, stdout=log, stderr=log)


def command_line(run: Run, plan: Plan) -> list[str]:
    """Write the settings of a run to a file; returns the command that starts or resumes it."""
    config = plan.config
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    for section in ("game", "network"):
        if module := document.get(section, {}).get("module"):
            document[section]["module"] = str((config.parent / module).resolve())
    own = {**run.contestant.changes, "run.seed": run.seed, "run.minutes": plan.minutes}
    for key, value in {**plan.changes, **own}.items():
        override(document, key.split("."), value)
    file = run.file("yaml")
    write_atomically(file, yaml.safe_dump(document).encode())
    line = [sys.executable, str(run.contestant.checkout / "start_main.py"), "--config", str(file)]
    begun = ["--resume"] if (run.path / "run.db").exists() else []
    return [*line, "--run-dir", str(run.path), *begun]


def complete_beside(runs: Sequence[Run], plan: Plan, measure: Sequence[str]) -> None:
    """Start or resume runs, each on its own core, and measure their models; failures are printed.

    Args:
        runs: those that are finished are only measured.
        plan: of all runs.
        measure: the arguments of this program that measure the run whose folder's name follows them.
    """
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, str(ROOT / "start_main.py"), "--config", str(plan.config), "--smoke"]
        subprocess.run([*line, "--run-dir", f"{folder}/run"], check=True, stdout=subprocess.DEVNULL)
    cores = all_cores()

    def complete(run: Run) -> None:
        with run.file("log").open("a") as log:
            if not run.over(plan.minutes):
                line, checkout = command_line(run, plan), run.contestant.checkout
                on_a_core(line, cores, cwd=checkout, stdout=log, stderr=log)
            on_a_core([sys.executable, __file__, *measure, run.label], cores)

    def try_to_complete(run: Run) -> None:
        try:
            complete(run)
        except subprocess.CalledProcessError as error:
            print(f"{run.label} failed ({error.returncode}): see {run.file('log')}", flush=True)

    with ThreadPool(cores.qsize()) as pool:
        pool.map(try_to_complete, runs, chunksize=1)


def show_ends(contestants: Sequence[Contestant], runs: Sequence[Run]) -> None:
    """Print the table of the last models that were measured after the runs, as means over the seeds."""
    ends = last_moments(runs)
    if not ends:
        return
    print("\n| settings | games | policy error | value's squared error | search error |\n|---|---|---|---|---|")
    for contestant in contestants:
        mine = [end for (name, _), end in ends.items() if name == contestant.name]
        found = {key: [value for end in mine if (value := getattr(end, key)) is not None] for key in MEASURES}
        cells = [f"{np.mean(found[key]):{shown}}" if found[key] else "" for key, shown in MEASURES.items()]
        games = ", ".join(f"{end.games:,}" for end in mine)
        print(f"| {contestant.name} | {games} | {' | '.join(cells)} |")


def show_effects(contestants: Sequence[Contestant], runs: Sequence[Run]) -> None:
    """Print the table of what each change does to the last models: differences of pairs of runs of one seed that differ
    in this change alone.
    """
    ends = last_moments(runs)
    if not ends:
        return
    print("\n| change | pairs | policy error | value's squared error | search error |\n|---|---|---|---|---|")
    for change in dict.fromkeys(change for contestant in contestants for change in contestant.tries):
        pairs = [
            (ends[without.name, seed], end)
            for without, changed in product(contestants, contestants)
            if change not in without.tries and {*without.tries, change} == set(changed.tries)
            for (name, seed), end in ends.items()
            if name == changed.name and (without.name, seed) in ends
        ]
        cells = [mean_difference(pairs, key, shown) for key, shown in MEASURES.items()]
        print(f"| {change} | {len(pairs)} | {' | '.join(cells)} |")


def last_moments(runs: Sequence[Run]) -> dict[tuple[str, int], Moment]:
    """The last model of each run that was measured afterwards, by contestant and seed."""
    return {
        (run.contestant.name, run.seed): moments[-1] for run in runs if (moments := read_moments(run.measured_path))
    }


def mean_difference(pairs: Sequence[tuple[Moment, Moment]], key: str, shown: str) -> str:
    """The mean of the second minus the first, with its 95 % interval by Student's distribution from two pairs on."""
    found = [(getattr(first, key), getattr(second, key)) for first, second in pairs]
    differences = np.array([second - first for first, second in found if first is not None and second is not None])
    if not len(differences):
        return ""
    margin = mean_margin(differences)
    return f"{differences.mean():+{shown}}{'' if margin is None else f' ± {margin:{shown}}'}"


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
    parser.add_argument("--combine", type=whole(), default=1, help="also up to so many --try together (default: 1)")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of Keima")
    parser.add_argument("--set", dest="common", default="", metavar="KEY=VALUE,...", help="settings of all contestants")
    parser.add_argument("--seeds", type=whole(0), nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--minutes", type=number(above=0), help="of each run (default: the settings')")
    parser.add_argument("--every", type=whole(), help="iterations between two measurements (default: the settings')")
    parser.add_argument("--folder", type=Path, default=Path("runs/time_to_strength"), help="default: %(default)s")
    parser.add_argument("--beside", action="store_true", help="give each run a core of its own; see above")
    parser.add_argument("--points", type=whole(), default=4, help="models of each run, with --beside (default: 4)")
    parser.add_argument("--positions", type=Path, action="append", default=[], metavar="FILE", help="more solved ones")
    parser.add_argument("--show", action="store_true", help="print the table of the finished runs")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # one run's models, in this process
    arguments = parser.parse_args()
    try:
        settings = load_settings(arguments.config)
        contestants = all_contestants(arguments.tries, arguments.combine, arguments.against)
        changes = settings_in(arguments.common) if arguments.common else {}
        changes |= {"evaluation.every": 0 if arguments.beside else arguments.every or settings.evaluation.every}
        for each in contestants:
            load_settings(arguments.config, overrides={**changes, **each.changes})
    except (ConfigError, ValueError) as error:
        parser.error(str(error))
    minutes = arguments.minutes or settings.run.minutes
    if minutes is None:
        parser.error(f"{arguments.config} sets no run.minutes: give --minutes")
    if arguments.against and not (arguments.against / "start_main.py").is_file():
        parser.error(f"--against: {arguments.against} is no checkout of Keima")
    game = load_game(settings.game.name, **settings.game.options)
    if arguments.beside and (arguments.to.measure != "search_error" or load_positions(game, count=1) is None):
        parser.error("--beside: only for an error in a game with solved positions, as --to 2% in Connect Four")
    folder = arguments.folder.resolve() / arguments.config.stem
    folder.mkdir(parents=True, exist_ok=True)
    runs = [Run(contestant, seed, folder) for seed in arguments.seeds for contestant in contestants]
    plan = Plan(arguments.config.resolve(), settings, changes, minutes)
    if arguments.measure:
        return measure_run(next(run for run in runs if run.label == arguments.measure), plan, arguments)
    if arguments.beside and not arguments.show:
        complete_beside(runs, plan, [*sys.argv[1:], "--measure"])
    for run in () if arguments.show or arguments.beside else runs:
        complete_run(run, plan)
    show(contestants, runs, arguments.to)
    show_ends(contestants, runs)
    return show_effects(contestants, runs)


def measure_run(run: Run, plan: Plan, arguments: argparse.Namespace) -> None:
    """Measure models of a finished run on this process's core, and print them."""
    torch.set_num_threads(1)
    plan.measure_rate(run)
    measure_models(run.path, run.measured_path, points=arguments.points, more=arguments.positions)
    for each in read_moments(run.measured_path):
        figures = f"policy {each.policy_error:.2%}, value {each.squared_error:.3f}, search {each.search_error:.2%}"
        print(f"{run.label}: {each.seconds:.0f} s, {each.games:,} games, {figures}", flush=True)


if __name__ == "__main__":
    main()
