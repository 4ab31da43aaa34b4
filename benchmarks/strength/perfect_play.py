"""Measure how often models of a run throw game value away, in Connect Four or tic-tac-toe, by the exact solver.

    python benchmarks/strength/perfect_play.py runs/quickstart
    python benchmarks/strength/perfect_play.py runs/quickstart --version 10 20 40 --positions more.npz
    python benchmarks/strength/perfect_play.py runs/quickstart --simulations 128 512 2048

A run measures its error on some of the solved positions. Here all shipped positions are used, or all positions of a
file made by tools/make_perfect_play_positions.py with another seed, for any model of the run. *Policy*: how often the
network's first choice throws value away. *Sign*: how often the value has the right sign in decided positions. *Squared
error*: of the value. *Search*: how often the move found with a number of simulations throws value away, in all
positions (with half a 95 % interval) and by plies; all in per cent.
"""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import Cell, Parser, Report
from keima.config.flags import whole
from keima.config.load import load_settings
from keima.config.sections.search import SearchSettings
from keima.evaluation.match_worker import make_match_search
from keima.evaluation.perfect_play import (
    SolvedPositions,
    choose_policy_actions,
    count_errors,
    load_positions,
    read_positions,
)
from keima.games import Game, load_game
from keima.networks.files.heading import find_run_model
from keima.networks.files.model import Model
from keima.networks.inference.evaluator import Evaluator
from keima.play.arena.players import read_model

PLIES = (0, 8, 12, 16, 20)  # the first ply of each column
MAX_BATCH = 512
QUICK_POSITIONS = 50


def measure_network(game: Game, model: Model, positions: SolvedPositions) -> list[Cell]:
    """Return the table's columns of the network without search."""
    evaluate, count = Evaluator(model.build(game), game, max_batch=MAX_BATCH), len(positions.states)
    parts = [evaluate(positions.observations[i : i + MAX_BATCH])[1] for i in range(0, count, MAX_BATCH)]
    values, decided = np.concatenate(parts), positions.best_values != 0
    sign = float((np.sign(values[decided]) == positions.best_values[decided]).mean())
    policy = count_errors(positions, choose_policy_actions(positions, evaluate)).share
    return [100 * policy, 100 * sign, float(np.square(values - positions.best_values).mean())]


def measure_search(
    game: Game, model: Model, settings: SearchSettings, positions: SolvedPositions, simulations: int
) -> list[Cell]:
    """Return the table's columns of a search: how often its moves throw value away, in all and by plies."""
    actions = make_match_search(game, model, settings, num_simulations=simulations).find(positions.states).actions
    found = count_errors(positions, actions)
    plies = positions.observations[:, :2].sum((1, 2, 3))  # a plane for each player's stones
    columns: list[Cell] = [100 * found.share, 100 * found.margin]
    for place in range(1, len(PLIES) + 1):
        part = np.searchsorted(PLIES, plies, side="right") == place
        columns.append(100 * count_errors(positions.select(part), actions[part]).share if part.any() else None)
    return columns


def main() -> None:
    """Measure and print."""
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument(
        "--version", type=whole(), nargs="+", default=[None], help="models of the run (default: the newest)"
    )
    parser.option("--simulations", whole(), (128,), quick=(8,), help="of a move")
    parser.add_argument("--positions", type=Path, metavar="FILE", help="solved positions, instead of the shipped ones")
    arguments = parser.parse()
    torch.set_num_threads(1)
    try:
        settings = load_settings(arguments.run / "config.yaml")
        game = load_game(settings.game.name, **settings.game.options)
        count = QUICK_POSITIONS if arguments.quick else None
        positions = (
            read_positions(game, arguments.positions) if arguments.positions else load_positions(game, count=count)
        )
        models = [read_model(find_run_model(arguments.run, version)) for version in arguments.version]
        for model in models:
            model.build(game)  # rejects models of another game or rules version
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if positions is None:
        parser.error(f"there are no solved positions of {game.name}")
    ends = [f"to ply {end - 1}" for end in PLIES[1:]] + [f"from ply {PLIES[-1]}"]
    columns = ["model", "simulations", "policy", "sign", "squared error", "search", "±", *ends]
    with Report(arguments) as report:
        table = report.table(f"{len(positions.states):,} positions of {game.name}", *columns)
        for model in models:
            network = measure_network(game, model, positions)
            for simulations in arguments.simulations:
                found = measure_search(game, model, settings.search, positions, simulations)
                table.add(str(model.description.model_version), simulations, *network, *found)


if __name__ == "__main__":
    main()
