"""Measure how often models of a run throw game value away, in Connect Four or tic-tac-toe, by the exact solver.

    python benchmarks/strength/perfect_play.py runs/quickstart
    python benchmarks/strength/perfect_play.py runs/quickstart --version 10 20 40 --positions more.npz
    python benchmarks/strength/perfect_play.py runs/quickstart --simulations 128 512 2048

A run measures its error on some of the solved positions. Here all shipped positions are used, or all positions of a
file made by tools/make_perfect_play_positions.py with another seed, for any model of the run. *Policy*: how often the
network's first choice throws value away. *Sign*: how often the value has the right sign in decided positions. *Squared
error*: of the value. *Search*: how often the move found with a number of simulations throws value away, in all
positions (with half a 95 % interval) and by plies.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from keima.config.flags import whole
from keima.config.load import load_settings
from keima.config.sections.search import SearchSettings
from keima.evaluation.match_worker import search_for_strength
from keima.evaluation.perfect_play import (
    SolvedPositions,
    errors,
    load_positions,
    policy_actions,
    read_positions,
)
from keima.games import Game, load_game
from keima.games.game import Actions, Floats
from keima.networks.files.model_file import Model
from keima.networks.files.model_heading import model_path_of_run
from keima.networks.inference.evaluator import Evaluator
from keima.play.arena.players import read_model
from keima.search.puct import Evaluate

PLIES = (0, 8, 12, 16, 20)  # the first ply of each column
MAX_BATCH = 512


def network_columns(game: Game, model: Model, positions: SolvedPositions) -> str:
    """The table's columns of the network without search."""
    evaluate = Evaluator(model.build(game), game, max_batch=MAX_BATCH)
    values, decided = network_values(evaluate, positions, MAX_BATCH), positions.best != 0
    sign = (np.sign(values[decided]) == positions.best[decided]).mean()
    by_policy = errors(positions, policy_actions(positions, evaluate))
    return f"{by_policy.share:.2%} | {sign:.1%} | {np.square(values - positions.best).mean():.3f}"


def network_values(evaluate: Evaluate, positions: SolvedPositions, batch: int) -> Floats:
    """The network's value of each position, ``[N]``, evaluated in batches of ``batch``."""
    return np.concatenate(
        [evaluate(positions.observations[i : i + batch])[1] for i in range(0, len(positions.states), batch)]
    )


def search_choices(
    game: Game, model: Model, settings: SearchSettings, positions: SolvedPositions, simulations: int
) -> Actions:
    """The move that search with this number of simulations finds in each position, ``[N]``."""
    search = search_for_strength(game, model, settings, num_simulations=simulations)
    return search.find(positions.states).actions


def search_columns(positions: SolvedPositions, actions: Actions) -> str:
    """The table's columns of a search's moves: how often they throw value away, in all and by plies."""
    found = errors(positions, actions)
    plies = positions.observations[:, :2].sum((1, 2, 3))  # a plane for each player's stones
    parts = [np.searchsorted(PLIES, plies, side="right") == number for number in range(1, len(PLIES) + 1)]
    by_plies = [
        f"{errors(positions.part(part), actions[part]).share:.1%} of {part.sum():,}" if part.any() else ""
        for part in parts
    ]
    return " | ".join([f"{found.share:.2%} ± {found.margin:.2%}", *by_plies])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument(
        "--version", type=whole(), nargs="+", default=[None], help="models of the run (default: the newest)"
    )
    parser.add_argument("--simulations", type=whole(), nargs="+", default=[128], help="a move (default: 128)")
    parser.add_argument("--positions", type=Path, metavar="FILE", help="solved positions, instead of the shipped ones")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        settings = load_settings(arguments.run / "config.yaml")
        game = load_game(settings.game.name, **settings.game.options)
        positions = read_positions(game, arguments.positions) if arguments.positions else load_positions(game)
        models = [read_model(model_path_of_run(arguments.run, version)) for version in arguments.version]
        for model in models:
            model.build(game)  # rejects models of another game or rules version
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if positions is None:
        parser.error(f"there are no solved positions of {game.name}")
    ends = [f"to {end - 1}" for end in PLIES[1:]] + [f"from {PLIES[-1]}"]
    columns = ["model", "policy", "sign", "squared error", "simulations", "search", *(f"plies {end}" for end in ends)]
    header = f"| {' | '.join(columns)} |"
    print(f"{len(positions.states):,} positions\n\n{header}\n|{'---|' * (header.count('|') - 1)}", flush=True)
    for model in models:
        network = network_columns(game, model, positions)
        for simulations in arguments.simulations:
            found = search_columns(positions, search_choices(game, model, settings.search, positions, simulations))
            print(f"| {model.description.model_version} | {network} | {simulations:,} | {found} |", flush=True)


if __name__ == "__main__":
    main()
