"""Worker processes are spread evenly over the GPUs that this process sees, whatever their number and their names."""

import os
import re
from pathlib import Path

import pytest

from keima.cluster.local import worker_devices
from keima.cluster.local.worker_devices import (
    Spread,
    device_slots,
    restrict_to_gpus,
    spread_local_workers,
    spread_workers,
    visible_gpus,
)
from tests.small_run import small_settings

FOUR = ("0", "1", "2", "3")


def shares(spread: Spread) -> dict[str, int]:
    """Return how many workers each device has."""
    return {device: spread.devices.count(device) for device in spread.devices}


@pytest.mark.parametrize(
    ("count", "listed", "names"),
    [
        (3, None, ("0", "1", "2")),
        (2, "2,0", ("2", "0")),
        (2, " 1 , 3 ", ("1", "3")),
        (0, "", ()),
        (0, "-1", ()),
        (0, None, ()),
        (1, "1,-1,2", ("1",)),
        (2, "GPU-8932f937-d72c,GPU-1a2b", ("GPU-8932f937-d72c", "GPU-1a2b")),
        (1, "MIG-GPU-8932f937/1/0", ("MIG-GPU-8932f937/1/0",)),
    ],
)
def test_the_gpus_are_those_that_cuda_visible_devices_names(
    count: int, listed: str | None, names: tuple[str, ...]
) -> None:
    assert visible_gpus(count, listed) == names


@pytest.mark.parametrize("cores", [1, 8, 64])
def test_by_default_two_workers_play_on_each_gpu(cores: int) -> None:
    spread = spread_workers(FOUR, cores=cores)
    assert shares(spread) == dict.fromkeys(FOUR, 2)
    assert spread.note == ""


@pytest.mark.parametrize(
    ("workers", "gpus", "each"), [(16, 4, 4), (17, 4, 4), (15, 4, 3), (5, 3, 1), (2, 4, 1), (7, 1, 7), (1, 1, 1)]
)
def test_a_number_of_workers_is_rounded_down_to_divide_evenly_with_a_message(
    workers: int, gpus: int, each: int
) -> None:
    spread = spread_workers(FOUR[:gpus], cores=2, workers=workers)
    assert shares(spread) == dict.fromkeys(FOUR[:gpus], each)
    if workers == gpus * each:
        assert spread.note == ""
    else:
        assert (
            spread.note
            == f"{workers} workers cannot be spread evenly over {gpus} GPUs: {gpus * each} play, {each} on each"
        )


def test_workers_per_gpu_sets_the_number_on_each_gpu() -> None:
    assert shares(spread_workers(FOUR, cores=2, per_gpu=3)) == dict.fromkeys(FOUR, 3)


def test_the_first_workers_play_on_different_gpus() -> None:
    assert spread_workers(FOUR, cores=16).devices[:4] == FOUR


def test_without_a_gpu_all_play_on_the_cpu() -> None:
    assert spread_workers((), cores=6) == Spread(devices=("",) * 6)
    assert spread_workers((), cores=6, workers=5) == Spread(devices=("",) * 5)
    asked_for_gpus = spread_workers((), cores=6, per_gpu=2)
    assert len(asked_for_gpus) == 6 and "no GPU" in asked_for_gpus.note


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"per_gpu": 0}, {"workers": -4}])
@pytest.mark.parametrize("gpus", [(), FOUR])
def test_zero_workers_are_refused(wrong: dict[str, int], gpus: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        spread_workers(gpus, cores=2, **wrong)


def test_workers_are_counted_either_in_total_or_per_gpu() -> None:
    with pytest.raises(ValueError, match="not both"):
        spread_workers(FOUR, cores=2, workers=4, per_gpu=1)


@pytest.mark.parametrize(
    ("device", "self_play_device", "listed", "expected"),
    [
        ("auto", "auto", None, {"0": 2, "1": 2}),
        ("auto", "auto", "5,GPU-ab", {"5": 2, "GPU-ab": 2}),
        ("cpu", "auto", None, {"": 4}),
        ("cuda", "cpu", None, {"": 4}),
    ],
)
def test_devices_follow_from_the_run_s_settings_and_this_process(
    monkeypatch: pytest.MonkeyPatch, device: str, self_play_device: str, listed: str | None, expected: dict[str, int]
) -> None:
    monkeypatch.setattr(worker_devices, "count_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    settings = small_settings(Path(), training={"device": device}, self_play={"workers": 4, "device": self_play_device})
    assert shares(spread_local_workers(settings)) == expected


def test_workers_play_on_the_gpu_that_the_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_devices, "count_gpus", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    settings = small_settings(Path(), training={"device": "cuda:1"}, self_play={"workers": 3})
    assert spread_local_workers(settings).devices == ("5", "5", "5")
    with pytest.raises(ValueError, match="no cuda:2 here; 2 GPUs are visible"):
        spread_local_workers(small_settings(Path(), training={"device": "cuda:2"}))


def test_workers_per_gpu_replaces_values_that_the_settings_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_devices, "count_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    settings = small_settings(Path(), self_play={"workers": "auto"})
    assert shares(spread_local_workers(settings, per_gpu=3)) == {"0": 3, "1": 3}


def slots_of(asked: str | None, gpus: int, **options: int) -> list[tuple[str, str, str]]:
    """Return the workers, their titles, and what CUDA_VISIBLE_DEVICES names for them."""
    names = [f"GPU-{number}" for number in range(gpus)]
    return [(slot.worker, slot.title, slot.device) for slot in device_slots(asked, names, **{"cores": 3, **options})]


def test_gpus_are_used_in_the_requested_order() -> None:
    assert slots_of("2,0", 3) == [("gpu-2", "GPU 2", "GPU-2"), ("gpu-0", "GPU 0", "GPU-0")]


def test_the_cpu_is_used_as_often_as_it_is_requested() -> None:
    assert slots_of("cpu, cpu", 0) == slots_of("cpu,cpu", 2) == [("cpu-0", "CPU 0", ""), ("cpu-1", "CPU 1", "")]


def test_without_gpus_the_cpu_stands_in_for_each() -> None:
    assert slots_of("3,0", 0) == [("cpu-0", "CPU 0", ""), ("cpu-1", "CPU 1", "")]
    with pytest.raises(ValueError, match="names a GPU twice"):
        slots_of("0,0", 0)


def test_by_default_all_gpus_or_all_cores_are_used() -> None:
    assert [title for _, title, _ in slots_of(None, 2)] == ["GPU 0", "GPU 1"]
    assert [title for _, title, _ in slots_of(None, 0)] == ["CPU 0", "CPU 1", "CPU 2"]


def test_several_workers_of_a_gpu_alternate_so_that_the_shares_of_gpus_stay_even() -> None:
    assert [worker for worker, _, _ in slots_of("0,1", 2, per_device=2)] == ["gpu-0-1", "gpu-1-1", "gpu-0-2", "gpu-1-2"]


@pytest.mark.parametrize(
    ("asked", "gpus", "words"),
    [
        ("0,5", 2, "there is no GPU 5 here: there are 2: 0, 1"),
        ("1", 1, "there is no GPU 1 here: the only one is GPU 0"),
        ("0,0", 2, "names a GPU twice"),
        ("0,cpu", 2, 'found "cpu"'),
        ("", 2, "is not a list of GPUs"),
        ("all", 2, 'found "all"'),
        ("-1", 2, 'found "-1"'),
    ],
)
def test_a_missing_gpu_is_named_with_the_existing_ones(asked: str, gpus: int, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        slots_of(asked, gpus)


def test_a_gpu_has_at_least_one_worker() -> None:
    with pytest.raises(ValueError, match="0 workers for each device"):
        slots_of("cpu", 0, per_device=0)


def test_this_process_sees_the_workers_devices_the_first_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    restrict_to_gpus(device_slots("2,0", visible_gpus(3, "4,5,6"), cores=1, per_device=2))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6,4"
