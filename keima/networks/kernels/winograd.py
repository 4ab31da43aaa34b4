"""Convolutions of 3x3 in float32 with a third of the multiplications, by Winograd's minimal filtering.

A. Lavin and S. Gray, "Fast algorithms for convolutional neural networks" (arXiv 1509.09308), with tiles of 3x3 points,
of which a 9x9 board has nine. The weights of a pair of channels are transformed once into 25 numbers, and so are the
5x5 points on which a tile of the results depends. Their products, summed over the input channels, transform into the
tile: 25 multiplications instead of 81. The sums are 25 products of matrices; the transforms, in compiled kernels, only
add and double.

The transforms evaluate and interpolate polynomials at 0, 1, -1, 2 and infinity. In float32 the results are as good as
those of a direct convolution to about six digits; bfloat16 is too coarse for it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from keima.compilation.decorators import compiled, inlined_by_llvm

Floats = NDArray[np.float32]

TILE = 3  # points along each side of a tile
WINDOW = 5  # points along each side of what a tile depends on
TILES_AT_ONCE = 144  # more would not stay in the processor's cache between the transforms
MOST_THREADS = 2  # the transforms use only one
LEAST_WIDTH = 20  # as of layers with 40 inputs and outputs, or with 32 and 64
# G in Y = A'[(Gg) * (B'd)] (Lavin & Gray 2016): the weights of a line as a polynomial, at the five points
_LINE = np.array([[1 / 2, 0, 0], [-1 / 2, -1 / 2, -1 / 2], [-1 / 6, 1 / 6, -1 / 6], [1 / 6, 1 / 3, 2 / 3], [0, 0, 1]])
WEIGHT_TRANSFORM = torch.from_numpy(np.kron(_LINE, _LINE)).float()  # [25, 9]


def is_winograd_faster(conv: nn.Conv2d) -> bool:
    """Return whether Winograd's filtering is faster than a direct convolution, with torch's number of threads.

    The products grow with the product of inputs and outputs, the transforms with their sum.
    """
    inputs, outputs = conv.in_channels, conv.out_channels
    return (
        conv.kernel_size == (3, 3)
        and inputs * outputs >= LEAST_WIDTH * (inputs + outputs)
        and torch.get_num_threads() <= MOST_THREADS
    )


@inlined_by_llvm
def transform_inputs(a: Floats, b: Floats, c: Floats, d: Floats, e: Floats, out: tuple[Floats, ...]) -> None:
    """Transform five inputs in a line, for many lines: ``out[k][i]`` from ``a[i]`` to ``e[i]``.

    One loop for each output, since compilers give up vectorizing loops over many arrays.
    """
    # B'd in Y = A'[(Gg) * (B'd)], the rows of B' at the points 0, 1, -1, 2 and infinity (Lavin & Gray 2016)
    two, three = np.float32(2), np.float32(3)
    to_0, to_1, to_2, to_3, to_4 = out
    for i in range(len(a)):
        to_0[i] = two * (a[i] - c[i]) + (d[i] - b[i])
    for i in range(len(a)):
        to_1[i] = d[i] - c[i] - two * b[i]
    for i in range(len(a)):
        to_2[i] = d[i] - three * c[i] + two * b[i]
    for i in range(len(a)):
        to_3[i] = d[i] - b[i]
    for i in range(len(a)):
        to_4[i] = e[i] - c[i] - two * (d[i] - b[i])


@inlined_by_llvm
def transform_outputs(a: Floats, b: Floats, c: Floats, d: Floats, e: Floats, out: tuple[Floats, ...]) -> None:
    """Transform five products in a line into three results, for many lines."""
    # A'm, where m is the sum of (Gg) * (B'd) over the input channels (Lavin & Gray 2016)
    two, four = np.float32(2), np.float32(4)
    to_0, to_1, to_2 = out
    for i in range(len(a)):
        to_0[i] = a[i] + b[i] + c[i] + d[i]
    for i in range(len(a)):
        to_1[i] = b[i] - c[i] + two * d[i]
    for i in range(len(a)):
        to_2[i] = b[i] + c[i] + four * d[i] + e[i]


@inlined_by_llvm
def transform_output_gradients(a: Floats, b: Floats, c: Floats, out: tuple[Floats, ...]) -> None:
    """Apply the transpose of ``transform_outputs``, from gradients of three results in a line to those of five
    products.
    """
    # A dY, since dL / dm = A dL / dY
    two, four = np.float32(2), np.float32(4)
    to_0, to_1, to_2, to_3, to_4 = out
    for i in range(len(a)):
        to_0[i] = a[i]
    for i in range(len(a)):
        to_1[i] = a[i] + b[i] + c[i]
    for i in range(len(a)):
        to_2[i] = a[i] - b[i] + c[i]
    for i in range(len(a)):
        to_3[i] = a[i] + two * b[i] + four * c[i]
    for i in range(len(a)):
        to_4[i] = c[i]


@inlined_by_llvm
def copy_floats(numbers: Floats, out: Floats) -> None:
    """Copy ``numbers`` to ``out``, as ``out[:] = numbers`` does, which numba does not vectorize."""
    for i in range(len(numbers)):
        out[i] = numbers[i]


@compiled
def transform_boards(boards: Floats, tiles: Floats) -> None:
    """Transform boards ``[N, H, W, C]`` to ``[25, N * T, C]``, where T is the number of tiles of a board."""
    count, height, width, channels = boards.shape
    down, across = -(-height // 3), -(-width // 3)
    # A row has the columns 0, 3, 6, ..., then 1, 4, ..., then 2, 5, ...: so the first numbers of all tiles in a row of
    # tiles lie side by side, and the second ones, and so on, and loops are long. Points outside the board remain zero.
    framed = np.zeros((3 * down + 2, 3, across + 1, channels), np.float32)
    rows = framed.reshape(3 * down + 2, 3 * (across + 1) * channels)
    lines = np.empty((5, 3, (across + 1) * channels), np.float32)
    flat = lines.reshape(5, 3 * (across + 1) * channels)
    of_tiles = tiles.reshape(5, 5, count * down, across * channels)
    last = across * channels
    for n in range(count):
        for y in range(height):
            for x in range(width):
                copy_floats(boards[n, y, x], framed[y + 1, (x + 1) % 3, (x + 1) // 3])
        for ty in range(down):
            y, row = 3 * ty, n * down + ty
            transform_inputs(
                rows[y],
                rows[y + 1],
                rows[y + 2],
                rows[y + 3],
                rows[y + 4],
                (flat[0], flat[1], flat[2], flat[3], flat[4]),
            )
            for k in range(5):
                transform_inputs(
                    lines[k, 0, :last],
                    lines[k, 1, :last],
                    lines[k, 2, :last],
                    lines[k, 0, channels:],
                    lines[k, 1, channels:],
                    (
                        of_tiles[k, 0, row],
                        of_tiles[k, 1, row],
                        of_tiles[k, 2, row],
                        of_tiles[k, 3, row],
                        of_tiles[k, 4, row],
                    ),
                )


@compiled
def transform_products(products: Floats, bias: Floats, low: np.float32, add: bool, boards: Floats) -> None:
    """Transform products ``[25, N * T, C]`` and a bias ``[C]`` to ``boards`` ``[N, H, W, C]``, no result below ``low``.

    With ``add`` the results are first added to what the boards hold.
    """
    count, height, width, channels = boards.shape
    across = -(-width // 3)
    length = across * channels
    flat = products.reshape(5, 5, -1)
    lines = np.empty((3, 5, length), np.float32)
    results = np.empty((3, length), np.float32)
    at = 0
    for n in range(count):
        for y in range(0, height, 3):
            for k in range(5):
                transform_outputs(
                    flat[0, k, at : at + length],
                    flat[1, k, at : at + length],
                    flat[2, k, at : at + length],
                    flat[3, k, at : at + length],
                    flat[4, k, at : at + length],
                    (lines[0, k], lines[1, k], lines[2, k]),
                )
            at += length
            for row in range(min(3, height - y)):
                line = lines[row]
                transform_outputs(line[0], line[1], line[2], line[3], line[4], (results[0], results[1], results[2]))
                for x in range(width):
                    result = results[x % 3, x // 3 * channels : (x // 3 + 1) * channels]
                    point = boards[n, y + row, x]
                    if add:
                        for c in range(channels):
                            point[c] = max(point[c] + result[c] + bias[c], low)
                    else:
                        for c in range(channels):
                            point[c] = max(result[c] + bias[c], low)


@compiled
def transform_gradients(boards: Floats, tiles: Floats) -> None:
    """Transform gradients of results ``[N, H, W, C]`` to gradients of products ``[25, N * T, C]``."""
    count, height, width, channels = boards.shape
    down, across = -(-height // 3), -(-width // 3)
    framed = np.zeros((3 * down, 3, across, channels), np.float32)  # as in ``transform_boards``
    rows = framed.reshape(3 * down, 3 * across * channels)
    lines = np.empty((5, 3, across * channels), np.float32)
    flat = lines.reshape(5, 3 * across * channels)
    of_tiles = tiles.reshape(5, 5, count * down, across * channels)
    for n in range(count):
        for y in range(height):
            for x in range(width):
                copy_floats(boards[n, y, x], framed[y, x % 3, x // 3])
        for ty in range(down):
            y, row = 3 * ty, n * down + ty
            transform_output_gradients(rows[y], rows[y + 1], rows[y + 2], (flat[0], flat[1], flat[2], flat[3], flat[4]))
            for k in range(5):
                transform_output_gradients(
                    lines[k, 0],
                    lines[k, 1],
                    lines[k, 2],
                    (
                        of_tiles[k, 0, row],
                        of_tiles[k, 1, row],
                        of_tiles[k, 2, row],
                        of_tiles[k, 3, row],
                        of_tiles[k, 4, row],
                    ),
                )


class WinogradConvolution:
    """A convolution of 3x3 with a bias, in float32; maps are ``[N, C, H, W]`` in channels-last order."""

    def __init__(self, conv: nn.Conv2d) -> None:
        assert conv.bias is not None
        self.weights = transform_weights(conv.weight.detach())
        self.bias = conv.bias.detach().numpy()

    def __call__(self, x: Tensor, activation: str) -> Tensor:
        """See ``FoldedConvolution``."""
        out = empty_maps(x, len(self.bias))
        convolve(x, self.weights, self.bias, out, low=0.0 if activation == "relu" else -np.inf)
        return out

    def convolve_add_relu(self, residual: Tensor, x: Tensor) -> Tensor:
        """See ``FoldedConvolution``; the result takes the residual's memory."""
        convolve(x, self.weights, self.bias, residual, low=0.0, add=True)
        return residual


def convolve_with_gradients(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Compute ``conv(x)``, by Winograd's filtering if that is faster: with gradients, in float32, on a CPU."""
    suits = (
        conv.bias is None
        and conv.weight.requires_grad
        and torch.is_grad_enabled()
        and x.dtype == conv.weight.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and is_winograd_faster(conv)
    )
    return differentiable_convolution(x, conv.weight) if suits else conv(x)


def differentiable_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of maps ``[N, I, H, W]`` with weights ``[O, I, 3, 3]``, in float32 and with gradients."""
    out: Tensor = DifferentiableConvolution.apply(x, weight)  # type: ignore[no-untyped-call]
    return out


class DifferentiableConvolution(torch.autograd.Function):
    """The autograd function of ``differentiable_convolution``.

    The gradient of the maps is a convolution with turned weights. That of the weights is a sum of the same matrix
    products, whose transformed maps are computed again, since they would take three times the memory of the maps.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Convolve maps ``[N, I, H, W]`` with weights ``[O, I, 3, 3]``; return maps ``[N, O, H, W]``."""
        ctx.save_for_backward(x, weight)
        return convolve_without_bias(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the gradients of the arguments of ``forward`` from the gradient of its result."""
        x, weight = ctx.saved_tensors
        turned = weight.flip(2, 3).transpose(0, 1)
        of_maps = convolve_without_bias(gradient, turned) if ctx.needs_input_grad[0] else None
        return of_maps, weight_gradient(x, gradient)


def convolve_without_bias(x: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of maps ``[N, I, H, W]`` with weights ``[O, I, 3, 3]``."""
    out = empty_maps(x, len(weight))
    convolve(x, transform_weights(weight), np.zeros(len(weight), np.float32), out, low=-np.inf)
    return out


def weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of the weights ``[O, I, 3, 3]`` from the maps and the gradient of the results."""
    boards, gradients = channels_last_array(x), channels_last_array(gradient)
    total = torch.zeros((WINDOW**2, boards.shape[3], gradients.shape[3]))
    for part in board_chunks(boards):
        maps, results = allocate_tiles(boards[part]), allocate_tiles(gradients[part])
        transform_boards(boards[part], maps.numpy())
        transform_gradients(gradients[part], results.numpy())
        total.baddbmm_(maps.transpose(1, 2), results)
    return (WEIGHT_TRANSFORM.T @ total.flatten(1)).view(3, 3, *total.shape[1:]).permute(3, 2, 0, 1)


def transform_weights(weight: Tensor) -> Tensor:
    """Transform weights ``[O, I, 3, 3]`` to ``[25, I, O]``."""
    outputs, inputs = weight.shape[:2]
    return (WEIGHT_TRANSFORM @ weight.permute(2, 3, 1, 0).reshape(9, -1)).view(-1, inputs, outputs)


def convolve(x: Tensor, weights: Tensor, bias: Floats, out: Tensor, *, low: float, add: bool = False) -> None:
    """Write the convolution of ``x`` with transformed weights, plus a bias ``[O]``, to ``out``, or add it, with no
    result below ``low``.
    """
    boards, results = channels_last_array(x), channels_last_array(out)
    for part in board_chunks(boards):
        tiles = allocate_tiles(boards[part])
        transform_boards(boards[part], tiles.numpy())
        products = torch.bmm(tiles, weights)
        transform_products(products.numpy(), bias, np.float32(low), add, results[part])


def channels_last_array(x: Tensor) -> Floats:
    """Return the memory of a map in channels-last order, ``[N, H, W, C]``, without its gradient; other orders are
    copied.
    """
    memory: Floats = x.detach().permute(0, 2, 3, 1).contiguous().numpy()
    return memory


def empty_maps(x: Tensor, channels: int) -> Tensor:
    """Allocate maps ``[N, channels, H, W]`` for the results of ``x``."""
    return torch.empty((len(x), channels, *x.shape[2:]), memory_format=torch.channels_last)


def board_chunks(boards: Floats) -> Iterator[slice]:
    """Return the boards ``[N, H, W, C]`` that are computed at once."""
    count, height, width, _ = boards.shape
    at_once = max(1, TILES_AT_ONCE // count_tiles(height, width))
    return (slice(first, min(first + at_once, count)) for first in range(0, count, at_once))


def count_tiles(height: int, width: int) -> int:
    """Return the number of tiles of a board."""
    return -(-height // TILE) * -(-width // TILE)


def allocate_tiles(boards: Floats) -> Tensor:
    """Allocate memory for the transformed tiles of boards ``[N, H, W, C]``."""
    count, height, width, channels = boards.shape
    return torch.empty((WINDOW**2, count * count_tiles(height, width), channels))
