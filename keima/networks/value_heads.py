"""Value heads: the expected result of a two-player game, or the future points of a one-player game.

Two-player games have a ``WinHead`` with one logit. ``value = tanh(logit / 2) = 2 * sigmoid(logit) - 1`` is in [-1, 1],
and training with the binary cross-entropy of ``(1 + target) / 2`` is exact for draws and mixed targets too: the loss is
minimal where the value is the mean target. Games for three and more players have such a logit for each of them.

One-player games have a ``PointsHead``, a distribution over K numbers of points whose square roots are evenly spaced
from 0 to the maximum of the rules, so that small values are resolved finely and no value is out of range (as in MuZero,
arXiv 1911.08265, appendix F). A target is split between its two neighbors with its mean preserved ("two-hot"); so
training with the cross-entropy fits the mean of the targets, not the mean of their roots.
"""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

WIN_HIDDEN, POINTS_HIDDEN = 64, 128
POINTS_BINS = 601  # MuZero's
TILT = 0.5  # by which a new network's logits fall from bin to bin: it expects a few points, not half of the maximum


class ValueHead(nn.Module, ABC):
    """Maps the pooled board to logits, and logits to values."""

    @abstractmethod
    def values(self, logits: Tensor) -> Tensor:
        """Map value logits of ``forward`` for N positions to values ``[N]`` for the player to move, or ``[N, V]``."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss in nats of value logits for N positions; ``targets`` have the shape of ``values``."""


class WinHead(ValueHead):
    """One logit for the player to move, or one for each of ``num_values`` players, from ``inputs`` numbers."""

    def __init__(self, inputs: int, num_values: int = 1) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, WIN_HIDDEN)
        self.logit = nn.Linear(WIN_HIDDEN, num_values)
        initialize_near_zero(self.logit)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[N, inputs]`` to value logits ``[N]``, or ``[N, V]`` where V > 1."""
        return self.logit(torch.relu(self.hidden(x))).squeeze(1)

    def values(self, logits: Tensor) -> Tensor:
        """Map logits to values in [-1, 1]."""
        return torch.tanh(logits / 2)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """See ``ValueHead``."""
        return functional.binary_cross_entropy_with_logits(logits.float(), (1 + targets) / 2)


class PointsHead(ValueHead):
    """The distribution of the future points, at most ``most``, from ``inputs`` numbers."""

    def __init__(self, inputs: int, most: float) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, POINTS_HIDDEN)
        self.logits = nn.Linear(POINTS_HIDDEN, POINTS_BINS)
        initialize_near_zero(self.logits)
        with torch.no_grad():
            # Computed by numpy: on the device meta, PyTorch would import its compiler for it.
            self.logits.bias.copy_(torch.as_tensor(-TILT * np.arange(POINTS_BINS, dtype=np.float32)))
        self._points = (np.linspace(0.0, np.sqrt(most), POINTS_BINS) ** 2).astype(np.float32)  # [K]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[N, inputs]`` to value logits ``[N, K]``."""
        return self.logits(torch.relu(self.hidden(x)))

    def values(self, logits: Tensor) -> Tensor:
        """Map logits ``[N, K]`` to points ``[N]``."""
        return torch.softmax(logits.float(), 1) @ torch.as_tensor(self._points, device=logits.device)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """See ``ValueHead``."""
        points = torch.as_tensor(self._points, device=logits.device)
        targets = targets.clamp(points[0], points[-1])
        upper = torch.searchsorted(points, targets).clamp(min=1)
        share = (targets - points[upper - 1]) / (points[upper] - points[upper - 1])
        log_shares = functional.log_softmax(logits.float(), 1)
        below, above = log_shares.gather(1, (upper - 1)[:, None])[:, 0], log_shares.gather(1, upper[:, None])[:, 0]
        return -((1 - share) * below + share * above).mean()


def make_value_head(inputs: int, most_points: float | None, num_values: int = 1) -> ValueHead:
    """Make a ``WinHead`` over ``inputs`` numbers with ``num_values`` logits, or a ``PointsHead`` if ``most_points`` is
    given.
    """
    return WinHead(inputs, num_values) if most_points is None else PointsHead(inputs, most_points)


def initialize_near_zero(layer: nn.Linear) -> None:
    """Initialize a layer so that an untrained network has hardly any preference, and search starts from the rules."""
    nn.init.normal_(layer.weight, std=0.01)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
