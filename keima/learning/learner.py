"""The learner: draws positions from the replay window and fits the network to the searches' policies and the games'
results.

The losses are AlphaZero's (arXiv 1712.01815): the cross-entropy between the search's policy and the network's, over
legal actions only, and for the value the cross-entropy of its logits (see keima/networks/value_heads.py),
each averaged over the batch. A network with auxiliary heads has their losses too
(keima/networks/architectures/auxiliary_heads.py).
"""

import logging
import math
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from keima.base.random import seed_stream
from keima.base.reports.run_reports import MEANS, LearnerReport, SpikeReport
from keima.base.system.threads import prefetch
from keima.config.sections.training import TrainingSettings
from keima.learning.captured import CapturedGradients, can_be_captured
from keima.learning.optimizer_state import gather_optimizer_tensors, local_optimizer, restore_optimizer
from keima.learning.optimizers import build_optimizer
from keima.learning.ranks.process_group import ALONE, Ranks
from keima.learning.ranks.rank_norm import GroupLayout, replace_batch_norms
from keima.learning.ranks.total_batch import PartRows, halve_micro_batch, largest_part_rows, split_into_parts
from keima.learning.update_step import AverageWeights, Losses, StepReport, UpdateStep
from keima.networks.architectures.auxiliary_heads import auxiliary_losses, forward_for_training
from keima.networks.architectures.layers import masked_log_policies
from keima.networks.growth import enlarge_optimizer_state, enlarge_weights
from keima.networks.inference.evaluator import keep_freed_memory, pick_device
from keima.networks.policy_value import as_policy_value_network
from keima.replay.window import ALL_ROWS, Batch

log = logging.getLogger(__name__)

COSINE_END = 0.01  # the share of the learning rate at the end of a cosine schedule
SETTLING_BATCHES = 20  # for the statistics of a network that has grown
MOST_CAPTURED = 3  # sizes of batches, each of which keeps the memory of a step
OUT_OF_MEMORY = ("can't allocate memory", "could not create a primitive")  # messages of torch and oneDNN on CPUs


class Window(Protocol):
    """The source of a learner's batches, such as ``keima.replay.window.ReplayWindow``."""

    def sample(self, count: int, rng_seed: int, *, rows: slice = ALL_ROWS) -> Batch:
        """Draw ``count`` positions and return these ``rows``; the same seed and window give the same batch."""


@dataclass(frozen=True)
class TensorBatch:
    """A ``Batch`` on the device."""

    observations: Tensor  # [N, C, H, W] float32, channels last
    policies: Tensor  # [N, A] float32: the target; each row sums to 1 (or 0)
    legal: Tensor  # [N, A] bool
    values: Tensor  # [N] float32 in [-1, 1] or in points: the target for the player to move
    policy_mask: Tensor  # [N] float32: 0 where the policy is not a target
    replies: Tensor  # [N, A] float32, or [N, 0]
    ownership: Tensor  # [N, H * W] float32, or [N, 0]
    score_leads: Tensor  # [N] float32, NaN where unknown
    futures: Tensor  # [N, 2 * H * W] float32, or [N, 0]

    def select_rows(self, rows: slice) -> "TensorBatch":
        """Return these rows, in the same memory."""
        return TensorBatch(*(tensor[rows] for tensor in vars(self).values()))


@dataclass(frozen=True)
class BatchPart:
    """The rows of a batch that a rank computes at once."""

    batch: TensorBatch
    part: PartRows


@dataclass(frozen=True)
class LearnerState:
    """The state of a learner, as in a checkpoint."""

    tensors: dict[str, dict[str, Tensor]]  # "network", "average", "optimizer", "random" -> name -> tensor
    counters: dict[str, Any]  # plain JSON


def copy_to_device(batch: Batch, device: torch.device) -> TensorBatch:
    """Copy a batch to the device, from pinned memory without waiting; on the CPU it shares memory where the layout
    allows.
    """
    tensors = {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in vars(batch).items()}
    return TensorBatch(
        **tensors | {"observations": tensors["observations"].contiguous(memory_format=torch.channels_last)}
    )


def copy_to_pinned_memory(batch: Batch) -> Batch:
    """Return a copy in pinned memory, which GPUs read directly."""
    return Batch(**{name: torch.from_numpy(array).pin_memory().numpy() for name, array in vars(batch).items()})


class Learner:
    """A network in training.

    Args:
        network: the network; it is moved to the device and trained in place.
        settings: how to train: the section ``training`` of an experiment.
        ranks: the processes that train together. All have the same network; each computes its share of every batch.
        norm_batch: the most positions of a group over which batch norm takes its statistics; None: the whole batch.
        micro_batch: positions that a rank computes at once, in whole groups; None: as many as fit the memory.
        shard_optimizer: whether each rank keeps only its part of the optimizer's state, and steps that part for all.
        options: instead of ``settings``, those that differ from the defaults, such as ``batch_size=128``.
    """

    def __init__(
        self,
        network: nn.Module,
        settings: TrainingSettings | None = None,
        *,
        ranks: Ranks = ALONE,
        norm_batch: int | None = None,
        micro_batch: int | None = None,
        shard_optimizer: bool = False,
        **options: Any,
    ) -> None:
        if settings is not None and options:
            raise TypeError(f"give a learner settings or options, not both: {', '.join(options)}")
        self.settings = settings = settings or TrainingSettings(**options)
        keep_freed_memory()
        self.device = pick_device(settings.device)
        self.network = network.to(device=self.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self.batch_size = settings.batch_size
        self.average = AverageWeights(self.network, decay=settings.ema_decay)
        self.optimizer = build_optimizer(self.network, settings, sharded=shard_optimizer and not ranks.is_alone)
        self.update_step = UpdateStep(
            self.network,
            self.optimizer,
            clip_norm=settings.clip_norm,
            mixed_precision=settings.mixed_precision,
            average=self.average,
            ranks=ranks,
            shortcut=self._captured_gradients,
        )
        self.captures = self.device.type == "cuda" and can_be_captured(self.network)
        self._captured: dict[int, CapturedGradients] = {}  # by the number of positions
        self.ranks, self.norm_batch, self.micro_batch = ranks, norm_batch, micro_batch
        self.layout = GroupLayout(ranks)
        replace_batch_norms(self.network, self.layout)
        self.step = 0  # steps taken, including skipped ones
        self._most_that_fitted = 0  # the largest batch for which several ranks have tested their memory

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
        """Take up to ``steps`` steps on batches from ``window``; all ranks take them and return the same report.

        If all of them are skipped, the report's losses are 0.

        Args:
            window: the source of the batches.
            steps: the number of steps.
            seed: with the step's number, determines the batch: ten steps equal five steps and five more.
            batch_size: positions per step; 0: as in the settings.
            progress: the completed share of the run, for the learning-rate schedule.
            seconds: no further step begins after so long.

        Raises:
            TrainingDiverged: see ``UpdateStep``; the network is as after the last finite step.
        """
        started, batch_size = time.perf_counter(), batch_size or self.batch_size
        totals: dict[str, Tensor] = {}
        taken = skipped = 0
        with closing(self._draw_batches(window, steps, seed, batch_size)) as batches:
            while taken < steps and (
                taken == 0 or seconds == math.inf or self.ranks.broadcast_bool(time.perf_counter() - started < seconds)
            ):
                taken += 1
                batch = next(batches)
                report = self.descend(copy_to_device(batch, self.device), total=batch_size, progress=progress)
                skipped += report.skipped
                if not report.skipped:
                    metrics = {**report.metrics, "grad_norm": report.grad_norm}
                    totals = {name: metric + totals.get(name, 0) for name, metric in metrics.items()}
        finite = taken - skipped
        means: dict[str, Any] = {name: totals[name].item() / finite if finite else 0.0 for name in MEANS}
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

    def _draw_batches(self, window: Window, steps: int, seed: int, batch_size: int) -> Generator[Batch]:
        """Yield the batches of the next steps; on a GPU each is drawn while the step before it is computed."""

        def draw(step: int) -> Batch:
            batch = window.sample(batch_size, seed_stream(seed, "learner", step), rows=self.ranks.own_rows)
            return copy_to_pinned_memory(batch) if on_gpu else batch

        numbers, on_gpu = range(self.step, self.step + steps), self.device.type == "cuda"
        yield from prefetch(draw, numbers) if on_gpu else map(draw, numbers)

    def spikes(self, batch: Batch) -> SpikeReport | None:
        """Return the statistics of the averaged network's spikes on this batch, if it has any."""
        return as_policy_value_network(self.average.network).statistics(copy_to_device(batch, self.device).observations)

    def descend(self, batch: TensorBatch, *, total: int | None = None, progress: float = 0.0) -> StepReport:
        """Take one step on this rank's share of a batch, in parts that fit the memory.

        Several ranks cannot react to one rank's lack of memory during a step. On GPUs, which have little, they test
        what fits before the first step on a larger batch.

        Args:
            batch: this rank's share.
            total: positions of all ranks together; None: this rank has all of them.
            progress: the completed share of the run, for the learning-rate schedule.

        Raises:
            RuntimeError: even one group of ``norm_batch`` positions does not fit the memory, or one of several ranks
                runs out of memory during a step.
        """
        self.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate_now(progress)
        total = len(batch.values) if total is None else total
        if self.device.type == "cuda" and not self.ranks.is_alone and total > self._most_that_fitted:
            self.find_micro_batch(batch, total)
        while True:
            parts = self.parts(total)
            try:
                shares = [part.count / total for part in parts]
                return self.update_step(
                    self.losses_of, [BatchPart(batch.select_rows(part.rows), part) for part in parts], shares=shares
                )
            except RuntimeError as error:
                if not is_out_of_memory(error) or not self.ranks.is_alone or not self.halve(total):
                    raise

    def parts(self, total: int) -> list[PartRows]:
        """Return the parts in which this rank computes its share of a batch of ``total`` positions."""
        return split_into_parts(
            total,
            norm_batch=self.norm_batch,
            micro_batch=self.micro_batch,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
        )

    def halve(self, total: int) -> bool:
        """Halve the number of positions computed at once; False if they cannot be fewer."""
        norm_batch, micro_batch, world_size = self.norm_batch, self.micro_batch, self.ranks.world_size
        smaller = halve_micro_batch(total, norm_batch=norm_batch, micro_batch=micro_batch, world_size=world_size)
        if smaller is None:
            return False
        now = largest_part_rows(total, norm_batch=norm_batch, micro_batch=micro_batch, world_size=world_size)
        log.warning(
            "out of memory with %d positions at once: reduced to %d, with the same batches and results",
            now,
            smaller,
        )
        self.micro_batch = smaller
        self._captured.clear()
        return True

    def find_micro_batch(self, batch: TensorBatch, total: int) -> None:
        """Find the number of positions that fit the memory of every rank, before a step.

        Each rank tests alone, because a rank that fails during a step leaves the others waiting; then all use the
        smallest result.

        Args:
            batch: this rank's share of a batch; nothing is learned from it.
            total: positions of all ranks together.

        Raises:
            torch.OutOfMemoryError: even one group does not fit.
        """
        buffers = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        while True:
            part = max(self.parts(total), key=lambda part: part.count)
            fits = self._fits_in_memory(BatchPart(batch.select_rows(part.rows), part))
            for buffer, before in buffers:
                buffer.copy_(before)
            self.optimizer.zero_grad(set_to_none=True)
            if self.ranks.all_reduce_max(0 if fits else 1) == 0:
                self._most_that_fitted = total
                return
            if not self.halve(total):
                raise torch.OutOfMemoryError(
                    f"{part.count} positions at once are too many for the memory, and cannot be fewer"
                )

    def _fits_in_memory(self, rows: BatchPart) -> bool:
        self.layout.ranks, self.layout.totals = ALONE, rows.part.sizes
        self.layout.sizes = rows.part.sizes
        try:
            with self.update_step.autocast:
                loss = self.losses(rows.batch).loss
            loss.backward()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return False
        finally:
            self.layout.ranks = self.ranks
        return True

    def learning_rate_now(self, progress: float) -> float:
        """Return the learning rate of the current step; ``progress`` is the completed share of the run."""
        settings = self.settings
        warm = min(1.0, self.step / settings.warmup_steps) if settings.warmup_steps else 1.0
        rate = settings.learning_rate * warm
        if settings.learning_rate_schedule == "constant":
            return rate
        return rate * (COSINE_END + (1 - COSINE_END) * (1 + math.cos(math.pi * min(1.0, progress))) / 2)

    def losses_of(self, rows: BatchPart) -> Losses:
        """Return the losses of a part of a batch, with batch norm's statistics over its groups."""
        self.layout.sizes, self.layout.totals = rows.part.sizes, rows.part.totals
        return self.losses(rows.batch)

    def _captured_gradients(self, rows: BatchPart) -> dict[str, Tensor] | None:
        """Return the metrics of a part that is a whole batch, whose gradients a graph computes; None if none can."""
        size, batch = rows.part.count, vars(rows.batch)
        if not self.captures or len(rows.part.sizes) > 1:
            return None
        if size not in self._captured:
            if len(self._captured) == MOST_CAPTURED:
                return None

            def losses(batch: dict[str, Tensor]) -> Losses:
                with self.update_step.autocast:
                    return self.losses_of(BatchPart(TensorBatch(**batch), rows.part))

            self._captured[size] = CapturedGradients(self.network, losses, batch)
        return self._captured[size](batch)

    def losses(self, batch: TensorBatch) -> Losses:
        """Return the losses of one batch, in nats."""
        logits, value_logits, outputs = forward_for_training(self.network, batch.observations)
        log_policy = masked_log_policies(logits, batch.legal)
        policy_loss = -((batch.policies * log_policy).sum(1) * batch.policy_mask).mean()
        value_loss = as_policy_value_network(self.network).value.loss(value_logits, batch.values)
        entropy = -(log_policy.exp() * log_policy).sum(1).mean()
        auxiliary = auxiliary_losses(
            outputs,
            replies=batch.replies,
            ownership=batch.ownership,
            score_leads=batch.score_leads,
            futures=batch.futures,
            settings=self.settings,
        )
        of_heads = sum(auxiliary.values(), start=torch.zeros_like(policy_loss))
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "auxiliary_loss": of_heads,
            "policy_entropy": entropy,
            **auxiliary,
        }
        loss = policy_loss + self.settings.value_weight * value_loss + of_heads
        return Losses(loss, {name: metric.detach() for name, metric in metrics.items()})

    def grow(self, network: nn.Module) -> Self:
        """Return a learner that continues with ``network``, which is new and larger and will answer as this one's does.

        Raises:
            ValueError: it is not the same network with more blocks or channels.
        """
        state = self.state()
        larger = type(self)(
            network, self.settings, ranks=self.ranks, norm_batch=self.norm_batch, micro_batch=self.micro_batch
        )
        grown = {name: enlarge_weights(state.tensors[name], network) for name in ("network", "average")}
        grown["optimizer"] = enlarge_optimizer_state(state.tensors["optimizer"], network)
        larger.restore(LearnerState(state.tensors | grown, state.counters))
        return larger

    @torch.no_grad()
    def settle_statistics(self, window: Window, seed: int) -> None:
        """Take batch norm's statistics anew from positions of the window, with the averaged weights.

        New channels have placeholders, which the average would keep for hundreds of steps.
        """
        average = self.average.network
        norms = [module for module in average.modules() if isinstance(module, nn.BatchNorm2d)]
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean of all batches
        average.train()
        for number in range(SETTLING_BATCHES):
            batch = window.sample(self.batch_size, seed_stream(seed, "statistics", number))
            forward_for_training(average, copy_to_device(batch, self.device).observations)
        average.eval()
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for mine, settled in zip(self.network.buffers(), average.buffers(), strict=True):
            mine.copy_(settled)

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the averaged weights, with which workers play, on the CPU."""
        return {
            name: tensor.to("cpu", copy=True).contiguous() for name, tensor in self.average.network.state_dict().items()
        }

    def state(self) -> LearnerState:
        """Return a copy of everything that ``restore`` needs to continue exactly, on the CPU.

        With a sharded optimizer all ranks must call this.
        """
        groups = {"network": self.network.state_dict(), "average": self.average.network.state_dict()}
        groups["optimizer"] = gather_optimizer_tensors(self.network, self.optimizer, self.ranks)
        counters = {
            "step": self.step,
            "average_updates": self.average.updates,
            "optimizer": type(local_optimizer(self.optimizer)).__name__,
            "scaler": self.update_step.scaler.state_dict(),
        }
        tensors = {
            group: {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in members.items()}
            for group, members in groups.items()
        }
        tensors["random"] = {"torch": torch.get_rng_state()}
        return LearnerState(tensors, counters)

    def restore(self, state: LearnerState) -> None:
        """Continue from ``state``.

        Raises:
            ValueError: it belongs to another network or optimizer.
        """
        kind = type(local_optimizer(self.optimizer)).__name__
        if state.counters.get("optimizer") != kind:
            raise ValueError(
                f"the saved state is of {state.counters.get('optimizer')}, not of {kind}: see training.optimizer"
            )
        try:
            self.network.load_state_dict(state.tensors["network"])
            self.average.network.load_state_dict(state.tensors["average"])
            restore_optimizer(self.network, self.optimizer, state.tensors["optimizer"])
            self.average.updates = state.counters["average_updates"]
            self.update_step.restore_scaler(state.counters["scaler"])
            self.step = state.counters["step"]
            torch.set_rng_state(state.tensors["random"]["torch"])
        except (KeyError, RuntimeError) as error:
            raise ValueError(f"the saved state does not fit this learner: was the network changed?: {error}") from error


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether torch has run out of memory, for which it has an exception type only on GPUs.

    oneDNN does not say why it could not create a primitive. If the cause is another, fewer positions at once will not
    help, and the error is raised in the end.
    """
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)
