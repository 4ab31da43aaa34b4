"""The residual network: a tower with global pooling, for any board and any number of actions. Networks with another
tower (keima/networks/architectures/bottleneck.py) share its first layer and its heads.

Sources: AlphaZero (arXiv 1712.01815) for the tower; KataGo (arXiv 1902.10565, appendix A) for global pooling in the
tower and in both heads, through which every point sees the whole board. The value head is in
``keima/networks/value_heads.py``.
"""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from keima.base.reports.run_reports import SpikeReport
from keima.networks.architectures.fused import make_fused_runtime
from keima.networks.architectures.layers import (
    HEAD_CHANNELS,
    ConvNorm,
    GlobalPooling,
    PolicyHead,
    make_residual_blocks,
)
from keima.networks.policy_value import Runtime
from keima.networks.value_heads import make_value_head


class TowerShape(NamedTuple):
    """The size of a tower; see ``build_network``."""

    blocks: int
    channels: int
    global_pooling: bool
    squeeze_excitation: bool


class ResNet(nn.Module):
    """The residual network. Its weights do not depend on the board's size if every action is a point or a pass.

    Args:
        observation_shape: C, H, W.
        policy_planes: the first ``policy_planes * H * W`` actions are points, in (plane, row, column) order.
        global_pooling: whether every third block, and the policy head, see the pooled board.
        most_points: the largest score of a one-player game; None in other games.
        num_values: of a position (``Game.num_values``).
        squeeze_excitation: whether blocks scale their channels by the board's means.
    """

    kind: ClassVar[str] = "resnet"  # ``type`` in the settings
    runtime_dtype = None
    folds_on_cuda = True

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
        num_values: int = 1,
        squeeze_excitation: bool = False,
    ) -> None:
        super().__init__()
        planes, height, width = observation_shape
        self.stem = ConvNorm(planes, channels, 3)
        self.shape = TowerShape(blocks, channels, global_pooling, squeeze_excitation)
        self.tower = self.make_tower(self.shape)
        self.head = ConvNorm(channels, HEAD_CHANNELS, 1)
        self.pool = GlobalPooling()
        self.policy = PolicyHead(channels, height * width, num_actions, policy_planes, global_pooling)
        self.value = make_value_head(3 * HEAD_CHANNELS, most_points, num_values)

    def make_tower(self, shape: TowerShape) -> nn.Sequential:
        """Make the part between the first layer and the heads, which maps ``[N, channels, H, W]`` to the same shape."""
        return make_residual_blocks(
            shape.blocks,
            shape.channels,
            global_pooling=shape.global_pooling,
            squeeze_excitation=shape.squeeze_excitation,
        )

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Map observations ``[N, C, H, W]`` to policy logits ``[N, A]`` and the value logits of the value head."""
        x, pooled = self.features(observations)
        return self.policy(x, pooled), self.value(pooled)

    def features(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of the heads: the tower's output ``[N, channels, H, W]`` and the pooled board ``[N, 3 *
        HEAD_CHANNELS]``.
        """
        x = self.tower(torch.relu(self.stem(observations)))
        return x, self.pool(torch.relu(self.head(x)))

    def settings(self) -> dict[str, Any]:
        """See ``PolicyValueNetwork``."""
        return {"type": self.kind, **self.shape._asdict()}

    def runtime(self, observation_shape: tuple[int, int, int], dtype: torch.dtype) -> Runtime | None:
        """Return fused operators, where they work."""
        return make_fused_runtime(self, observation_shape, dtype) if self.has_fused_operators else None

    @property
    def has_fused_operators(self) -> bool:
        """Whether ``FusedResNet`` can compute all layers of the tower."""
        return self.kind == "resnet" and not self.shape.squeeze_excitation

    def statistics(self, observations: Tensor) -> SpikeReport | None:
        """Return None."""
        return None
