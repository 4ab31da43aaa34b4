"""The residual network on a CPU, several times as fast as ordinary torch calls.

Batch norms are folded into the convolutions. Activations are ``[N, H, W, C]`` in memory, in bfloat16 if the processor
multiplies it fast, else in float32.

In bfloat16 a convolution, its bias, the skip connection and the ReLU are one call of oneDNN with packed weights: the
operators that ``torch.compile`` uses, here without a compiler. Global pooling and its bias are too small for oneDNN and
run in compiled kernels. In float32 convolutions need a third of the multiplications
(keima/networks/kernels/winograd.py).
"""

import logging
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from keima.compilation.decorators import compiled
from keima.networks.architectures.layers import (
    Block,
    ConvNorm,
    GlobalPooling,
    PooledBlock,
    Tower,
    pooling_width_scale,
)
from keima.networks.kernels.bfloat16 import Words, bfloat16_to_float32, float32_to_bfloat16
from keima.networks.kernels.winograd import WinogradConvolution, is_winograd_faster

PACKED_BATCH = 64  # the batch size for which weights are packed; others have the same packing where it was measured

log = logging.getLogger(__name__)


@compiled
def pack_observations(observations: NDArray[np.float32], words: Words) -> None:
    """Pack observations ``[N, C, P]`` into words ``[N, P, C]``."""
    count, channels, points = observations.shape
    for n in range(count):
        for p in range(points):
            for c in range(channels):
                words[n, p, c] = float32_to_bfloat16(observations[n, c, p])


@compiled
def pool_words(words: Words, scale: float, out: NDArray[np.float32]) -> None:
    """Pool non-negative maps ``[N, P, C]`` to ``[N, 3 * C]``: per channel mean, mean times ``scale``, and maximum."""
    count, points, channels = words.shape
    largest = np.empty(channels, np.uint16)
    for n in range(count):
        row = out[n]
        row[:channels] = 0
        largest[:] = 0
        for p in range(points):
            for c in range(channels):
                word = words[n, p, c]
                row[c] += bfloat16_to_float32(word)
                largest[c] = max(largest[c], word)  # words of non-negative numbers have the numbers' order
        for c in range(channels):
            row[c] /= np.float32(points)
            row[channels + c] = row[c] * np.float32(scale)
            row[2 * channels + c] = bfloat16_to_float32(largest[c])


@compiled
def add_bias_relu(words: Words, bias: NDArray[np.float32]) -> None:
    """``max(0, x + bias)`` in place; the bias ``[N, C]`` differs by board and channel."""
    count, points, channels = words.shape
    for n in range(count):
        for p in range(points):
            for c in range(channels):
                words[n, p, c] = float32_to_bfloat16(
                    max(bfloat16_to_float32(words[n, p, c]) + bias[n, c], np.float32(0))
                )


@compiled
def add_bias_relu_wide(words: Words, bias: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Compute ``max(0, x + bias)`` in full precision, for the last layer before the logits."""
    count, points, channels = words.shape
    for n in range(count):
        for p in range(points):
            for c in range(channels):
                out[n, p, c] = max(bfloat16_to_float32(words[n, p, c]) + bias[n, c], np.float32(0))


class FoldedConvolution(Protocol):
    """A convolution and what follows it; maps are ``[N, C, H, W]``, channels last."""

    def __call__(self, x: Tensor, activation: str) -> Tensor:
        """Convolve ``x``; ``activation`` is "relu" or "none"."""

    def convolve_add_relu(self, residual: Tensor, x: Tensor) -> Tensor:
        """Compute ``relu(residual + convolution of x)``, which may take the residual's memory."""


class Arithmetic(Protocol):
    """The operations in one number type. Maps are ``[N, C, H, W]``, channels last."""

    dtype: torch.dtype

    def make_convolution(self, layer: ConvNorm, board: tuple[int, int]) -> FoldedConvolution:
        """Return the folded convolution ``layer`` on maps of this height and width."""

    def pool(self, x: Tensor) -> Tensor:
        """Apply ``GlobalPooling`` to a non-negative map; the result is float32 ``[N, 3 * C]``."""

    def add_bias_relu(self, x: Tensor, bias: Tensor) -> None:
        """Compute ``x = max(0, x + bias)`` in place, with ``bias`` float32 ``[N, C]``."""

    def point_features(self, x: Tensor, bias: Tensor) -> Tensor:
        """Compute ``max(0, x + bias)`` in full precision, ``[N, H * W, C]``."""


class ProcessorArithmetic(Arithmetic, Protocol):
    """The operations on a CPU, and the way from observations to maps."""

    def load_board(self, observations: NDArray[np.float32], count: int) -> Tensor:
        """Return the network's input of ``count`` rows: the observations ``[n, C, H, W]`` and padding."""


class Bfloat16:
    """Compiled kernels over words: torch's pooling and broadcast additions take two to five times as long."""

    dtype = torch.bfloat16

    def make_convolution(self, layer: ConvNorm, board: tuple[int, int]) -> FoldedConvolution:
        """See ``Arithmetic``; it calls oneDNN."""
        return Convolution(layer, self.dtype, board)

    def load_board(self, observations: NDArray[np.float32], count: int) -> Tensor:
        """See ``ProcessorArithmetic``; it rounds and reorders in one pass."""
        rows, channels, height, width = observations.shape
        words = np.zeros((count, height * width, channels), np.uint16)
        pack_observations(observations.reshape(rows, channels, height * width), words)
        return torch.from_numpy(words).view(torch.bfloat16).unflatten(1, (height, width)).permute(0, 3, 1, 2)

    def pool(self, x: Tensor) -> Tensor:
        """See ``Arithmetic``."""
        out = np.empty((x.shape[0], 3 * x.shape[1]), np.float32)
        pool_words(map_words(x), pooling_width_scale(x.shape[2], x.shape[3]), out)
        return torch.from_numpy(out)

    def add_bias_relu(self, x: Tensor, bias: Tensor) -> None:
        """See ``Arithmetic``; it takes one pass."""
        add_bias_relu(map_words(x), bias.numpy())

    def point_features(self, x: Tensor, bias: Tensor) -> Tensor:
        """See ``Arithmetic``; it takes one pass."""
        out = np.empty((x.shape[0], x.shape[2] * x.shape[3], x.shape[1]), np.float32)
        add_bias_relu_wide(map_words(x), bias.numpy(), out)
        return torch.from_numpy(out)


def map_words(x: Tensor) -> Words:
    """Return the memory of a channels-last bfloat16 map as ``[N, P, C]``."""
    words: Words = x.permute(0, 2, 3, 1).flatten(1, 2).view(torch.uint16).numpy()
    return words


class Float32:
    """Torch's operations, which in float32 take little time compared with the convolutions.

    Args:
        winograd: whether to convolve by Winograd's filtering where it is faster.
    """

    dtype = torch.float32
    pooling = GlobalPooling()

    def __init__(self, *, winograd: bool = True) -> None:
        self.winograd = winograd

    def make_convolution(self, layer: ConvNorm, board: tuple[int, int]) -> FoldedConvolution:
        """See ``Arithmetic``; it uses the fastest method for the layer's size."""
        if layer.conv.kernel_size == (1, 1):
            return PointConvolution(layer)
        if self.winograd and is_winograd_faster(layer.conv):
            return WinogradConvolution(layer.conv)
        return Convolution(layer, self.dtype, board)

    def load_board(self, observations: NDArray[np.float32], count: int) -> Tensor:
        """See ``Arithmetic``."""
        x = torch.zeros((count, *observations.shape[1:])).contiguous(memory_format=torch.channels_last)
        x[: len(observations)] = torch.from_numpy(observations)
        return x

    def pool(self, x: Tensor) -> Tensor:
        """See ``Arithmetic``."""
        return self.pooling(x)

    def add_bias_relu(self, x: Tensor, bias: Tensor) -> None:
        """See ``Arithmetic``; it takes two passes."""
        x.add_(bias[:, :, None, None]).relu_()

    def point_features(self, x: Tensor, bias: Tensor) -> Tensor:
        """See ``Arithmetic``."""
        return torch.relu(x + bias[:, :, None, None]).permute(0, 2, 3, 1).flatten(1, 2)


class Convolution:
    """A folded convolution with packed weights; maps are ``[N, C, H, W]`` in channels-last order.

    Args:
        layer: the convolution.
        dtype: the number type of weights and maps.
        board: height and width of the maps. Without them oneDNN guesses a packing, and for layers of 96, 160 or 256
            channels, for example, it packs them again in each call, which takes longer than the convolution.
    """

    def __init__(self, layer: ConvNorm, dtype: torch.dtype, board: tuple[int, int]) -> None:
        conv = layer.conv
        assert conv.bias is not None
        self.padding = [int(side) for side in conv.padding]
        weight = conv.weight.detach().to(dtype).to_mkldnn()
        size = [PACKED_BATCH, conv.in_channels, *board]
        pack = torch._C._nn.mkldnn_reorder_conv2d_weight
        self.weight = pack(weight, self.padding, [1, 1], [1, 1], 1, size)  # type: ignore[call-arg]  # its stub lacks one
        self.bias = conv.bias.detach().to(dtype)

    def __call__(self, x: Tensor, activation: str) -> Tensor:
        """See ``FoldedConvolution``."""
        convolve = torch.ops.mkldnn._convolution_pointwise
        return convolve(x, self.weight, self.bias, self.padding, [1, 1], [1, 1], 1, activation, [], "")

    def convolve_add_relu(self, residual: Tensor, x: Tensor) -> Tensor:
        """See ``FoldedConvolution``; the result takes the residual's memory, which saves a quarter of the time."""
        convolve = torch.ops.mkldnn._convolution_pointwise_.binary
        convolve(residual, x, self.weight, self.bias, self.padding, [1, 1], [1, 1], 1, "add", 1.0, "relu", [], "")
        return residual


class PointConvolution:
    """A folded convolution of 1x1 in float32: a product of matrices."""

    def __init__(self, layer: ConvNorm) -> None:
        conv = layer.conv
        assert conv.bias is not None
        self.weight = conv.weight.detach().flatten(1).T.contiguous()  # [inputs, outputs]
        self.bias = conv.bias.detach()

    def __call__(self, x: Tensor, activation: str) -> Tensor:
        """See ``FoldedConvolution``."""
        points = x.permute(0, 2, 3, 1)
        out = torch.addmm(self.bias, points.flatten(0, 2), self.weight)
        if activation == "relu":
            out.relu_()
        return out.view(*points.shape[:3], -1).permute(0, 3, 1, 2)

    def convolve_add_relu(self, residual: Tensor, x: Tensor) -> Tensor:
        """See ``FoldedConvolution``."""
        return residual.add_(self(x, "none")).relu_()


class FusedBlock:
    """A block of the tower, with or without pooling."""

    def __init__(self, block: nn.Module, arithmetic: Arithmetic, board: tuple[int, int]) -> None:
        assert isinstance(block, Block | PooledBlock)
        if not isinstance(block.excitation, nn.Identity):
            raise TypeError("there are no fused operators for squeeze-and-excitation")
        self.arithmetic = arithmetic
        self.first = arithmetic.make_convolution(block.first, board)
        self.second = arithmetic.make_convolution(block.second, board)
        self.pooled = None
        if isinstance(block, PooledBlock):
            self.pooled = arithmetic.make_convolution(block.pooled, board)
            self.bias = block.bias

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``[N, C, H, W]`` to the same shape; the result may take the input's memory."""
        return self.second.convolve_add_relu(x, self._inner_convolution(x))

    def _inner_convolution(self, x: Tensor) -> Tensor:
        if self.pooled is None:
            return self.first(x, "relu")
        inner = self.first(x, "none")
        self.arithmetic.add_bias_relu(inner, self.bias(self.arithmetic.pool(self.pooled(x, "relu"))))
        return inner


class FusedResNet:
    """A ``ResNet`` in evaluation mode.

    Args:
        network: with its batch norms folded.
        arithmetic: the operations between convolutions.
        board: height and width.

    Raises:
        AttributeError, RuntimeError, TypeError: this torch lacks the operators, they do not work here, or the network
            has squeeze-and-excitation.
    """

    def __init__(self, network: Tower, arithmetic: Arithmetic, board: tuple[int, int]) -> None:
        self.arithmetic = arithmetic
        self.stem = arithmetic.make_convolution(network.stem, board)
        self.blocks = [FusedBlock(block, arithmetic, board) for block in network.tower]
        self.head = arithmetic.make_convolution(network.head, board)
        self.map = arithmetic.make_convolution(network.policy.conv, board)
        self.policy, self.value = network.policy, network.value

    def __call__(self, board: Tensor) -> tuple[Tensor, Tensor]:
        """Map maps ``[N, C, H, W]`` in the arithmetic's number type to policy logits ``[N, A]`` and value logits,
        float32.
        """
        x = self.stem(board, "relu")
        for block in self.blocks:
            x = block(x)
        pooled = self.arithmetic.pool(self.head(x, "relu"))
        points = self.arithmetic.point_features(self.map(x, "none"), self.policy.point_bias(pooled))
        return self.policy.logits(points, pooled), self.value(pooled)


class FusedRuntime:
    """Runs a ``ResNet`` on a CPU through ``FusedResNet``."""

    def __init__(self, network: Tower, arithmetic: ProcessorArithmetic, board: tuple[int, int]) -> None:
        self._arithmetic, self._board = arithmetic, board
        self._network = FusedResNet(network, arithmetic, board)

    def describe(self) -> str:
        """See ``Runtime``."""
        return f"fused {str(self._arithmetic.dtype).removeprefix('torch.')} on cpu"

    def load(self, network: nn.Module) -> None:
        """Pack the new weights."""
        self._network = FusedResNet(cast(Tower, network), self._arithmetic, self._board)

    def run(self, observations: NDArray[np.float32], count: int) -> tuple[Tensor, Tensor]:
        """Return policy logits ``[count, A]`` and value logits ``[count]``."""
        return self._network(self._arithmetic.load_board(observations, count))


def make_fused_runtime(
    network: Tower, observation_shape: tuple[int, int, int], dtype: torch.dtype
) -> FusedRuntime | None:
    """Make the fused runtime of a folded network, tested with one position; None if it does not work here or in
    float16.
    """
    if dtype == torch.float16:
        return None
    try:
        arithmetic: ProcessorArithmetic = Bfloat16() if dtype == torch.bfloat16 else Float32()
        runtime = FusedRuntime(network, arithmetic, observation_shape[1:])
        runtime.run(np.zeros((1, *observation_shape), np.float32), 1)
    except (AttributeError, RuntimeError, TypeError) as error:  # another torch, or a CPU that oneDNN does not support
        log.warning("the fused operators do not work here; the network runs in plain torch, slower: %s", error)
        return None
    return runtime
