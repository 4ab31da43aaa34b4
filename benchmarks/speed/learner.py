"""Measure the learner against a bare loop of forward, backward and optimizer step.

    python benchmarks/speed/learner.py [--game go] [--channels 96] [--batch 128] [--optimizer muon]
    python benchmarks/speed/learner.py --big [--threads 2] [--batch 64]      20x256 on chess planes, in two number types

The learner samples positions from a replay window, replays games and applies symmetries, averages weights, and clips
and checks each step; the big one (``keima big-learner``) reads its games from a file. The bare loop does none of this;
it uses tensors sampled in advance. A ratio of 1 means that everything around the network costs nothing. "drawing" is
the share of the learner's time in which it draws positions.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import Parser, Report, Table, divide_rounds, take_turns, time_call
from benchmarks.speed.evaluator import NETWORKS
from keima.config.flags import whole
from keima.data.records import encode_batch
from keima.games import load_game
from keima.learning.feed import EpochFeed
from keima.learning.learner import Learner, TensorBatch, copy_to_device
from keima.networks.network import build_network
from keima.replay.epochs import Epochs
from keima.replay.window import ReplayWindow
from tests.synthetic import synthetic_batch

STEPS = 2  # of a turn; the big learner takes one
GAMES, BIG_GAMES = 100, 40  # enough positions for every step


def bare_steps(learner: Learner, batch: TensorBatch, steps: int) -> None:
    """Take steps without anything around them."""
    for _ in range(steps):
        with learner.update_step.autocast:
            loss = learner.losses(batch).loss
        loss.backward()
        learner.optimizer.step()
        learner.optimizer.zero_grad(set_to_none=True)


def add_row(
    table: Table, name: str, learner: Learner, batch: TensorBatch, *ways: Callable[[], object], steps: int, rounds: int
) -> None:
    """Let the learner's steps, bare ones on a batch, and the drawing of positions take turns, and print the figures.

    Args:
        ways: the learner's steps, and the drawing for them if that can be measured.
        steps: of a turn.
        rounds: turns of each.
    """
    turns: list[Callable[[], object]] = [ways[0], partial(bare_steps, learner, batch, steps), *ways[1:]]
    for turn in turns:
        turn()
    ours, bare, *drawing = take_turns([partial(time_call, turn) for turn in turns], rounds)
    samples = torch.get_num_threads() * steps * learner.batch_size  # the processor's seconds of all threads count
    share = divide_rounds(drawing[0], ours).middle if drawing else None
    table.add(name, samples / median(ours), samples / median(bare), divide_rounds(bare, ours), share)


def measure_small(table: Table, arguments: argparse.Namespace) -> None:
    """Measure a learner that samples from a window."""
    options, shape = NETWORKS[arguments.game]
    game, shape = load_game(arguments.game, **options), {**shape, "channels": arguments.channels}
    window = ReplayWindow(game, capacity_positions=10**6)
    window.add(synthetic_batch(game, games=GAMES))
    size, seeds = arguments.batch or 256, itertools.count()
    learner = Learner(build_network(game, **shape), device="cpu", batch_size=size, optimizer=arguments.optimizer)

    def draw() -> None:
        for _ in range(STEPS):
            copy_to_device(window.sample(size, next(seeds)), learner.device)

    batch = copy_to_device(window.sample(size, 0), learner.device)
    name = f"{game.name} {shape['blocks']}x{shape['channels']}, batch {size}"
    train = partial(learner.train, window, STEPS, 0)
    add_row(table, name, learner, batch, train, draw, steps=STEPS, rounds=arguments.rounds)


def measure_big(table: Table, arguments: argparse.Namespace, folder: Path, *, mixed_precision: bool) -> None:
    """Measure the big learner in one number type."""
    game, size = load_game("chess"), arguments.batch or 64
    path = folder / "random.games"
    path.write_bytes(encode_batch(synthetic_batch(game, games=BIG_GAMES)))
    shape: dict[str, Any] = {"blocks": 2, "channels": 32} if arguments.quick else {"blocks": 20, "channels": 256}
    learner = Learner(
        build_network(game, **shape), device="cpu", batch_size=size, mixed_precision=mixed_precision, norm_batch=256
    )
    epochs = Epochs(game=game, files=[(path, path.stat().st_size)], batch_size=size, seed=1)
    feed = EpochFeed(epochs, rows=learner.ranks.own_rows)
    batches = feed.batches(0)
    batch = copy_to_device(next(batches).batch(), learner.device)

    def train() -> None:
        learner.train(feed, 1, 0, batch_size=next(batches).total)

    kind = str(learner.update_step.dtype).removeprefix("torch.")
    name = f"chess {shape['blocks']}x{shape['channels']}, {kind}, batch {size}"
    add_row(table, name, learner, batch, train, steps=1, rounds=arguments.rounds)


def main() -> None:
    """Measure and print."""
    parser = Parser(__doc__, rounds=20)
    parser.option("--game", NETWORKS, "go", help="what the network plays")
    parser.option("--channels", whole(), 64, quick=16, help="of the network")
    parser.add_argument("--batch", type=whole(), help="positions in a step (default: 256, and 64 of the big learner)")
    parser.option("--optimizer", ("adamw", "muon", "sgd"), "adamw", help="of the small learner")
    parser.add_argument("--big", action="store_true", help="measure the big learner; three rounds are enough")
    parser.option("--threads", whole(), 1, help="of PyTorch")
    arguments = parser.parse()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    with Report(arguments) as report, tempfile.TemporaryDirectory() as folder:
        title = f"{arguments.threads} threads: samples/s of undisturbed cores"
        table = report.table(title, "network", "learner", "bare loop", "ratio", "drawing")
        if not arguments.big:
            measure_small(table, arguments)
        for mixed_precision in (False, True) if arguments.big else ():
            measure_big(table, arguments, Path(folder), mixed_precision=mixed_precision)


if __name__ == "__main__":
    main()
