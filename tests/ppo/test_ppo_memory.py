"""Tasks that need a memory are solved with one, and not by the same network without it."""

from typing import Any

import numpy as np
import pytest
import torch

from keima.base.random import seed_stream
from keima.ppo.actor_critic import ActorCritic
from keima.ppo.reports import EpisodesReport, RoundReport
from keima.ppo.settings import PPOSettings
from keima.ppo.trainer import PPOTrainer
from keima.ppo.worlds.memory_tasks import BlindCartPole, TMaze
from keima.ppo.worlds.world import Worlds

MAZE = PPOSettings(
    num_steps=256,
    sequence_length=256,
    gae_lambda=0.97,
    ent_coef=0.03,
    target_kl=0,
    learning_rate_actor=1e-3,
)
POLE = PPOSettings(sequence_length=32, epochs=6, ent_coef=0.001, target_kl=0, learning_rate_actor=1e-3)


class Watch:
    """Stops a training after this many steps, and keeps the results of the last episodes."""

    def __init__(self, trainer: PPOTrainer, steps: int) -> None:
        self.trainer, self.steps = trainer, steps
        self.reports: list[RoundReport] = []

    def round(self, report: RoundReport) -> None:
        self.reports.append(report)
        self.trainer.stop_requested = report.total_steps >= self.steps

    def close(self) -> None:
        pass

    def last(self, rounds: int) -> EpisodesReport:
        total = self.reports[-1].episodes
        for report in self.reports[-rounds:-1]:
            total += report.episodes
        return total


def trained(
    make: Any, settings: PPOSettings, *, worlds: int, steps: int, seed: int, memory: bool, span: int = 0
) -> Watch:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    made: Worlds = make(np.array([seed_stream(seed, "w", b) for b in range(worlds)], np.uint64))
    network = ActorCritic(made.observation_size, made.num_actions, lstm_size=64, hidden=(64,), memory=memory, span=span)
    trainer = PPOTrainer(network, made, settings, seed=seed, episodes=10**9)
    watch = Watch(trainer, steps)
    trainer.observers = [watch]
    trainer.run()
    return watch


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_t_maze_of_length_100_is_solved_with_the_memory(seed: int) -> None:
    last = trained(TMaze, MAZE, worlds=32, steps=400_000, seed=seed, memory=True, span=200).last(5)
    assert last.metrics["right_side"] / last.count > 0.95


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_t_maze_is_a_guess_without_it() -> None:
    last = trained(TMaze, MAZE, worlds=32, steps=400_000, seed=1, memory=False, span=200).last(10)
    assert last.metrics["right_side"] / last.count < 0.6


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_pole_with_hidden_speeds_is_held_with_a_memory(seed: int) -> None:
    last = trained(BlindCartPole, POLE, worlds=16, steps=120_000, seed=seed, memory=True).last(10)
    assert last.rewards / last.count > 350


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_pole_falls_without_a_memory() -> None:
    last = trained(BlindCartPole, POLE, worlds=16, steps=120_000, seed=1, memory=False).last(10)
    assert last.rewards / last.count < 120
