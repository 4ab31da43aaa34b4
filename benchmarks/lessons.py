"""What a new network learns from games that are played, and learned from, with these settings or those: of Connect Four.

    python benchmarks/lessons.py runs/quickstart --try search.random_move_share=0.4
    python benchmarks/lessons.py runs/quickstart --try training.optimizer=muon --try network.blocks=6 --samples 1000000

The run's newest network plays with itself until there are --positions to learn from, once with the run's settings and once more for each
--try that changes how it plays. From each set of games a new network learns --samples, and is judged by all solved positions that are
shipped. That takes about five minutes on a core for each setting. The table has the processor's seconds of playing and of learning; how
often the move found with 128 simulations, and the policy alone, throws value away; how often the value says who wins, where somebody does;
and its squared error.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.self_play import Session, as_batch
from benchmarks.teaching import settings_to_try
from configs.schema import SearchSettings, Settings
from games import Game, load_game
from training.evaluation.candidate import model_path_of_run
from training.evaluation.contenders import read_model
from training.evaluation.guest import search_for_strength
from training.evaluation.perfect_play import SolvedPositions, errors, load_positions, policy_actions
from training.evaluation.strength import search_actions
from training.evaluator import Evaluator
from training.model_file import Model, describe_model
from training.random import seed_stream
from training.records import FULL_SEARCH, GameBatch, GameRecord
from training.run import make_learner, make_window

T = TypeVar("T")

PARALLEL_GAMES, CACHE = 256, 200_000
BATCH = 100  # games
HEADER = "| settings | games | playing, s | learning, s | search errs | policy errs | sign right | squared error |"
SIMULATIONS = 128
STEPS = 500  # between two looks at how far the run would be


def play(game: Game, evaluate: Evaluator, settings: SearchSettings, positions: int, seed: int) -> list[GameBatch]:
    """Games until there are so many positions with a full search."""
    seeds = (seed_stream(seed, "lessons", number) for number in count())
    session = Session(game, evaluate, settings, PARALLEL_GAMES, cache_positions=CACHE, seeds=seeds)
    batches, records, found = list[GameBatch](), list[GameRecord](), 0
    while found < positions:
        records += session.advance()
        if len(records) >= BATCH:
            batches.append(as_batch(game, records))
            found += int((batches[-1].flags & FULL_SEARCH > 0).sum())
            records = []
    return batches


def learn(game: Game, settings: Settings, batches: list[GameBatch], samples: int) -> Model:
    """A new network that has learned from these games, as if they were a whole run's."""
    window = make_window(game, settings)
    window.resize(sum(batch.num_positions for batch in batches))
    for batch in batches:
        window.add(batch)
    learner, steps = make_learner(game, settings), max(1, samples // settings.training.batch_size)
    while learner.step < steps:
        learner.train(window, min(STEPS, steps - learner.step), settings.run.seed, progress=learner.step / steps)
    return Model(description=describe_model(game, settings.network.model_dump(), 1), weights=learner.weights())


def judge(game: Game, settings: Settings, model: Model, positions: SolvedPositions) -> str:
    """The table's last columns."""
    evaluate = Evaluator(model.build(game), game, max_batch=len(positions.best))
    values = evaluate(positions.observations)[1]
    decided = positions.best != 0
    sign = (np.sign(values[decided]) == positions.best[decided]).mean()
    search = search_for_strength(game, model, settings.search, num_simulations=SIMULATIONS)
    by_search = errors(positions, search_actions(search, positions.states, lambda: None))
    by_policy = errors(positions, policy_actions(positions, evaluate))
    return f"{by_search.share:.1%} | {by_policy.share:.1%} | {sign:.1%} | {np.square(values - positions.best).mean():.3f}"


def main() -> None:
    """Play, learn, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder, of Connect Four")
    parser.add_argument("--positions", type=int, default=100_000, help="to learn from (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=300_000, help="to learn (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of games, weights and samples (default: %(default)s)")
    parser.add_argument("--try", dest="tries", action="append", default=[], metavar="KEY=VALUE,...", help="other settings")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    game = load_game("connect_four")
    positions = load_positions(game)
    assert positions is not None
    try:
        model = read_model(model_path_of_run(arguments.run, None))
        tries = settings_to_try(arguments.run, arguments.tries, {"run.seed": arguments.seed})
        evaluate = Evaluator(model.build(game), game, max_batch=PARALLEL_GAMES)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"{HEADER}\n|{'---|' * HEADER.count(' | ')}---|", flush=True)
    played: dict[SearchSettings, tuple[list[GameBatch], float]] = {}
    for said, settings in zip(["the run's", *arguments.tries], tries, strict=True):
        if settings.search not in played:
            played[settings.search] = timed(partial(play, game, evaluate, settings.search, arguments.positions, arguments.seed))
        batches, playing = played[settings.search]
        network, learning = timed(partial(learn, game, settings, batches, arguments.samples))
        games = sum(batch.num_games for batch in batches)
        print(f"| {said} | {games:,} | {playing:.0f} | {learning:.0f} | {judge(game, settings, network, positions)} |", flush=True)


def timed(do: Callable[[], T]) -> tuple[T, float]:
    """What comes of it, and the processor's seconds it took."""
    started = time.process_time()
    return do(), time.process_time() - started


if __name__ == "__main__":
    main()
