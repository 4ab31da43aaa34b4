import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from keima.config.sections.training import TrainingSettings
from keima.games import Game
from keima.learning.learner import Learner, LearnerState, copy_to_device
from keima.learning.optimizers import build_optimizer
from keima.learning.update_step import MOST_SKIPPED, TrainingDiverged
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from keima.replay.window import ALL_ROWS, Batch
from tests.small_networks import CONNECT_FOUR, TIC_TAC_TOE, FixedWindow, random_batch, trained_network

CPU = torch.device("cpu")


def learner(game: Game = TIC_TAC_TOE, **options: Any) -> Learner:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"device": "cpu", "batch_size": 16} | options
    return Learner(build_network(game, blocks=2, channels=8), **settings)


def with_logits(
    batch: Batch, logits: Any, value_logits: Any, **options: Any
) -> tuple[Learner, torch.Tensor, torch.Tensor]:
    """Return a learner whose network gives these answers on the batch."""
    taught = learner(**options)
    tensors = torch.tensor(logits, requires_grad=True), torch.tensor(value_logits, requires_grad=True)
    taught.network.forward = lambda observations: tensors  # type: ignore[method-assign]
    return taught, *tensors


def rows(batch: Batch, count: int) -> Batch:
    return Batch(**{name: array[:count] for name, array in vars(batch).items()})


@pytest.mark.medium
@pytest.mark.parametrize(
    ("optimizer", "rate", "game"),
    [
        ("adamw", 0.01, TIC_TAC_TOE),
        ("muon", 0.01, TIC_TAC_TOE),
        ("sgd", 0.1, TIC_TAC_TOE),
        ("adamw", 0.01, CONNECT_FOUR),
        pytest.param("muon", 0.01, CONNECT_FOUR, marks=pytest.mark.slow),
        pytest.param("sgd", 0.1, CONNECT_FOUR, marks=pytest.mark.slow),
    ],
)
def test_one_batch_can_be_memorized(game: Game, optimizer: Any, rate: float) -> None:
    torch.manual_seed(0)
    network = build_network(game, blocks=1, channels=16)
    taught = Learner(network, device="cpu", optimizer=optimizer, learning_rate=rate, warmup_steps=10)
    batch = copy_to_device(random_batch(game, 16), CPU)
    for _ in range(100):
        report = taught.descend(batch)
    assert report.metrics["policy_loss"] < 0.1 and report.metrics["value_loss"] < 0.1


@pytest.mark.medium
def test_the_network_that_plays_has_learned_who_won() -> None:
    batch = random_batch(TIC_TAC_TOE, 16)
    batch.observations[:8], batch.observations[8:] = 0, 1
    batch.values[:8], batch.values[8:] = 1, -1  # the player to move wins the first ones
    batch.policies[:], batch.legal[:] = np.eye(9)[[3] * 8 + [5] * 8], True
    taught = learner(learning_rate=0.01, warmup_steps=0, ema_decay=0.9)
    for _ in range(60):
        taught.descend(copy_to_device(batch, CPU))
    evaluate = Evaluator(trained_network(TIC_TAC_TOE, channels=8), TIC_TAC_TOE, device="cpu")
    evaluate.load(taught.weights())
    logits, values = evaluate(batch.observations)
    assert (values[:8] > 0.8).all() and (values[8:] < -0.8).all()
    assert (logits.argmax(1) == batch.policies.argmax(1)).all()


def test_the_losses_are_the_cross_entropies() -> None:
    batch = rows(random_batch(TIC_TAC_TOE, 2), 2)
    batch.legal[:] = [[1, 1, 1, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0, 1]]
    batch.policies[:] = 0
    batch.policies[0, :3], batch.policies[1, [0, 8]] = [0.5, 0.25, 0.25], [0.1, 0.9]
    batch.values[:] = [1, -0.5]
    logits = np.random.default_rng(0).normal(size=(2, 9)).astype(np.float32)
    taught, *_ = with_logits(batch, logits, [0.7, 1.3], value_weight=0.25)
    losses = taught.losses(copy_to_device(batch, CPU))

    chances = [np.exp(row[legal]) / np.exp(row[legal]).sum() for row, legal in zip(logits, batch.legal, strict=True)]
    policy = -sum((batch.policies[i][batch.legal[i]] * np.log(chances[i])).sum() for i in range(2)) / 2
    entropy = -sum((chance * np.log(chance)).sum() for chance in chances) / 2
    wins = [1 / (1 + math.exp(-0.7)), 1 / (1 + math.exp(-1.3))]  # the probability that a value means: (1 + value) / 2
    value = -(math.log(wins[0]) + 0.25 * math.log(wins[1]) + 0.75 * math.log(1 - wins[1])) / 2
    found = {name: metric.item() for name, metric in losses.metrics.items()}
    assert found == pytest.approx(
        {"policy_loss": policy, "value_loss": value, "auxiliary_loss": 0, "policy_entropy": entropy}, rel=1e-5
    )
    assert losses.loss.item() == pytest.approx(policy + 0.25 * value, rel=1e-5)


@pytest.mark.parametrize("target", [-1.0, -0.3, 0.0, 0.5, 1.0])
def test_the_value_loss_is_minimal_where_the_value_is_the_target(target: float) -> None:
    batch = rows(random_batch(TIC_TAC_TOE, 1), 1)
    batch.values[:] = target
    logit = 2 * math.atanh(max(-0.9999, min(0.9999, target)))  # value = tanh(logit / 2)
    taught, _, value_logits = with_logits(batch, np.zeros((1, 9), np.float32), [logit])
    taught.losses(copy_to_device(batch, CPU)).loss.backward()
    assert value_logits.grad is not None and abs(value_logits.grad.item()) < 1e-4


def test_illegal_actions_do_not_contribute_to_the_loss() -> None:
    batch = rows(random_batch(TIC_TAC_TOE, 1), 1)
    batch.legal[:], batch.policies[:] = [[1, 1, 0, 0, 0, 0, 0, 0, 0]], np.eye(9)[0]
    taught, logits, _ = with_logits(batch, [[0.0, 0.0, 50.0, *[0.0] * 6]], [0.0])
    losses = taught.losses(copy_to_device(batch, CPU))
    losses.loss.backward()
    assert losses.metrics["policy_loss"].item() == pytest.approx(math.log(2))
    assert logits.grad is not None and (logits.grad[0, 2:] == 0).all() and logits.grad[0, 0] < 0 < logits.grad[0, 1]


def test_a_position_without_a_policy_target_teaches_only_its_value() -> None:
    batch = rows(random_batch(TIC_TAC_TOE, 2), 2)
    batch.policy_mask[1], batch.policies[1] = 0, 0
    taught, logits, value_logits = with_logits(batch, np.zeros((2, 9), np.float32), [0.0, 0.0])
    taught.losses(copy_to_device(batch, CPU)).loss.backward()
    assert logits.grad is not None and value_logits.grad is not None
    assert logits.grad[0].any() and not logits.grad[1].any() and value_logits.grad.all()


def test_the_report_describes_the_training() -> None:
    taught, window = learner(learning_rate=0.01, warmup_steps=4), FixedWindow(TIC_TAC_TOE, 64)
    report = taught.train(window, 2, 0)
    assert (report.steps, report.samples, report.skipped_steps) == (2, 32, 0)
    assert report.learning_rate == pytest.approx(0.005) and report.grad_norm > 0
    assert report.loss == pytest.approx(report.policy_loss + report.value_loss, rel=1e-5)
    assert 0 < report.policy_entropy <= math.log(9)
    assert report.samples_per_second == pytest.approx(32 / report.seconds)


def test_zero_steps_make_an_empty_report() -> None:
    report = learner().train(FixedWindow(TIC_TAC_TOE, 64), 0, 0)
    assert (report.steps, report.samples, report.loss) == (0, 0, 0)


class SpoiltWindow(FixedWindow):
    """A window of which every ``period``-th draw is damaged."""

    def __init__(self, period: int) -> None:
        super().__init__(TIC_TAC_TOE, 64)
        self.period, self.draws = period, 0

    def sample(self, count: int, rng_seed: int, *, rows: slice = ALL_ROWS) -> Batch:
        self.draws += 1
        batch = super().sample(count, rng_seed, rows=rows)
        return replace(batch, values=batch.values * (np.nan if self.draws % self.period == 0 else 1))


def test_damaged_steps_are_skipped_and_counted() -> None:
    report = learner().train(SpoiltWindow(2), 4, 0)
    assert report.skipped_steps == 2 and math.isfinite(report.loss) and math.isfinite(report.grad_norm)


def test_training_ends_when_thirty_steps_in_a_row_are_damaged_however_many_calls_take_them() -> None:
    taught, window = learner(), SpoiltWindow(1)
    for _ in range(MOST_SKIPPED - 1):
        report = taught.train(window, 1, 0)
        assert (report.steps, report.skipped_steps, report.loss) == (1, 1, 0.0)
    with pytest.raises(TrainingDiverged, match=r"none of the last 30 steps .* lower the learning rate"):
        taught.train(window, 3, 0)


def test_a_good_step_forgives_the_damaged_ones_before_it() -> None:
    taught = learner()
    taught.train(SpoiltWindow(1), MOST_SKIPPED - 1, 0)
    assert taught.train(FixedWindow(TIC_TAC_TOE, 64), 1, 0).skipped_steps == 0
    assert taught.train(SpoiltWindow(1), MOST_SKIPPED - 1, 0).skipped_steps == MOST_SKIPPED - 1


def in_float16(monkeypatch: pytest.MonkeyPatch, **scale: float) -> Learner:
    """Return a learner with a device that is fast in float16 alone."""
    monkeypatch.setattr("keima.learning.update_step.fastest_dtype", lambda device: torch.float16)
    taught = learner(mixed_precision=True)
    taught.update_step.scaler = torch.amp.GradScaler("cpu", **scale)
    monkeypatch.undo()
    return taught


@pytest.mark.medium
def test_a_scale_that_is_too_large_at_first_costs_some_calls_and_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    taught, window = in_float16(monkeypatch, init_scale=2.0**30), FixedWindow(TIC_TAC_TOE, 64)
    skipped = [taught.train(window, 1, 0).skipped_steps for _ in range(MOST_SKIPPED)]
    assert skipped[:3] == [1, 1, 1] and skipped.count(0) > MOST_SKIPPED / 2


@pytest.mark.medium
def test_a_run_moves_between_devices_with_and_without_a_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    window, plain, scaled = FixedWindow(TIC_TAC_TOE, 64), learner(), in_float16(monkeypatch, init_scale=8.0)
    plain.train(window, 2, 0)
    assert plain.state().counters["scaler"] == {}
    scaled.restore(plain.state())
    assert scaled.update_step.scaler.get_scale() == 8.0 and scaled.step == 2
    scaled.train(window, 1, 0)
    again = learner()
    again.restore(scaled.state())
    assert again.step == 3
    other = in_float16(monkeypatch, init_scale=2.0)
    other.restore(scaled.state())
    assert other.update_step.scaler.get_scale() == 8.0


@pytest.mark.parametrize("device", ["cuda:1", "cuda"])
def test_a_learner_can_be_given_one_of_several_gpus(device: str) -> None:
    assert TrainingSettings(device=device).device == device
    with pytest.raises(ValueError, match=f"no device '{device}' here"):  # and none is here
        learner(device=device)


def test_the_learning_rate_warms_up_and_stays_constant() -> None:
    taught = learner(learning_rate=1.0, warmup_steps=10)
    rates = []
    for step in (1, 5, 10, 1000):
        taught.step = step
        rates.append(taught.learning_rate_now(0.5))
    assert rates == [0.1, 0.5, 1.0, 1.0]


def test_a_cosine_schedule_ends_at_a_hundredth_when_the_run_ends() -> None:
    taught = learner(learning_rate=1.0, warmup_steps=0, learning_rate_schedule="cosine")
    rates = [taught.learning_rate_now(progress) for progress in (0, 0.5, 1, 1.5)]
    assert rates == pytest.approx([1, 0.505, 0.01, 0.01])


def test_a_cosine_schedule_also_warms_up() -> None:
    taught = learner(learning_rate=1.0, warmup_steps=10, learning_rate_schedule="cosine")
    taught.step = 5
    assert [taught.learning_rate_now(progress) for progress in (0, 0.5)] == pytest.approx([0.5, 0.5 * 0.505])


def test_only_matrices_and_kernels_decay() -> None:
    network = build_network(TIC_TAC_TOE, blocks=1, channels=8)
    decaying, others = build_optimizer(network, TrainingSettings(optimizer="adamw", weight_decay=0.1)).param_groups
    assert decaying["weight_decay"] == 0.1 and all(parameter.ndim > 1 for parameter in decaying["params"])
    assert others["weight_decay"] == 0 and all(parameter.ndim == 1 for parameter in others["params"])
    assert len(decaying["params"]) + len(others["params"]) == len(list(network.parameters()))


def test_an_unknown_optimizer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="Input should be 'adamw', 'muon' or 'sgd'"):
        learner(optimizer="lion")


def test_settings_and_options_together_are_refused() -> None:
    with pytest.raises(TypeError, match="not both: batch_size"):
        Learner(build_network(TIC_TAC_TOE, blocks=1, channels=8), TrainingSettings(device="cpu"), batch_size=16)


def test_the_averaged_weights_are_returned_as_copies() -> None:
    taught = learner()
    taught.train(FixedWindow(TIC_TAC_TOE, 64), 3, 0)
    weights = taught.weights()
    assert not torch.equal(weights["stem.conv.weight"], taught.network.get_parameter("stem.conv.weight"))
    before = {name: tensor.clone() for name, tensor in weights.items()}
    for tensor in weights.values():
        tensor.fill_(7)
    assert all(torch.equal(tensor, before[name]) for name, tensor in taught.weights().items())


def everything(taught: Learner) -> list[torch.Tensor]:
    state = taught.state()
    return [tensor for group in ("network", "average", "optimizer") for tensor in state.tensors[group].values()]


@pytest.mark.medium
@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_ten_steps_equal_five_steps_and_five_more_by_a_restored_learner(optimizer: Any) -> None:
    window = FixedWindow(TIC_TAC_TOE, 64)
    whole, first, second = (learner(optimizer=optimizer) for _ in range(3))
    whole.train(window, 10, 7)
    first.train(window, 5, 7)
    second.train(window, 2, 3)  # its previous state is forgotten
    second.restore(first.state())
    second.train(window, 5, 7)
    assert second.step == 10
    assert all(torch.equal(ours, wanted) for ours, wanted in zip(everything(second), everything(whole), strict=True))


def test_a_state_is_a_copy() -> None:
    taught, window = learner(), FixedWindow(TIC_TAC_TOE, 64)
    taught.train(window, 1, 0)
    state = taught.state()
    before = {name: tensor.clone() for name, tensor in state.tensors["optimizer"].items()}
    taught.train(window, 2, 0)
    assert before and all(torch.equal(state.tensors["optimizer"][name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("other", "reason"),
    [({"optimizer": "sgd"}, "is of SGD, not of AdamW"), ({"game": CONNECT_FOUR}, "was the network changed")],
)
def test_a_state_of_another_learner_is_refused_with_the_reason(other: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        learner().restore(learner(**other).state())


def test_an_incomplete_state_is_refused() -> None:
    state = learner().state()
    with pytest.raises(ValueError, match="does not fit"):
        learner().restore(LearnerState({"network": state.tensors["network"]}, state.counters))
