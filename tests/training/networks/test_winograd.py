import pytest
import torch
from torch import Tensor

from training.networks.layers import ConvNorm
from training.networks.winograd import WinogradConvolution

BOARDS = [(1, 1), (2, 5), (3, 3), (4, 4), (6, 7), (9, 9), (19, 19)]


def convolution(inputs: int, outputs: int) -> ConvNorm:
    torch.manual_seed(1)
    layer = ConvNorm(inputs, outputs, 3).eval()
    layer.fold()
    assert layer.conv.bias is not None
    torch.nn.init.normal_(layer.conv.bias)
    return layer.requires_grad_(False)


def maps(count: int, channels: int, height: int, width: int) -> Tensor:
    return torch.randn(count, channels, height, width).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("activation", ["relu", "none"])
def test_the_results_are_those_of_a_direct_convolution(board: tuple[int, int], activation: str) -> None:
    layer, x = convolution(5, 12), maps(7, 5, *board)
    wanted = torch.relu(layer(x)) if activation == "relu" else layer(x)
    found = WinogradConvolution(layer)(x, activation)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("count", [1, 16, 17, 50])  # 16 boards of 9x9 are computed at once
def test_boards_are_computed_in_parts(count: int) -> None:
    layer, x = convolution(12, 12), maps(count, 12, 9, 9)
    residual = maps(count, 12, 9, 9)
    wanted = torch.relu(residual + layer(x))
    WinogradConvolution(layer).add_relu_to(residual, x)
    torch.testing.assert_close(residual, wanted, rtol=0, atol=2e-5)
