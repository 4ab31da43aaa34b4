"""Spike statistics: firing rates and operation counts, the measure of a spiking network's energy.

A spike's synapses are its connections through the convolutions that receive it, on the board and in all their channels.
Each costs one addition, a synaptic operation. Layers that receive numbers instead of spikes (the first layer, pooled
boards, the heads) need multiply-accumulates, counted in the same way, without padding. Norms, membranes, sums of maps
and biases are not counted, with or without spikes.
"""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from keima.base.reports.run_reports import SpikeReport
from keima.networks.architectures.spiking_layers import Neurons, SpikeConvNorm


class SpikeCounter:
    """Counts in the layers of a network while it runs; the counts stay on the device until they are read."""

    def __init__(self, network: nn.Module) -> None:
        self.layers: dict[str, tuple[Tensor, int]] = {}  # spikes, and the most possible
        self.reached: list[Tensor] = []  # synaptic operations, by layer
        self.dense: list[float] = []  # multiply-accumulates, by layer that sees numbers
        self.once: list[float] = []  # connections, by layer of either kind, for one board
        self._names = {module: name for name, module in network.named_modules()}
        self._of_spikes = {module.conv for module in network.modules() if isinstance(module, SpikeConvNorm)}

    def count_spikes(self, layer: nn.Module, _: Any, spikes: Tensor) -> None:
        """Count spikes, as a hook after ``Neurons``."""
        self.layers[self._names[layer]] = (spikes.sum(dtype=torch.float64), spikes.numel())

    def count_operations(self, layer: nn.Module, inputs: tuple[Tensor], _: Any) -> None:
        """Count operations, as a hook after a convolution or a linear layer."""
        x = inputs[0]
        connections = fan_out(layer, x)
        self.once.append(float(connections.sum(dtype=torch.float64)) * x[0].numel() / connections.numel())
        if layer in self._of_spikes:
            self.reached.append((x * connections).sum(dtype=torch.float64))
        else:
            self.dense.append(self.once[-1] * len(x))


def fan_out(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the number of outputs of each input: ``[H, W]`` for maps ``[N, C, H, W]``, a number for a linear layer."""
    if isinstance(layer, nn.Linear):
        return torch.full((1,), layer.out_features, device=x.device)
    assert isinstance(layer, nn.Conv2d)
    board = torch.ones(1, 1, *x.shape[2:], device=x.device)
    kernel = torch.ones(1, 1, *layer.kernel_size, device=x.device)
    return functional.conv2d(board, kernel, padding=layer.padding)[0, 0] * layer.out_channels


@torch.no_grad()
def measure_spikes(network: nn.Module, observations: Tensor) -> SpikeReport:
    """Return the spikes and operations of a spiking network, in evaluation mode, on observations ``[N, C, H, W]``, N >=
    1.
    """
    counter = SpikeCounter(network)
    with ExitStack() as hooks:
        for module in network.modules():
            if isinstance(module, Neurons):
                hooks.enter_context(module.register_forward_hook(counter.count_spikes))
            elif isinstance(module, nn.Conv2d | nn.Linear):
                hooks.enter_context(module.register_forward_hook(counter.count_operations))
        network(observations)
    layers, count = counter.layers, len(observations)
    return SpikeReport(
        firing_rate=sum(spikes.item() for spikes, _ in layers.values()) / sum(most for _, most in layers.values()),
        layers={name: spikes.item() / most for name, (spikes, most) in layers.items()},
        synaptic_operations=sum(operations.item() for operations in counter.reached) / count,
        multiply_accumulates=sum(counter.dense) / count,
        without_spikes=sum(counter.once),
    )
