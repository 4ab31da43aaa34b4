"""Measure the evaluator against plain torch: float32 calls on NCHW tensors, one thread.

    python benchmarks/speed/evaluator.py [--rounds 5] [--game go]
    python benchmarks/speed/evaluator.py --sizes [--blocks 4] [--pooling]
    python benchmarks/speed/evaluator.py --direct [--blocks 4] [--pooling]

Both alternate at each batch size. Times are processor times, so other programs matter less; figures are medians over
the rounds. In the end, each is taken at its own best batch size. The network has first learned a few hundred positions,
so that it prefers some moves; the share of positions in which both have the same first choice is printed too.

--sizes measures the evaluator alone, at many numbers of channels and batch sizes: billions of operations per second in
the convolutions, each product and each sum counted. Layers of more channels should be no slower, so a figure below 0.8
of the best above it is marked: a layer of that size wastes time.

--direct compares networks in float32 whose convolutions use Winograd's filtering with ones that convolve directly.
"""

import argparse
import statistics
import time
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from keima.config.flags import whole
from keima.games import Game, load_game
from keima.learning.learner import Learner, to_tensors
from keima.networks.architectures.fused import Float32, FusedRuntime
from keima.networks.architectures.layers import Tower
from keima.networks.files.model_file import canary_positions
from keima.networks.inference.evaluator import Evaluator, folded
from keima.networks.network import build_network
from keima.replay.window import Batch
from keima.search.puct import Evaluate

MEASURED_NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "go": ({"size": 9}, {"blocks": 6, "channels": 64}),
    "connect_four": ({}, {"blocks": 4, "channels": 64}),
}
BATCH_SIZES = (1, 16, 32, 64, 128, 256)
ROUND_SECONDS = 0.3
TABLE_CHANNELS = (16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
TABLE_BATCHES = (1, 4, 8, 16, 32, 64, 128, 256, 512)
DIRECT_CHANNELS = (32, 64, 96, 128, 256)
DIRECT_BATCHES = (1, 4, 16, 64, 256)
TABLE_SECONDS = 0.1
POTHOLE = 0.8  # of the best rate with fewer channels


def plain(network: nn.Module) -> Evaluate:
    """The network in plain torch, as in most projects."""

    def evaluate(observations: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with torch.inference_mode():
            logits, value_logits = network(torch.from_numpy(observations))
        return logits.numpy(), torch.tanh(value_logits / 2).numpy()

    return evaluate


def evaluation_rate(evaluate: Evaluate, observations: NDArray[np.float32], seconds: float = ROUND_SECONDS) -> float:
    """Evaluations per second in one round."""
    calls, started = 0, time.process_time()
    while time.process_time() - started < seconds:
        evaluate(observations)
        calls += 1
    return calls * len(observations) / (time.process_time() - started)


def evaluation_rates(
    ways: list[Evaluate], observations: NDArray[np.float32], rounds: int, seconds: float = ROUND_SECONDS
) -> list[float]:
    """The median evaluations per second of each way; they alternate."""
    for way in ways:
        way(observations)
    measured = [[evaluation_rate(way, observations, seconds) for way in ways] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*measured, strict=True)]


def learned_network(game: Game, observations: NDArray[np.float32], network: dict[str, Any]) -> nn.Module:
    """A network that has learned one arbitrary move for each of these positions."""
    rng = np.random.default_rng(1)
    batch = Batch.empty(game, len(observations))
    batch.observations[:], batch.legal[:], batch.policy_mask[:] = observations, True, 1
    batch.policies[:] = np.eye(game.num_actions)[rng.integers(0, game.num_actions, len(observations))]
    batch.values[:] = rng.choice([-1, 1], len(observations))
    learner = Learner(build_network(game, **network), device="cpu", learning_rate=3e-3, warmup_steps=5)
    for _ in range(30):
        learner.descend(to_tensors(batch, learner.device))
    return learner.network.eval().to(memory_format=torch.contiguous_format)


def operations(network: nn.Module, game: Game) -> int:
    """The operations of the convolutions in one evaluation: two for each product and its sum."""
    _, height, width = game.observation_shape
    sizes = (module.weight.numel() for module in network.modules() if isinstance(module, nn.Conv2d))
    return 2 * height * width * sum(sizes)


def measure_sizes(game: Game, rounds: int, blocks: int, *, pooling: bool) -> NDArray[np.float64]:
    """Billions of operations per second, ``[channels, batches]``, medians over the rounds."""
    observations = canary_positions(game, max(TABLE_BATCHES))
    figures = np.empty((len(TABLE_CHANNELS), len(TABLE_BATCHES)))
    for row, channels in enumerate(TABLE_CHANNELS):
        network = build_network(game, blocks=blocks, channels=channels, global_pooling=pooling).eval()
        evaluate = Evaluator(network, game, device="cpu", max_batch=max(TABLE_BATCHES))
        for column, size in enumerate(TABLE_BATCHES):
            evaluate(observations[:size])
            rates = [evaluation_rate(evaluate, observations[:size], TABLE_SECONDS) for _ in range(rounds)]
            figures[row, column] = statistics.median(rates) * operations(network, game) / 1e9
    return figures


def potholes(figures: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which figures ``[channels, batches]`` are far below the best of fewer channels."""
    return np.vstack([np.zeros_like(figures[:1], bool), figures[1:] < POTHOLE * np.maximum.accumulate(figures)[:-1]])


def print_sizes(game: Game, arguments: argparse.Namespace) -> None:
    """Measure and print the table of sizes."""
    figures = measure_sizes(game, arguments.rounds, arguments.blocks, pooling=arguments.pooling)
    marked = potholes(figures)
    pooled = " with global pooling" if arguments.pooling else ""
    print(
        f"{game.name}, {arguments.blocks} blocks{pooled}, 1 thread: 10^9 operations/s;"
        f" *: below {POTHOLE} of the best above it"
    )
    print("channels" + "".join(f"{size:>8}" for size in TABLE_BATCHES))
    for channels, row, marks in zip(TABLE_CHANNELS, figures, marked, strict=True):
        cells = (f"{figure:>7.1f}{'*' if mark else ' '}" for figure, mark in zip(row, marks, strict=True))
        print(f"{channels:>8}" + "".join(cells))
    print(f"{marked.sum()} of {marked.size} are below {POTHOLE} of the best above them")


def in_float32(network: nn.Module, game: Game, *, winograd: bool) -> Evaluate:
    """A ``ResNet`` by the fused operators in float32, its convolutions by Winograd's filtering or direct."""
    runtime = FusedRuntime(cast(Tower, folded(network)), Float32(winograd=winograd), game.observation_shape[1:])

    def evaluate(observations: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with torch.inference_mode():
            logits, value_logits = runtime.run(observations, len(observations))
        return logits.numpy(), value_logits.numpy()

    return evaluate


def print_direct(game: Game, arguments: argparse.Namespace) -> None:
    """Measure and print how many times as fast Winograd's filtering is as direct convolutions."""
    print(f"{game.name}, {arguments.blocks} blocks, 1 thread, float32: speed with Winograd's filtering / without")
    print("channels" + "".join(f"{size:>8}" for size in DIRECT_BATCHES))
    observations = canary_positions(game, max(DIRECT_BATCHES))
    for channels in DIRECT_CHANNELS:
        network = build_network(
            game, blocks=arguments.blocks, channels=channels, global_pooling=arguments.pooling
        ).eval()
        ways = [in_float32(network, game, winograd=winograd) for winograd in (False, True)]
        print(f"{channels:>8}", end="")
        for size in DIRECT_BATCHES:
            direct, filtered = evaluation_rates(ways, observations[:size], arguments.rounds, TABLE_SECONDS)
            print(f"{filtered / direct:>8.2f}", end="", flush=True)
        print()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=whole(), default=5)
    parser.add_argument("--game", choices=sorted(MEASURED_NETWORKS), default="go")
    parser.add_argument("--sizes", action="store_true", help="measure the evaluator at many sizes instead")
    parser.add_argument("--direct", action="store_true", help="compare Winograd's filtering with direct convolutions")
    parser.add_argument("--blocks", type=whole(), default=4, help="of the networks with --sizes and --direct")
    parser.add_argument("--pooling", action="store_true", help="give these networks global pooling")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    options, shape = MEASURED_NETWORKS[arguments.game]
    game = load_game(arguments.game, **options)
    if arguments.sizes:
        print_sizes(game, arguments)
        return
    if arguments.direct:
        print_direct(game, arguments)
        return
    observations = canary_positions(game, max(BATCH_SIZES))
    network = learned_network(game, observations, shape)
    ours, theirs = Evaluator(network, game, device="cpu"), plain(network)
    print(
        f"{game.name} {options}, {shape['blocks']} blocks x {shape['channels']} channels, 1 thread; ours: "
        f"{ours.describe()}"
    )
    print(f"{'batch':>6} {'plain/s':>10} {'ours/s':>10} {'ratio':>7}")
    best = [0.0, 0.0]
    for size in BATCH_SIZES:
        slow, fast = evaluation_rates([theirs, ours], observations[:size], arguments.rounds)
        best = [max(best[0], slow), max(best[1], fast)]
        print(f"{size:>6} {slow:>10,.0f} {fast:>10,.0f} {fast / slow:>7.2f}")
    (logits, values), (wanted, wanted_values) = ours(observations), theirs(observations)
    print(f"{'best':>6} {best[0]:>10,.0f} {best[1]:>10,.0f} {best[1] / best[0]:>7.2f}")
    print(
        f"same first choice in {(logits.argmax(1) == wanted.argmax(1)).mean():.1%} of {len(observations)} positions",
        end="; ",
    )
    print(
        f"largest difference of a value {np.abs(values - wanted_values).max():.4f}, of a logit "
        f"{np.abs(logits - wanted).max():.3f}"
    )


if __name__ == "__main__":
    main()
