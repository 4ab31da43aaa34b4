"""Muon: orthogonalized momentum for the kernels and matrices of a network's hidden layers.

K. Jordan and others, "Muon: an optimizer for hidden layers in neural networks" (2024,
kellerjordan.github.io/posts/muon): the momentum of a layer's weights is replaced by the nearest semi-orthogonal matrix,
which a few Newton-Schulz iterations find. As its authors advise, AdamW (arXiv 1711.05101) optimizes the first layer,
the heads, and all parameters with one dimension.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from keima.learning.plain_optimizers import AdamW

KERNEL_RATE = 20.0  # times the learning rate: 0.02 for kernels and 0.001 for AdamW are the authors' defaults
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the authors': steep at zero, so that five iterations suffice
NEWTON_SCHULZ_STEPS = 5
MOMENTUM = 0.95


class Muon(AdamW):
    """AdamW with ``orthogonal`` groups of parameters, whose momentum is orthogonalized.

    Args:
        groups: of parameters. ``"orthogonal": True`` marks groups for Muon, whose parameters have at least two
            dimensions and are treated as matrices [outputs, everything else].
        lr: AdamW's; orthogonal groups use ``KERNEL_RATE`` times as much.
        options: AdamW's others.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], *, lr: float = 1e-3, **options: Any) -> None:
        super().__init__([{"orthogonal": False, **group} for group in groups], lr=lr, **options)

    def step(self, closure: Any = None) -> Any:
        """Take one step of all groups."""
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if not group["orthogonal"]]
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["orthogonal"]:
                self._step_orthogonal(group)
        return loss

    @torch.no_grad()
    def _step_orthogonal(self, group: dict[str, Any]) -> None:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            update = orthogonalize(self._nesterov_direction(parameter))
            rate = group["lr"] * KERNEL_RATE * math.sqrt(max(1.0, update.shape[0] / update.shape[1]))
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.sub_(update.view(parameter.shape), alpha=rate)

    def _nesterov_direction(self, parameter: nn.Parameter) -> Tensor:
        """Return Nesterov's momentum as a matrix ``[outputs, rest]``."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            # AdamW expects a step when it is restored.
            state.update(step=torch.tensor(0.0), momentum_buffer=torch.zeros_like(parameter))
        state["step"] += 1
        momentum = state["momentum_buffer"].lerp_(parameter.grad, 1 - MOMENTUM)
        return parameter.grad.lerp(momentum, MOMENTUM).flatten(1)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Return a matrix ``[M, N]`` with the same singular vectors, and all singular values between about 0.7 and 1.2.

    Layers are not batched: on some processors a batched product rounds differently from single ones, so ranks that
    divide the layers among them would end with different bits. The iteration is stable in bfloat16, which GPUs use.
    CPUs use float32: it is up to twenty times as fast where they cannot multiply bfloat16, and about as fast for single
    layers where they can.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x.to(torch.bfloat16 if x.is_cuda else torch.float32)
    x = x / (x.norm() + 1e-7)
    linear, cubic, quintic = COEFFICIENTS
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic), x, beta=linear)
    return (x.mT if tall else x).to(matrix.dtype)


def hidden_matrices(network: nn.Module) -> list[nn.Parameter]:
    """Return the kernels and matrices of the network's ``tower``, without the first layer and the heads.

    Raises:
        ValueError: it has no such part.
    """
    if not hasattr(network, "tower"):
        raise ValueError(
            "training.optimizer: muon is for the matrices of a network's `tower`, and this network has no part of that "
            "name; use adamw"
        )
    return [parameter for parameter in network.get_submodule("tower").parameters() if parameter.ndim > 1]
