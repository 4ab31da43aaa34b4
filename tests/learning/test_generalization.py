"""Whether overfitting of the window is detected."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from keima.base.reports.run_reports import GeneralizationReport
from keima.data.records import GameBatch
from keima.learning.generalization import measure_generalization
from keima.learning.learner import Learner
from keima.networks.network import build_network
from keima.replay.window import ReplayWindow
from keima.report.charts.page import make_report_charts
from keima.report.files.run_files import StatsFile, read_stats, report_scalars
from keima.report.tables import history_columns
from tests.example_reports import iteration
from tests.one_player import random_batch
from tests.small_networks import CONNECT_FOUR

COUNT = 48


def random_games(games: int, *, seed: int = 1) -> GameBatch:
    """Return games whose policies are nearly sure of the move that was drawn: nothing can be learned except by
    memorizing.
    """
    batch = random_batch(CONNECT_FOUR, games=games, seed=seed)
    return replace(batch, policy_weights=np.where(batch.policy_weights == 2, 50, 1).astype(np.uint16))


def window_of(games: int) -> ReplayWindow:
    window = ReplayWindow(CONNECT_FOUR, capacity_positions=10**6)
    window.add(random_games(games))
    return window


def learner_of(*, learning_rate: float) -> Learner:
    torch.manual_seed(1)
    network = build_network(CONNECT_FOUR, blocks=1, channels=16)
    return Learner(network, device="cpu", batch_size=64, learning_rate=learning_rate, warmup_steps=0, ema_decay=0.9)


@pytest.mark.slow
def test_a_network_that_has_memorized_its_window_does_worse_on_new_games() -> None:
    window, learner = window_of(30), learner_of(learning_rate=5e-3)
    learner.train(window, 250, 1)
    window.add(random_games(6, seed=2))
    found = measure_generalization(learner, window, 1, count=COUNT)
    assert found is not None
    assert found.policy_new > 1.5 * found.policy_learned and found.value_new > 1.5 * found.value_learned
    assert found.excess > 0.5
    assert found == measure_generalization(learner, window, 1, count=COUNT)


def test_an_untrained_network_does_equally_well_and_is_left_unchanged() -> None:
    window, learner = window_of(200), learner_of(learning_rate=1e-9)
    learner.train(window, 1, 1)
    before, random = learner.state(), torch.get_rng_state()
    found = measure_generalization(learner, window, 1, count=500)
    assert found is not None and abs(found.excess) < 0.1
    # It predicts nothing: the values to learn, whose mean is nearly 0, are all that there is to explain, and its policy
    # is
    # even.
    assert found.value_new == pytest.approx(1, abs=0.1) and found.value_learned == pytest.approx(1, abs=0.1)
    after = learner.state()
    assert all(
        torch.equal(tensor, after.tensors[part][name])
        for part, group in before.tensors.items()
        for name, tensor in group.items()
    )
    assert torch.equal(random, torch.get_rng_state())


def test_the_policy_s_metric_is_its_divergence_from_the_targets() -> None:
    window, learner = window_of(40), learner_of(learning_rate=1e-9)
    learner.train(window, 1, 1)
    found = measure_generalization(learner, window, 1, count=COUNT)
    newest = window.take(window.to_learn_from()[-COUNT:], np.zeros(COUNT, np.int64))
    with torch.no_grad():
        logits = learner.average.network(torch.from_numpy(newest.observations))[0].double().numpy()
    said = np.where(newest.legal, np.exp(logits), 0)
    said /= said.sum(1, keepdims=True)
    wanted = (
        sum(
            p * np.log(p / q)
            for p, q in zip(newest.policies[newest.policies > 0], said[newest.policies > 0], strict=True)
        )
        / COUNT
    )
    assert found is not None and found.policy_new == pytest.approx(wanted, rel=0.01)


def test_nothing_is_measured_before_the_first_step_or_on_a_few_positions() -> None:
    learner = learner_of(learning_rate=1e-9)
    assert measure_generalization(learner, window_of(40), 1, count=COUNT) is None
    learner.train(window_of(4), 1, 1)
    assert measure_generalization(learner, window_of(4), 1, count=COUNT) is None


def test_the_result_is_shown_everywhere_and_read_again(tmp_path: Path) -> None:
    plain = iteration(3)
    assert plain.learner
    found = GeneralizationReport(policy_new=0.3, policy_learned=0.2, value_new=0.24, value_learned=0.25)
    row = replace(plain, learner=replace(plain.learner, generalization=found))
    assert {name: value for name, value in report_scalars(row).items() if name not in report_scalars(plain)} == {
        "learner/generalization_policy_new": 0.3,
        "learner/generalization_policy_learned": 0.2,
        "learner/generalization_value_new": 0.24,
        "learner/generalization_value_learned": 0.25,
    }
    column = next(column for column in history_columns([]) if column.title == "Overfit")
    assert (column.cell(row), column.cell(plain)) == ("+20 %", "")
    drawn = make_report_charts("run", [row, replace(row, iteration=4, seconds=300.0)])
    assert drawn.metrics["learner/generalization_policy_new"] == [0.3, 0.3]
    titles = {curve.metric: chart.title for chart in drawn.charts for curve in chart.curves}
    assert titles["learner/generalization_policy_new"] == "Policy: divergence from search, in nats"
    assert titles["learner/generalization_value_new"] == "Value: unexplained variance"
    path = tmp_path / "training_stats.json"
    StatsFile(path).iteration(row)
    assert [read.learner and read.learner.generalization for read in read_stats(path)] == [found]
