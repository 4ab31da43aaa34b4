import numpy as np
import pytest
import torch

from keima.learning.ranks.process_group import ALONE
from keima.ppo.actor_critic import ActorCritic, LSTMState
from keima.ppo.rollout import (
    Collector,
    JudgedSteps,
    estimate_advantages,
    merge_statistics,
    normalize_advantages,
    sample_actions,
    scale_observations,
)
from keima.ppo.settings import PPOSettings, TradingSettings
from keima.ppo.worlds.memory_tasks import FORWARD, TMaze
from keima.ppo.worlds.trading import TradingMarkets


def markets(count: int = 4, *, window: int = 10) -> TradingMarkets:
    return TradingMarkets(np.arange(count).astype(np.uint64) * np.uint64(99), TradingSettings(window=window))


def collector(worlds: TradingMarkets | TMaze, *, num_steps: int = 16, sequence_length: int = 4) -> Collector:
    torch.manual_seed(1)
    network = ActorCritic(worlds.observation_size, worlds.num_actions, lstm_size=8, hidden=(5,))
    streams = np.arange(worlds.num_envs).astype(np.uint64)
    settings = PPOSettings(num_steps=num_steps, sequence_length=sequence_length, gamma=0.9, gae_lambda=0.8)
    return Collector(network, worlds, streams, settings)


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


def test_scales_are_those_of_all_observations() -> None:
    rng = np.random.default_rng(1)
    seen = torch.zeros(3, 2, dtype=torch.float64)
    parts = [rng.normal(5, 3, (50, 2)).astype(np.float32) for _ in range(4)]
    for part in parts:
        sums, shift = np.zeros((3, 2)), seen[1].numpy()
        scale_observations(part, shift, np.ones(2), np.zeros_like(part), sums)
        seen = merge_statistics(seen, torch.from_numpy(sums), torch.from_numpy(shift))
    everything = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(seen[1], everything.mean(0))
    np.testing.assert_allclose(seen[2] / seen[0], everything.var(0))


def test_advantages_are_normalized_to_mean_0_and_variance_1() -> None:
    made = normalize_advantages(torch.randn(20, 5) * 7 + 3, ALONE)
    assert made.mean().item() == pytest.approx(0, abs=1e-6) and made.std(correction=0).item() == pytest.approx(
        1, abs=1e-5
    )
