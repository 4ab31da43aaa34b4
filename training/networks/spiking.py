"""The spiking network: the residual network with neurons that fire or are silent, over a few time steps.

A neuron is leaky integrate-and-fire: at each step its membrane keeps ``DECAY`` of what it held and takes in a current;
where that exceeds ``THRESHOLD``, the neuron fires and loses as much at the next step. Firing has no slope, so training
goes through that of an arc tangent (Fang et al., arXiv 2007.05785). The neurons say what snntorch's do (Eshraghian et
al., arXiv 2109.12894), as the tests show.

The tower is that of MS-ResNet (Hu et al., arXiv 2112.08954): currents pass by the blocks, and every convolution in a
block sees spikes alone. The first layer turns a position into currents, which flow all the time. Norms take their
statistics over positions and time steps together (Zheng et al., arXiv 2011.05280), so that they can be merged into the
convolutions. The heads are the residual network's, and read how often the last neurons have fired. Membranes are empty
at the start of each call.
"""

from typing import Any

import torch
from torch import Tensor, nn

from training.networks.bfloat16 import Words
from training.networks.resnet import HEAD_CHANNELS, ConvNorm, GlobalPooling, PolicyHead, pooled_channels
from training.networks.spike_kernels import DECAY, THRESHOLD, descend, descend_words, fire, fire_words
from training.networks.value_heads import make_value_head

TIME_STEPS = 4


class Neurons(nn.Module):
    """A layer of neurons, one for each element of a map.

    The time steps of a batch follow each other along its first axis.
    """

    def __init__(self, time_steps: int) -> None:
        super().__init__()
        self.time_steps = time_steps

    def forward(self, currents: Tensor) -> Tensor:
        """Currents ``[T * N, C, H, W]`` -> spikes, 0 or 1, of the same shape and type.

        Membranes are float32 whatever that type is.
        """
        return _Fire.apply(currents, self.time_steps)  # type: ignore[no-untyped-call]


class _Fire(torch.autograd.Function):
    """All time steps of a layer at once.

    What the membranes hold is computed again for the gradient rather than kept.
    """

    @staticmethod
    def forward(ctx: Any, currents: Tensor, time_steps: int) -> Tensor:
        currents = currents.detach()
        if currents.ndim == 4 and not currents.is_contiguous():
            currents = currents.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(currents)
        ctx.time_steps = time_steps
        spikes = torch.empty_like(currents)
        steps, fired = by_step(currents, time_steps), by_step(spikes, time_steps)
        if not kernels_work_with(currents):
            fired.copy_(torch.stack(membranes(steps)) > THRESHOLD)
        elif currents.dtype == torch.bfloat16:
            fire_words(words(steps), words(fired))
        else:
            fire(steps.numpy(), fired.numpy())
        return spikes

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (currents,) = ctx.saved_tensors
        gradient = torch.empty_like(currents).copy_(gradients[0])
        steps, slopes = by_step(currents, ctx.time_steps), by_step(gradient, ctx.time_steps)
        if not kernels_work_with(currents):
            later = torch.zeros_like(_wide(steps[0]))
            for membrane, slope in zip(reversed(membranes(steps)), reversed(slopes.unbind()), strict=True):
                later = DECAY * later + _wide(slope) / (1 + (torch.pi * (membrane - THRESHOLD)).square())
                slope.copy_(later)
        elif currents.dtype == torch.bfloat16:
            descend_words(words(steps), words(slopes))
        else:
            descend(steps.numpy(), slopes.numpy())
        return gradient, None


def by_step(maps: Tensor, time_steps: int) -> Tensor:
    """The memory of maps ``[T * N, ...]`` as ``[T, elements of a step]``, in whatever order they lie in it."""
    return (maps if maps.is_contiguous() else maps.permute(0, 2, 3, 1)).view(time_steps, -1)


def kernels_work_with(currents: Tensor) -> bool:
    """Whether the compiled kernels take these; torch's own operations take all others, such as those on a GPU."""
    return currents.device.type == "cpu" and currents.dtype in (torch.float32, torch.bfloat16)


def membranes(steps: Tensor) -> list[Tensor]:
    """What the membranes hold after each step's currents ``[T, M]``, through torch."""
    held = [torch.zeros_like(_wide(steps[0]))]
    for current in steps:
        held.append(DECAY * held[-1] + _wide(current) - (held[-1] > THRESHOLD).to(held[-1].dtype))
    return held[1:]


def words(steps: Tensor) -> Words:
    """The memory of bfloat16 numbers as words."""
    return steps.view(torch.uint16).numpy()


def _wide(numbers: Tensor) -> Tensor:
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


class SpikeConvNorm(ConvNorm):
    """A convolution of spikes, so that it has nothing to multiply."""


class SpikingBlock(nn.Module):
    """Neurons, a convolution, neurons, a convolution, and the way past them.

    The second norm starts at zero: at first, nothing is added.
    """

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
    """A block in which the spikes of some channels are pooled over the board, at each step, and steer the others as a
    current.
    """

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
        kinds: list[Any] = [
            SpikingPooledBlock if global_pooling and index % 3 == 1 else SpikingBlock for index in range(blocks)
        ]
        self.tower = nn.Sequential(*(kind(channels, time_steps) for kind in kinds))
        self.last = Neurons(time_steps)
        self.head = ConvNorm(channels, HEAD_CHANNELS, 1)
        self.pool = GlobalPooling()
        self.policy = PolicyHead(channels, height * width, num_actions, policy_planes, global_pooling)
        self.value = make_value_head(3 * HEAD_CHANNELS, most_points)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Observations ``[N, C, H, W]`` -> policy logits ``[N, A]``, value logits as the value head has them."""
        currents = self.tower(torch.cat([self.stem(observations)] * self.time_steps))
        return self.answers(torch.stack(self.last(currents).chunk(self.time_steps)).mean(0))

    def answers(self, rates: Tensor) -> tuple[Tensor, Tensor]:
        """What the heads say when the last neurons fire at these rates ``[N, channels, H, W]``."""
        pooled = self.pool(torch.relu(self.head(rates)))
        return self.policy(rates, pooled), self.value(pooled)
