"""Batch norm over groups equals batch norm of each group alone."""

import copy

import pytest
import torch
from torch import Tensor, nn

from keima.learning.ranks.rank_norm import GroupLayout, RankNorm, replace_batch_norms

pytestmark = pytest.mark.numeric


def norm() -> nn.BatchNorm2d:
    torch.manual_seed(0)
    made = nn.BatchNorm2d(6)
    with torch.no_grad():
        made.weight.normal_()
        made.bias.normal_()
        assert made.running_mean is not None
        made.running_mean.normal_()
    return made


def rows(count: int, *, mean: float = 0.0, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, 6, 3, 4, generator=generator) + mean).requires_grad_()


@pytest.mark.parametrize("mean", [0.0, 3.0])
@pytest.mark.parametrize("sizes", [(5, 4), (3, 2, 4), (9,)])
def test_each_group_is_normed_as_if_it_came_alone(sizes: tuple[int, ...], mean: float) -> None:
    native, ours = norm(), RankNorm(copy.deepcopy(norm()), GroupLayout(sizes=sizes, totals=sizes))
    x, same, target = rows(9, mean=mean), rows(9, mean=mean), rows(9, seed=2).detach()
    wanted = torch.cat([native(group) for group in x.split(sizes)])
    found = ours(same)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    (wanted * target).sum().backward()
    (found * target).sum().backward()
    torch.testing.assert_close(same.grad, x.grad, rtol=1e-3, atol=1e-4)
    for name, parameter in native.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-3)
    for name, buffer in native.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer, rtol=1e-4, atol=1e-5)


def test_all_rows_of_a_position_are_in_the_same_group() -> None:
    native, ours = norm(), RankNorm(copy.deepcopy(norm()), GroupLayout(sizes=(2, 3), totals=(2, 3)))
    x = rows(10).detach()  # two time steps of five positions
    first, second = torch.cat([x[0:2], x[5:7]]), torch.cat([x[2:5], x[7:10]])
    wanted = (native(first), native(second))
    found = ours(x)
    torch.testing.assert_close(torch.cat([found[0:2], found[5:7]]), wanted[0])
    torch.testing.assert_close(torch.cat([found[2:5], found[7:10]]), wanted[1])


def test_16_bit_inputs_stay_so_and_are_normed_in_32() -> None:
    ours = RankNorm(norm(), GroupLayout(sizes=(5, 4), totals=(5, 4)))
    x = rows(9).detach()
    found = ours(x.bfloat16())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(
        found.float(), RankNorm(norm(), GroupLayout(sizes=(5, 4), totals=(5, 4)))(x), rtol=0.02, atol=0.05
    )


def test_evaluation_is_unchanged() -> None:
    native, ours = norm().eval(), RankNorm(norm(), GroupLayout(sizes=(5, 4), totals=(5, 4))).eval()
    assert torch.equal(native(rows(7)), ours(rows(7)))


def test_a_network_s_state_is_unchanged() -> None:
    network = nn.Sequential(nn.Conv2d(2, 6, 3), norm(), nn.Sequential(norm()))
    before = dict(network.state_dict())
    replace_batch_norms(network, GroupLayout())
    after = network.state_dict()
    assert isinstance(network[1], RankNorm) and before.keys() == after.keys()
    assert all(before[name].data_ptr() == after[name].data_ptr() for name in before)
