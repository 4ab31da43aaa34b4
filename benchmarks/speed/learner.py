"""Measure ``Learner.train`` against a bare loop of forward, backward and optimizer step.

    python benchmarks/speed/learner.py [--rounds 20] [--game go] [--channels 96] [--batch-size 128] [--optimizer muon]

The learner samples positions from a replay window, replays games and applies symmetries, averages weights, and clips
and checks each step. The bare loop does none of this; it uses tensors sampled in advance. Both alternate, and the
median of the rounds' time ratios is reported: 1 means that everything around the network costs nothing. A second bare
loop convolves directly; it differs where a processor learns in float32 (keima/networks/kernels/winograd.py). Times are
processor times, so other programs matter less.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.speed.evaluator import MEASURED_NETWORKS
from keima.config.flags import whole
from keima.data.records import FULL_SEARCH, GameBatch
from keima.games import Game, load_game
from keima.learning.learner import Learner, TensorBatch, to_tensors
from keima.networks.network import build_network
from keima.replay.window import ReplayWindow

ROUND_STEPS = 2


def random_games(game: Game, count: int) -> GameBatch:
    """Games of random moves, with the move played as the policy target."""
    rng = np.random.default_rng(1)
    lengths, returns = [], []
    actions: list[int] = []
    for _ in range(count):
        state, before = game.initial_state(), len(actions)
        while not game.terminal(state):
            actions.append(int(rng.choice(game.legal_actions(state))))
            game.play(state, actions[-1])
        lengths.append(len(actions) - before)
        returns.append(game.returns(state))
    positions = len(actions)
    return GameBatch(
        batch_id="random",
        run_id="random",
        worker="random",
        game=game.name,
        options=game.options,
        rules_version=game.rules_version,
        first_game=0,
        lengths=np.array(lengths, np.int32),
        returns=np.array(returns, np.float32),
        first_model=np.zeros(count, np.int32),
        last_model=np.zeros(count, np.int32),
        seeds=np.zeros(count, np.uint64),
        resigned=np.zeros(count, np.uint8),
        actions=np.array(actions, np.int32),
        root_values=np.zeros(positions, np.float32),
        flags=np.full(positions, FULL_SEARCH, np.uint8),
        surprise=np.ones(positions, np.float32),
        policy_sizes=np.ones(positions, np.int32),
        policy_actions=np.array(actions, np.int32),
        policy_weights=np.ones(positions, np.uint16),
    )


def bare_steps(
    learner: Learner, batch: TensorBatch, optimizer: torch.optim.Optimizer, steps: int = ROUND_STEPS
) -> float:
    """Seconds of ``steps`` bare steps: forward, backward, optimizer."""
    started = time.process_time()
    for _ in range(steps):
        with learner.update_step.autocast:
            loss = learner.losses(batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return time.process_time() - started


def learner_steps(learner: Learner, window: ReplayWindow, seed: int) -> float:
    """Seconds of ``ROUND_STEPS`` steps of the learner."""
    started = time.process_time()
    learner.train(window, ROUND_STEPS, seed)
    return time.process_time() - started


def drawing_steps(learner: Learner, window: ReplayWindow, seed: int) -> float:
    """Seconds of sampling the batches of ``ROUND_STEPS`` steps."""
    started = time.process_time()
    for step in range(ROUND_STEPS):
        to_tensors(window.sample(learner.batch_size, seed + step), learner.device)
    return time.process_time() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Compare the learner with a bare training loop.")
    parser.add_argument("--rounds", type=whole(), default=20)
    parser.add_argument("--game", choices=sorted(MEASURED_NETWORKS), default="go")
    parser.add_argument("--channels", type=whole(), default=64)
    parser.add_argument("--batch-size", type=whole(), default=256)
    parser.add_argument("--optimizer", choices=("adamw", "muon", "sgd"), default="adamw")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    options, shape = MEASURED_NETWORKS[arguments.game]
    game = load_game(arguments.game, **options)
    window = ReplayWindow(game, capacity_positions=10**6)
    window.add(random_games(game, 100))
    shape = {**shape, "channels": arguments.channels}
    learner = Learner(
        build_network(game, **shape), device="cpu", batch_size=arguments.batch_size, optimizer=arguments.optimizer
    )
    batch = to_tensors(window.sample(learner.batch_size, 1), learner.device)
    learner.train(window, 1, 0)
    bare_steps(learner, batch, learner.optimizer)
    bare, ours, drawing, direct = [], [], [], []
    for number in range(arguments.rounds):
        if number % 2:  # the order alternates, because caches and processor may be in another state for the second
            bare.append(bare_steps(learner, batch, learner.optimizer))
        ours.append(learner_steps(learner, window, number))
        if number % 2 == 0:
            bare.append(bare_steps(learner, batch, learner.optimizer))
        drawing.append(drawing_steps(learner, window, number))
        with patch("keima.networks.kernels.winograd.pays", return_value=False):
            direct.append(bare_steps(learner, batch, learner.optimizer))
    samples = ROUND_STEPS * learner.batch_size
    print(
        f"{game.name} {options}, {shape['blocks']} blocks x {shape['channels']} channels, batch "
        f"{learner.batch_size}, {arguments.optimizer}, 1 thread"
    )
    print(
        f"bare loop {samples / statistics.median(bare):,.0f} samples/s, learner "
        f"{samples / statistics.median(ours):,.0f} samples/s"
    )
    ratio = statistics.median(slow / fast for slow, fast in zip(bare, ours, strict=True))
    share = statistics.median(part / whole for part, whole in zip(drawing, ours, strict=True))
    print(f"learner / bare loop {ratio:.3f}; drawing positions takes {share:.1%} of the learner's time")
    faster = statistics.median(slow / fast for slow, fast in zip(direct, bare, strict=True))
    print(f"bare loop / bare loop with direct convolutions {faster:.3f}")


if __name__ == "__main__":
    main()
