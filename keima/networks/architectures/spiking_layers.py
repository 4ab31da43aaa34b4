"""The layers of the spiking network: neurons and blocks.

A neuron is leaky integrate-and-fire: at each step its membrane keeps ``DECAY`` of its potential and adds the input
current. Above ``THRESHOLD`` the neuron fires, and the threshold is subtracted at the next step. Training uses the arc
tangent's surrogate gradient (Fang et al., arXiv 2007.05785). The neurons behave like snntorch's (Eshraghian et al.,
arXiv 2109.12894), as the tests show.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from keima.networks.architectures.layers import ConvNorm, GlobalPooling, Tower, count_pooled_channels
from keima.networks.kernels.bfloat16 import Words
from keima.networks.kernels.spike_kernels import (
    DECAY,
    THRESHOLD,
    backpropagate_spikes,
    backpropagate_spikes_words,
    compute_spikes,
    compute_spikes_words,
)


class Neurons(nn.Module):
    """A layer of neurons, one per element of a map. Time steps are concatenated along the first axis."""

    def __init__(self, time_steps: int) -> None:
        super().__init__()
        self.time_steps = time_steps

    def forward(self, currents: Tensor) -> Tensor:
        """Map currents ``[T * N, C, H, W]`` to spikes, 0 or 1, of the same shape and type.

        Membranes are float32 in any case.
        """
        return _Fire.apply(currents, self.time_steps)  # type: ignore[no-untyped-call]


class _Fire(torch.autograd.Function):
    """All time steps of a layer at once. The backward pass recomputes the membranes instead of keeping them."""

    @staticmethod
    def forward(ctx: Any, currents: Tensor, time_steps: int) -> Tensor:
        currents = currents.detach()
        if currents.ndim == 4 and not currents.is_contiguous():
            currents = currents.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(currents)
        ctx.time_steps = time_steps
        spikes = torch.empty_like(currents)
        steps, fired = view_by_step(currents, time_steps), view_by_step(spikes, time_steps)
        if not can_use_kernels(currents):
            fired.copy_(torch.stack(compute_membranes(steps)) > THRESHOLD)
        elif currents.dtype == torch.bfloat16:
            compute_spikes_words(view_as_words(steps), view_as_words(fired))
        else:
            compute_spikes(steps.numpy(), fired.numpy())
        return spikes

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (currents,) = ctx.saved_tensors
        gradient = torch.empty_like(currents).copy_(gradients[0])
        steps, slopes = view_by_step(currents, ctx.time_steps), view_by_step(gradient, ctx.time_steps)
        if not can_use_kernels(currents):
            later = torch.zeros_like(_to_float32(steps[0]))
            for membrane, slope in zip(reversed(compute_membranes(steps)), reversed(slopes.unbind()), strict=True):
                later = DECAY * later + _to_float32(slope) / (1 + (torch.pi * (membrane - THRESHOLD)).square())
                slope.copy_(later)
        elif currents.dtype == torch.bfloat16:
            backpropagate_spikes_words(view_as_words(steps), view_as_words(slopes))
        else:
            backpropagate_spikes(steps.numpy(), slopes.numpy())
        return gradient, None


def view_by_step(maps: Tensor, time_steps: int) -> Tensor:
    """Return the memory of maps ``[T * N, ...]`` as ``[T, elements of a step]``, in memory order."""
    return (maps if maps.is_contiguous() else maps.permute(0, 2, 3, 1)).view(time_steps, -1)


def can_use_kernels(currents: Tensor) -> bool:
    """Return whether the compiled kernels accept these tensors; torch computes all others, such as those on a GPU."""
    return currents.device.type == "cpu" and currents.dtype in (torch.float32, torch.bfloat16)


def compute_membranes(steps: Tensor) -> list[Tensor]:
    """Return the membranes after each step's currents ``[T, M]``, by torch."""
    held = [torch.zeros_like(_to_float32(steps[0]))]
    for current in steps:
        held.append(DECAY * held[-1] + _to_float32(current) - (held[-1] > THRESHOLD).to(held[-1].dtype))
    return held[1:]


def view_as_words(steps: Tensor) -> Words:
    """Return the memory of bfloat16 numbers as 16-bit words."""
    return steps.view(torch.uint16).numpy()


def _to_float32(numbers: Tensor) -> Tensor:
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


class SpikeConvNorm(ConvNorm):
    """A convolution of spikes, which needs no multiplications."""


class SpikingBlock(nn.Module):
    """Neurons, convolution, neurons, convolution, with a skip connection.

    The second norm starts at zero, so that a new block is the identity.
    """

    def __init__(self, channels: int, time_steps: int) -> None:
        super().__init__()
        self.outer = Neurons(time_steps)
        self.first = SpikeConvNorm(channels, channels, 3)
        self.inner = Neurons(time_steps)
        self.second = SpikeConvNorm(channels, channels, 3)
        nn.init.zeros_(self.second.norm.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Map currents ``[T * N, C, H, W]`` to the same shape."""
        return x + self.second(self.inner(self.first(self.outer(x))))


class SpikingPooledBlock(nn.Module):
    """A block in which the spikes of some channels are pooled over the board and added to the others as a current."""

    def __init__(self, channels: int, time_steps: int) -> None:
        super().__init__()
        pooled = count_pooled_channels(channels)
        self.outer = Neurons(time_steps)
        self.first = SpikeConvNorm(channels, channels - pooled, 3)
        self.pooled = SpikeConvNorm(channels, pooled, 3)
        self.watchers = Neurons(time_steps)
        self.pool = GlobalPooling()
        self.bias = nn.Linear(3 * pooled, channels - pooled)
        self.inner = Neurons(time_steps)
        self.second = SpikeConvNorm(channels - pooled, channels, 3)
        nn.init.zeros_(self.bias.bias)
        nn.init.zeros_(self.second.norm.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Map currents ``[T * N, C, H, W]`` to the same shape."""
        spikes = self.outer(x)
        bias = self.bias(self.pool(self.watchers(self.pooled(spikes))))
        return x + self.second(self.inner(self.first(spikes) + bias[:, :, None, None]))


class SpikingTower(Tower, Protocol):
    """The parts of a spiking network that the event-driven runtime reads."""

    time_steps: int

    def head_outputs(self, rates: Tensor) -> tuple[Tensor, Tensor]:
        """Return the heads' outputs for firing rates ``[N, channels, H, W]`` of the last neurons."""
