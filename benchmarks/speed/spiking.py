"""Measure what spikes cost in time: a spiking network against the residual network of the same size.

    python benchmarks/speed/spiking.py [--rounds 5] [--game connect_four] [--blocks 4] [--channels 32]
                                       [--time-steps 4] [--busy]

Both alternate in one thread. Times are processor times, so other programs matter less; figures are medians over the
rounds. Learning is the learner's whole step; playing is the evaluator at its best batch size. Playing takes longer the
more the neurons fire: one in fifty does in a new network, one in five with ``--busy``.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from keima.config.flags import whole
from keima.games import Game, load_game
from keima.learning.learner import Learner, to_tensors
from keima.networks.files.model_file import canary_positions
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from tests.small_networks import random_batch

LEARNED_AT_ONCE = 128
BATCH_SIZES = (16, 64, 256)


def learning(game: Game, network: dict[str, Any]) -> Callable[[], int]:
    """A function that takes one step and returns its number of positions."""
    learner = Learner(build_network(game, **network), device="cpu")
    batch = to_tensors(random_batch(game, LEARNED_AT_ONCE), learner.device)

    def step() -> int:
        learner.descend(batch)
        return LEARNED_AT_ONCE

    return step


def playing(game: Game, network: dict[str, Any], size: int, *, busy: bool = False) -> Callable[[], int]:
    """A function that makes one call and returns its number of positions."""
    built = build_network(game, **network)
    observations: np.ndarray[Any, np.dtype[np.float32]] = canary_positions(game, size)
    if busy:
        make_busy(built, torch.from_numpy(observations))
    evaluate = Evaluator(built.eval(), game, device="cpu")

    def call() -> int:
        evaluate(observations)
        return size

    return call


@torch.no_grad()
def make_busy(network: nn.Module, observations: torch.Tensor) -> None:
    """Set the norms so that the currents of all layers vary by about the threshold, as in a trained tower."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            module.momentum = None  # the statistics of this batch alone
    network.train()(observations)


def position_rates(ways: list[Callable[[], int]], rounds: int) -> list[float]:
    """The median positions per second of each way; they alternate."""
    for way in ways:
        way()
    measured: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, found in zip(ways, measured, strict=True):
            started = time.process_time()
            positions = way()
            found.append(positions / (time.process_time() - started))
    return [statistics.median(found) for found in measured]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Compare a spiking network with the residual network of its size.")
    parser.add_argument("--rounds", type=whole(), default=5)
    parser.add_argument("--game", default="connect_four")
    parser.add_argument("--blocks", type=whole(), default=4)
    parser.add_argument("--channels", type=whole(), default=32)
    parser.add_argument("--time-steps", type=whole(), default=4)
    parser.add_argument("--busy", action="store_true", help="a fifth of the neurons fires")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    game = load_game(arguments.game)
    shape = {"blocks": arguments.blocks, "channels": arguments.channels}
    networks: list[dict[str, Any]] = [shape, {**shape, "type": "spiking", "time_steps": arguments.time_steps}]
    print(
        f"{game.name}, {arguments.blocks} blocks x {arguments.channels} channels, {arguments.time_steps} time "
        "steps, 1 thread"
    )
    print(f"{'positions/s':<16} {'resnet':>10} {'spiking':>10} {'ratio':>7}")
    plain, spiking = position_rates([learning(game, network) for network in networks], arguments.rounds)
    print(f"{f'learning, {LEARNED_AT_ONCE}':<16} {plain:>10,.0f} {spiking:>10,.0f} {plain / spiking:>7.1f}")
    for size in BATCH_SIZES:
        plain, spiking = position_rates(
            [playing(game, network, size, busy=arguments.busy) for network in networks], arguments.rounds
        )
        print(f"{f'playing, {size}':<16} {plain:>10,.0f} {spiking:>10,.0f} {plain / spiking:>7.1f}")


if __name__ == "__main__":
    main()
