"""The layers of the networks: convolutions with batch norm, global pooling, residual blocks, the policy head.

Sources: AlphaZero (arXiv 1712.01815) for the tower; KataGo (arXiv 1902.10565, appendix A) for global pooling; Hu and
others (arXiv 1709.01507) for squeeze-and-excitation, with Leela Chess Zero's addition of a bias.
"""

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from keima.networks.kernels.winograd import convolve_with_gradients
from keima.networks.value_heads import ValueHead, initialize_near_zero

HEAD_CHANNELS = 32  # of the policy head's map, and of the map that is pooled for both heads
LEAST_HIDDEN = 8  # numbers between the two layers of squeeze-and-excitation
MEAN_WIDTH = 14.0  # KataGo's mean board width: pooled means are also scaled by (width - 14) / 10
# The first logit of a pass; those of points are nearly 0. Early in a game, a search sees no results but those of two
# passes. Networks that know nothing therefore passed often, and small ones did not unlearn it
# (docs/results/learning_techniques.md).
PASS_LOGIT = -1.0
ILLEGAL_LOGIT = -1e9  # gives illegal actions a probability of 0 without infinite or undefined numbers


class ConvNorm(nn.Module):
    """A convolution that keeps the board's size, and batch norm, which ``fold`` merges into the convolution."""

    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(outputs)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_in", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[N, inputs, H, W]`` to ``[N, outputs, H, W]``."""
        return self.norm(convolve_with_gradients(self.conv, x))

    def fold(self) -> None:
        """Merge the batch norm, in evaluation mode, into the convolution."""
        assert isinstance(self.norm, nn.BatchNorm2d)
        self.conv = nn.utils.fusion.fuse_conv_bn_eval(self.conv, self.norm)
        self.norm = nn.Identity()


class GlobalPooling(nn.Module):
    """Pooling over the board: per channel the mean, the mean scaled by the board's width, and the maximum."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[N, C, H, W]`` to ``[N, 3 * C]``."""
        mean = x.mean((2, 3))
        scale = pooling_width_scale(x.shape[2], x.shape[3])
        return torch.cat([mean, mean * scale, functional.max_pool2d(x, x.shape[2:]).flatten(1)], 1)


def pooling_width_scale(height: int, width: int) -> float:
    """Return the factor of the scaled mean: 0 on KataGo's mean board, -0.5 on 9x9."""
    return (math.sqrt(height * width) - MEAN_WIDTH) / 10


class SqueezeExcitation(nn.Module):
    """Scales and shifts every channel by a function of all channels' means over the board."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(channels // 4, LEAST_HIDDEN)
        self.hidden = nn.Linear(channels, hidden)
        self.scale_and_bias = nn.Linear(hidden, 2 * channels)
        nn.init.zeros_(self.hidden.bias)
        nn.init.zeros_(self.scale_and_bias.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[N, C, H, W]`` to the same shape."""
        scale, bias = self.scale_and_bias(torch.relu(self.hidden(x.mean((2, 3)))))[:, :, None, None].chunk(2, 1)
        return torch.sigmoid(scale) * x + bias


class Block(nn.Module):
    """Two convolutions with a skip connection, and squeeze-and-excitation before the sum.

    The second norm starts at zero, so that a new tower is the identity.
    """

    def __init__(self, channels: int, *, squeeze_excitation: bool = False) -> None:
        super().__init__()
        self.first = ConvNorm(channels, channels, 3)
        self.second = ConvNorm(channels, channels, 3)
        self.excitation = SqueezeExcitation(channels) if squeeze_excitation else nn.Identity()
        nn.init.zeros_(self.second.norm.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[N, C, H, W]`` to the same shape."""
        return torch.relu(x + self.excitation(self.second(torch.relu(self.first(x)))))


class PooledBlock(nn.Module):
    """A block in which some channels are pooled over the board and added to the others as a bias."""

    def __init__(self, channels: int, *, squeeze_excitation: bool = False) -> None:
        super().__init__()
        pooled = count_pooled_channels(channels)
        self.first = ConvNorm(channels, channels - pooled, 3)
        self.pooled = ConvNorm(channels, pooled, 3)
        self.pool = GlobalPooling()
        self.bias = nn.Linear(3 * pooled, channels - pooled)
        self.second = ConvNorm(channels - pooled, channels, 3)
        self.excitation = SqueezeExcitation(channels) if squeeze_excitation else nn.Identity()
        nn.init.zeros_(self.bias.bias)
        nn.init.zeros_(self.second.norm.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[N, C, H, W]`` to the same shape."""
        bias = self.bias(self.pool(torch.relu(self.pooled(x))))
        return torch.relu(x + self.excitation(self.second(torch.relu(self.first(x) + bias[:, :, None, None]))))


def make_residual_blocks(count: int, channels: int, *, global_pooling: bool, squeeze_excitation: bool) -> nn.Sequential:
    """Make ``count`` blocks, of which every third pools if ``global_pooling``."""
    kinds = [PooledBlock if global_pooling and index % 3 == 1 else Block for index in range(count)]
    return nn.Sequential(*(kind(channels, squeeze_excitation=squeeze_excitation) for kind in kinds))


def count_pooled_channels(channels: int) -> int:
    """Return about a quarter of the channels, in whole vectors of 32 (KataGo's 32 of 96 and 128, 64 of 256), at most
    half.
    """
    return min(channels // 2, 32 * math.ceil(channels / 128))


class PolicyHead(nn.Module):
    """The policy head: logits of points from maps, of other actions from the pooled board.

    Without point actions all logits come from the flattened board. A new network prefers points to other actions.
    """

    def __init__(self, channels: int, points: int, num_actions: int, policy_planes: int, global_pooling: bool) -> None:
        super().__init__()
        self.policy_planes = policy_planes
        self.conv = ConvNorm(channels, HEAD_CHANNELS, 1)
        self.bias = nn.Linear(3 * HEAD_CHANNELS, HEAD_CHANNELS) if global_pooling else None
        self.points = nn.Linear(HEAD_CHANNELS, policy_planes, bias=False) if policy_planes else None
        others = num_actions - policy_planes * points
        others_from = 3 * HEAD_CHANNELS if policy_planes else HEAD_CHANNELS * points
        self.others = nn.Linear(others_from, others) if others else None
        for layer in filter(None, (self.points, self.others)):
            initialize_near_zero(layer)
        if self.points and self.others:
            nn.init.constant_(self.others.bias, PASS_LOGIT)

    def forward(self, x: Tensor, pooled: Tensor) -> Tensor:
        """Map the tower's output ``[N, channels, H, W]`` and the pooled board to policy logits ``[N, A]``."""
        x = torch.relu(self.conv(x) + self.point_bias(pooled)[:, :, None, None])
        return self.logits(x.permute(0, 2, 3, 1).flatten(1, 2), pooled)

    def point_bias(self, pooled: Tensor) -> Tensor:
        """Return the pooled board's contribution to every point, ``[N, channels]``."""
        if self.bias is None:
            return pooled.new_zeros(len(pooled), HEAD_CHANNELS)
        return self.bias(pooled)

    def logits(self, x: Tensor, pooled: Tensor) -> Tensor:
        """Map the map ``[N, H * W, channels]`` and the pooled board to logits ``[N, A]``."""
        if self.points is None:
            assert self.others is not None
            return self.others(x.flatten(1))
        points = self.points(x).transpose(1, 2).flatten(1)  # (plane, row, column)
        return points if self.others is None else torch.cat([points, self.others(pooled)], 1)


def masked_log_policies(logits: Tensor, legal: Tensor) -> Tensor:
    """Return the logarithm of the policy over the ``legal`` actions, ``[N, A]``, in float32."""
    return functional.log_softmax(logits.float().masked_fill(~legal, ILLEGAL_LOGIT), 1)


class Tower(Protocol):
    """The parts of a network that the fast runtimes read."""

    stem: ConvNorm
    tower: nn.Sequential
    head: ConvNorm
    policy: PolicyHead
    value: ValueHead
