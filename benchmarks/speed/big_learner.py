"""Measure the big learner's samples per second, 20x256 on chess planes, against a bare loop of forward, backward and
optimizer step.

    python benchmarks/speed/big_learner.py [--rounds 3] [--batch 64] [--threads 2]

The learner reads games from a file, replays them and applies symmetries, averages weights, and clips and checks each
step. The bare loop does none of this; it uses tensors sampled in advance. Both alternate, in float32 and in bfloat16.
The median of the rounds' time ratios is reported: 1 means that everything around the network costs nothing. Times are
processor times.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.speed.learner import bare_steps, random_games
from keima.config.flags import whole
from keima.data.records import encode
from keima.games import Game, load_game
from keima.learning.feed import EpochFeed
from keima.learning.learner import Learner, to_tensors
from keima.networks.network import build_network
from keima.replay.epochs import Epochs

NUM_GAMES = 20  # enough positions for every step of the run


def measure_learner(game: Game, path: Path, arguments: argparse.Namespace, *, mixed_precision: bool) -> None:
    """Measure one number type, and print."""
    torch.manual_seed(1)
    network = build_network(game, blocks=arguments.blocks, channels=arguments.channels)
    learner = Learner(
        network, device="cpu", batch_size=arguments.batch, mixed_precision=mixed_precision, norm_batch=256
    )
    feed = EpochFeed(
        Epochs(game=game, files=[(path, path.stat().st_size)], batch_size=arguments.batch, seed=1),
        rows=learner.ranks.rows,
    )
    batches = feed.batches(0)
    first = next(batches)
    batch = to_tensors(first.batch(), learner.device)
    learner.train(feed, 1, 0, batch_size=first.total)
    bare_steps(learner, batch, learner.optimizer, 1)
    bare, ours = [], []
    for number in range(arguments.rounds):
        if number % 2:  # the order alternates, because caches and processor may be in another state for the second
            bare.append(bare_steps(learner, batch, learner.optimizer, 1))
        started = time.process_time()
        learner.train(feed, 1, 0, batch_size=next(batches).total)
        ours.append(time.process_time() - started)
        if number % 2 == 0:
            bare.append(bare_steps(learner, batch, learner.optimizer, 1))
    threads, ratio = (
        torch.get_num_threads(),
        statistics.median(slow / fast for slow, fast in zip(bare, ours, strict=True)),
    )
    rates = [threads * arguments.batch / statistics.median(seconds) for seconds in (bare, ours)]
    kind = str(learner.update_step.dtype).removeprefix("torch.")
    print(
        f"{kind}: bare loop {rates[0]:,.1f} samples/s, learner {rates[1]:,.1f}; learner / bare loop {ratio:.3f}",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=whole(), default=3)
    add("--batch", type=whole(), default=64)
    add("--threads", type=whole(), default=2)
    add("--blocks", type=whole(), default=20)
    add("--channels", type=whole(), default=256)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    game = load_game("chess")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.games"
        path.write_bytes(encode(random_games(game, NUM_GAMES)))
        size = f"{arguments.blocks}x{arguments.channels} on {'x'.join(map(str, game.observation_shape))}"
        print(
            f"{size}, batch {arguments.batch}, {arguments.threads} threads; samples/s of undisturbed cores",
            flush=True,
        )
        for mixed_precision in (False, True):
            measure_learner(game, path, arguments, mixed_precision=mixed_precision)


if __name__ == "__main__":
    main()
