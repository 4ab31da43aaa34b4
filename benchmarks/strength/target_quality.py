"""Measure the quality of self-play's targets by Connect Four's exact solver, to compare search settings before a run.

    python benchmarks/strength/target_quality.py runs/quickstart
    python benchmarks/strength/target_quality.py runs/quickstart --try search.num_simulations=128 \\
        --try search.temperature=0.5,search.cheap_simulations=64

The run's newest network plays --games games against itself from each of --count solved positions, once with the run's
settings and once more for each --try. The table has the evaluations per game; how often the first move throws value
away; and the mean squared errors of the network's value, of the search's value, and of the value targets, by td_lambda.
The error of the targets has two parts: that of their mean over all games from a position (*bias*, the error of a
network that learned everything), and the variance of a single game's target (*noise*, which more games average out). A
network whose error is far above the bias needs more learning, not better targets.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.strength.perfect_play import network_values
from keima import batch_of
from keima.config.flags import whole
from keima.config.load import load_settings
from keima.config.schema import Settings
from keima.config.sections.search import SearchSettings
from keima.config.sections.training import TrainingSettings
from keima.data.records import GameBatch, GameRecord
from keima.evaluation.perfect_play import POSITIONS_FILE, SolvedPositions, errors, read_moves, read_positions
from keima.games import Game, load_game
from keima.games.game import Actions
from keima.networks.files.model_heading import model_path_of_run
from keima.networks.inference.evaluator import Evaluator
from keima.play.arena.players import read_model
from keima.replay.window import ReplayWindow
from keima.self_play.parallel_games import SelfPlay

PARALLEL_GAMES = 128
LATEST_PLY = 24  # games from later positions have few mistakes
LAMBDAS = (0.8, 0.9, 0.95, 1.0)
NO_OPENING = {"search.opening_random_moves": 0.0}


def play_from_openings(
    game: Game, evaluate: Evaluator, settings: SearchSettings, openings: Sequence[Actions]
) -> tuple[GameBatch, float]:
    """A game for each of ``openings``, in their order, and the mean number of evaluations per game."""
    self_play = SelfPlay(game, evaluate, settings, parallel_games=PARALLEL_GAMES)
    records, begun = list[GameRecord](), 0
    while len(records) < len(openings):
        numbers = range(begun, min(len(openings), begun + self_play.num_idle()))
        self_play.begin(numbers, [openings[number] for number in numbers])
        begun += len(numbers)
        records += self_play.advance()
    return batch_of(game, sorted(records, key=lambda record: record.seed)), self_play.evaluations / len(openings)


def bias_and_noise(targets: NDArray[np.float64], truth: NDArray[np.float64]) -> tuple[float, float]:
    """The mean squared error of the targets' means, corrected for finite K, and the targets' mean variance.

    Args:
        targets: ``[N, K]``, K for each position.
        truth: ``[N]``, the exact values.
    """
    noise = targets.var(1, ddof=1)
    squares = (targets.mean(1) - truth) ** 2 - noise / targets.shape[1]
    return float(squares.mean()), float(noise.mean())


def settings_to_try(run: Path, tries: Sequence[str], fixed: Mapping[str, Any] | None = None) -> list[Settings]:
    """A run's settings, and once more with each of these changes; all with the ``fixed`` settings.

    Raises:
        ValueError: a change is malformed or invalid.
    """
    return [
        load_settings(run / "config.yaml", overrides={**(fixed or {}), **each})
        for each in [{}, *map(settings_in, tries)]
    ]


def settings_in(text: str) -> dict[str, Any]:
    """The settings in KEY=VALUE,KEY=VALUE."""
    return {key: yaml.safe_load(value) for key, _, value in (part.partition("=") for part in text.split(","))}


def chosen_positions(game: Game, path: Path, count: int) -> tuple[SolvedPositions, list[Actions]]:
    """``count`` of a file's positions before ``LATEST_PLY``, always the same ones, and the moves to each."""
    moves = read_moves(game, path)
    early = np.flatnonzero([len(each) < LATEST_PLY for each in moves])
    rows = np.sort(np.random.default_rng(0).permutation(early)[:count])
    return read_positions(game, path).part(rows), [moves[row] for row in rows]


def main() -> None:
    """Play, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--version", type=whole(), help="a model of the run (default: the newest)")
    parser.add_argument(
        "--count", type=whole(), default=600, help="positions that games begin from (default: %(default)s)"
    )
    parser.add_argument("--games", type=whole(), default=10, help="from each, two at least (default: %(default)s)")
    parser.add_argument(
        "--positions",
        type=Path,
        default=POSITIONS_FILE,
        metavar="FILE",
        help="solved positions, instead of the shipped ones",
    )
    parser.add_argument(
        "--try", dest="tries", action="append", default=[], metavar="KEY=VALUE,...", help="other search settings"
    )
    arguments = parser.parse_args()
    if arguments.games < 2 or arguments.count < 1:
        parser.error("there must be a position, and two games from each")
    torch.set_num_threads(1)
    game = load_game("connect_four")
    try:
        model = read_model(model_path_of_run(arguments.run, arguments.version))
        settings = [each.search for each in settings_to_try(arguments.run, arguments.tries, NO_OPENING)]
        evaluate = Evaluator(model.build(game), game, max_batch=PARALLEL_GAMES)
        positions, openings = chosen_positions(game, arguments.positions, arguments.count)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    truth = positions.best.astype(np.float64)
    alone = float(((network_values(evaluate, positions, PARALLEL_GAMES) - truth) ** 2).mean())
    repeated = [opening for opening in openings for _ in range(arguments.games)]
    begun_from = positions.part(np.arange(len(openings)).repeat(arguments.games))
    lambdas = " | ".join(f"{each:g}: bias + noise" for each in LAMBDAS)
    print(f"{len(openings):,} positions, {arguments.games} games from each\n")
    print(f"| settings | evaluations a game | errs | network | search | {lambdas} |\n|{'---|' * (5 + len(LAMBDAS))}")
    for title, search in zip(["the run's", *arguments.tries], settings, strict=True):
        batch, evaluations = play_from_openings(game, evaluate, search, repeated)
        first = np.cumsum(batch.lengths) - batch.lengths + [len(opening) for opening in repeated]
        errs = errors(begun_from, batch.actions[first]).share
        searched = ((batch.root_values[first] - begun_from.best) ** 2).mean()
        cells = []
        for each in LAMBDAS:
            targets = ReplayWindow(
                game, capacity_positions=1, training=TrainingSettings(td_lambda=each)
            ).values_to_learn(batch)[first]
            bias, noise = bias_and_noise(targets.reshape(len(openings), -1).astype(np.float64), truth)
            cells.append(f"{bias:.3f} + {noise:.3f}")
        print(
            f"| {title} | {evaluations:,.0f} | {errs:.1%} | {alone:.3f} | {searched:.3f} | {' | '.join(cells)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
