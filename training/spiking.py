"""The spiking network: the residual network with neurons that fire or are silent, over a few time steps.

A neuron is leaky integrate-and-fire: at each step its membrane keeps ``DECAY`` of what it held and takes in a current; where that
exceeds ``THRESHOLD``, the neuron fires and loses as much at the next step. Firing has no slope, so training goes through that of an arc
tangent (Fang et al., arXiv 2007.05785). The neurons are snntorch's (Eshraghian et al., arXiv 2109.12894).

The tower is that of MS-ResNet (Hu et al., arXiv 2112.08954): currents pass by the blocks, and every convolution in a block sees
spikes alone. The first layer turns a position into currents, which flow all the time. Norms take their statistics over positions and
time steps together (Zheng et al., arXiv 2011.05280), so that they can be merged into the convolutions. The heads are the residual
network's, and read how often the last neurons have fired. Membranes are empty at the start of each call.
"""

from typing import Any

import torch
from torch import Tensor, nn

from training.resnet import HEAD_CHANNELS, ConvNorm, GlobalPooling, PolicyHead, pooled_channels
from training.value_heads import make_value_head

TIME_STEPS = 4
DECAY, THRESHOLD = 0.5, 1.0


class Neurons(nn.Module):
    """A layer of neurons, one for each element of a map. The time steps of a batch follow each other along its first axis."""

    def __init__(self, time_steps: int) -> None:
        super().__init__()
        self.time_steps = time_steps
        self.cell = leaky_cell()

    def forward(self, currents: Tensor) -> Tensor:
        """Currents ``[T * N, C, H, W]`` -> spikes, 0 or 1, of the same shape."""
        steps = currents.chunk(self.time_steps)
        membrane, spikes = torch.zeros_like(steps[0]), []
        for current in steps:
            fired, membrane = self.cell(current, membrane)
            spikes.append(fired.to(currents.dtype))
        forget(self.cell)
        return torch.cat(spikes)


def leaky_cell() -> nn.Module:
    """The library's neuron, which is given its membrane at each call.

    Raises:
        ValueError: the library is not installed. Only who builds a spiking network needs it.
    """
    try:
        import snntorch
    except ImportError as error:
        raise ValueError("network.type: spiking networks need snntorch, which is not installed: run make setup") from error
    with torch.device("cpu"):  # it looks at its own constants, which the meta device does not have
        cell = snntorch.Leaky(beta=DECAY, threshold=THRESHOLD)
    snntorch.SpikingNeuron.instances.remove(cell)  # a list of all neurons ever made, which would keep every network in memory
    forget(cell)
    return cell


def forget(cell: nn.Module) -> None:
    """Drop what the library's neuron remembers of its last call: it would keep the memory of that call's gradients."""
    cell.mem, cell.reset = None, None  # type: ignore[assignment]


class SpikeConvNorm(ConvNorm):
    """A convolution of spikes, so that it has nothing to multiply."""


class SpikingBlock(nn.Module):
    """Neurons, a convolution, neurons, a convolution, and the way past them. The second norm starts at zero: at first, nothing is added."""

    def __init__(self, channels: int, time_steps: int) -> None:
        super().__init__()
        self.outer = Neurons(time_steps)
        self.first = SpikeConvNorm(channels, channels, 3)
        self.inner = Neurons(time_steps)
        self.second = SpikeConvNorm(channels, channels, 3)
        nn.init.zeros_(self.second.norm.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Currents ``[T * N, C, H, W]`` -> the same shape."""
        return x + self.second(self.inner(self.first(self.outer(x))))


class SpikingPooledBlock(nn.Module):
    """A block in which the spikes of some channels are pooled over the board, at each step, and steer the others as a current."""

    def __init__(self, channels: int, time_steps: int) -> None:
        super().__init__()
        pooled = pooled_channels(channels)
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
        """Currents ``[T * N, C, H, W]`` -> the same shape."""
        spikes = self.outer(x)
        bias = self.bias(self.pool(self.watchers(self.pooled(spikes))))
        return x + self.second(self.inner(self.first(spikes) + bias[:, :, None, None]))


class SpikingResNet(nn.Module):
    """The network. Its weights do not depend on the board's size where every action is a point or a pass.

    Args:
        observation_shape: C, H, W.
        policy_planes: the first ``policy_planes * H * W`` actions are points, in (plane, row, column) order.
        global_pooling: whether every third block, and the policy head, see the pooled board.
        most_points: that can be made in a one-player game; None for games that are won and lost.
        time_steps: in which neurons can fire.

    Raises:
        ValueError: snntorch is not installed.
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
        time_steps: int = TIME_STEPS,
    ) -> None:
        super().__init__()
        planes, height, width = observation_shape
        self.time_steps = time_steps
        self.stem = ConvNorm(planes, channels, 3)
        kinds: list[Any] = [SpikingPooledBlock if global_pooling and index % 3 == 1 else SpikingBlock for index in range(blocks)]
        self.tower = nn.Sequential(*(kind(channels, time_steps) for kind in kinds))
        self.last = Neurons(time_steps)
        self.head = ConvNorm(channels, HEAD_CHANNELS, 1)
        self.pool = GlobalPooling()
        self.policy = PolicyHead(channels, height * width, num_actions, policy_planes, global_pooling)
        self.value = make_value_head(3 * HEAD_CHANNELS, most_points)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Observations ``[N, C, H, W]`` -> policy logits ``[N, A]``, value logits as the value head has them."""
        currents = self.tower(torch.cat([self.stem(observations)] * self.time_steps))
        rates = torch.stack(self.last(currents).chunk(self.time_steps)).mean(0)
        pooled = self.pool(torch.relu(self.head(rates)))
        return self.policy(rates, pooled), self.value(pooled)
