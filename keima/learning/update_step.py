"""One optimizer step for any loss: mixed precision, accumulation, ranks, clipping, a check for infinite and undefined
numbers, averaged weights.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from keima.learning.ranks.process_group import ALONE, Ranks
from keima.networks.inference.evaluator import fastest_dtype

MOST_SKIPPED = 30  # steps in a row that are not finite: float16 begins with some, until its scale fits
MicroBatch = TypeVar("MicroBatch")


class TrainingDiverged(ArithmeticError):
    """Training has diverged: losses or gradients are repeatedly infinite or undefined, so that no step can be taken."""


@dataclass(frozen=True)
class Losses:
    """A loss function's result for a micro-batch: the mean loss to minimize, and metrics to report (means, without
    gradient).
    """

    loss: Tensor
    metrics: dict[str, Tensor]


@dataclass(frozen=True)
class StepReport:
    """The result of one step. Tensors stay on the device, so the caller decides when to wait for it."""

    metrics: dict[str, Tensor]  # means over the micro-batches of all ranks, including "loss"
    grad_norm: Tensor  # before clipping
    skipped: bool  # a gradient was not finite: the network is unchanged


class AverageWeights:
    """An exponential moving average of a network's weights and batch-norm statistics, which plays better than the last
    weights.

    The decay after t updates is ``min(decay, (1 + t) / (10 + t))``, so the initial random weights are soon forgotten.
    """

    def __init__(self, network: nn.Module, *, decay: float) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self.decay = decay
        self.updates = 0
        pairs = list(zip(self.network.state_dict().values(), network.state_dict().values(), strict=True))
        self._averaged = [pair for pair in pairs if pair[0].is_floating_point()]
        self._copied = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the network's current weights."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        averages, weights = zip(*self._averaged, strict=True)
        torch._foreach_lerp_(averages, weights, 1 - decay)
        for average, weight in self._copied:
            average.copy_(weight)


class UpdateStep:
    """The optimizer step of every trainer.

    Args:
        network: trained in place, on its device.
        optimizer: over the parameters of ``network``.
        clip_norm: the maximum norm of the gradient.
        mixed_precision: "auto" computes in a 16-bit type if the device is fast in it.
        average: is updated after each step, if given.
        ranks: the processes that take the step together; starting from the same weights, all end with the same ones.
        shortcut: a faster way to the gradients and metrics of a step with one micro-batch; None from it: there is none.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float,
        mixed_precision: bool | Literal["auto"] = "auto",
        average: AverageWeights | None = None,
        ranks: Ranks = ALONE,
        shortcut: Callable[[Any], dict[str, Tensor] | None] = lambda batch: None,
    ) -> None:
        device = next(network.parameters()).device
        fast = fastest_dtype(device)
        self.optimizer, self.clip_norm, self.average = optimizer, clip_norm, average
        self.ranks, self.shortcut = ranks, shortcut
        # Looking for them thrice took a twelfth of a step of 32 positions.
        self._parameters, self._buffers = list(network.parameters()), list(network.buffers())
        mixed = mixed_precision is True or (mixed_precision == "auto" and fast != torch.float32)
        short = torch.bfloat16 if fast == torch.float32 else fast
        self.dtype = short if mixed else torch.float32
        self.autocast = torch.autocast(device.type, dtype=short, enabled=mixed)
        # float16 has a small range, so the loss is scaled up and the gradients down again; for other types the scaler
        # does nothing.
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16)
        self._skipped = 0  # steps in a row

    def __call__(
        self,
        loss_function: Callable[[MicroBatch], Losses],
        micro_batches: Sequence[MicroBatch],
        *,
        shares: Sequence[float] | None = None,
    ) -> StepReport:
        """Take one step on the mean loss of ``micro_batches``, with the activations of one at a time in memory.

        A step whose gradients are not finite is skipped, also by all other ranks.

        Args:
            loss_function: the losses of a micro-batch.
            micro_batches: of this rank.
            shares: the weight of each in that mean; the weights of all ranks add up to 1. None: all are equal.

        Raises:
            TrainingDiverged: ``MOST_SKIPPED`` steps in a row were skipped; the network is unchanged.
            Exception: any error of the loss function, lack of memory, or a lost rank; the network is unchanged.
        """
        shares = shares or [1 / (len(micro_batches) * self.ranks.world_size)] * len(micro_batches)
        buffers = [(buffer, buffer.clone()) for buffer in self._buffers]
        try:
            metrics = self._compute_gradients(loss_function, micro_batches, shares)
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            self.ranks.all_reduce_sum_(gradients)
            self.ranks.all_reduce_sum_(list(metrics.values()))
            self.scaler.unscale_(self.optimizer)
            norm = nn.utils.get_total_norm(gradients)
            finite = bool(norm.isfinite())
            self.ranks.raise_if_lost()  # GPUs have only now added the gradients up
        except BaseException:
            self._discard_gradients(buffers)
            raise
        if finite:
            if norm > self.clip_norm:
                nn.utils.clip_grads_with_norm_(self._parameters, self.clip_norm, norm)
            self.scaler.step(self.optimizer)
            if self.average is not None:
                self.average.update()
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self._discard_gradients(buffers)
        self.scaler.update()
        self._count_skipped(finite)
        return StepReport(metrics, norm.detach(), skipped=not finite)

    def restore_scaler(self, state: dict[str, Any]) -> None:
        """Restore the scale of the gradients, if they were scaled; otherwise the state is empty."""
        if state:
            self.scaler.load_state_dict(state)

    def _count_skipped(self, finite: bool) -> None:
        self._skipped = 0 if finite else self._skipped + 1
        if self._skipped >= MOST_SKIPPED:
            raise TrainingDiverged(
                f"none of the last {self._skipped} steps had finite losses and gradients; look at the data, or lower "
                "the learning rate"
            )

    def _compute_gradients(
        self,
        loss_function: Callable[[MicroBatch], Losses],
        micro_batches: Sequence[MicroBatch],
        shares: Sequence[float],
    ) -> dict[str, Tensor]:
        """Set this rank's gradients; return its metrics."""
        whole = self.ranks.is_alone and len(micro_batches) == 1 and not self.scaler.is_enabled()
        if whole and (metrics := self.shortcut(micro_batches[0])):
            return metrics
        reports = [
            self._accumulate(loss_function, batch, share) for batch, share in zip(micro_batches, shares, strict=True)
        ]
        return {name: torch.stack([report[name] for report in reports]).sum(0) for name in reports[0]}

    def _accumulate(
        self, loss_function: Callable[[MicroBatch], Losses], batch: MicroBatch, share: float
    ) -> dict[str, Tensor]:
        with self.autocast:
            losses = loss_function(batch)
        self.scaler.scale(losses.loss * share).backward()
        return {name: metric.detach() * share for name, metric in {"loss": losses.loss, **losses.metrics}.items()}

    def _discard_gradients(self, buffers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Discard the gradients and batch norm's statistics of a step that is not taken."""
        for buffer, before in buffers:
            buffer.copy_(before)
        self.optimizer.zero_grad(set_to_none=True)
