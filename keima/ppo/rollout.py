"""Rollouts: a policy's observations, actions and rewards in some worlds, with what PPO needs to learn from them.

The time axis comes first: ``[T, B]`` is step t of world b. An action of world b is drawn from b's own stream, so that
nothing depends on how worlds are spread over processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from keima.compilation.decorators import compiled
from keima.compilation.random import Streams, uniform
from keima.learning.ranks.process_group import ALONE, Ranks
from keima.ppo.actor_critic import ActorCritic, LSTMState
from keima.ppo.settings import PPOSettings
from keima.ppo.worlds.world import Worlds

CLIP = 10.0  # the largest absolute value of a scaled observation or reward
SMALL = 1e-8
SAVED_ARRAYS = ("starting", "rewards_so_far", "steps_so_far", "discounted")  # the collector's arrays in a checkpoint

Floats = NDArray[np.float32]  # [T, B]


@dataclass(frozen=True)
class Episode:
    """A finished episode."""

    reward: float  # the sum of its rewards, unscaled
    steps: int
    metrics: dict[str, float]  # reported by the world


@dataclass(frozen=True)
class Rollout:
    """T steps of B worlds. All tensors are on the learner's device."""

    observations: Tensor  # [T, B, F], scaled
    starts: Tensor  # [T, B] bool: an episode begins at this step
    actions: Tensor  # [T, B] int64
    log_probabilities: Tensor  # [T, B], of the actions
    values: Tensor  # [T, B], of the critic at that time
    advantages: Tensor  # [T, B], mean 0 and variance 1 over all ranks
    returns: Tensor  # [T, B]: the targets of the values
    memories: Tensor  # [K, M, 2, B, H]: of each LSTM before each sequence, hidden and cell
    episodes: tuple[Episode, ...]
    explained_variance: float  # of all ranks' returns by the values: 1 is perfect, 0 no better than a constant


class Collector:
    """Lets a network act in worlds.

    Args:
        network: chooses the actions; its ``seen_*`` buffers track the scales of observations and returns.
        worlds: stepped from their current states.
        streams: uint64 ``[B]``: the start of the random numbers that draw each world's actions.
        settings: ``num_steps`` is T; memories are saved every ``sequence_length`` steps.
        ranks: that collect at the same time.
    """

    def __init__(
        self,
        network: ActorCritic,
        worlds: Worlds,
        streams: Streams,
        settings: PPOSettings,
        *,
        ranks: Ranks = ALONE,
    ) -> None:
        self.network, self.worlds, self.streams, self.settings = network, worlds, streams, settings
        self.ranks = ranks
        self.memories = network.initial_states(worlds.num_envs)
        self.starting = np.ones(worlds.num_envs, np.bool_)  # worlds whose next step begins an episode
        self.rewards_so_far = np.zeros(worlds.num_envs)
        self.steps_so_far = np.zeros(worlds.num_envs, np.int64)
        self.discounted = np.zeros(worlds.num_envs)  # the discounted sum of rewards so far

    def collect(self) -> Rollout:
        """Act for T steps, and compute values and advantages."""
        taken = _Steps(self)
        with torch.inference_mode():
            for t in range(self.settings.num_steps):
                taken.take_step(t)
            values, next_values = taken.estimate_values()
        self._learn_scales(taken)
        rewards = self._scale_rewards(taken.rewards)
        steps = JudgedSteps(rewards=rewards, values=values, next_values=next_values, ended=taken.ended)
        advantages, returns = estimate_advantages(steps, self.settings.gamma, self.settings.gae_lambda)
        device = self.network.seen_returns.device
        on_device = {
            "observations": taken.observations,
            "starts": torch.from_numpy(taken.starts),
            "actions": torch.from_numpy(taken.actions),
            "log_probabilities": torch.from_numpy(taken.log_probabilities),
            "values": torch.from_numpy(values),
            "advantages": normalize_advantages(torch.from_numpy(advantages), self.ranks),
            "returns": torch.from_numpy(returns),
            "memories": taken.memories,
        }
        return Rollout(
            **{name: tensor.to(device) for name, tensor in on_device.items()},
            episodes=tuple(taken.episodes),
            explained_variance=compute_explained_variance(returns, values, self.ranks),
        )

    def state(self) -> dict[str, Tensor]:
        """Return a copy of what ``restore`` needs in addition to the network and the worlds."""
        memories = {
            f"{i}/{part}": tensor for i, memory in enumerate(self.memories) for part, tensor in memory._asdict().items()
        }
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in SAVED_ARRAYS}
        return {**memories, **arrays, "streams": torch.from_numpy(self.streams.view(np.int64).copy())}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Resume from ``state``."""
        device = self.memories[0].hidden.device
        self.memories = [
            LSTMState(state[f"{i}/hidden"].to(device, copy=True), state[f"{i}/cell"].to(device, copy=True))
            for i in range(len(self.memories))
        ]
        for name in SAVED_ARRAYS:
            setattr(self, name, state[name].numpy().copy())
        self.streams = state["streams"].numpy().copy().view(np.uint64)

    def observation_scale(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Shift and scale of observations, ``[F]`` each."""
        count, mean, squares = self.network.seen_observations.cpu().numpy()
        if not self.settings.scale_observations or count[0] == 0:
            return np.zeros_like(mean), np.ones_like(mean)
        return mean.copy(), np.sqrt(squares / count + SMALL)

    def _learn_scales(self, taken: "_Steps") -> None:
        """Update the statistics of observations and returns, on all ranks."""
        sums = torch.from_numpy(taken.sums)
        self.discounted = accumulate_returns(
            taken.rewards, taken.ended, self.discounted, self.settings.gamma, taken.return_sums
        )
        return_sums = torch.from_numpy(taken.return_sums)
        self.ranks.all_reduce_sum_([sums, return_sums])
        network = self.network
        network.seen_observations.copy_(
            merge_statistics(network.seen_observations.cpu(), sums, torch.from_numpy(taken.shift))
        )
        network.seen_returns.copy_(
            merge_statistics(network.seen_returns.cpu(), return_sums, torch.zeros(1, dtype=torch.float64))
        )

    def _scale_rewards(self, rewards: Floats) -> Floats:
        if not self.settings.scale_rewards:
            return rewards
        count, _, squares = self.network.seen_returns[:, 0].tolist()
        return np.clip(rewards * np.float32(1 / np.sqrt(squares / count + SMALL)), -CLIP, CLIP)


class _Steps:
    """The arrays of one rollout while it is collected."""

    def __init__(self, collector: Collector) -> None:
        self._at = collector
        steps, count = collector.settings.num_steps, collector.worlds.num_envs
        size, lstms = collector.worlds.observation_size, len(collector.memories)
        hidden = collector.memories[0].hidden.shape[1]
        device = collector.memories[0].hidden.device
        self.observations = torch.zeros(steps, count, size)
        self.starts = np.zeros((steps, count), np.bool_)
        self.actions = np.zeros((steps, count), np.int64)
        self.log_probabilities, self.rewards = np.zeros((2, steps, count), np.float32)
        self.ended = np.zeros((steps, count), np.int8)  # 0: not ended, 1: terminated, 2: truncated
        self.memories = torch.zeros(steps // collector.settings.sequence_length, lstms, 2, count, hidden, device=device)
        self.lived = torch.zeros(steps, count, hidden, device=device)  # the output of the critic's LSTM
        self.shift, self._scale = collector.observation_scale()
        self._clip = CLIP if collector.settings.scale_observations else np.inf
        self.sums, self.return_sums = np.zeros((3, size)), np.zeros((3, 1))
        self.episodes: list[Episode] = []
        # Where episodes were truncated: step, worlds, last observations, LSTM states.
        self._cut: list[tuple[int, NDArray[np.int64], Tensor, list[LSTMState]]] = []

    def take_step(self, t: int) -> None:
        """Take step t in every world."""
        at, network, now = self._at, self._at.network, self._at.worlds.moment
        shown = self.observations[t]
        self._scale_observations(now.observations, shown, self.sums)
        self.starts[t] = at.starting
        if t % at.settings.sequence_length == 0:
            for kept, memory in zip(self.memories[t // at.settings.sequence_length], at.memories, strict=True):
                kept[0], kept[1] = memory
        at.memories = network.advance(shown.to(self.lived.device), at.memories)
        self.lived[t] = at.memories[-1].hidden
        logits = network.actor(at.memories[0].hidden).float().cpu().numpy()
        sample_actions(logits, at.streams, self.actions[t], self.log_probabilities[t])
        at.worlds.step(self.actions[t])
        self.rewards[t] = now.rewards
        at.rewards_so_far += now.rewards
        at.steps_so_far += 1
        at.starting = now.terminated | now.truncated
        if at.starting.any():
            self._end_episodes(t)

    def _scale_observations(self, raw: NDArray[np.float32], out: Tensor, sums: NDArray[np.float64]) -> None:
        scale_observations(raw, self.shift, self._scale, self._clip, out.numpy(), sums)

    def _end_episodes(self, t: int) -> None:
        """Record the finished episodes, and reset their LSTM states."""
        at, now = self._at, self._at.worlds.moment
        self.ended[t] = now.terminated + 2 * now.truncated.astype(np.int8)
        ended, cut = np.flatnonzero(at.starting), np.flatnonzero(now.truncated)
        metrics = now.metrics[ended].tolist()
        for b, row in zip(ended.tolist(), metrics, strict=True):
            said = dict(zip(at.worlds.metric_names, row, strict=True))
            self.episodes.append(Episode(float(at.rewards_so_far[b]), int(at.steps_so_far[b]), said))
        at.rewards_so_far[ended], at.steps_so_far[ended] = 0.0, 0
        if len(cut):
            last = torch.zeros(len(cut), at.worlds.observation_size)
            self._scale_observations(now.last_observations[cut], last, np.zeros_like(self.sums))
            self._cut.append(
                (t, cut, last.to(self.lived.device), [LSTMState(m.hidden[cut], m.cell[cut]) for m in at.memories])
            )
        going_on = torch.from_numpy(~at.starting).to(self.lived.device)[:, None]
        at.memories = [LSTMState(memory.hidden * going_on, memory.cell * going_on) for memory in at.memories]

    def estimate_values(self) -> tuple[Floats, Floats]:
        """Return the critic's values of every step and of the step after it, in the same episode even if truncated."""
        at, network = self._at, self._at.network
        values = network.critic(self.lived).squeeze(-1).float().cpu().numpy()
        shown = torch.zeros_like(self.observations[0])
        self._scale_observations(at.worlds.moment.observations, shown, np.zeros_like(self.sums))
        after = np.concatenate([values[1:], self._estimate_values(shown.to(self.lived.device), at.memories)[None]])
        if self._cut:
            last = torch.cat([shown for _, _, shown, _ in self._cut])
            memories = [
                LSTMState(*map(torch.cat, zip(*parts, strict=True)))
                for parts in zip(*(cut[3] for cut in self._cut), strict=True)
            ]
            rows = np.concatenate([np.full(len(cut), t) for t, cut, _, _ in self._cut])
            after[rows, np.concatenate([cut for _, cut, _, _ in self._cut])] = self._estimate_values(last, memories)
        return values, after

    def _estimate_values(self, shown: Tensor, memories: Sequence[LSTMState]) -> NDArray[np.float32]:
        network = self._at.network
        judged: Tensor = network.critic(network.advance(shown, memories)[-1].hidden)
        return judged.squeeze(-1).float().cpu().numpy()


def merge_statistics(seen: Tensor, sums: Tensor, shift: Tensor) -> Tensor:
    """Merge count, mean and squared deviations ``[3, F]`` with those of more numbers.

    Args:
        sums: of these numbers less ``shift`` ``[F]``: how many, their sum, the sum of their squares, ``[3, F]``.
    """
    count, total, squares = sums
    mean = shift + total / count
    deviations = squares - total * total / count
    all_counts = seen[0] + count
    apart = mean - seen[1]
    # mean = mean(a) + d * n(b) / n and M2 = M2(a) + M2(b) + d**2 * n(a) * n(b) / n (Chan, Golub & LeVeque 1979)
    joined = seen[1] + apart * count / all_counts
    return torch.stack([all_counts, joined, seen[2] + deviations + apart * apart * seen[0] * count / all_counts])


def normalize_advantages(advantages: Tensor, ranks: Ranks) -> Tensor:
    """Return advantages ``[T, B]`` with mean 0 and variance 1 over all ranks."""
    exact = advantages.double()
    sums = torch.stack([torch.tensor(float(exact.numel()), dtype=torch.float64), exact.sum(), (exact * exact).sum()])
    ranks.all_reduce_sum_([sums])
    count, total, squares = sums.tolist()
    mean = total / count
    deviation = max(squares / count - mean * mean, 0.0) ** 0.5
    return ((exact - mean) / (deviation + SMALL)).float()


def compute_explained_variance(returns: Floats, values: Floats, ranks: Ranks) -> float:
    """Return the share of the variance of all ranks' returns that the values explain."""
    exact = torch.from_numpy(returns).double()
    # [2, T, B]: the returns, and their unexplained part.
    both = torch.stack([exact, exact - torch.from_numpy(values)])
    sums = torch.stack(
        [torch.full((2,), exact.numel(), dtype=torch.float64), both.sum((1, 2)), both.square().sum((1, 2))]
    )
    ranks.all_reduce_sum_([sums])
    count, totals, squares = sums
    variance, unforeseen = (squares / count - (totals / count).square()).tolist()
    return float(1 - unforeseen / (variance + SMALL))


@compiled
def scale_observations(
    raw: NDArray[np.float32],
    shift: NDArray[np.float64],
    scale: NDArray[np.float64],
    clip: float,
    out: NDArray[np.float32],
    sums: NDArray[np.float64],
) -> None:
    """Write scaled observations ``[B, F]``, of at most ``clip``; add their statistics to ``sums`` ``[3, F]`` (see
    ``merge_statistics``).
    """
    for b in range(raw.shape[0]):
        for i in range(raw.shape[1]):
            apart = raw[b, i] - shift[i]  # the sums of deviations from a constant lose no digits
            sums[0, i] += 1.0
            sums[1, i] += apart
            sums[2, i] += apart * apart
            out[b, i] = min(max(apart / scale[i], -clip), clip)


@compiled
def sample_actions(
    logits: NDArray[np.float32], streams: Streams, actions: NDArray[np.int64], log_probabilities: NDArray[np.float32]
) -> None:
    """Draw an action of each world from its policy ``[B, A]``, with its log probability."""
    for b in range(logits.shape[0]):
        highest = logits[b].max()
        total = 0.0
        for a in range(logits.shape[1]):
            # softmax(x)(a) = exp(x(a) - max x) / sum of exp(x - max x)
            total += np.exp(np.float64(logits[b, a] - highest))
        # Inverse transform sampling: the first action whose sum of exponentials exceeds a uniform share of the total
        left = uniform(streams, b) * total
        chosen = logits.shape[1] - 1
        for a in range(logits.shape[1] - 1):
            left -= np.exp(np.float64(logits[b, a] - highest))
            if left < 0.0:
                chosen = a
                break
        actions[b] = chosen
        # log softmax(x)(a) = x(a) - max x - log(sum of exp(x - max x))
        log_probabilities[b] = np.float64(logits[b, chosen] - highest) - np.log(total)


@compiled
def accumulate_returns(
    rewards: NDArray[np.float32],
    ended: NDArray[np.int8],
    discounted: NDArray[np.float64],
    gamma: float,
    sums: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Accumulate each world's discounted rewards and their statistics in ``sums`` ``[3, 1]``; returns the last ones
    ``[B]``.
    """
    now = discounted.copy()
    for t in range(rewards.shape[0]):
        for b in range(rewards.shape[1]):
            # G(t) = gamma * G(t - 1) + r(t): its variance is the scale of rewards (Engstrom et al. 2020)
            now[b] = gamma * now[b] + rewards[t, b]
            sums[0, 0] += 1.0
            sums[1, 0] += now[b]
            sums[2, 0] += now[b] * now[b]
            if ended[t, b] != 0:
                now[b] = 0.0
    return now


class JudgedSteps(NamedTuple):
    """T steps of B worlds, judged by the critic."""

    rewards: Floats  # [T, B]
    values: Floats  # [T, B]
    next_values: Floats  # [T, B] of the observation after the step; where an episode was truncated, of its last one
    ended: NDArray[np.int8]  # [T, B] 0: the episode goes on; 1: it was terminated, no rewards follow; 2: truncated


@compiled
def estimate_advantages(
    steps: JudgedSteps, gamma: float, gae_lambda: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return generalized advantage estimates and their returns, ``[T, B]`` each (arXiv 1506.02438)."""
    rewards, values, next_values, ended = steps
    advantages, returns = np.empty_like(rewards), np.empty_like(rewards)
    for b in range(rewards.shape[1]):
        later = 0.0
        for t in range(rewards.shape[0] - 1, -1, -1):
            ahead = 0.0 if ended[t, b] == 1 else gamma * next_values[t, b]
            # delta(t) = r(t) + gamma * V(t + 1) - V(t) (GAE, Schulman et al. 2016)
            step = rewards[t, b] + ahead - values[t, b]
            # A(t) = delta(t) + gamma * lambda * A(t + 1)
            later = step + (gamma * gae_lambda * later if ended[t, b] == 0 else 0.0)
            advantages[t, b] = later
            # The target of the critic: R(t) = A(t) + V(t)
            returns[t, b] = later + values[t, b]
    return advantages, returns
