"""Muon: its effect on the layers of the tower, compared with torch's own, and AdamW for the rest."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from keima.config.sections.training import TrainingSettings
from keima.games import load_game
from keima.learning.muon import KERNEL_RATE, Muon, hidden_matrices, orthogonalize
from keima.learning.optimizers import build_optimizer
from keima.networks.network import build_network

pytestmark = pytest.mark.numeric

CONNECT_FOUR = load_game("connect_four")


@pytest.mark.parametrize("shape", [(16, 40), (40, 16), (8, 8)])
def test_a_matrix_keeps_its_singular_vectors_and_loses_its_singular_values(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 1e-3
    found = orthogonalize(matrix)
    assert found.shape == matrix.shape and found.dtype == matrix.dtype
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    inside = left.mT @ found @ right.mT
    diagonal = inside.diagonal()[values > 0.1 * values[0]]  # a very small one needs more iterations
    assert diagonal.min() > 0.5 and diagonal.max() < 1.4
    assert (inside - torch.diag(inside.diagonal())).abs().max() < 0.1


def test_a_gradient_of_zero_moves_nothing() -> None:
    assert torch.equal(orthogonalize(torch.zeros(4, 8)), torch.zeros(4, 8))


@pytest.mark.parametrize("shape", [(16, 16), (32, 32, 3, 3)])
def test_a_layer_takes_the_same_step_to_the_bit_whatever_layers_are_stepped_with_it(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    gradients = [torch.randn(shape, generator=generator) for _ in range(24)]

    def stepped_together(gradients: list[Tensor]) -> list[Tensor]:
        layers = [nn.Parameter(torch.zeros(shape)) for _ in gradients]
        for layer, gradient in zip(layers, gradients, strict=True):
            layer.grad = gradient.clone()
        Muon([{"params": layers, "orthogonal": True}]).step()
        return [layer.detach() for layer in layers]

    together = stepped_together(gradients)
    alone = [stepped_together([gradient])[0] for gradient in gradients]
    assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))
    assert all(torch.equal(*pair) for pair in zip(stepped_together(gradients[:7]), together, strict=False))


def test_matrices_take_torch_s_steps_and_kernels_are_treated_as_matrices() -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(32, 27, generator=generator)
    gradients = [torch.randn(32, 27, generator=generator) for _ in range(5)]
    ours = stepped(start, gradients, orthogonalizing)
    torchs = stepped(
        start, gradients, lambda parameter: torch.optim.Muon([parameter], lr=0.001 * KERNEL_RATE, weight_decay=0.0)
    )
    kernels = [gradient.view(32, 3, 3, 3) for gradient in gradients]
    as_kernel = stepped(start.view(32, 3, 3, 3), kernels, orthogonalizing)
    moved = (torchs - start).norm()
    assert (ours - torchs).norm() < 0.02 * moved  # torch's iteration is in bfloat16
    assert (as_kernel.flatten(1) - ours).norm() < 0.02 * moved


def test_weights_decay_at_adamw_s_rate_with_either_optimizer() -> None:
    """By the learning rate and not by the kernels' rate, twenty times as large, as in torch's and the authors'
    versions.
    """
    start = torch.full((4, 6), 2.0)
    still = [torch.zeros(4, 6)] * 3
    assert stepped(start, still, lambda parameter: orthogonalizing(parameter, weight_decay=10.0)) == pytest.approx(
        2.0 * 0.99**3
    )
    gradient = [torch.randn(4, 6, generator=torch.Generator().manual_seed(1))]
    decayed = stepped(start, gradient, lambda parameter: orthogonalizing(parameter, weight_decay=10.0))
    torch.testing.assert_close(decayed, stepped(start, gradient, orthogonalizing) - 0.01 * start)


def orthogonalizing(parameter: nn.Parameter, *, weight_decay: float = 0.0) -> Muon:
    return Muon([{"params": [parameter], "orthogonal": True}], lr=0.001, weight_decay=weight_decay)


def stepped(
    start: Tensor, gradients: list[Tensor], optimizer_of: Callable[[nn.Parameter], torch.optim.Optimizer]
) -> Tensor:
    """Return the effect of these gradients on a parameter."""
    parameter = nn.Parameter(start.clone())
    optimizer = optimizer_of(parameter)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def test_the_tower_s_layers_are_orthogonalized_and_the_others_are_adamw_s() -> None:
    network = build_network(CONNECT_FOUR, blocks=2, channels=32)
    decaying, others, hidden = build_optimizer(
        network, TrainingSettings(optimizer="muon", weight_decay=0.1)
    ).param_groups
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    assert {names[id(parameter)] for parameter in hidden["params"]} == {
        "tower.0.first.conv.weight",
        "tower.0.second.conv.weight",
        "tower.1.first.conv.weight",
        "tower.1.pooled.conv.weight",
        "tower.1.bias.weight",
        "tower.1.second.conv.weight",
    }
    assert hidden["orthogonal"] and not decaying["orthogonal"] and not others["orthogonal"]
    assert sum(len(group["params"]) for group in (decaying, others, hidden)) == len(list(network.parameters()))
    assert "stem.conv.weight" in {names[id(parameter)] for parameter in decaying["params"]}


def test_spiking_networks_and_those_with_auxiliary_heads_also_have_hidden_layers() -> None:
    assert len(hidden_matrices(build_network(CONNECT_FOUR, type="spiking", blocks=2, channels=16))) >= 4
    heads = build_network(CONNECT_FOUR, blocks=1, channels=16, predict_reply=True)
    assert {id(parameter) for parameter in hidden_matrices(heads)} <= {
        id(parameter) for parameter in heads.tower.parameters()
    }  # type: ignore[operator, union-attr]
