"""How fast a learner is, before there are games."""

from types import SimpleNamespace
from typing import Any

import pytest

from keima.config.sections.network import NetworkSettings
from keima.config.sections.training import TrainingSettings, WindowSettings
from keima.games import load_game
from keima.learning import speed
from keima.learning.learner import Learner, Window
from keima.learning.speed import count_learner_threads, measure_learning_speed

GO = load_game("go", size=5)
TRAINING = TrainingSettings(batch_size=256, optimizer="muon", window=WindowSettings(min_positions=256), device="cpu")


@pytest.mark.medium
def test_a_learner_with_all_heads_learns_invented_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = list[Any]()

    def train(self: Learner, *arguments: Any, **options: Any) -> Any:
        reports.append(trained(self, *arguments, **options))
        return reports[-1]

    trained = Learner.train
    monkeypatch.setattr(Learner, "train", train)
    monkeypatch.setattr(speed, "SECONDS", 0.5)
    heads: dict[str, Any] = {f"predict_{name}": True for name in ("reply", "ownership", "score", "future")}
    shape = NetworkSettings(blocks=1, channels=8, growth=("2x8@0.5",), **heads)
    assert measure_learning_speed(GO, shape, TRAINING) == reports[-1].samples_per_second
    assert all(report.loss > 0 and report.skipped_steps == 0 for report in reports)


@pytest.mark.parametrize(
    ("first", "then", "batches", "found"),
    [
        (0.5, 1_000.0, [8, 8, 256, 256], 256_000.0),  # making kernels takes long
        (2_000.0, 100.0, [8, 8], 100.0),  # a whole batch would take longer than it may
    ],
)
def test_a_slow_network_is_judged_by_few_positions_but_not_by_its_first_step(
    first: float, then: float, batches: list[int], found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()

    def train(self: Learner, window: Window, steps: int, seed: int, *, batch_size: int = 0, **limits: float) -> Any:
        size = batch_size or self.batch_size
        assert len(window.sample(size, 0).values) == size
        sizes.append(size)
        rates = {0: first, 1: then}
        return SimpleNamespace(samples_per_second=rates.get(len(sizes) - 1, 256_000.0))

    monkeypatch.setattr(Learner, "train", train)
    assert measure_learning_speed(GO, NetworkSettings(blocks=1, channels=8), TRAINING) == found
    assert sizes == batches


def test_a_learner_leaves_cores_to_those_who_play_at_the_same_time() -> None:
    assert count_learner_threads("auto", cores=16, is_spread=False, asynchronous=True) == 8
    assert count_learner_threads("auto", cores=16, is_spread=True, asynchronous=True) == 15
    assert count_learner_threads("auto", cores=16, is_spread=False, asynchronous=False) == 16
    assert count_learner_threads("auto", cores=1, is_spread=True, asynchronous=True) == 1
