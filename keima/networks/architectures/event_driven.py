"""Event-driven spiking networks on a CPU: computation only where a neuron fires.

A convolution adds the weights of each spike to its neighbors' currents. So its time is proportional to the number of
spikes, and currents are exact float32 sums. The first layer does the same for each nonzero element of the observation.
Maps have a margin of one point on all sides, which collects what falls off the board and is never read. The channels of
a point are adjacent in memory. The heads run in torch.
"""

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from keima.networks.architectures.layers import ConvNorm, pooling_width_scale
from keima.networks.architectures.spiking_layers import SpikingBlock, SpikingPooledBlock, SpikingTower
from keima.networks.kernels.spike_kernels import BlockWeights, Numbers, run_block, run_first_layer, run_last_layer


class EventConvolution:
    """The weights of a folded convolution in the layout of ``add_events``; those of several side by side."""

    def __init__(self, *layers: ConvNorm) -> None:
        weights = torch.cat([layer.conv.weight.detach() for layer in layers])
        biases = [layer.conv.bias for layer in layers]
        turned = weights.float().flip(2, 3).permute(1, 2, 3, 0)  # by source of a spike instead of by target
        self.weight: Numbers = turned.flatten(2).contiguous().numpy()
        self.bias: Numbers = torch.cat([bias.detach() for bias in biases if bias is not None]).float().numpy()


class EventBlock:
    """A block of the tower, with or without pooling."""

    def __init__(self, layer: nn.Module) -> None:
        assert isinstance(layer, SpikingBlock | SpikingPooledBlock)
        second = EventConvolution(layer.second)
        if isinstance(layer, SpikingPooledBlock):
            first = EventConvolution(layer.first, layer.pooled)
            pool = layer.bias.weight.detach().float().contiguous().numpy()
            pool_bias = layer.bias.bias.detach().float().numpy()
        else:
            first = EventConvolution(layer.first)
            channels = len(first.bias)
            pool, pool_bias = np.empty((channels, 0), np.float32), np.empty(channels, np.float32)
        self._weights = BlockWeights(
            first=first.weight,
            first_bias=first.bias,
            second=second.weight,
            second_bias=second.bias,
            pool=pool,
            pool_bias=pool_bias,
        )

    def __call__(self, currents: Numbers, board: tuple[int, int]) -> None:
        """Apply the block to currents ``[N, T, points, C]``, in place."""
        run_block(currents, self._weights, board, pooling_width_scale(*board))


class EventDrivenNetwork:
    """A ``SpikingResNet`` in evaluation mode.

    Args:
        network: with its batch norms folded.
    """

    def __init__(self, network: SpikingTower) -> None:
        self.network = network
        self.stem = EventConvolution(network.stem)
        self.blocks = [EventBlock(layer) for layer in network.tower]

    def __call__(self, observations: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
        """Map observations ``[N, C, H, W]`` to policy logits ``[N, A]`` and value logits, float32."""
        count, _, height, width = observations.shape
        board, channels = (height, width), len(self.stem.bias)
        currents = np.empty((count, self.network.time_steps, (height + 2) * (width + 2), channels), np.float32)
        run_first_layer(observations, self.stem.weight, self.stem.bias, currents)
        for layer in self.blocks:
            layer(currents, board)
        rates = np.zeros((count, height * width, channels), np.float32)
        run_last_layer(currents, board, rates)
        return self.network.head_outputs(torch.from_numpy(rates).unflatten(1, board).permute(0, 3, 1, 2))


class EventDrivenRuntime:
    """Runs a ``SpikingResNet`` on a CPU through ``EventDrivenNetwork``."""

    def __init__(self, network: SpikingTower) -> None:
        self._network = EventDrivenNetwork(network)

    def describe(self) -> str:
        """See ``Runtime``."""
        return "event-driven float32 on cpu"

    def load(self, network: nn.Module) -> None:
        """Lay out the new weights."""
        self._network = EventDrivenNetwork(cast(SpikingTower, network))

    def run(self, observations: NDArray[np.float32], count: int) -> tuple[Tensor, Tensor]:
        """Return policy logits ``[n, A]`` and value logits of the observations alone: here padding has no advantage."""
        return self._network(observations)
