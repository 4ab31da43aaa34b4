import pytest
import torch
from torch import Tensor

from keima.networks.architectures.layers import ConvNorm
from keima.networks.kernels.winograd import WinogradConvolution, convolve_with_gradients, differentiable_convolution

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
    found = WinogradConvolution(layer.conv)(x, activation)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("count", [1, 16, 17, 50])  # 16 boards of 9x9 are computed at once
def test_boards_are_computed_in_parts(count: int) -> None:
    layer, x = convolution(12, 12), maps(count, 12, 9, 9)
    residual = maps(count, 12, 9, 9)
    wanted = torch.relu(residual + layer(x))
    WinogradConvolution(layer.conv).convolve_add_relu(residual, x)
    torch.testing.assert_close(residual, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("board", BOARDS)
def test_the_gradients_are_those_of_a_direct_convolution(board: tuple[int, int]) -> None:
    torch.manual_seed(1)
    x = maps(20, 5, *board).requires_grad_()
    weight = torch.randn(12, 5, 3, 3).requires_grad_()
    found = differentiable_convolution(x, weight)
    wanted = torch.conv2d(x, weight, padding=1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    direction = torch.randn_like(wanted)  # also in another memory order than the maps
    for ours, theirs in zip(
        torch.autograd.grad(found, (x, weight), direction.contiguous()),
        torch.autograd.grad(wanted, (x, weight), direction),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


def test_the_first_layer_computes_no_gradient_of_its_input() -> None:
    weight = torch.randn(4, 3, 3, 3).requires_grad_()
    x = maps(2, 3, 5, 5)
    differentiable_convolution(x, weight).sum().backward()
    assert x.grad is None and weight.grad is not None


@pytest.mark.parametrize(
    ("conv", "dtype"),
    [
        (torch.nn.Conv2d(64, 64, 1, bias=False), torch.float32),
        (torch.nn.Conv2d(64, 64, 3, padding=1), torch.float32),
        (torch.nn.Conv2d(64, 4, 3, padding=1, bias=False), torch.float32),
        (torch.nn.Conv2d(64, 64, 3, padding=1, bias=False), torch.float64),
    ],
)
def test_other_convolutions_remain_torch_s(conv: torch.nn.Conv2d, dtype: torch.dtype) -> None:
    conv, x = conv.to(dtype), maps(2, 64, 5, 5).to(dtype)
    assert torch.equal(convolve_with_gradients(conv, x), conv(x))
