"""The residual network: a tower with global pooling, for any board and any number of actions.

Sources: AlphaZero (arXiv 1712.01815) for the tower; KataGo (arXiv 1902.10565, appendix A) for global pooling in the
tower, in the policy head and in the value head, which lets every point of the board see the whole board at once. What
the value head says is in ``training/networks/value_heads.py``.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.networks.value_heads import make_value_head, start_near_zero

HEAD_CHANNELS = 32  # of the policy head's map; as many again are pooled for both heads
MEAN_WIDTH = 14.0  # KataGo's middle board width: pooled means are also given scaled by (width - 14) / 10


class ConvNorm(nn.Module):
    """A convolution that keeps the board's size, then batch norm, which ``fold`` merges into the convolution's weights."""

    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(outputs)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_in", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """``[N, inputs, H, W]`` -> ``[N, outputs, H, W]``."""
        return self.norm(self.conv(x))

    def fold(self) -> None:
        """Merge the batch norm, in evaluation mode, into the convolution."""
        assert isinstance(self.norm, nn.BatchNorm2d)
        self.conv = nn.utils.fusion.fuse_conv_bn_eval(self.conv, self.norm)
        self.norm = nn.Identity()


class GlobalPooling(nn.Module):
    """What a whole board's map amounts to: per channel the mean, the mean scaled by the board's width, and the largest
    element.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` -> ``[N, 3 * C]``."""
        mean = x.mean((2, 3))
        scale = width_scale(x.shape[2], x.shape[3])
        return torch.cat([mean, mean * scale, functional.max_pool2d(x, x.shape[2:]).flatten(1)], 1)


def width_scale(height: int, width: int) -> float:
    """The factor of the scaled mean: 0 on KataGo's middle board, -0.5 on 9x9."""
    return (math.sqrt(height * width) - MEAN_WIDTH) / 10


class Block(nn.Module):
    """Two convolutions and the way past them.

    The second norm starts at zero, so that a new tower passes its input through.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = ConvNorm(channels, channels, 3)
        self.second = ConvNorm(channels, channels, 3)
        nn.init.zeros_(self.second.norm.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` -> the same shape."""
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class PooledBlock(nn.Module):
    """A block in which some channels are pooled over the board and steer the others as a bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        pooled = pooled_channels(channels)
        self.first = ConvNorm(channels, channels - pooled, 3)
        self.pooled = ConvNorm(channels, pooled, 3)
        self.pool = GlobalPooling()
        self.bias = nn.Linear(3 * pooled, channels - pooled)
        self.second = ConvNorm(channels - pooled, channels, 3)
        nn.init.zeros_(self.bias.bias)
        nn.init.zeros_(self.second.norm.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` -> the same shape."""
        bias = self.bias(self.pool(torch.relu(self.pooled(x))))
        return torch.relu(x + self.second(torch.relu(self.first(x) + bias[:, :, None, None])))


def pooled_channels(channels: int) -> int:
    """About a quarter of the channels, in whole vectors of 32 (KataGo's 32 of 96 and 128, 64 of 256), at most half."""
    return min(channels // 2, 32 * math.ceil(channels / 128))


class ResNet(nn.Module):
    """The network. Its weights do not depend on the board's size where every action is a point or a pass.

    Args:
        observation_shape: C, H, W.
        policy_planes: the first ``policy_planes * H * W`` actions are points, in (plane, row, column) order.
        global_pooling: whether every third block, and the policy head, see the pooled board.
        most_points: that can be made in a one-player game; None for games that are won and lost.
    """

    def __init__(
        self,
        *,
        observation_shape: tuple[int, int, int],
        num_actions: int,
        policy_planes: int,
        blocks: int = 6,
        channels: int = 64,
        global_pooling: bool = True,
        most_points: float | None = None,
    ) -> None:
        super().__init__()
        planes, height, width = observation_shape
        self.stem = ConvNorm(planes, channels, 3)
        kinds = [PooledBlock if global_pooling and index % 3 == 1 else Block for index in range(blocks)]
        self.tower = nn.Sequential(*(kind(channels) for kind in kinds))
        self.head = ConvNorm(channels, HEAD_CHANNELS, 1)
        self.pool = GlobalPooling()
        self.policy = PolicyHead(channels, height * width, num_actions, policy_planes, global_pooling)
        self.value = make_value_head(3 * HEAD_CHANNELS, most_points)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Observations ``[N, C, H, W]`` -> policy logits ``[N, A]``, value logits as the value head has them."""
        x, pooled = self.features(observations)
        return self.policy(x, pooled), self.value(pooled)

    def features(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """What the heads look at: the tower's output ``[N, channels, H, W]`` and the pooled board ``[N, 3 *
        HEAD_CHANNELS]``.
        """
        x = self.tower(torch.relu(self.stem(observations)))
        return x, self.pool(torch.relu(self.head(x)))


class PolicyHead(nn.Module):
    """Logits of points from maps, logits of other actions from the pooled board (or, without points, from the flattened
    board).
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
            start_near_zero(layer)

    def forward(self, x: Tensor, pooled: Tensor) -> Tensor:
        """The tower's output ``[N, channels, H, W]`` and the pooled board -> policy logits ``[N, A]``."""
        x = torch.relu(self.conv(x) + self.point_bias(pooled)[:, :, None, None])
        return self.logits(x.permute(0, 2, 3, 1).flatten(1, 2), pooled)

    def point_bias(self, pooled: Tensor) -> Tensor:
        """What the pooled board adds to every point, ``[N, channels]``."""
        if self.bias is None:
            return pooled.new_zeros(len(pooled), HEAD_CHANNELS)
        return self.bias(pooled)

    def logits(self, x: Tensor, pooled: Tensor) -> Tensor:
        """The map ``[N, H * W, channels]`` and the pooled board -> ``[N, A]``."""
        if self.points is None:
            assert self.others is not None
            return self.others(x.flatten(1))
        points = self.points(x).transpose(1, 2).flatten(1)  # (plane, row, column)
        return points if self.others is None else torch.cat([points, self.others(pooled)], 1)
