"""The spiking network: a residual network of spiking neurons, run over a few time steps.

The tower is that of MS-ResNet (Hu et al., arXiv 2112.08954): skip connections carry currents, and every convolution in
a block sees only spikes. The first layer turns a position into currents, constant over the time steps. Norms take their
statistics over positions and time steps together (Zheng et al., arXiv 2011.05280), so that they can be merged into the
convolutions. The heads are the residual network's; their input is the firing rate of the last neurons. Membranes start
empty at each call.
"""

from typing import Any

import torch
from torch import Tensor, nn

from keima.base.reports.run_reports import SpikeReport
from keima.networks.architectures.event_driven import EventDrivenRuntime
from keima.networks.architectures.layers import HEAD_CHANNELS, ConvNorm, GlobalPooling, PolicyHead
from keima.networks.architectures.spike_counts import measure_spikes
from keima.networks.architectures.spiking_layers import Neurons, SpikingBlock, SpikingPooledBlock
from keima.networks.policy_value import Runtime
from keima.networks.value_heads import make_value_head

TIME_STEPS = 4


class SpikingResNet(nn.Module):
    """The spiking network. Its weights do not depend on the board's size if every action is a point or a pass.

    Args:
        observation_shape: C, H, W.
        policy_planes: the first ``policy_planes * H * W`` actions are points, in (plane, row, column) order.
        global_pooling: whether every third block, and the policy head, see the pooled board.
        most_points: the largest score of a one-player game; None in other games.
        num_values: of a position (``Game.num_values``).
        time_steps: the number of time steps.
    """

    # Rounding a current changes whether a neuron fires, which changes the answers by a few per cent.
    runtime_dtype = torch.float32
    # On CUDA devices float32 convolutions round their weights to 11 bits (TF32). The weights of a model that has been
    # sent have 8 and are exact, so with spikes every product is exact; merged with norms they would have more.
    folds_on_cuda = False

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
        time_steps: int = TIME_STEPS,
    ) -> None:
        super().__init__()
        planes, height, width = observation_shape
        self.time_steps = time_steps
        self.stem = ConvNorm(planes, channels, 3)
        kinds: list[Any] = [
            SpikingPooledBlock if global_pooling and index % 3 == 1 else SpikingBlock for index in range(blocks)
        ]
        self.tower = nn.Sequential(*(kind(channels, time_steps) for kind in kinds))
        self.last = Neurons(time_steps)
        self.head = ConvNorm(channels, HEAD_CHANNELS, 1)
        self.pool = GlobalPooling()
        self.policy = PolicyHead(channels, height * width, num_actions, policy_planes, global_pooling)
        self.value = make_value_head(3 * HEAD_CHANNELS, most_points, num_values)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Map observations ``[N, C, H, W]`` to policy logits ``[N, A]`` and the value logits of the value head."""
        currents = self.tower(torch.cat([self.stem(observations)] * self.time_steps))
        return self.head_outputs(torch.stack(self.last(currents).chunk(self.time_steps)).mean(0))

    def head_outputs(self, rates: Tensor) -> tuple[Tensor, Tensor]:
        """Return the heads' outputs for firing rates ``[N, channels, H, W]`` of the last neurons."""
        pooled = self.pool(torch.relu(self.head(rates)))
        return self.policy(rates, pooled), self.value(pooled)

    def settings(self) -> dict[str, Any]:
        """See ``PolicyValueNetwork``."""
        return {
            "type": "spiking",
            "blocks": len(self.tower),
            "channels": self.stem.conv.out_channels,
            "global_pooling": self.policy.bias is not None,
            "time_steps": self.time_steps,
        }

    def runtime(self, observation_shape: tuple[int, int, int], dtype: torch.dtype) -> Runtime | None:
        """Return event-driven kernels, in float32."""
        return EventDrivenRuntime(self) if dtype == torch.float32 else None

    def statistics(self, observations: Tensor) -> SpikeReport | None:
        """Return the spikes and operations that these observations cause."""
        return measure_spikes(self, observations)
