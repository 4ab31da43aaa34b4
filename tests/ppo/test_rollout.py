"""Rollouts against plain computations of what they hold."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from keima.learning.ranks.process_group import ALONE
from keima.ppo.actor_critic import ActorCritic, LSTMState
from keima.ppo.rollout import (
    Collector,
    JudgedSteps,
    accumulate_returns,
    estimate_advantages,
    merge_statistics,
    normalize_advantages,
    sample_actions,
    scale_observations,
)
from keima.ppo.settings import PPOSettings, TradingSettings
from keima.ppo.worlds.memory_tasks import FORWARD, TMaze
from keima.ppo.worlds.trading import TradingMarkets
from keima.ppo.worlds.world import Worlds, WorldState, empty_step_result


def markets(count: int = 4, *, window: int = 10) -> TradingMarkets:
    return TradingMarkets(np.arange(count).astype(np.uint64) * np.uint64(99), TradingSettings(window=window))


def collector(worlds: Worlds, *, num_steps: int = 16, sequence_length: int = 4) -> Collector:
    torch.manual_seed(1)
    network = ActorCritic(worlds.observation_size, worlds.num_actions, lstm_size=8, hidden=(5,))
    streams = np.arange(worlds.num_envs).astype(np.uint64)
    settings = PPOSettings(num_steps=num_steps, sequence_length=sequence_length, gamma=0.9, gae_lambda=0.8)
    return Collector(network, worlds, streams, settings)


class ScriptedWorlds:
    """Worlds in which everything happens as it was drawn before, whatever the actions."""

    num_envs, observation_size, num_actions = 3, 2, 3
    metric_names: tuple[str, ...] = ("score",)

    def __init__(self, steps: int) -> None:
        rng, shape = np.random.default_rng(5), (steps + 1, self.num_envs)
        self.shown, self.last = (rng.normal(3, 40, (*shape, 2)).astype(np.float32) for _ in range(2))
        self.rewards = (rng.normal(1, 5, shape) * rng.choice([1, 20], shape)).astype(np.float32)
        self.ended = rng.choice([0, 0, 0, 1, 2], shape).astype(np.int8)  # as in Rollout
        self.moment, self.now = empty_step_result(self.num_envs, self.observation_size, 1), 0
        self.moment.observations[:] = self.shown[0]

    def step(self, actions: NDArray[np.int64]) -> None:
        """Go on in the script."""
        moment, now = self.moment, self.now
        moment.rewards[:], moment.last_observations[:] = self.rewards[now], self.last[now]
        moment.terminated[:], moment.truncated[:] = self.ended[now] == 1, self.ended[now] == 2
        moment.metrics[:] = now + np.arange(self.num_envs)[:, None]
        self.now += 1
        moment.observations[:] = self.shown[self.now]

    def state(self) -> WorldState:
        """Return nothing: nothing is saved."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Do nothing."""


class Reference:
    """What ``Collector`` does, step by step and world by world."""

    def __init__(self, acting: Collector, worlds: ScriptedWorlds) -> None:
        self.network, self.worlds, self.settings = acting.network, worlds, acting.settings
        self.memories = [acting.network.initial_states(1) for _ in range(worlds.num_envs)]
        self.seen, self.earned = np.zeros((0, 2)), list[float]()  # all observations, and all discounted sums
        self.sums = np.zeros(worlds.num_envs)

    def scale(self, shown: NDArray[np.float32], seen: NDArray[np.float64]) -> torch.Tensor:
        if not self.settings.scale_observations:
            return torch.from_numpy(shown)[None]
        shift, by = (seen.mean(0), np.sqrt(seen.var(0) + 1e-8)) if len(seen) else (np.zeros(2), np.ones(2))
        return torch.from_numpy(np.clip((shown - shift) / by, -10, 10).astype(np.float32))[None]

    def value(self, shown: torch.Tensor, memories: list[LSTMState]) -> tuple[float, list[LSTMState]]:
        memories = self.network.advance(shown, memories)
        return self.network.critic(memories[-1].hidden).item(), memories

    @torch.inference_mode()
    def collect(self, begin: int) -> dict[str, NDArray[np.float64]]:
        steps, worlds, gamma = self.settings.num_steps, self.worlds, self.settings.gamma
        shape, seen = (steps, worlds.num_envs), self.seen
        rewards = worlds.rewards[begin : begin + steps].astype(np.float64)
        ended = worlds.ended[begin : begin + steps]
        values, after, advantages = (np.zeros(shape) for _ in range(3))
        for t in range(steps):
            for b in range(worlds.num_envs):
                shown = worlds.shown[begin + t]
                values[t, b], self.memories[b] = self.value(self.scale(shown[b], seen), self.memories[b])
                following = worlds.last[begin + t, b] if ended[t, b] == 2 else worlds.shown[begin + t + 1, b]
                after[t, b] = self.value(self.scale(following, seen), self.memories[b])[0]
                self.sums[b] = gamma * self.sums[b] + rewards[t, b]
                self.earned.append(self.sums[b])
                if ended[t, b]:
                    self.sums[b], self.memories[b] = 0.0, self.network.initial_states(1)
        self.seen = np.concatenate([seen, *worlds.shown[begin : begin + steps].astype(np.float64)])
        if self.settings.scale_rewards:
            rewards = np.clip(rewards / np.sqrt(np.var(self.earned) + 1e-8), -10, 10)
        for b in range(worlds.num_envs):
            later = 0.0
            for t in reversed(range(steps)):
                step = rewards[t, b] + (ended[t, b] != 1) * gamma * after[t, b] - values[t, b]
                later = step + (not ended[t, b]) * gamma * self.settings.gae_lambda * later
                advantages[t, b] = later
        returns = advantages + values
        return {
            "values": values,
            "returns": returns,
            "advantages": (advantages - advantages.mean()) / advantages.std(),
            "explained_variance": 1 - np.var(returns - values) / np.var(returns),
        }


@pytest.mark.parametrize("scaled", [True, False])
def test_rollouts_have_the_values_returns_and_advantages_that_define_them(scaled: bool) -> None:
    steps = 16
    worlds = ScriptedWorlds(3 * steps)
    acting = collector(worlds, num_steps=steps)
    acting.settings = acting.settings.model_copy(update={"scale_rewards": scaled, "scale_observations": scaled})
    reference = Reference(acting, worlds)
    for begin in (0, steps, 2 * steps):
        rollout, expected = acting.collect(), reference.collect(begin)
        for name in ("values", "returns", "advantages"):
            np.testing.assert_allclose(getattr(rollout, name).numpy(), expected[name], rtol=1e-3, atol=1e-3)
        assert rollout.explained_variance == pytest.approx(expected["explained_variance"], rel=1e-3, abs=1e-3)
        ends = worlds.ended[begin : begin + steps] != 0
        np.testing.assert_array_equal(rollout.starts[1:].numpy(), ends[:-1])
    ends = np.argwhere(worlds.ended[begin : begin + steps])
    assert [episode.metrics["score"] for episode in rollout.episodes] == [begin + t + b for t, b in ends]
    count, mean, squares = acting.network.seen_returns[:, 0].tolist()
    assert (mean, squares / count) == pytest.approx((np.mean(reference.earned), np.var(reference.earned)), rel=1e-3)


def test_advantages_are_the_sums_that_define_them() -> None:
    rng = np.random.default_rng(1)
    rewards, values, after = (rng.normal(size=(30, 3)).astype(np.float32) for _ in range(3))
    ended = rng.choice([0, 0, 0, 1, 2], (30, 3)).astype(np.int8)
    after[:-1][ended[:-1] == 0] = values[1:][ended[:-1] == 0]
    advantages, returns = estimate_advantages(JudgedSteps(rewards, values, after, ended), 0.9, 0.8)
    for b in range(3):
        for t in range(30):
            total, weight = 0.0, 1.0
            for k in range(t, 30):
                ahead = 0.0 if ended[k, b] == 1 else 0.9 * after[k, b]
                total += weight * (rewards[k, b] + ahead - values[k, b])
                weight *= 0.9 * 0.8
                if ended[k, b]:
                    break
            assert advantages[t, b] == pytest.approx(total, abs=1e-4)
    np.testing.assert_allclose(returns, advantages + values, rtol=1e-4)


def test_termination_ends_the_returns_and_truncation_adds_the_estimated_rest() -> None:
    one, zero = np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32)
    for kind, expected in ((1, 1.0), (2, 1.0 + 0.9 * 7)):
        steps = JudgedSteps(one, zero, 7 * one, np.full((1, 1), kind, np.int8))
        _, returns = estimate_advantages(steps, 0.9, 0.8)
        assert returns[0, 0] == pytest.approx(expected)


def test_actions_are_as_frequent_as_the_policy_says() -> None:
    logits = np.tile(np.log(np.array([0.7, 0.2, 0.1], np.float32)), (30_000, 1))
    actions, log_probabilities = np.zeros(30_000, np.int64), np.zeros(30_000, np.float32)
    sample_actions(logits, np.arange(30_000).astype(np.uint64) * np.uint64(7919), actions, log_probabilities)
    np.testing.assert_allclose(np.bincount(actions) / 30_000, [0.7, 0.2, 0.1], atol=0.01)
    np.testing.assert_allclose(log_probabilities, logits[0][actions], atol=1e-5)


@pytest.mark.medium
def test_stored_memories_reproduce_the_actor_s_answers() -> None:
    """The learner's first pass over any sequence, across ends of episodes, equals the actor's own."""
    acting = collector(markets(window=10))
    for _ in range(3):
        rollout = acting.collect()
        for k in range(4):
            part = slice(4 * k, 4 * k + 4)
            memories = [LSTMState(*lstm) for lstm in rollout.memories[k]]
            logits, values = acting.network.unroll(rollout.observations[part], rollout.starts[part], memories)
            chosen = logits.log_softmax(-1).gather(-1, rollout.actions[part, :, None]).squeeze(-1)
            torch.testing.assert_close(chosen, rollout.log_probabilities[part], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(values, rollout.values[part], atol=1e-5, rtol=1e-4)


def test_episodes_are_reported_with_rewards_and_length_across_rollouts() -> None:
    acting = collector(markets(count=2, window=10), num_steps=4, sequence_length=4)
    rollouts = [acting.collect() for _ in range(5)]
    assert [len(rollout.episodes) for rollout in rollouts] == [0, 0, 2, 0, 2]
    for episode in (episode for rollout in rollouts for episode in rollout.episodes):
        assert episode.steps == 10
        assert episode.reward == pytest.approx(episode.metrics["profit"] / 100, abs=1e-3)


def test_a_truncated_episode_is_valued_by_its_last_observation() -> None:
    worlds = TMaze(np.zeros(1, np.uint64), length=2)  # truncated after 4 steps
    acting = collector(worlds, num_steps=4, sequence_length=4)
    acting.settings = acting.settings.model_copy(update={"scale_rewards": False})
    with torch.no_grad():
        acting.network.actor[-1].bias.copy_(
            torch.tensor([-99.0, -99.0, -99.0]).index_fill(0, torch.tensor([FORWARD]), 99.0)
        )
    rollout = acting.collect()
    assert worlds.moment.truncated[0] and rollout.starts[:, 0].tolist() == [True, False, False, False]
    memories = acting.network.initial_states(1)
    for shown in [*rollout.observations, torch.from_numpy(worlds.moment.last_observations)]:
        memories = acting.network.advance(shown, memories)
    would_have_come = acting.network.critic(memories[-1].hidden).item()
    assert rollout.returns[-1, 0].item() == pytest.approx(-0.1 + 0.9 * would_have_come, abs=1e-5)


def test_discounted_rewards_begin_anew_with_each_episode() -> None:
    rewards, ended, sums = np.float32([[1], [2], [4]]), np.int8([[0], [1], [0]]), np.zeros((3, 1))
    assert accumulate_returns(rewards, ended, np.array([8.0]), 0.5, sums).tolist() == [4.0]
    assert sums[:, 0].tolist() == [3, 5 + 4.5 + 4, 5**2 + 4.5**2 + 4**2]


def test_scales_are_those_of_all_observations() -> None:
    rng = np.random.default_rng(1)
    seen = torch.zeros(3, 2, dtype=torch.float64)
    parts = [rng.normal(5, 3, (50, 2)).astype(np.float32) for _ in range(4)]
    for part in parts:
        sums, shift = np.zeros((3, 2)), seen[1].numpy()
        scale_observations(part, shift, np.ones(2), 10.0, np.zeros_like(part), sums)
        seen = merge_statistics(seen, torch.from_numpy(sums), torch.from_numpy(shift))
    everything = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(seen[1], everything.mean(0))
    np.testing.assert_allclose(seen[2] / seen[0], everything.var(0))


def test_advantages_are_normalized_to_mean_0_and_variance_1() -> None:
    made = normalize_advantages(torch.randn(20, 5) * 7 + 3, ALONE)
    assert made.mean().item() == pytest.approx(0, abs=1e-6) and made.std(correction=0).item() == pytest.approx(
        1, abs=1e-5
    )
