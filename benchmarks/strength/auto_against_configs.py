"""Compare the settings that Keima chooses by itself with those of configs, at equal time side by side on this machine.

    python benchmarks/strength/auto_against_configs.py configs/go7.yaml --minutes 20
    python benchmarks/strength/auto_against_configs.py games/hex7.yaml games/othello.yaml --minutes 20 --seeds 1 2 3
    python benchmarks/strength/auto_against_configs.py games/hex7.yaml --show          of what is finished
    python benchmarks/strength/auto_against_configs.py configs/go9.yaml --minutes 15 --try training.td_lambda=0.9
        the chosen settings with changes against those without

For each config and seed, two runs of --minutes: one with the config's settings, and one of the same game with run.auto.
As many runs go on side by side as the machine has cores, a core each, and measure themselves as their settings say.
Then their last models play with the same number of simulations, each with the search of its run's matches, from random
openings and in all seats. In a game of three and more players, one model plays against copies of the other, and then
they change roles. With --try, a config gives only the game: both runs have the settings that are chosen, one of them
with these changes.

The table has the score of the settings that were chosen, or of the changes, and their Elo above the other's, with 95 %
intervals. Runs are in --folder; finished runs are not repeated, and interrupted ones are resumed.
"""

import copy
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import Parser, Report
from benchmarks.strength.short_runs import Players, ShortRun, train_side_by_side
from keima.base.random import seed_stream
from keima.base.reports.intervals import mean_margin
from keima.config.flags import add_set, assignment, number, whole
from keima.config.load import ConfigError, apply_overrides, load_settings
from keima.evaluation.elo import elo_difference


@dataclass(frozen=True)
class Contest:
    """A config against the settings that are chosen for its game, or these against themselves with changes."""

    config: Path
    seed: int
    folder: Path
    common: Mapping[str, Any]  # settings of both, by dotted key
    tried: Mapping[str, Any]  # the changes; none: against the config

    @property
    def names(self) -> tuple[str, str]:
        """What the two runs are."""
        return ("changed", "chosen") if self.tried else ("auto", "config")

    def given(self, *, first: bool) -> dict[str, Any]:
        """Return the settings that a run is given, by dotted key."""
        return {**self.common, **(self.tried if first else {})}

    def run(self, *, first: bool) -> ShortRun:
        """Return the run with the chosen settings, or with the changes; else the one that it is compared with."""
        given = (f"{key}={value}" for key, value in self.given(first=first).items())
        return ShortRun("-".join([self.config.stem, self.names[not first], *given, str(self.seed)]), self.folder)

    def write_settings(self, minutes: float) -> None:
        """Write the settings of both runs."""
        document = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        if module := document["game"].get("module"):
            document["game"]["module"] = str((self.config.parent / module).resolve())
        for first in (True, False):
            if first or self.tried:
                settings = {"run": {"name": self.config.stem, "auto": True}, "game": copy.deepcopy(document["game"])}
            else:
                settings = document
            apply_overrides(settings, {"run.minutes": minutes, "run.seed": self.seed, **self.given(first=first)})
            self.run(first=first).write_settings(settings)

    def play(self, *, pairs: int, simulations: int) -> np.ndarray:
        """Return the scores of the first run, from 0 to 1, one for each opening."""
        game = self.run(first=True).game()
        players = Players(game, simulations=simulations)
        mine, other = (
            players.get(run, run.rows()[-1]["model_version"]) for run in (self.run(first=True), self.run(first=False))
        )
        seed = seed_stream(self.seed, "match", self.config.stem)
        scores = players.play(mine, other, pairs=pairs, seed=seed).scores.mean(1)
        if game.num_players > 2:  # a score is the mean return from 0 to 1 of the one against copies of the other
            swapped = players.play(other, mine, pairs=pairs, seed=seed).scores.mean(1)
            return (1 + scores - swapped) / 2
        return scores


def add_rows(report: Report, contests: list[Contest], pairs: int, simulations: int) -> None:
    """Play the matches, and add a row for each and for all seeds of a config."""
    mine, other = contests[0].names
    columns = ("config", f"games: {other}", f"games: {mine}", "score", "margin", "Elo", "Elo, low", "Elo, high")
    tried = ", ".join(f"{key}={value}" for key, value in contests[0].tried.items())
    title = f"{tried} against the chosen settings" if tried else "Chosen settings against the config's"
    table = report.table(f"{title}, {simulations} simulations", *columns)
    for config in dict.fromkeys(contest.config for contest in contests):
        finished = [each for each in contests if each.config == config and each.run(first=True).rows()]
        every = []
        for contest in finished:
            every.append(contest.play(pairs=pairs, simulations=simulations))
            played = [contest.run(first=first).rows()[-1]["total_games"] for first in (False, True)]
            table.add(f"{config.stem}, seed {contest.seed}", *played, *_figures(every[-1]))
        if len(every) > 1:
            table.add(f"{config.stem}, all", None, None, *_figures(np.concatenate(every)))


def _figures(scores: np.ndarray) -> tuple[float, ...]:
    mean, margin = float(scores.mean()), mean_margin(scores) or math.nan
    bounds = (mean, max(1e-3, mean - margin), min(1 - 1e-3, mean + margin))
    return mean, margin, *(elo_difference(min(max(bound, 1e-3), 1 - 1e-3)) for bound in bounds)


def main() -> None:
    """Train, play and print."""
    parser = Parser(__doc__)
    parser.add_argument("configs", type=Path, nargs="+", help="settings files")
    parser.option("--minutes", number(above=0), 20.0, quick=0.5, help="of each run")
    parser.option("--seeds", whole(0), (1,), quick=(1,), help="a pair of runs with each")
    parser.option("--pairs", whole(), 100, quick=2, help="of games in each match")
    parser.option("--simulations", whole(), 100, quick=8, help="in matches")
    parser.add_argument("--folder", type=Path, default=Path("runs/auto_against_configs"), help="default: %(default)s")
    add_set(parser.add_argument)
    parser.add_argument(
        "--try", dest="tried", type=assignment, action="append", default=[], metavar="KEY=VALUE",
        help="a change of the chosen settings; may be repeated",
    )  # fmt: skip
    parser.add_argument("--show", action="store_true", help="only play the matches of the finished runs")
    arguments = parser.parse()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    common, tried = dict(arguments.set), dict(arguments.tried)
    contests = [
        Contest(config.resolve(), seed, folder, common, tried)
        for seed in arguments.seeds
        for config in arguments.configs
    ]
    try:
        for config in arguments.configs:
            load_settings(config)
    except (ConfigError, OSError) as error:
        parser.error(str(error))
    with Report(arguments) as report:
        if not arguments.show:
            for contest in contests:
                contest.write_settings(arguments.minutes)
            runs = [contest.run(first=first) for contest in contests for first in (False, True)]
            train_side_by_side(runs, arguments.minutes)
        add_rows(report, contests, arguments.pairs, arguments.simulations)


if __name__ == "__main__":
    main()
