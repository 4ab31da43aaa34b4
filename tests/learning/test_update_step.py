import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keima.learning.update_step import AverageWeights, Losses, UpdateStep

pytestmark = pytest.mark.numeric

Pair = tuple[Tensor, Tensor]


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def update_step(net: nn.Module, *, rate: float = 0.1, **options: Any) -> UpdateStep:
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    return UpdateStep(net, optimizer, **{"clip_norm": 1e9, "mixed_precision": False} | options)


def squared_error(net: nn.Module) -> Any:
    def losses(batch: Pair) -> Losses:
        error = (net(batch[0]) - batch[1]).square()
        return Losses(error.mean(), {"largest": error.detach().amax()})

    return losses


def data(count: int, seed: int = 1) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=generator), torch.randn(count, 1, generator=generator)


def state(net: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(net.state_dict())


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_steps_descend_the_loss() -> None:
    net = network()
    step, batch = update_step(net), data(32)
    first = step(squared_error(net), [batch])
    for _ in range(50):
        last = step(squared_error(net), [batch])
    assert last.metrics["loss"] < first.metrics["loss"] / 4


def test_accumulated_micro_batches_equal_one_large_batch() -> None:
    whole, parts = network().eval(), network().eval()  # in training mode, batch norm sees each micro-batch alone
    batch = data(24)
    one = update_step(whole)(squared_error(whole), [batch])
    several = update_step(parts)(squared_error(parts), [(batch[0][i : i + 8], batch[1][i : i + 8]) for i in (0, 8, 16)])
    torch.testing.assert_close(several.metrics["loss"], one.metrics["loss"])
    torch.testing.assert_close(several.grad_norm, one.grad_norm)
    for ours, wanted in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, wanted)


def test_gradients_do_not_leak_into_the_next_step() -> None:
    net = network()
    update_step(net)(squared_error(net), [data(16)])
    assert all(parameter.grad is None for parameter in net.parameters())


def test_gradients_are_clipped_to_the_norm_and_reported_unclipped() -> None:
    net = network()
    before = state(net)
    report = update_step(net, rate=1.0, clip_norm=0.01)(squared_error(net), [data(16)])
    moved = torch.cat([(parameter - before[name]).flatten() for name, parameter in net.named_parameters()])
    assert report.grad_norm > 0.1
    torch.testing.assert_close(moved.norm(), torch.tensor(0.01))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [0, 1])
def test_a_step_that_is_not_finite_is_skipped_and_changes_nothing(wrong: float, where: int) -> None:
    net = network()
    average = AverageWeights(net, decay=0.9)
    step = update_step(net, average=average)
    step(squared_error(net), [data(16)])
    before, average_before, momentum = state(net), state(average.network), copy.deepcopy(step.optimizer.state_dict())
    bad = data(16)
    bad[where][3, 0] = wrong
    report = step(squared_error(net), [data(16), bad])
    assert report.skipped
    assert same(state(net), before) and same(state(average.network), average_before) and average.updates == 1
    for number, kept in momentum["state"].items():
        assert torch.equal(step.optimizer.state_dict()["state"][number]["momentum_buffer"], kept["momentum_buffer"])
    assert not step(squared_error(net), [data(16)]).skipped


def test_metrics_are_means_over_the_micro_batches() -> None:
    net = network().eval()
    batches = [data(8, 1), data(8, 2)]
    largest = [squared_error(net)(batch).metrics["largest"] for batch in batches]
    report = update_step(net)(squared_error(net), batches)
    torch.testing.assert_close(report.metrics["largest"], torch.stack(largest).mean())


def test_in_mixed_precision_the_network_computes_in_16_bits_and_stores_32() -> None:
    net = network()
    seen = []

    def losses(batch: Pair) -> Losses:
        output = net(batch[0])
        seen.append(output.dtype)
        return Losses((output.float() - batch[1]).square().mean(), {})

    report = update_step(net, mixed_precision=True)(losses, [data(16)])
    assert seen == [torch.bfloat16] and not report.skipped
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())


def test_without_mixed_precision_the_network_computes_in_32_bits() -> None:
    net = network()
    seen = []

    def losses(batch: Pair) -> Losses:
        seen.append(net(batch[0]).dtype)
        return squared_error(net)(batch)

    update_step(net, mixed_precision=False)(losses, [data(16)])
    assert seen == [torch.float32]


def test_in_float16_the_loss_is_scaled_and_an_overflowing_step_is_skipped_with_a_smaller_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("keima.learning.update_step.fastest_dtype", lambda device: torch.float16)
    net = network()
    step, batch = update_step(net), data(32)
    step = UpdateStep(net, step.optimizer, clip_norm=1e9)
    first = step(squared_error(net), [batch])
    for _ in range(50):
        last = step(squared_error(net), [batch])
    assert last.metrics["loss"] < first.metrics["loss"] / 4
    scale = step.scaler.get_scale()
    assert step(squared_error(net), [(batch[0], batch[1] * 1e30)]).skipped
    assert step.scaler.get_scale() == scale / 2


def averages(decay: float, weights: Sequence[float]) -> float:
    """Return the averages after the weight of a small network has had these values, one per update."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    parameter = net[0].weight
    assert isinstance(parameter, nn.Parameter)
    with torch.no_grad():
        parameter.zero_()
        average = AverageWeights(net, decay=decay)
        for weight in weights:
            parameter.fill_(weight)
            average.update()
    found = average.network.get_parameter("0.weight")
    return found.item()


def test_averages_forget_fast_at_first_and_by_the_decay_later() -> None:
    assert averages(0.999, [1]) == pytest.approx(0.9)  # 1 - 1 / 10
    assert averages(0.999, [1, 1]) == pytest.approx(1 - 0.1 * 2 / 11)
    assert averages(0.05, [1, 0]) == pytest.approx(0.95 * 0.05)
    assert averages(0.0, [3, 5]) == 5


def test_averages_include_the_statistics_of_batch_norm() -> None:
    net = network()
    average = AverageWeights(net, decay=0.5)
    update_step(net, average=average)(squared_error(net), [data(64)])
    statistics, averaged = net.get_buffer("1.running_mean"), average.network.get_buffer("1.running_mean")
    torch.testing.assert_close(averaged, statistics * 0.9)
    assert average.network.get_buffer("1.num_batches_tracked") == 1
