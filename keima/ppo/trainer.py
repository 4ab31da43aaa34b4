"""Proximal policy optimization (arXiv 1707.06347) of a recurrent network: the second of the two training loops.

In each round all worlds of all ranks take ``num_steps`` steps, and then the network learns from these steps for several
epochs, in minibatches of whole sequences. All ranks' worlds contribute to each update: N ranks equal one rank with N
times the worlds.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from keima.base.random import seed_stream
from keima.compilation.random import Streams
from keima.learning.learner import LearnerState
from keima.learning.optimizer_state import gather_optimizer_tensors, restore_optimizer
from keima.learning.plain_optimizers import Adam
from keima.learning.ranks.process_group import ALONE, Ranks
from keima.learning.update_step import Losses, UpdateStep
from keima.ppo.actor_critic import ActorCritic, LSTMState
from keima.ppo.reports import EpisodesReport, PPOObserver, RoundReport, sum_episodes
from keima.ppo.rollout import Collector, Rollout
from keima.ppo.settings import PPOSettings
from keima.ppo.worlds.world import Worlds

log = logging.getLogger(__name__)

LOSS_METRICS = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
# Steps of a minibatch computed at once on a CPU: more do not fit its caches, and their memory is allocated each time.
CACHED_STEPS = 4096
# Sequences in a part are a multiple of this: with other numbers oneDNN's LSTM can take three times as long in 16 bits.
ROW_MULTIPLE = 8
KL_SLACK = 1.5  # learning in a round ends at this many times the target


@dataclass(frozen=True)
class Sequences:
    """A minibatch of N sequences of L steps. See ``Rollout``."""

    observations: Tensor  # [L, N, F]
    starts: Tensor  # [L, N]
    actions: Tensor  # [L, N]
    log_probabilities: Tensor  # [L, N]
    values: Tensor  # [L, N]
    advantages: Tensor  # [L, N]
    returns: Tensor  # [L, N]
    memories: list[LSTMState]  # of each LSTM, before the first step


class PPOTrainer:
    """Trains a network in worlds.

    Args:
        network: trained in place, on its device.
        worlds: of this rank; every rank has equally many.
        settings: the hyper-parameters.
        seed: of all random numbers except the worlds'.
        episodes: train until this many have ended on all ranks together. They are divided evenly, and rank 0 takes the
            rest. A rank that has finished its own continues to act with the others; episodes that it ends then are not
            counted.
        observers: only rank 0 has any.
        keep: called with the trainer's state every ``keep_every`` episodes and at the end; only on rank 0.
        mixed_precision: whether to learn in a 16-bit type; acting and all averages are in float32.
        ranks: the processes that train together.
    """

    def __init__(
        self,
        network: ActorCritic,
        worlds: Worlds,
        settings: PPOSettings,
        *,
        seed: int,
        episodes: int,
        observers: Sequence[PPOObserver] = (),
        keep: Callable[[LearnerState], object] = lambda state: None,
        keep_every: int = 500,
        mixed_precision: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        self.network, self.worlds, self.settings, self.seed, self.ranks = network.train(), worlds, settings, seed, ranks
        self.episodes, self.observers, self.keep, self.keep_every = episodes, observers, keep, keep_every
        self.optimizer = build_adam(network, settings)
        self.update_step = UpdateStep(
            network, self.optimizer, clip_norm=settings.clip_norm, mixed_precision=mixed_precision, ranks=ranks
        )
        self.collector = self._make_collector()
        self.round = self.total_steps = self.episodes_over = 0
        self.seconds = 0.0
        self.kept = 0  # episodes that were over at that time
        self.episodes_left = 0  # for this rank
        self.stop_requested = False

    def run(self) -> RoundReport | None:
        """Train until the episodes are done or a stop is requested; returns the last round's report, if any."""
        report = None
        self.episodes_left = episodes_for_rank(max(0, self.episodes - self.episodes_over), self.ranks)
        while not self.is_over():
            began = time.perf_counter()
            rollout = self.collector.collect()
            acted = time.perf_counter()
            metrics = self.learn(rollout)
            report = self.finish_round(rollout, metrics, began, acted)
            for observer in self.observers:
                observer.round(report)
            if self.kept // self.keep_every < self.episodes_over // self.keep_every:
                self._save_checkpoint()
        if report:
            self._save_checkpoint()
        return report

    def _save_checkpoint(self) -> None:
        self.kept = self.episodes_over
        if self.ranks.is_main:
            self.keep(self.state())

    def is_over(self) -> bool:
        """Return whether training is done; all ranks agree."""
        return self.episodes_over >= self.episodes or self.ranks.all_reduce_max(int(self.stop_requested)) == 1

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Take the steps of one round; returns the means of their metrics, 0 if all steps were skipped.

        Raises:
            TrainingDiverged: see ``UpdateStep``.
        """
        settings, totals, taken, skipped = self.settings, dict.fromkeys((*LOSS_METRICS, "grad_norm"), 0.0), 0, 0
        for epoch in range(settings.epochs):
            for chosen in self.plan_minibatches(epoch):
                parts = chosen.split(self.sequences_at_once(len(chosen.rows)))
                batches = [self.select_sequences(rollout, part.rows) for part in parts]
                report = self.update_step(self.compute_losses, batches, shares=[part.share for part in parts])
                taken, skipped = taken + 1, skipped + report.skipped
                if report.skipped:
                    continue
                metrics = {
                    **{name: tensor.item() for name, tensor in report.metrics.items()},
                    "grad_norm": report.grad_norm.item(),
                }
                totals = {name: total + metrics[name] for name, total in totals.items()}
                if settings.target_kl and metrics["approx_kl"] > KL_SLACK * settings.target_kl:
                    return self._mean_metrics(totals, taken, skipped)
        return self._mean_metrics(totals, taken, skipped)

    def _mean_metrics(self, totals: dict[str, float], taken: int, skipped: int) -> dict[str, float]:
        means = {name: total / max(1, taken - skipped) for name, total in totals.items()}
        return {**means, "optimizer_steps": float(taken), "skipped_steps": float(skipped)}

    def plan_minibatches(self, epoch: int) -> list["MinibatchShare"]:
        """Divide the sequences of all ranks into minibatches; returns this rank's share of each.

        All worlds contribute one sequence before any contributes its next, so that minibatches and the ranks' shares
        are even.
        """
        count = self.settings.num_steps // self.settings.sequence_length
        each = count * self.worlds.num_envs
        everywhere = self.worlds.num_envs * self.ranks.world_size
        random = np.random.default_rng([seed_stream(self.seed, "minibatches", self.round, epoch)])
        # [count, worlds]: the order of all ranks' worlds.
        turns = random.permuted(np.tile(np.arange(everywhere), (count, 1)), axis=1)
        # [count, worlds]: the sequence that each gives.
        sequences = random.permuted(np.tile(np.arange(count)[:, None], everywhere), axis=0)
        # A sequence's number is (world, of all ranks; then sequence), so that it is the same however worlds are spread
        # over ranks.
        order = (turns * count + np.take_along_axis(sequences, turns, 1)).ravel()
        parts = np.array_split(order, min(self.settings.minibatches, len(order)))
        first = each * self.ranks.rank
        return [select_share(part, first, each) for part in parts]

    def sequences_at_once(self, count: int) -> int:
        """Return how many of ``count`` sequences to compute at once: on a GPU all."""
        on_cpu = self.network.seen_returns.device.type == "cpu"
        return max(1, CACHED_STEPS // self.settings.sequence_length) if on_cpu else count

    def select_sequences(self, rollout: Rollout, rows: NDArray[np.int64]) -> Sequences:
        """Return a minibatch of this rank's sequences, numbered world by world."""
        length = self.settings.sequence_length
        count = self.settings.num_steps // length
        world, part = torch.from_numpy(rows // count), torch.from_numpy(rows % count)

        def select_part(tensor: Tensor) -> Tensor:
            return tensor.unflatten(0, (count, length))[part, :, world].transpose(0, 1).contiguous()

        memories = [LSTMState(*lstm) for lstm in rollout.memories[part, :, :, world].permute(1, 2, 0, 3).contiguous()]
        names = ("observations", "starts", "actions", "log_probabilities", "values", "advantages", "returns")
        return Sequences(**{name: select_part(getattr(rollout, name)) for name in names}, memories=memories)

    def compute_losses(self, batch: Sequences) -> Losses:
        """Return the clipped objective with its value loss and entropy, means over all steps."""
        settings = self.settings
        logits, values = (
            said.float() for said in self.network.unroll(batch.observations, batch.starts, batch.memories)
        )
        log_policy = logits.log_softmax(-1)
        change = log_policy.gather(-1, batch.actions[..., None]).squeeze(-1) - batch.log_probabilities
        ratio = change.exp()
        clipped = ratio.clamp(1 - settings.clip_coef, 1 + settings.clip_coef)
        policy_loss = -torch.minimum(ratio * batch.advantages, clipped * batch.advantages).mean()
        errors = (values - batch.returns).square()
        if settings.clip_values:
            near = batch.values + (values - batch.values).clamp(-settings.clip_coef, settings.clip_coef)
            errors = torch.maximum(errors, (near - batch.returns).square())
        value_loss = errors.mean()
        entropy = -(log_policy.exp() * log_policy).sum(-1).mean()
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": (
                ratio - 1 - change
            ).mean(),  # never negative (J. Schulman, "Approximating KL divergence", 2020)
            "clip_fraction": (clipped != ratio).float().mean(),
        }
        loss = policy_loss + settings.vf_coef * value_loss - settings.ent_coef * entropy
        return Losses(loss, {name: metric.detach() for name, metric in metrics.items()})

    def finish_round(self, rollout: Rollout, metrics: dict[str, float], began: float, acted: float) -> RoundReport:
        """Update the counters; returns the round's report, the same on all ranks."""
        self.round += 1
        steps = self.settings.num_steps * self.worlds.num_envs * self.ranks.world_size
        self.episodes_left = max(0, self.episodes_left - len(rollout.episodes))
        episodes, left = self._gather_episodes(rollout)
        self.episodes_over = self.episodes - left
        now = time.perf_counter()
        self.seconds += now - began
        self.total_steps += steps
        return RoundReport(
            round=self.round,
            steps=steps,
            total_steps=self.total_steps,
            episodes_over=self.episodes_over,
            episodes_planned=self.episodes,
            world_size=self.ranks.world_size,
            seconds=self.seconds,
            steps_per_second=steps / (now - began),
            acting_share=(acted - began) / (now - began),
            explained_variance=rollout.explained_variance,
            learning=metrics,
            episodes=episodes,
        )

    def _gather_episodes(self, rollout: Rollout) -> tuple[EpisodesReport, int]:
        """Return the totals of all ranks' episodes, and how many are left."""
        names = self.worlds.metric_names
        sums = torch.tensor([self.episodes_left, *sum_episodes(rollout.episodes, names)], dtype=torch.float64)
        self.ranks.all_reduce_sum_([sums])
        left, count, rewards, steps, *metrics = sums.tolist()
        report = EpisodesReport(
            count=int(count), rewards=rewards, steps=steps, metrics=dict(zip(names, metrics, strict=True))
        )
        return report, int(left)

    def _make_collector(self) -> Collector:
        return Collector(
            self.network,
            self.worlds,
            world_streams(self.seed, "actions", self.ranks, self.worlds.num_envs),
            self.settings,
            ranks=self.ranks,
        )

    def state(self) -> LearnerState:
        """Return everything that ``restore`` needs; with one rank, it resumes exactly."""
        groups = {
            "network": self.network.state_dict(),
            "optimizer": gather_optimizer_tensors(self.network, self.optimizer),
            "worlds": {name: _to_tensor(array) for name, array in self.worlds.state().items()},
            "acting": self.collector.state(),
        }
        tensors = {
            group: {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in part.items()}
            for group, part in groups.items()
        }
        names = ("round", "total_steps", "episodes_over", "seconds")
        counters: dict[str, Any] = {name: getattr(self, name) for name in names}
        counters |= {"world_size": self.ranks.world_size, "scaler": self.update_step.scaler.state_dict()}
        return LearnerState(tensors, counters)

    def restore(self, state: LearnerState) -> None:
        """Resume from ``state``.

        With several ranks, or after several, the worlds start new episodes, because a checkpoint has only one rank's.
        They should differ from those that the run started with, as should the actions drawn: see ``world_streams``.

        Raises:
            ValueError: it belongs to another network, or to other worlds.
        """
        tensors, counters = state.tensors, state.counters
        try:
            self.network.load_state_dict(tensors["network"])
            restore_optimizer(self.network, self.optimizer, tensors["optimizer"])
            self.round, self.total_steps = counters["round"], counters["total_steps"]
            self.kept = self.episodes_over = counters["episodes_over"]
            self.seconds = counters["seconds"]
            self.update_step.restore_scaler(counters.get("scaler", {}))  # earlier versions did not save it
            same = counters["world_size"] == self.ranks.world_size == 1
        except (KeyError, RuntimeError) as error:
            raise ValueError(
                f"the saved state does not fit this network: {str(error).partition(chr(10))[0]}"
            ) from error
        if same:
            like = self.worlds.state()
            arrays = {name: tensor.numpy() for name, tensor in tensors["worlds"].items()}
            self.worlds.restore(
                {name: array.view(like[name].dtype) if name in like else array for name, array in arrays.items()}
            )
            self.collector.restore(tensors["acting"])
        else:
            self.collector.streams = world_streams(
                self.seed, "actions", self.ranks, self.worlds.num_envs, rounds_over=self.round
            )


@dataclass(frozen=True)
class MinibatchShare:
    """This rank's sequences in a minibatch."""

    rows: NDArray[np.int64]  # at least one
    share: float  # of the minibatch; 0 if it has none of this rank's sequences

    def split(self, most: int) -> list["MinibatchShare"]:
        """Return the same sequences in parts of about ``most``."""
        size = -(-len(self.rows) // max(1, round(len(self.rows) / most)))
        size = -(-size // ROW_MULTIPLE) * ROW_MULTIPLE
        parts = [self.rows[i : i + size] for i in range(0, len(self.rows), size)]
        return [MinibatchShare(rows, self.share * len(rows) / len(self.rows)) for rows in parts]


def select_share(numbers: NDArray[np.int64], first: int, each: int) -> MinibatchShare:
    """Return the sequences among ``numbers`` that belong to a rank, which has ``each`` sequences from ``first`` on."""
    rows = numbers - first
    own = rows[(rows >= 0) & (rows < each)]
    return MinibatchShare(own, len(own) / len(numbers)) if len(own) else MinibatchShare(np.zeros(1, np.int64), 0.0)


def episodes_for_rank(episodes: int, ranks: Ranks) -> int:
    """Return this rank's share of ``episodes``."""
    return episodes // ranks.world_size + (episodes % ranks.world_size if ranks.is_main else 0)


def world_streams(seed: int, purpose: str, ranks: Ranks, num_envs: int, *, rounds_over: int = 0) -> Streams:
    """Return the random seeds of this rank's worlds, uint64 ``[num_envs]``.

    They differ between all worlds of all ranks, and for worlds that begin after ``rounds_over`` rounds of a run.
    """
    first, later = ranks.rank * num_envs, [rounds_over] if rounds_over else []
    return np.array([seed_stream(seed, purpose, first + b, *later) for b in range(num_envs)], np.uint64)


def build_adam(network: ActorCritic, settings: PPOSettings) -> torch.optim.Optimizer:
    """Return Adam (arXiv 1412.6980) with a learning rate for the actor and one for the critic."""
    critic = network.critic_parameters()
    known = {id(parameter) for parameter in critic}
    actor = [parameter for parameter in network.parameters() if id(parameter) not in known]
    groups = [
        {"params": actor, "lr": settings.learning_rate_actor},
        {"params": critic, "lr": settings.learning_rate_critic},
    ]
    return Adam(groups, eps=1e-5, fused=True)


def _to_tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.view(np.int64) if array.dtype == np.uint64 else array)
