"""Short runs side by side, each on a core of its own, and matches between their models."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import yaml

from keima.base.files import write_atomically
from keima.base.system.threads import run_in_parallel
from keima.config.load import load_settings
from keima.config.schema import Settings
from keima.data.ledger_rows import model_path
from keima.evaluation.match import MatchResult, RandomPlayer, SearchPlayer, play_match
from keima.evaluation.match_location import OPENING_PLIES
from keima.evaluation.match_worker import make_match_search
from keima.evaluation.strength import load_model_file
from keima.games import Game, load_game
from keima.networks.inference.evaluator import use_threads

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ShortRun:
    """A run and its settings file, next to each other in a folder."""

    name: str
    folder: Path

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.folder / self.name

    @property
    def config(self) -> Path:
        """Its settings file."""
        return self.folder / f"{self.name}.yaml"

    def write_settings(self, document: dict[str, Any]) -> None:
        """Write its settings file."""
        write_atomically(self.config, yaml.safe_dump(document, sort_keys=False).encode())

    @property
    def workspace(self) -> Path:
        """The folder in which it is started, whose code it uses."""
        return ROOT

    def settings(self) -> Settings:
        """Read its settings, as they were chosen once it has begun."""
        begun = self.path / "config.yaml"
        return load_settings(begun if begun.exists() else self.config)

    def game(self) -> Game:
        """Load its game."""
        game = self.settings().game
        return load_game(game.name, **game.options)

    def rows(self) -> list[dict[str, Any]]:
        """Read its iterations."""
        stats = self.path / "training_stats.json"
        return json.loads(stats.read_text()) if stats.exists() else []

    def train(self) -> None:
        """Start or resume it, and wait for its end."""
        begun = ["--resume"] if (self.path / "run.db").exists() else []
        line = [sys.executable, "-m", "keima", "train", "--config", str(self.config), "--run-dir", str(self.path)]
        with self.config.with_suffix(".log").open("a") as log:
            subprocess.run([*line, *begun], cwd=self.workspace, check=True, stdout=log, stderr=log)


def train_side_by_side(
    runs: Sequence[ShortRun], minutes: float, prepare: Callable[[ShortRun], None] = lambda run: None
) -> None:
    """Train runs of so many minutes, as many at once as there are cores, each on its own; finished ones stay.

    Args:
        prepare: writes the settings of a run that has not begun, on the core that it will have.
    """
    cores = SimpleQueue[int]()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)

    def train(run: ShortRun) -> Iterator[None]:
        rows = run.rows()
        if rows and rows[-1]["seconds"] >= 60 * minutes * 0.95:
            return
        core = cores.get()
        os.sched_setaffinity(0, {core})  # of this thread, and of what it starts
        try:
            if not (run.path / "run.db").exists():
                prepare(run)
            run.train()
            yield
        finally:
            cores.put(core)

    for _ in run_in_parallel(train, runs, at_once=cores.qsize()):
        pass


class Players:
    """The models of runs of one game as players, each made once; a model searches as its run's matches do."""

    def __init__(self, game: Game, *, simulations: int) -> None:
        use_threads(1)
        self._game, self._simulations = game, simulations
        self._made: dict[tuple[Path, int], SearchPlayer] = {}

    def get(self, run: ShortRun, version: int) -> SearchPlayer:
        """Return a run's model as a player."""
        key = run.path, version
        if key not in self._made:
            model, search = load_model_file(model_path(run.path, version)), run.settings().search
            self._made[key] = SearchPlayer(
                make_match_search(
                    self._game, model, search, num_simulations=self._simulations, cached=True, device="cpu"
                )
            )
        return self._made[key]

    def play(self, first: SearchPlayer, second: SearchPlayer | None, *, pairs: int, seed: int) -> MatchResult:
        """Play from varied openings, all seats of each; None is the random player."""
        other = second or RandomPlayer(self._game, seed)
        return play_match(self._game, first, other, pairs=pairs, opening_plies=OPENING_PLIES, seed=seed)
