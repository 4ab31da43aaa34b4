"""Measure the effect of each learning technique: the time that runs need to reach a given strength, with all techniques
and without one.

    python benchmarks/strength/ablation.py          7x7 Go, all techniques, three seeds: 5 hours on two cores
    python benchmarks/strength/ablation.py --only ownership,symmetries --seeds 1 2 --minutes 5
    python benchmarks/strength/ablation.py --show   the table of the finished runs, without new runs

Every run has its own core and takes --minutes; there are as many at a time as cores. Then --points models of each run,
evenly spaced in the logarithm of time, play --games with swapped colours against the mark: the model that the first run
with everything had after a third of its time. A monotonic curve through the scores gives the time at which a run was as
strong as the mark. For each technique, the table has the mean ratio of that time without the technique to that time
with everything, over the seeds, with its 95 % interval by Student's distribution. A run that never got as strong counts
as if it had at its end, and the table says so.

Runs are in --folder; finished runs are not repeated and interrupted ones are resumed, so Ctrl-C loses little.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import torch
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.strength.cores import all_cores, on_a_core
from benchmarks.strength.curves import time_reached
from keima.base.files import write_atomically
from keima.base.intervals import mean_margin
from keima.base.random import seed_stream
from keima.config.flags import number, whole
from keima.config.load import load_settings
from keima.data.ledger import read_ledger
from keima.evaluation.match import SearchPlayer, play_match
from keima.evaluation.match_location import OPENING_PLIES
from keima.evaluation.match_worker import search_for_strength
from keima.games import load_game
from keima.networks.files.model_heading import model_path_of_run
from keima.play.arena.players import read_model

EVERYTHING = "everything"
BASE: dict[str, Any] = {  # the settings of all runs, over configs/go7.yaml
    "network.blocks": 3,
    "network.channels": 32,
    "search.num_simulations": 64,
    "search.cheap_simulations": 16,
    "training.batch_size": 128,
    "training.optimizer": "adamw",  # with these, the table of learning_techniques.md was measured
    "training.learning_rate": 2e-3,
    "training.weight_decay": 1e-4,
    "training.learning_rate_schedule": "constant",  # the time to a strength must not depend on the length of the run
    "training.games_per_iteration": 100,
    "training.steps_per_model": None,
    "training.window.min_positions": 2_000,
    "training.checkpoint_every": 5,
    "evaluation.every": 0,
}
WITHOUT: dict[str, dict[str, Any]] = {  # the settings that turn each technique off
    "ownership": {"network.predict_ownership": False, "network.predict_score": False},
    "reply": {"network.predict_reply": False},
    "pooling": {"network.global_pooling": False},
    "cheap-moves": {"search.full_search_probability": 1.0, "search.num_simulations": 28},  # as many simulations in all
    "forced-playouts": {"search.forced_playouts": False},
    "surprise": {"training.policy_surprise_weight": 0.0},
    "symmetries": {"training.symmetries": False},
    "averaging": {"training.ema_decay": 0.0},
    "forgetting": {"training.window.growth_exponent": 1.0},
    "resignation": {"search.resignation.enabled": False},
}
MATCH_SIMULATIONS = 64  # of both players
EARLIEST = 1 / 8  # the share of a run's time after which the first model is measured
MARK_SHARE = 1 / 3  # the share of a run's time after which its model is the mark


@dataclass(frozen=True)
class Run:
    """One experiment with one seed."""

    name: str
    seed: int
    folder: Path

    @property
    def label(self) -> str:
        """The name of its folder, and the beginning of its files' names."""
        return f"{self.name}-{self.seed}"

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.folder / self.label

    def over(self, minutes: float) -> bool:
        """Whether its time is over."""
        return bool(times := self.times()) and times[-1][0] >= 60 * minutes * 0.95

    def times(self) -> list[tuple[float, int]]:
        """The end of each iteration in seconds since the run began, and its model."""
        if not (self.path / "run.db").exists():
            return []
        with read_ledger(self.path) as ledger:
            return [(report["seconds"], report["model_version"]) for report in ledger.iterations()]


def runs_of(names: Sequence[str], seeds: Sequence[int], folder: Path) -> list[Run]:
    """All runs, seed by seed, so that there are early results."""
    return [Run(name, seed, folder) for seed in seeds for name in names]


def complete_run(run: Run, minutes: float, cores: "Queue[int]") -> None:
    """Start or resume a run on its own core, and wait for its end."""
    if run.over(minutes):
        return
    config = run.folder / f"{run.label}.yaml"
    overrides = {**BASE, **WITHOUT.get(run.name, {}), "run.seed": run.seed, "run.minutes": minutes}
    settings = load_settings(ROOT / "configs" / "go7.yaml", overrides=overrides)
    write_atomically(config, yaml.safe_dump(settings.model_dump(mode="json")).encode())
    begun = ["--resume"] if (run.path / "run.db").exists() else []
    line = [sys.executable, str(ROOT / "start_main.py"), "--config", str(config), "--run-dir", str(run.path), *begun]
    with (run.folder / f"{run.label}.log").open("a") as log:
        on_a_core(line, cores, stdout=log, stderr=log)
    games = json.loads((run.path / "training_stats.json").read_text())[-1]["total_games"]
    print(f"{run.name}, seed {run.seed}: {run.times()[-1][0] / 60:.1f} minutes, {games:,} games", flush=True)


def measure_run(run: Run, mark: Path, games: int, points: int) -> None:
    """Play matches of a run's models against the mark, and save the scores."""
    scores = read_scores(run, mark)
    found = run.times()
    wanted = np.geomspace(found[-1][0] * EARLIEST, found[-1][0], points)
    chosen = sorted({min(found, key=lambda moment: abs(moment[0] - seconds)) for seconds in wanted})
    search = load_settings(run.path / "config.yaml").search
    for seconds, version in chosen:
        if str(version) in scores:
            continue
        first, second = (read_model(path) for path in (model_path_of_run(run.path, version), mark))
        game = load_game(first.description.game, **first.description.options)
        players = [
            SearchPlayer(search_for_strength(game, model, search, num_simulations=MATCH_SIMULATIONS))
            for model in (first, second)
        ]
        seed = seed_stream("ablation", run.seed, version)
        result = play_match(game, *players, pairs=games // 2, opening_plies=OPENING_PLIES, seed=seed)
        scores[str(version)] = {
            "seconds": seconds,
            "points": float(result.scores.sum()),
            "games": int(result.scores.size),
        }
        write_atomically(scores_path(run, mark), json.dumps(scores, indent=1).encode())
    line = ", ".join(f"{row['seconds']:.0f} s {row['points'] / row['games']:.0%}" for row in scores.values())
    print(f"{run.name}, seed {run.seed}, against the mark: {line}", flush=True)


def scores_path(run: Run, mark: Path) -> Path:
    """The file with the scores of a run against a mark."""
    return run.folder / f"{run.label}-against-{mark.parent.parent.name}-{mark.stem}.json"


def read_scores(run: Run, mark: Path) -> dict[str, dict[str, Any]]:
    """The scores so far, by version."""
    path = scores_path(run, mark)
    return dict(json.loads(path.read_text())) if path.exists() else {}


def seconds_to_mark(scores: Mapping[str, Mapping[str, Any]]) -> tuple[float, bool]:
    """The time at which a run was as strong as the mark, and True; or the end of the run, and False."""
    rows = sorted(scores.values(), key=lambda row: row["seconds"])
    return time_reached([row["seconds"] for row in rows], [row["points"] / row["games"] for row in rows], 0.5)


def show(runs: Sequence[Run], mark: Path) -> None:
    """Print the table."""
    reached = {(run.name, run.seed): seconds_to_mark(scores) for run in runs if (scores := read_scores(run, mark))}
    print("| without | seconds to the mark, by seed | times as long as with everything |\n|---|---|---|")
    for name in dict.fromkeys(run.name for run in runs):
        mine = {seed: found for (other, seed), found in reached.items() if other == name}
        ratios = np.array(
            [
                math.log(seconds / reached[EVERYTHING, seed][0])
                for seed, (seconds, _) in mine.items()
                if (EVERYTHING, seed) in reached
            ]
        )
        if len(ratios):
            margin = mean_margin(ratios)
            low, high = (math.exp(ratios.mean() + sign * (margin or math.inf)) for sign in (-1, 1))
            ratio = "1" if name == EVERYTHING else f"{math.exp(ratios.mean()):.2f} ({low:.2f} to {high:.2f})"
            times = ", ".join(
                f"{seconds:,.0f}" if was else f"more than {seconds:,.0f}" for seconds, was in mine.values()
            )
            print(f"| {'nothing' if name == EVERYTHING else name} | {times} | {ratio} |")


def in_a_process(run: Run, mark: Path, arguments: argparse.Namespace, cores: "Queue[int]") -> None:
    """Measure a run on its own core."""
    line = [sys.executable, __file__, "--measure", run.label, "--mark", str(mark), "--folder", str(run.folder)]
    line += ["--games", str(arguments.games), "--points", str(arguments.points)]
    on_a_core(line, cores)


def main() -> None:
    """Play, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        default=",".join(WITHOUT),
        help="techniques to leave out, each in its own runs (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=whole(0), nargs="+", default=[1, 2, 3])
    parser.add_argument("--minutes", type=number(above=0), default=15.0, help="of each run (default: %(default)g)")
    parser.add_argument(
        "--games", type=whole(), default=60, help="of each measured model against the mark (default: %(default)s)"
    )
    parser.add_argument(
        "--points", type=whole(), default=8, help="models of each run that are measured (default: %(default)s)"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/ablation"), help="default: %(default)s")
    parser.add_argument("--mark", type=Path, help="a model's file, instead of the first run's model")
    parser.add_argument("--show", action="store_true", help="print the table of the finished runs")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # one run, in this process
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.measure:
        torch.set_num_threads(1)
        name, _, seed = arguments.measure.rpartition("-")
        return measure_run(Run(name, int(seed), folder), arguments.mark, arguments.games, arguments.points)
    names = [EVERYTHING, *(name for name in arguments.only.split(",") if name)]
    if strangers := set(names) - {EVERYTHING, *WITHOUT}:
        parser.error(f"--only: there is no {', '.join(sorted(strangers))}, only {', '.join(WITHOUT)}")
    folder.mkdir(parents=True, exist_ok=True)
    runs = runs_of(names, arguments.seeds, folder)
    cores = all_cores()
    with ThreadPool(cores.qsize()) as pool:
        if not arguments.show:
            pool.map(lambda run: complete_run(run, arguments.minutes, cores), runs, chunksize=1)
        mark = arguments.mark or marked_model(runs[0], arguments.minutes)
        if not arguments.show:
            pool.map(lambda run: in_a_process(run, mark, arguments, cores), runs, chunksize=1)
    return show(runs, mark)


def marked_model(run: Run, minutes: float) -> Path:
    """The file of the model that a run had after the share ``MARK_SHARE`` of its time."""
    version = next(version for seconds, version in run.times() if seconds >= 60 * minutes * MARK_SHARE)
    return model_path_of_run(run.path, version)


if __name__ == "__main__":
    main()
