"""Measure the evaluator against plain torch: float32 calls on NCHW tensors, one thread.

    python benchmarks/speed/evaluator.py [--rounds 5] [--game go]

Both take turns at each batch size; the last row has each at its own best batch size. The network has first learned a
few hundred positions, so that it prefers some moves; the share of positions in which both have the same first choice is
in the second table.
"""

import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import Parser, Report, Way, divide_rounds, measure_rates
from keima.config.flags import whole
from keima.games import Game, load_game
from keima.games.game import Planes
from keima.learning.learner import Learner, copy_to_device
from keima.networks.files.model import canary_positions
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from keima.replay.window import Batch
from keima.search.puct import Evaluate

NETWORKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # game -> its options, and the shape of the network
    "go": ({"size": 9}, {"blocks": 6, "channels": 64}),
    "connect_four": ({}, {"blocks": 4, "channels": 64}),
}
BATCHES = (1, 16, 32, 64, 128, 256)


def wrap_plainly(network: nn.Module) -> Evaluate:
    """Return the network in plain torch, as in most projects."""

    def evaluate(observations: Planes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with torch.inference_mode():
            logits, value_logits = network(torch.from_numpy(observations))
        return logits.numpy(), torch.tanh(value_logits / 2).numpy()

    return evaluate


def make_call(evaluate: Evaluate, observations: Planes) -> Way:
    """Return a function that evaluates these positions, and returns their number."""

    def call() -> float:
        evaluate(observations)
        return len(observations)

    return call


def train_network(game: Game, observations: Planes, shape: dict[str, Any]) -> nn.Module:
    """Return a network that has learned one arbitrary move for each of these positions."""
    rng = np.random.default_rng(1)
    batch = Batch.empty(game, len(observations))
    batch.observations[:], batch.legal[:], batch.policy_mask[:] = observations, True, 1
    batch.policies[:] = np.eye(game.num_actions)[rng.integers(0, game.num_actions, len(observations))]
    batch.values[:] = rng.choice([-1, 1], len(observations))
    learner = Learner(build_network(game, **shape), device="cpu", learning_rate=3e-3, warmup_steps=5)
    for _ in range(30):
        learner.descend(copy_to_device(batch, learner.device))
    return learner.network.eval().to(memory_format=torch.contiguous_format)


def main() -> None:
    """Measure and print."""
    parser = Parser(__doc__, rounds=5, seconds=0.3)
    parser.option("--game", NETWORKS, "go", help="what the network plays")
    parser.option("--batches", whole(), BATCHES, quick=(1, 16), help="positions in a call")
    arguments = parser.parse()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    options, shape = NETWORKS[arguments.game]
    game = load_game(arguments.game, **options)
    observations = canary_positions(game, max(arguments.batches))
    with Report(arguments) as report:
        network = train_network(game, observations, shape)
        ours, theirs = Evaluator(network, game, device="cpu"), wrap_plainly(network)
        title = f"{game.name}, {shape['blocks']}x{shape['channels']}, one thread, {ours.describe()}: evaluations/s"
        table, best = report.table(title, "batch", "ours", "plain torch", "ratio"), (0.0, 0.0)
        for size in arguments.batches:
            ways = [make_call(ours, observations[:size]), make_call(theirs, observations[:size])]
            found = measure_rates(ways, rounds=arguments.rounds, seconds=arguments.seconds)
            fast, slow = map(median, found)
            best = max(best[0], fast), max(best[1], slow)
            table.add(str(size), fast, slow, divide_rounds(*found))
        table.add("each at its best", *best, best[0] / best[1])
        (logits, values), (wanted, wanted_values) = ours(observations), theirs(observations)
        columns = ("positions", "same first choice", "largest difference of a value", "of a logit")
        same = float((logits.argmax(1) == wanted.argmax(1)).mean())
        differences = float(np.abs(values - wanted_values).max()), float(np.abs(logits - wanted).max())
        report.table("Both alike", *columns).add(str(len(observations)), same, *differences)


if __name__ == "__main__":
    main()
