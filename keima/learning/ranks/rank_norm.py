"""Batch norm over groups of a total batch, whichever ranks compute their rows.

Each rank sums its own rows of each group, and the sums are added over all ranks, forward and backward. So the result
and the gradient equal those of one process that holds the whole group. It works on any device, with shares of any size.
A single rank with one group uses torch's own kernels. Sums are taken about the running mean and combined in float64.

Batch norm: arXiv 1502.03167. Statistics over fixed groups smaller than the batch: arXiv 1705.08741 ("ghost batch
normalization").
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from keima.learning.ranks.process_group import ALONE, Ranks


@dataclass
class GroupLayout:
    """Which rows belong to which group; all norms of a network share one layout, which is set before each forward."""

    ranks: Ranks = ALONE
    sizes: tuple[int, ...] = (0,)  # [G] this rank's rows in each group, in their order
    totals: tuple[int, ...] = (0,)  # [G] all ranks' rows in each group

    @property
    def is_one_group(self) -> bool:
        """Whether the rows are exactly one whole group."""
        return self.ranks.is_alone and len(self.sizes) == 1

    def group_of_rows(self, rows: int, device: torch.device) -> Tensor:
        """Return the group of each row, ``[rows]``. A network with several rows per position has all positions' first
        rows first, then all second rows, and so on.
        """
        groups = torch.arange(len(self.sizes), device=device).repeat_interleave(torch.tensor(self.sizes, device=device))
        return groups.repeat(rows // len(groups))


class RankNorm(nn.BatchNorm2d):
    """Takes the place of ``norm`` and shares its parameters and statistics."""

    def __init__(self, norm: nn.BatchNorm2d, layout: GroupLayout) -> None:
        super().__init__(norm.num_features, eps=norm.eps, momentum=norm.momentum, device="meta")
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var, self.num_batches_tracked = (
            norm.running_mean,
            norm.running_var,
            norm.num_batches_tracked,
        )
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``[N, C, H, W]``; the result has the same shape and type."""
        if not self.training or self.layout.is_one_group:
            return super().forward(x)
        assert self.running_mean is not None and self.running_var is not None
        members = self.layout.group_of_rows(len(x), x.device)
        per_position = x.shape[2] * x.shape[3] * (len(x) // sum(self.layout.sizes))
        counts = torch.tensor(self.layout.totals, dtype=torch.float64, device=x.device) * per_position
        normed, mean, var = _Normalize.apply(  # type: ignore[no-untyped-call]
            x, self.weight, self.bias, self.running_mean.clone(), members, counts, self.eps, self.layout.ranks
        )
        self._update_running_statistics(mean, var * (counts / (counts - 1))[:, None])
        return normed

    @torch.no_grad()
    def _update_running_statistics(self, means: Tensor, variances: Tensor) -> None:
        """Update the running statistics with the groups' ``[G, C]``, one group after another."""
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None and self.momentum is not None
        for mean, variance in zip(means, variances, strict=True):
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(variance.to(self.running_var.dtype), self.momentum)
        self.num_batches_tracked += len(means)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        about: Tensor,
        members: Tensor,
        counts: Tensor,
        eps: float,
        ranks: Ranks,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x32 = _at_least_32_bits(x)
        centred = x32 - about[:, None, None]
        sums = _group_sums(members, len(counts), centred.sum((2, 3)), centred.square().sum((2, 3)))
        ranks.all_reduce_sum_([sums])
        offset, squares = (sums / counts[:, None]).chunk(2, 1)  # [G, C] float64
        var = (squares - offset.square()).clamp(min=0)
        mean, inverse = offset + about, (var + eps).rsqrt()
        scale = weight * inverse
        shift = bias - mean * scale
        ctx.save_for_backward(x, weight, mean, inverse, members, counts)
        ctx.ranks = ranks
        ctx.mark_non_differentiable(mean, var)
        return (
            torch.addcmul(_spread_to_rows(shift, members, x32), x32, _spread_to_rows(scale, members, x32)).to(x.dtype),
            mean,
            var,
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse, members, counts = ctx.saved_tensors
        dy, x32 = _at_least_32_bits(gradients[0]), _at_least_32_bits(x)
        centred = x32 - _spread_to_rows(mean, members, x32)
        sums = _group_sums(members, len(counts), dy.sum((2, 3)), (dy * centred).sum((2, 3)))
        own_dy, own_scaled = sums.chunk(2, 1)
        # Over this rank's rows only: UpdateStep adds the gradients of all ranks.
        bias_gradient, weight_gradient = own_dy.sum(0), (own_scaled * inverse).sum(0)
        ctx.ranks.all_reduce_sum_([sums])
        mean_dy, mean_scaled = (sums / counts[:, None]).chunk(2, 1)
        scale = weight * inverse
        slope = -scale * inverse.square() * mean_scaled
        dx = torch.addcmul(_spread_to_rows(-scale * mean_dy, members, dy), centred, _spread_to_rows(slope, members, dy))
        dx.addcmul_(dy, _spread_to_rows(scale, members, dy))
        return (
            dx.to(x.dtype),
            weight_gradient.to(weight.dtype),
            bias_gradient.to(weight.dtype),
            None,
            None,
            None,
            None,
            None,
        )


def _group_sums(members: Tensor, groups: int, *columns: Tensor) -> Tensor:
    """Return the sums of float32 ``[N, C]`` over each group's rows, side by side: float64 ``[G, C * len(columns)]``."""
    # [G, N]. A matrix product, because index_add_ adds in no fixed order.
    belongs = members == torch.arange(groups, device=members.device)[:, None]
    return belongs.double() @ torch.cat(columns, 1).double()


def _spread_to_rows(table: Tensor, members: Tensor, like: Tensor) -> Tensor:
    """Return the entry of ``[G, C]`` for each row, ``[N, C, 1, 1]``."""
    return table.to(like.dtype)[members][:, :, None, None]


def _at_least_32_bits(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def replace_batch_norms(network: nn.Module, layout: GroupLayout) -> None:
    """Make every batch norm in the network follow the layout; its state dictionary does not change."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.BatchNorm2d:
                setattr(module, name, RankNorm(child, layout))
