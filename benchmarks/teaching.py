"""How good a teacher a network's self-play is, by Connect Four's exact solver: what settings of the search are worth before a run is made.

    python benchmarks/teaching.py runs/quickstart
    python benchmarks/teaching.py runs/quickstart --try search.num_simulations=128,search.cheap_simulations=64 --try search.temperature=0.5

The run's newest network plays --games with itself, once with the run's settings and once more for each --try, from the same seeds. Of each
game a position is drawn from the plies 10 to 16 and one from 17 to 23, and solved. The table has the evaluations that a game costs; how
often the move that was played throws value away; and the mean squared error of what the value head would learn there, by td_lambda.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.self_play import as_batch
from configs.load import load_settings
from configs.schema import SearchSettings, Settings
from games import Game, load_game
from games.connect_four_solver import action_values, new_table
from games.game import Floats
from training.evaluation.candidate import model_path_of_run
from training.evaluation.contenders import read_model
from training.evaluator import Evaluator
from training.played_games import last_state
from training.records import RANDOM_MOVE, GameBatch, GameRecord
from training.replay import ReplayWindow
from training.self_play import SelfPlay

PARALLEL_GAMES = 64
PLIES = ((10, 17), (17, 24))  # earlier positions take long to solve, later ones are easy
LAMBDAS = (0.8, 0.9, 0.95, 1.0)
SLOTS = 33_554_393  # of the solver's table: 256 MiB


def play(game: Game, evaluate: Evaluator, settings: SearchSettings, games: int) -> tuple[GameBatch, float]:
    """Games with these settings, and how many evaluations each took."""
    self_play = SelfPlay(game, evaluate, settings, parallel_games=PARALLEL_GAMES)
    records, begun = list[GameRecord](), 0
    while len(records) < games:
        seeds = range(begun, min(games, begun + self_play.num_idle()))
        self_play.begin(seeds)
        begun += len(seeds)
        records += self_play.advance()
    return as_batch(game, records), self_play.evaluations / games


def judge(game: Game, batch: GameBatch, targets: list[Floats], plies: tuple[int, int], table: Any) -> NDArray[np.float64]:
    """Of a position of each game at these plies, ``[N, 1 + targets]``: whether its move throws value away; squared errors of targets."""
    starts, random, found = np.cumsum(batch.lengths) - batch.lengths, np.random.default_rng(plies), []
    for start, length in zip(starts.tolist(), batch.lengths.tolist(), strict=True):
        place = start + int(random.integers(*plies))
        if place >= start + length or batch.flags[place] & RANDOM_MOVE:
            continue
        values = action_values(last_state(game, batch.actions[start:place]), table=table)
        truth = int(values.max())
        found.append([values[batch.actions[place]] < truth, *((float(target[place]) - truth) ** 2 for target in targets)])
    return np.array(found, np.float64)


def settings_to_try(run: Path, tries: Sequence[str], fixed: Mapping[str, Any] | None = None) -> list[Settings]:
    """A run's settings, and once more with each of these changes; with what is ``fixed`` in all of them.

    Raises:
        ValueError: a change is none, or to what cannot be.
    """
    return [load_settings(run / "config.yaml", overrides={**(fixed or {}), **each}) for each in [{}, *map(settings_in, tries)]]


def settings_in(text: str) -> dict[str, Any]:
    """What KEY=VALUE,KEY=VALUE says."""
    return {key: yaml.safe_load(value) for key, _, value in (part.partition("=") for part in text.split(","))}


def main() -> None:
    """Play, solve, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--games", type=int, default=600, help="with each setting (default: %(default)s)")
    parser.add_argument("--try", dest="tries", action="append", default=[], metavar="KEY=VALUE,...", help="other settings of the search")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    game, table = load_game("connect_four"), new_table(slots=SLOTS)
    try:
        model = read_model(model_path_of_run(arguments.run, None))
        settings = [each.search for each in settings_to_try(arguments.run, arguments.tries)]
        evaluate = Evaluator(model.build(game), game, max_batch=PARALLEL_GAMES)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    errors = " | ".join(f"errs, {first} to {last - 1} | " + " | ".join(f"{each:g}" for each in LAMBDAS) for first, last in PLIES)
    print(f"| settings | evaluations a game | {errors} |\n|{'---|' * (2 + len(PLIES) * (1 + len(LAMBDAS)))}")
    for said, search in zip(["the run's", *arguments.tries], settings, strict=True):
        batch, evaluations = play(game, evaluate, search, arguments.games)
        targets = [ReplayWindow(game, capacity_positions=1, td_lambda=each).values_to_learn(batch) for each in LAMBDAS]
        cells = []
        for plies in PLIES:
            errs, *squares = judge(game, batch, targets, plies, table).mean(0)
            cells += [f"{errs:.1%}", *(f"{square:.2f}" for square in squares)]
        print(f"| {said} | {evaluations:,.0f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
