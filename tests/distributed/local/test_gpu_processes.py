"""How many worker processes a GPU gets: by what one of them needs."""

from pathlib import Path

import pytest

from distributed.local import gpu_processes, worker_devices
from distributed.local.gpu_processes import GpuUse, gpu_use, measure, measured_processes, processes_for
from distributed.local.worker_devices import spread_here, spread_workers
from tests.training.small_run import small_settings

H200 = 140 * 10**9


@pytest.mark.parametrize(
    ("share", "taken", "free", "count"),
    [
        (0.25, 10**9, H200, 5),  # four that wait in turn, and one that prepares
        (0.9, 10**9, H200, 3),
        (1.0, 10**9, H200, 2),
        (0.02, 10**9, H200, 51),
        (0.02, 10**9, 24 * 10**9, 12),  # half of its memory is the learner's
        (0.001, 1, H200, 64),
        (1.0, 10**10, 10**10, 1),
    ],
)
def test_there_are_as_many_as_keep_it_busy_and_fit_its_memory(share: float, taken: int, free: int, count: int) -> None:
    assert processes_for(GpuUse(share=share, bytes=taken, free=free)) == count


def test_the_number_of_cores_is_a_limit_and_no_longer_the_number() -> None:
    spread = spread_workers(("0", "1"), cores=128, measure=lambda: (5, "5 workers can play"))
    assert (len(spread), spread.note) == (10, "5 workers can play")
    assert len(spread_workers(("0", "1"), cores=6, measure=lambda: (5, ""))) == 6


def test_what_the_user_asks_for_is_not_measured() -> None:
    def fail() -> tuple[int, str]:
        raise AssertionError

    assert len(spread_workers(("0",), cores=64, workers=9, measure=fail)) == 9
    assert len(spread_workers(("0",), cores=64, per_gpu=7, measure=fail)) == 7
    assert len(spread_workers(("0",), cores=2, measure=fail)) == 2  # the fewest


def test_workers_play_on_the_gpu_that_the_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_devices, "count_gpus", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    settings = small_settings(Path(), training={"device": "cuda:1"}, self_play={"workers": 3})
    assert spread_here(settings).devices == ("5", "5", "5")
    with pytest.raises(ValueError, match="no cuda:2 here; 2 GPUs are visible"):
        spread_here(small_settings(Path(), training={"device": "cuda:2"}))


def test_a_measurement_that_fails_leaves_two_workers_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_processes, "measure", lambda settings, gpu: (None, "no answer within 600 s"))
    count, note = measured_processes(small_settings(Path()), "0")
    assert count == 2 and "no answer within 600 s" in note


@pytest.mark.medium
def test_a_process_measures_itself_as_a_worker_would_play(tmp_path: Path) -> None:
    use = gpu_use(small_settings(tmp_path), device="cpu")
    assert 0 < use.share < 1 and use.bytes == gpu_processes.CUDA_BYTES


@pytest.mark.medium
def test_the_measurement_has_a_process_of_its_own_whose_failure_is_said(tmp_path: Path) -> None:
    use, problem = measure(small_settings(tmp_path), "0")  # there is no GPU
    assert use is None and "no device 'cuda' here" in problem
