"""Residual networks of nested bottleneck blocks.

Source: KataGo (docs/KataGoMethods.md there): a block narrows the map to half its channels, has two residual blocks of
that width, and widens it again. For the same time it is deeper, and its sum is wider. Ours has the order of the
residual network's blocks: a convolution, its norm, then the ReLU.
"""

import torch
from torch import Tensor, nn

from keima.networks.architectures.layers import ConvNorm, SqueezeExcitation, make_residual_blocks
from keima.networks.architectures.resnet import ResNet, TowerShape

INNER_BLOCKS = 2


class BottleneckBlock(nn.Module):
    """A narrowing convolution, residual blocks of half the channels, a widening convolution, and a skip connection."""

    def __init__(self, channels: int, *, global_pooling: bool, squeeze_excitation: bool) -> None:
        super().__init__()
        self.narrow = ConvNorm(channels, channels // 2, 1)
        self.inner = make_residual_blocks(
            INNER_BLOCKS, channels // 2, global_pooling=global_pooling, squeeze_excitation=False
        )
        self.widen = ConvNorm(channels // 2, channels, 1)
        self.excitation = SqueezeExcitation(channels) if squeeze_excitation else nn.Identity()
        nn.init.zeros_(self.widen.norm.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[N, C, H, W]`` to the same shape."""
        return torch.relu(x + self.excitation(self.widen(self.inner(torch.relu(self.narrow(x))))))


class BottleneckNet(ResNet):
    """A network of nested bottleneck blocks; every third has an inner block that pools the board."""

    kind = "bottleneck"

    def make_tower(self, shape: TowerShape) -> nn.Sequential:
        """See ``ResNet``."""
        return nn.Sequential(
            *(
                BottleneckBlock(
                    shape.channels,
                    global_pooling=shape.global_pooling and index % 3 == 1,
                    squeeze_excitation=shape.squeeze_excitation,
                )
                for index in range(shape.blocks)
            )
        )
