"""Measure what a new network learns from games of Connect Four, played and learned with different settings.

    python benchmarks/strength/sample_efficiency.py runs/quickstart --try search.random_move_share=0.4
    python benchmarks/strength/sample_efficiency.py runs/quickstart --try training.optimizer=muon --samples 1000000
    python benchmarks/strength/sample_efficiency.py runs/quickstart --recorded --positions 100000 400000

The run's newest network plays itself until there are --positions to learn from, once with the run's settings and once
more for each --try that changes how it plays; with --recorded, the run's newest games are used instead. From each set
of games a new network learns --samples and is measured on all shipped solved positions. That takes about five minutes
per setting on one core. The table has processor seconds of playing and of learning, and the loss on games that were
learned and on every twentieth batch of a hundred, which was left out: if these differ much, the network needs more
games, not more samples of the same. Then follow the columns of benchmarks/strength/perfect_play.py, and how often the
move found with 128 simulations throws value away.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import TypeVar

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.speed.self_play import Session
from benchmarks.strength.perfect_play import network_columns, search_choices
from benchmarks.strength.target_quality import settings_to_try
from keima import batch_of
from keima.base.random import seed_stream
from keima.coach.opening import make_learner, make_window
from keima.config.flags import whole
from keima.config.schema import Settings
from keima.config.sections.search import SearchSettings
from keima.data.ledger import read_ledger
from keima.data.receive import load_received
from keima.data.records import FULL_SEARCH, GameBatch, GameRecord
from keima.evaluation.perfect_play import errors, load_positions
from keima.games import Game, load_game
from keima.learning.learner import Learner, to_tensors
from keima.networks.files.model_file import Model, describe_model
from keima.networks.files.model_heading import model_path_of_run
from keima.networks.inference.evaluator import Evaluator
from keima.play.arena.players import read_model
from keima.replay.window import ReplayWindow

T = TypeVar("T")

PARALLEL_GAMES, CACHE_POSITIONS = 256, 200_000
BATCH_GAMES = 100
TABLE_HEADER = (
    "| settings | positions | games | playing, s | learning, s "
    "| loss, learned | loss, left out | policy | sign | squared error | search |"
)
SIMULATIONS = 128
SCHEDULE_STEPS = 500  # between two updates of the learning-rate schedule
LEFT_OUT = 20  # one of this many batches is left out
LOSS_POSITIONS = 4096  # on which a loss is measured


def play_new_games(
    game: Game, evaluate: Evaluator, settings: SearchSettings, seed: int, positions: int
) -> list[GameBatch]:
    """Games with at least ``positions`` positions that had a full search."""
    seeds = (seed_stream(seed, "lessons", number) for number in count())
    session = Session(game, evaluate, settings, PARALLEL_GAMES, cache_positions=CACHE_POSITIONS, seeds=seeds)
    batches, records, found = list[GameBatch](), list[GameRecord](), 0
    while found < positions:
        records += session.advance()
        if len(records) >= BATCH_GAMES:
            batches.append(batch_of(game, records))
            found += to_learn_from(batches[-1])
            records = []
    return batches


def newest_games(run: Path, positions: int) -> list[GameBatch]:
    """The run's newest games with at least ``positions`` positions that had a full search.

    Raises:
        OSError, ValueError: the run has fewer, or they cannot be read.
    """
    with read_ledger(run) as ledger:
        rows = ledger.received_batches()
    batches, found = list[GameBatch](), 0
    for row in reversed(rows):
        batches.append(load_received(run, row))
        found += to_learn_from(batches[-1])
        if found >= positions:
            return batches[::-1]
    raise ValueError(f"{run} has only {found:,} positions to learn from; give fewer --positions")


def to_learn_from(batch: GameBatch) -> int:
    """The number of its positions with a full search."""
    return int((batch.flags & FULL_SEARCH > 0).sum())


def learn(game: Game, settings: Settings, batches: list[GameBatch], samples: int) -> tuple[Model, str]:
    """A new network that has learned from these games as from a whole run, and the table's columns with its losses."""
    learned = list(batches)
    del learned[::LEFT_OUT]
    window, other = window_of(game, settings, learned), window_of(game, settings, batches[::LEFT_OUT])
    learner, steps = make_learner(game, settings), max(1, samples // settings.training.batch_size)
    while learner.step < steps:
        now = min(SCHEDULE_STEPS, steps - learner.step)
        learner.train(window, now, settings.run.seed, progress=learner.step / steps)
    model = Model(description=describe_model(game, settings.network.arguments(), 1), weights=learner.weights())
    learner.network.load_state_dict(model.weights)
    learner.network.eval()
    return model, " | ".join(f"{loss(learner, part):.3f}" for part in (window, other))


def window_of(game: Game, settings: Settings, batches: list[GameBatch]) -> ReplayWindow:
    """A window with all of these games."""
    window = make_window(game, settings)
    window.resize(sum(batch.num_positions for batch in batches))
    for batch in batches:
        window.add(batch)
    return window


@torch.no_grad()
def loss(learner: Learner, window: ReplayWindow) -> float:
    """The current network's loss, in nats."""
    return learner.losses(to_tensors(window.sample(LOSS_POSITIONS, 0), learner.device)).loss.item()


def main() -> None:
    """Play, learn, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder, of Connect Four")
    parser.add_argument(
        "--positions", type=whole(), nargs="+", default=[100_000], help="to learn from, each in turn (default: 100000)"
    )
    parser.add_argument("--recorded", action="store_true", help="learn from the run's newest games instead of new ones")
    parser.add_argument("--samples", type=whole(), default=300_000, help="to learn (default: %(default)s)")
    parser.add_argument("--seed", type=whole(0), default=1, help="of games, weights and samples (default: %(default)s)")
    parser.add_argument(
        "--try", dest="tries", action="append", default=[], metavar="KEY=VALUE,...", help="other settings"
    )
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
    print(f"{TABLE_HEADER}\n|{'---|' * TABLE_HEADER.count(' | ')}---|", flush=True)
    played: dict[tuple[int, SearchSettings], tuple[list[GameBatch], float]] = {}
    for wanted, (title, settings) in product(
        arguments.positions, zip(["the run's", *arguments.tries], tries, strict=True)
    ):
        key = wanted, settings.search
        if key not in played:
            now = partial(play_new_games, game, evaluate, settings.search, arguments.seed, wanted)
            try:
                played[key] = timed(partial(newest_games, arguments.run, wanted) if arguments.recorded else now)
            except (OSError, ValueError) as error:
                parser.error(str(error))
        batches, playing = played[key]
        (network, losses), learning = timed(partial(learn, game, settings, batches, arguments.samples))
        games = sum(batch.num_games for batch in batches)
        by_network = network_columns(game, network, positions)
        by_search = errors(positions, search_choices(game, network, settings.search, positions, SIMULATIONS))
        figures = f"{losses} | {by_network} | {by_search.share:.2%}"
        print(f"| {title} | {wanted:,} | {games:,} | {playing:.0f} | {learning:.0f} | {figures} |", flush=True)


def timed(do: Callable[[], T]) -> tuple[T, float]:
    """The result of a function, and its processor seconds."""
    started = time.process_time()
    return do(), time.process_time() - started


if __name__ == "__main__":
    main()
