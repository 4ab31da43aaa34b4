"""The objective of PPO, number by number: each expected metric is computed by hand from the papers' formulas."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from keima.learning.update_step import Losses, StepReport
from keima.ppo.settings import PPOSettings
from keima.ppo.trainer import PPOTrainer, Sequences
from tests.ppo.test_ppo import QUICK, run, trainer
from tests.small_networks import noted_gradients

pytestmark = pytest.mark.numeric

THIRD = math.log(1 / 3)


def trainer_with(**changes: Any) -> PPOTrainer:
    return trainer(settings=PPOSettings(**QUICK.model_dump() | {"ent_coef": 0.0, "vf_coef": 0.0} | changes))


def losses(training: PPOTrainer, logits: Tensor, values: Tensor | None = None, /, **batch: float) -> Losses:
    """Return the losses of one step of one world, whose action was 0 with probability 1/3 then, with the network's
    current answers.
    """
    training.network.unroll = lambda *_: (logits, torch.zeros(1, 1) if values is None else values)  # type: ignore[method-assign]
    named = {"log_probabilities": THIRD, "values": 0.0, "advantages": 1.0, "returns": 0.0} | batch
    tensors = {name: torch.full((1, 1), number) for name, number in named.items()}
    actions, starts = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.bool)
    return training.compute_losses(Sequences(torch.zeros(1, 1, 1), starts, actions, memories=[], **tensors))


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities).log()[None, None].requires_grad_()


@pytest.mark.parametrize(
    ("probability", "advantage", "loss", "pushes"),
    [
        (1 / 3, 1.0, -1.0, True),
        (1 / 3, -1.0, 1.0, True),
        (0.5, 1.0, -1.2, False),  # the ratio is 1.5: going further gains nothing
        (0.5, -1.0, 1.5, True),  # but a wrong step is undone
        (1 / 6, -1.0, 0.8, False),
        (1 / 6, 1.0, -0.5, True),
        (0.38, 1.0, -1.14, True),  # within the bounds
        (0.28, -1.0, 0.84, True),
    ],
)
def test_the_ratio_counts_only_within_its_bounds(
    probability: float, advantage: float, loss: float, pushes: bool
) -> None:
    logits = logits_of(probability, (1 - probability) / 2, (1 - probability) / 2)
    said = losses(trainer_with(), logits, advantages=advantage)
    assert said.loss.item() == said.metrics["policy_loss"].item() == pytest.approx(loss, abs=1e-5)
    (gradient,) = torch.autograd.grad(said.loss, logits)
    assert (
        gradient[0, 0, 0].item() * -advantage > 0.01
    ) is pushes  # descending makes a good action likelier, a bad one rarer
    assert bool(gradient.any()) is pushes


def test_the_bounds_are_those_of_the_settings() -> None:
    said = losses(trainer_with(clip_coef=0.4), logits_of(0.6, 0.2, 0.2))
    assert said.loss.item() == pytest.approx(-1.4, abs=1e-5)


def test_entropy_is_rewarded() -> None:
    """An even policy is better, by the coefficient, than a decided one."""
    training = trainer_with(ent_coef=0.1)
    even, sure = (
        losses(training, logits_of(*policy), advantages=0.0) for policy in ((1 / 3, 1 / 3, 1 / 3), (0.8, 0.1, 0.1))
    )
    assert even.loss.item() == pytest.approx(-0.1 * math.log(3), abs=1e-6)
    assert even.metrics["entropy"].item() == pytest.approx(math.log(3), abs=1e-6)
    assert sure.loss.item() == pytest.approx(0.1 * (0.8 * math.log(0.8) + 0.2 * math.log(0.1)), abs=1e-6)
    logits = logits_of(0.8, 0.1, 0.1)
    (gradient,) = torch.autograd.grad(losses(training, logits, advantages=0.0).loss, logits)
    assert gradient[0, 0, 0] > 0 > gradient[0, 0, 1]  # descending makes likely actions less likely


def test_values_are_drawn_to_the_returns_by_their_coefficient() -> None:
    values = torch.full((1, 1), 3.0, requires_grad=True)
    said = losses(trainer_with(vf_coef=0.5), logits_of(1 / 3, 1 / 3, 1 / 3), values, advantages=0.0, returns=1.0)
    assert said.metrics["value_loss"].item() == pytest.approx(4.0)
    assert said.loss.item() == pytest.approx(0.5 * 4.0)
    assert torch.autograd.grad(said.loss, values)[0].item() == pytest.approx(0.5 * 2 * (3 - 1))


@pytest.mark.parametrize(
    ("then", "now", "target", "free", "clipped"),
    [
        (0.0, 1.0, 1.0, 0.0, 0.64),  # it may rise to 0.2: that far from 1
        (0.0, -1.0, -1.0, 0.0, 0.64),
        (0.0, 1.0, 0.0, 1.0, 1.0),  # whichever is worse
        (0.0, 0.1, 1.0, 0.81, 0.81),  # within the bounds
        (2.0, 3.0, 3.0, 0.0, 0.64),  # it may rise from 2 to 2.2
        (2.0, 2.1, 0.0, 4.41, 4.41),
    ],
)
def test_values_can_be_kept_near_their_old_ones(
    then: float, now: float, target: float, free: float, clipped: float
) -> None:
    logits, values = logits_of(1 / 3, 1 / 3, 1 / 3), torch.full((1, 1), now)
    for clip, expected in ((False, free), (True, clipped)):
        training = trainer_with(vf_coef=1.0, clip_values=clip)
        said = losses(training, logits, values, advantages=0.0, values=then, returns=target)
        assert said.loss.item() == pytest.approx(expected, abs=1e-5)


def test_metrics_say_how_far_the_policy_has_moved_and_how_much_was_clipped() -> None:
    moved = losses(trainer_with(), logits_of(0.5, 0.25, 0.25)).metrics
    assert moved["approx_kl"].item() == pytest.approx(1.5 - 1 - math.log(1.5), abs=1e-6)
    assert moved["clip_fraction"].item() == 1.0
    assert losses(trainer_with(), logits_of(0.38, 0.31, 0.31)).metrics["clip_fraction"].item() == 0.0


def step_reports(training: PPOTrainer, reports: list[StepReport]) -> Iterator[StepReport]:
    """Make the training's steps report these results; return an iterator over those that it has not requested."""
    left = iter(reports)
    training.update_step = lambda *_, **__: next(left)  # type: ignore[assignment]
    return left


def step_report(kl: float = 0.0, *, loss: float = 1.0, skipped: bool = False) -> StepReport:
    metrics = {
        "loss": loss,
        "policy_loss": 0.0,
        "value_loss": 0.0,
        "entropy": 0.0,
        "approx_kl": kl,
        "clip_fraction": 0.0,
    }
    return StepReport(
        {name: torch.tensor(number) for name, number in metrics.items()}, torch.tensor(2.0), skipped=skipped
    )


def test_learning_ends_when_the_policy_has_moved_one_and_a_half_times_the_target() -> None:
    for target, taken in ((0.5, 3), (0, 4)):
        training = trainer_with(target_kl=target)
        rollout = training.collector.collect()
        left = step_reports(training, [step_report(kl) for kl in (0.5, 0.75, 0.76, 0.0)])
        assert training.learn(rollout)["optimizer_steps"] == taken
        assert len(list(left)) == 4 - taken


def test_metrics_are_means_over_the_steps_taken() -> None:
    training = trainer_with()
    rollout = training.collector.collect()
    step_reports(
        training,
        [step_report(loss=1.0), step_report(loss=math.nan, skipped=True), step_report(loss=3.0), step_report(loss=5.0)],
    )
    metrics = training.learn(rollout)
    assert (metrics["loss"], metrics["grad_norm"], metrics["optimizer_steps"], metrics["skipped_steps"]) == (
        3.0,
        2.0,
        4,
        1,
    )


def test_a_round_without_a_finite_step_is_reported_as_one() -> None:
    training = trainer_with()
    rollout = training.collector.collect()
    step_reports(training, [step_report(loss=math.nan, skipped=True)] * 4)
    metrics = training.learn(rollout)
    assert (metrics["loss"], metrics["optimizer_steps"], metrics["skipped_steps"]) == (0.0, 4, 4)


def test_gradients_reach_the_optimizer_no_larger_than_the_settings_allow() -> None:
    training = trainer_with(clip_norm=1e-3)
    found = noted_gradients(training.network, training.optimizer)
    (report,) = run(training, 1)
    norms = [torch.stack([gradient.norm() for gradient in step.values()]).norm().item() for step in found]
    assert len(norms) == 4 and norms == pytest.approx([1e-3] * 4, rel=1e-3)
    assert report.learning["grad_norm"] > 1e-2  # as it was before


def test_one_round_makes_profitable_actions_likelier_and_values_more_accurate() -> None:
    """On the steps that were learned from, with the whole objective: no sign in it can be flipped."""
    training = trainer(settings=QUICK.model_copy(update={"learning_rate_actor": 3e-3, "learning_rate_critic": 3e-3}))
    rollout = training.collector.collect()
    training.learn(rollout)
    with torch.no_grad():
        logits, values = training.network.unroll(
            rollout.observations, rollout.starts, training.network.initial_states(4)
        )
        now = logits.log_softmax(-1).gather(-1, rollout.actions[..., None]).squeeze(-1)
    assert ((now - rollout.log_probabilities) * rollout.advantages).mean() > 0
    assert (values - rollout.returns).square().mean() < (rollout.values - rollout.returns).square().mean()
