"""The learner: draws positions from the replay window and fits the network to what search found and how the games
ended.

The losses are AlphaZero's (arXiv 1712.01815): the cross-entropy between the search's policy and the network's, over
legal actions only, and for the value the cross-entropy of its logits (see training/networks/value_heads.py), each
averaged over the batch. A network with auxiliary heads has their losses too (training/networks/auxiliary_heads.py).
"""

import logging
import math
import time
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.common.random import seed_stream
from training.common.reports import MEANS, LearnerReport, SpikeReport
from training.learning.muon import Muon, hidden_layers
from training.learning.optimizer_state import optimizer_tensors, own_part, restore_optimizer
from training.learning.update_step import AverageWeights, Losses, StepReport, UpdateStep
from training.networks.auxiliary_heads import auxiliary_losses, outputs_to_learn
from training.networks.evaluator import keep_freed_memory, pick_device
from training.networks.network import value_head
from training.networks.spike_counts import count_spikes
from training.networks.spiking import SpikingResNet
from training.ranks.rank_norm import Layout, share_norms
from training.ranks.ranks import ALONE, Ranks
from training.ranks.total_batch import Part, cut, halved, largest_part
from training.replay.replay import WHOLE, Batch

log = logging.getLogger(__name__)

IMPOSSIBLE = -1e9  # the logit of an illegal action: its probability is 0, and nothing becomes infinite or undefined
COSINE_END = 0.01  # what a cosine schedule leaves of the learning rate
OUT_OF_MEMORY = (
    "can't allocate memory",
    "could not create a primitive",
)  # the words of torch and of oneDNN on processors


class TrainingDiverged(ArithmeticError):
    """Not one step could be taken: losses or gradients are infinite or undefined."""


class Window(Protocol):
    """Where the learner draws from: ``training.replay.replay.ReplayWindow``."""

    def sample(self, count: int, rng_seed: int, *, rows: slice = WHOLE) -> Batch:
        """These rows of ``count`` positions; the same seed draws the same from the same window."""


@dataclass(frozen=True)
class TensorBatch:
    """A ``Batch`` on the device."""

    observations: Tensor  # [N, C, H, W] float32, channels last
    policies: Tensor  # [N, A] float32: the target, each row's sum 1 (or 0)
    legal: Tensor  # [N, A] bool
    values: Tensor  # [N] float32 in [-1, 1] or in points: the target for the player to move
    policy_mask: Tensor  # [N] float32: 0 where the policy is no target
    replies: Tensor  # [N, A] float32, or [N, 0]
    ownership: Tensor  # [N, H * W] float32, or [N, 0]
    leads: Tensor  # [N] float32, NaN where it is not known

    def part(self, rows: slice) -> "TensorBatch":
        """Some of its rows, in the same memory."""
        return TensorBatch(*(tensor[rows] for tensor in vars(self).values()))


@dataclass(frozen=True)
class MicroBatch:
    """What a rank takes at once."""

    batch: TensorBatch
    part: Part


@dataclass(frozen=True)
class LearnerState:
    """A learner at rest: what a checkpoint holds."""

    tensors: dict[str, dict[str, Tensor]]  # "network", "average", "optimizer", "random" -> name -> tensor
    counters: dict[str, Any]  # plain JSON


def to_tensors(batch: Batch, device: torch.device) -> TensorBatch:
    """Copy a batch to the device (on the CPU: share its memory where the order of elements allows)."""
    observations = torch.from_numpy(batch.observations).to(device).contiguous(memory_format=torch.channels_last)
    others = {name: torch.from_numpy(array).to(device) for name, array in vars(batch).items() if name != "observations"}
    return TensorBatch(observations, **others)


class Learner:
    """A network in training.

    Args:
        network: is moved to ``device`` and trained in place. device: "auto" (a CUDA device where there is one), "cpu",
        "cuda", ... batch_size: positions a step. learning_rate: after the warm-up, and before any decay.
        learning_rate_schedule: "constant", or "cosine" from there to a hundredth over the run. warmup_steps: over so
        many steps the learning rate rises from zero. optimizer: "adamw", "muon" (training/learning/muon.py), or "sgd"
        with ``momentum``. weight_decay: of matrices and kernels, not of biases and norms. clip_norm: gradients are
        scaled down to this norm. ema_decay: of the averaged weights that play; 0 plays with the last weights.
        value_weight: of the value loss beside the policy loss. ownership_weight: of the loss of the ownership head,
        where the network has one. mixed_precision: "auto" computes in a 16-bit type where the device is fast in it.
        ranks: the processes that train together. All have the same network, and each takes its share of every batch.
        norm_batch: batch norm takes its statistics over groups of at most so many positions of a batch; None: over all
        of it. micro_batch: positions that each rank takes at once, in whole groups; None: as many as the memory holds.
        shard_optimizer: each rank remembers only its part of what the optimizer does, and steps that part for all.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        device: str = "auto",
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        learning_rate_schedule: Literal["constant", "cosine"] = "constant",
        warmup_steps: int = 100,
        optimizer: Literal["adamw", "muon", "sgd"] = "adamw",
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        clip_norm: float = 1.0,
        ema_decay: float = 0.999,
        value_weight: float = 1.0,
        ownership_weight: float = 1.5,
        mixed_precision: bool | Literal["auto"] = "auto",
        ranks: Ranks = ALONE,
        norm_batch: int | None = None,
        micro_batch: int | None = None,
        shard_optimizer: bool = False,
    ) -> None:
        keep_freed_memory()
        self.device = pick_device(device)
        self.network = network.to(device=self.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self.batch_size, self.value_weight, self.ownership_weight = batch_size, value_weight, ownership_weight
        self.learning_rate, self.learning_rate_schedule, self.warmup_steps = (
            learning_rate,
            learning_rate_schedule,
            warmup_steps,
        )
        self.average = AverageWeights(self.network, decay=ema_decay)
        sharded = shard_optimizer and not ranks.alone
        self.optimizer = build_optimizer(
            self.network, kind=optimizer, momentum=momentum, weight_decay=weight_decay, sharded=sharded
        )
        self.update_step = UpdateStep(
            self.network,
            self.optimizer,
            clip_norm=clip_norm,
            mixed_precision=mixed_precision,
            average=self.average,
            ranks=ranks,
        )
        self.ranks, self.norm_batch, self.micro_batch = ranks, norm_batch, micro_batch
        self.layout = Layout(ranks)
        share_norms(self.network, self.layout)
        self.step = 0  # steps taken, those that were skipped included
        self._most_that_fitted = 0  # the largest batch for which several ranks have found out what they have memory for

    def train(
        self,
        window: Window,
        steps: int,
        seed: int,
        *,
        batch_size: int = 0,
        progress: float = 0.0,
        seconds: float = math.inf,
    ) -> LearnerReport:
        """Take up to ``steps`` steps on batches drawn from ``window``; every rank takes them, and reports the same.

        Args:
            seed: with the number of the step, decides what is drawn: ten steps are five steps and five more.
            batch_size: positions a step; 0: as many as ever.
            progress: the share of the run that is over, for a learning rate that decays.
            seconds: after so long no further step is begun.

        Raises:
            TrainingDiverged: no step had finite losses and gradients; the network is as it was.
        """
        started, batch_size = time.perf_counter(), batch_size or self.batch_size
        totals: dict[str, Tensor] = {}
        taken = skipped = 0
        while taken < steps and (
            taken == 0 or seconds == math.inf or self.ranks.agreed(time.perf_counter() - started < seconds)
        ):
            taken += 1
            batch = window.sample(batch_size, seed_stream(seed, "learner", self.step), rows=self.ranks.rows)
            report = self.descend(to_tensors(batch, self.device), total=batch_size, progress=progress)
            skipped += report.skipped
            if not report.skipped:
                figures = {**report.figures, "grad_norm": report.grad_norm}
                totals = {name: figure + totals.get(name, 0) for name, figure in figures.items()}
        if taken and skipped == taken:
            raise TrainingDiverged(
                f"none of {taken} steps had finite losses and gradients; look at the data, or lower training.learning_rate"
            )
        means: dict[str, Any] = {name: totals[name].item() / (taken - skipped) if taken else 0.0 for name in MEANS}
        elapsed = time.perf_counter() - started
        return LearnerReport(
            steps=taken,
            samples=taken * batch_size,
            seconds=elapsed,
            samples_per_second=taken * batch_size / elapsed,
            learning_rate=self.learning_rate_now(progress),
            skipped_steps=skipped,
            spikes=self.spikes(batch) if taken else None,
            **means,
        )

    def spikes(self, batch: Batch) -> SpikeReport | None:
        """What the averaged network's neurons do on this batch, if it is a spiking network."""
        network = self.average.network
        return (
            count_spikes(network, to_tensors(batch, self.device).observations)
            if isinstance(network, SpikingResNet)
            else None
        )

    def descend(self, batch: TensorBatch, *, total: int | None = None, progress: float = 0.0) -> StepReport:
        """Take one step on this rank's share of a batch, in parts that fit the memory.

        Several ranks cannot know of each other's want of memory in the middle of a step. On GPUs, which have little,
        they find out what they have memory for before they step on a batch larger than any before.

        Args:
            total: positions of all ranks together; None: this rank has them all.

        Raises:
            RuntimeError: even one group of ``norm_batch`` positions is too much for the memory, or there is too little
            for several ranks.
        """
        self.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate_now(progress)
        total = len(batch.values) if total is None else total
        if self.device.type == "cuda" and not self.ranks.alone and total > self._most_that_fitted:
            self.find_micro_batch(batch, total)
        while True:
            parts = self.parts(total)
            try:
                shares = [part.count / total for part in parts]
                return self.update_step(
                    self.losses_of, [MicroBatch(batch.part(part.rows), part) for part in parts], shares=shares
                )
            except RuntimeError as error:
                if not is_want_of_memory(error) or not self.ranks.alone or not self.halve(total):
                    raise

    def parts(self, total: int) -> list[Part]:
        """What this rank takes at once, one after another, of a batch of so many positions."""
        return cut(
            total,
            norm_batch=self.norm_batch,
            micro_batch=self.micro_batch,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )

    def halve(self, total: int) -> bool:
        """Take half as many positions at once from now on; False where they cannot be fewer."""
        norm_batch, micro_batch, world_size = self.norm_batch, self.micro_batch, self.ranks.world_size
        smaller = halved(total, norm_batch=norm_batch, micro_batch=micro_batch, world_size=world_size)
        if smaller is None:
            return False
        now = largest_part(total, norm_batch=norm_batch, micro_batch=micro_batch, world_size=world_size)
        log.warning(
            "out of memory with %d positions at once: from now on %d, added up; batches and results stay the same",
            now,
            smaller,
        )
        self.micro_batch = smaller
        return True

    def find_micro_batch(self, batch: TensorBatch, total: int) -> None:
        """See, before a step, how many positions at once every rank has memory for.

        Each rank tries alone, for a rank that fails amid a step leaves the others waiting; then all take what the
        poorest can take.

        Args:
            batch: this rank's share of a batch of ``total`` positions; nothing is learned from it.

        Raises:
            torch.OutOfMemoryError: even one group is too much.
        """
        buffers = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        while True:
            part = max(self.parts(total), key=lambda part: part.count)
            fits = self._fits(MicroBatch(batch.part(part.rows), part))
            for buffer, before in buffers:
                buffer.copy_(before)
            self.optimizer.zero_grad(set_to_none=True)
            if self.ranks.largest(0 if fits else 1) == 0:
                self._most_that_fitted = total
                return
            if not self.halve(total):
                raise torch.OutOfMemoryError(
                    f"{part.count} positions at once are too many for the memory, and cannot be fewer"
                )

    def _fits(self, micro_batch: MicroBatch) -> bool:
        self.layout.ranks, self.layout.totals = ALONE, micro_batch.part.sizes
        self.layout.sizes = micro_batch.part.sizes
        try:
            with self.update_step.autocast:
                loss = self.losses(micro_batch.batch).loss
            loss.backward()
        except RuntimeError as error:
            if not is_want_of_memory(error):
                raise
            return False
        finally:
            self.layout.ranks = self.ranks
        return True

    def learning_rate_now(self, progress: float) -> float:
        """The learning rate of the step under way, when the share ``progress`` of the run is over."""
        warm = min(1.0, self.step / self.warmup_steps) if self.warmup_steps else 1.0
        rate = self.learning_rate * warm
        if self.learning_rate_schedule == "constant":
            return rate
        return rate * (COSINE_END + (1 - COSINE_END) * (1 + math.cos(math.pi * min(1.0, progress))) / 2)

    def losses_of(self, micro_batch: MicroBatch) -> Losses:
        """The losses of a part of a batch, with batch norm's statistics over its groups."""
        self.layout.sizes, self.layout.totals = micro_batch.part.sizes, micro_batch.part.totals
        return self.losses(micro_batch.batch)

    def losses(self, batch: TensorBatch) -> Losses:
        """The losses of one batch; their unit is the nat."""
        logits, value_logits, said = outputs_to_learn(self.network, batch.observations)
        log_policy = log_policies(logits, batch.legal)
        policy_loss = -((batch.policies * log_policy).sum(1) * batch.policy_mask).mean()
        value_loss = value_head(self.network).loss(value_logits, batch.values)
        entropy = -(log_policy.exp() * log_policy).sum(1).mean()
        auxiliary = auxiliary_losses(
            said,
            replies=batch.replies,
            ownership=batch.ownership,
            leads=batch.leads,
            ownership_weight=self.ownership_weight,
        )
        of_heads = sum(auxiliary.values(), start=torch.zeros_like(policy_loss))
        figures = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "auxiliary_loss": of_heads,
            "policy_entropy": entropy,
            **auxiliary,
        }
        loss = policy_loss + self.value_weight * value_loss + of_heads
        return Losses(loss, {name: figure.detach() for name, figure in figures.items()})

    def weights(self) -> dict[str, Tensor]:
        """The averaged weights, which play: a copy on the CPU."""
        return {
            name: tensor.to("cpu", copy=True).contiguous() for name, tensor in self.average.network.state_dict().items()
        }

    def state(self) -> LearnerState:
        """Everything that ``restore`` needs to go on exactly as if nothing had happened: a copy on the CPU.

        Every rank asks for it if the optimizer is shared out.
        """
        groups = {"network": self.network.state_dict(), "average": self.average.network.state_dict()}
        groups["optimizer"] = optimizer_tensors(self.network, self.optimizer, self.ranks)
        counters = {
            "step": self.step,
            "average_updates": self.average.updates,
            "optimizer": type(own_part(self.optimizer)).__name__,
            "scaler": self.update_step.scaler.state_dict(),
        }
        tensors = {
            group: {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in members.items()}
            for group, members in groups.items()
        }
        tensors["random"] = {"torch": torch.get_rng_state()}
        return LearnerState(tensors, counters)

    def restore(self, state: LearnerState) -> None:
        """Go on from ``state``.

        Raises:
            ValueError: it belongs to another network or another optimizer.
        """
        kind = type(own_part(self.optimizer)).__name__
        if state.counters.get("optimizer") != kind:
            raise ValueError(
                f"the saved state is of {state.counters.get('optimizer')}, not of {kind}: see training.optimizer"
            )
        try:
            self.network.load_state_dict(state.tensors["network"])
            self.average.network.load_state_dict(state.tensors["average"])
            restore_optimizer(self.network, self.optimizer, state.tensors["optimizer"])
            self.average.updates = state.counters["average_updates"]
            self.update_step.scaler.load_state_dict(state.counters["scaler"])
            self.step = state.counters["step"]
            torch.set_rng_state(state.tensors["random"]["torch"])
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"the saved state does not fit this learner: was the network changed?: {error}") from error


def log_policies(logits: Tensor, legal: Tensor) -> Tensor:
    """The logarithm of the policy over ``legal`` actions alone, ``[N, A]``, in full precision."""
    return functional.log_softmax(logits.float().masked_fill(~legal, IMPOSSIBLE), 1)


def is_want_of_memory(error: RuntimeError) -> bool:
    """Whether this is how torch says that there is no memory left, for which it has a type of its own on GPUs only.

    oneDNN does not say why it could not create a primitive. If it was for something else, fewer positions at once will
    not help either, and the error is raised in the end.
    """
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)


def build_optimizer(
    network: nn.Module, *, kind: str, momentum: float, weight_decay: float, sharded: bool = False
) -> torch.optim.Optimizer:
    """AdamW (arXiv 1711.05101), Muon or SGD with momentum; only matrices and kernels decay.

    The learning rate is set at each step.

    Raises:
        ValueError: there is no such kind.
    """
    kinds: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
        "adamw": (torch.optim.AdamW, {}),
        "muon": (Muon, {}),
        "sgd": (torch.optim.SGD, {"momentum": momentum}),
    }
    if kind not in kinds:
        raise ValueError(f"training.optimizer: there is no optimizer called {kind!r}; use adamw, muon or sgd")
    build, options = kinds[kind]
    hidden = hidden_layers(network) if kind == "muon" else []
    taken = set(hidden)
    others = [p for p in network.parameters() if p not in taken]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in others if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in others if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if hidden:
        groups.append({"params": hidden, "weight_decay": weight_decay, "orthogonal": True})
    if sharded:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # here, for it takes seconds

        return ZeroRedundancyOptimizer(groups, build, lr=0.0, fused=True, **options)
    return build(groups, lr=0.0, fused=True, **options)  # type: ignore[call-arg]  # which all of them take
