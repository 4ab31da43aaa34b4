"""Convolutions of 3x3 in float32 with a third of the multiplications, by Winograd's minimal filtering.

A. Lavin and S. Gray, "Fast algorithms for convolutional neural networks" (arXiv 1509.09308), with tiles of 3x3 points,
of which a 9x9 board has nine. The weights of a pair of channels are transformed once into 25 numbers, and so are the
5x5 points on which a tile of the results depends. Their products, summed over the input channels, transform into the
tile: 25 multiplications instead of 81. The sums are 25 products of matrices; the transforms, in compiled kernels, only
add and double.

The transforms evaluate and interpolate polynomials at 0, 1, -1, 2 and infinity. In float32 the results are as good as
those of a direct convolution to about six digits; bfloat16 is too coarse for it.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from games.compiled import compiled, inlined
from training.networks.layers import ConvNorm

Floats = NDArray[np.float32]

TILE = 3  # points along each side of a tile
WINDOW = 5  # points along each side of what a tile depends on
TILES_AT_ONCE = 144  # more would not stay in the processor's cache between the transforms
WEIGHT_TRANSFORM = [[1 / 2, 0, 0], [-1 / 2, -1 / 2, -1 / 2], [-1 / 6, 1 / 6, -1 / 6], [1 / 6, 1 / 3, 2 / 3], [0, 0, 1]]


@inlined
def evaluate(a: Floats, b: Floats, c: Floats, d: Floats, e: Floats, out: tuple[Floats, ...]) -> None:
    """Transform five inputs in a line, for many lines: ``out[k][i]`` from ``a[i]`` to ``e[i]``.

    One loop for each output, since compilers give up vectorizing loops over many arrays.
    """
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


@inlined
def interpolate(a: Floats, b: Floats, c: Floats, d: Floats, e: Floats, out: tuple[Floats, ...]) -> None:
    """Transform five products in a line into three results, for many lines."""
    two, four = np.float32(2), np.float32(4)
    to_0, to_1, to_2 = out
    for i in range(len(a)):
        to_0[i] = a[i] + b[i] + c[i] + d[i]
    for i in range(len(a)):
        to_1[i] = b[i] - c[i] + two * d[i]
    for i in range(len(a)):
        to_2[i] = b[i] + c[i] + four * d[i] + e[i]


@inlined
def row_or(rows: Floats, y: int, outside: Floats) -> Floats:
    """``rows[y]``, or ``outside`` beyond the board."""
    return rows[y] if 0 <= y < len(rows) else outside


@compiled
def transform_boards(boards: Floats, tiles: Floats) -> None:
    """Boards ``[N, H, W * C]`` -> ``[25, N * T, C]``, where T is the number of tiles of a board."""
    count, height, length = boards.shape
    channels = tiles.shape[2]
    down = -(-height // 3)
    across = tiles.shape[1] // (count * down)
    outside = np.zeros(length, np.float32)
    lines = np.zeros((5, (3 * across + 2) * channels), np.float32)  # its first column and its last ones remain zero
    inside = slice(channels, channels + length)
    tile = 0
    for n in range(count):
        rows = boards[n]
        for y in range(-1, 3 * down - 1, 3):
            evaluate(
                row_or(rows, y, outside),
                rows[y + 1],
                row_or(rows, y + 2, outside),
                row_or(rows, y + 3, outside),
                row_or(rows, y + 4, outside),
                (lines[0, inside], lines[1, inside], lines[2, inside], lines[3, inside], lines[4, inside]),
            )
            for x in range(across):
                at = 3 * x * channels
                for k in range(5):
                    line = lines[k]
                    evaluate(
                        line[at : at + channels],
                        line[at + channels : at + 2 * channels],
                        line[at + 2 * channels : at + 3 * channels],
                        line[at + 3 * channels : at + 4 * channels],
                        line[at + 4 * channels : at + 5 * channels],
                        (
                            tiles[5 * k, tile],
                            tiles[5 * k + 1, tile],
                            tiles[5 * k + 2, tile],
                            tiles[5 * k + 3, tile],
                            tiles[5 * k + 4, tile],
                        ),
                    )
                tile += 1


@compiled
def transform_products(products: Floats, bias: Floats, low: np.float32, add: bool, boards: Floats) -> None:
    """Products ``[25, N * T, C]`` and a bias ``[C]`` -> ``boards`` ``[N, H, W, C]``, no result below ``low``.

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
                interpolate(
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
                interpolate(line[0], line[1], line[2], line[3], line[4], (results[0], results[1], results[2]))
                for x in range(width):
                    result = results[x % 3, x // 3 * channels : (x // 3 + 1) * channels]
                    point = boards[n, y + row, x]
                    if add:
                        for c in range(channels):
                            point[c] = max(point[c] + result[c] + bias[c], low)
                    else:
                        for c in range(channels):
                            point[c] = max(result[c] + bias[c], low)


class WinogradConvolution:
    """A folded convolution of 3x3 in float32; maps are ``[N, C, H, W]`` in channels-last order.

    Args:
        layer: the convolution.
    """

    def __init__(self, layer: ConvNorm) -> None:
        conv = layer.conv
        assert conv.bias is not None
        transform = torch.tensor(WEIGHT_TRANSFORM, dtype=torch.float64)
        weights = transform @ conv.weight.detach().double() @ transform.T  # [outputs, inputs, 5, 5]
        self.weights = weights.permute(2, 3, 1, 0).flatten(0, 1).float().contiguous()  # [25, inputs, outputs]
        self.bias = conv.bias.detach().float().numpy()

    def __call__(self, x: Tensor, activation: str) -> Tensor:
        """``activation`` is "relu" or "none"."""
        out = torch.empty((len(x), len(self.bias), *x.shape[2:]), memory_format=torch.channels_last)
        self._convolve(x, out, low=0.0 if activation == "relu" else -np.inf, add=False)
        return out

    def add_relu_to(self, residual: Tensor, x: Tensor) -> None:
        """``residual = relu(residual + convolution of x)`` in place."""
        self._convolve(x, residual, low=0.0, add=True)

    def _convolve(self, x: Tensor, out: Tensor, *, low: float, add: bool) -> None:
        boards, results = in_memory(x), in_memory(out)
        count, height, width, channels = boards.shape
        tiles_per_board = -(-height // TILE) * -(-width // TILE)
        at_once = max(1, TILES_AT_ONCE // tiles_per_board)
        for first in range(0, count, at_once):
            part = boards[first : first + at_once]
            tiles = torch.empty((WINDOW**2, len(part) * tiles_per_board, channels))
            transform_boards(part.reshape(len(part), height, width * channels), tiles.numpy())
            products = torch.bmm(tiles, self.weights)
            transform_products(products.numpy(), self.bias, np.float32(low), add, results[first : first + at_once])


def in_memory(x: Tensor) -> Floats:
    """The memory of a channels-last map, ``[N, H, W, C]``."""
    memory: Floats = x.permute(0, 2, 3, 1).numpy()
    return memory
