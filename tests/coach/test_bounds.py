"""How large the steps of a run are."""

import pytest

from keima.coach.bounds import Bounds, batch_size_now, choose_batch_size, least_batch_size
from keima.config.sections.run import RunSettings
from keima.config.sections.training import TrainingSettings

SETTINGS = TrainingSettings(batch_size=256, steps_per_run=7_000, samples_per_position=4.0)


@pytest.mark.parametrize(
    ("samples", "most", "size"),
    [(1e3, 256, 32), (2e5, 256, 32), (4e5, 256, 64), (1e6, 256, 128), (1e9, 256, 256), (1e9, 100, 100), (1e3, 16, 16)],
)
def test_a_short_run_has_small_batches_so_that_it_takes_many_steps(samples: float, most: int, size: int) -> None:
    assert choose_batch_size(samples, steps=7_000, most=most) == size


def test_batches_follow_how_fast_games_come_and_how_long_the_run_is() -> None:
    assert batch_size_now(SETTINGS, total_samples=30_000, share=0.25) == 64
    assert batch_size_now(SETTINGS, total_samples=120_000, share=0.25) == 256, "machines have joined"
    assert batch_size_now(SETTINGS, total_samples=30_000, share=0.125) == 128, "the run has been given more time"
    assert batch_size_now(SETTINGS, total_samples=1_000, share=0.0) == 64, "it has just begun"


def test_a_board_of_a_run_goes_by_its_own_share_of_the_run() -> None:
    bounds = Bounds(RunSettings(name="second_board", minutes=5.0), seconds=240.0, began=180.0, clock=lambda: 0.0)
    bounds.schedule_minutes = 10.0
    assert bounds.share_done(1) == 0.4
    assert bounds.share_of_part(1) == pytest.approx(0.1), "batches go by what is played on this board"
    assert bounds.seconds_left(1) == 360.0 and not bounds.is_time_up()
    own = RunSettings(name="own_board", minutes=60.0, iterations=50)
    assert Bounds(own, seconds=240.0, began=180.0, clock=lambda: 0.0).seconds_left(1) == 49 * 60.0


def test_a_learner_that_takes_most_of_the_time_has_larger_batches_until_it_takes_half() -> None:
    sizes = [32]
    for learning in (0.81, 0.75, 0.6, 0.6, 0.4):
        least = least_batch_size(sizes[-1], learning)
        sizes.append(batch_size_now(SETTINGS, total_samples=5_000, share=0.25, least=least))
    assert sizes == [32, 64, 128, 128, 128, 32]
    assert batch_size_now(SETTINGS, total_samples=5_000, share=0.25, least=2 * 256) == 256


@pytest.mark.parametrize("changes", [{"steps_per_run": None}, {"asynchronous": False}])
def test_otherwise_all_batches_are_alike(changes: dict[str, object]) -> None:
    settings = SETTINGS.model_copy(update=changes)
    assert batch_size_now(settings, total_samples=1_000, share=0.5) == 256
