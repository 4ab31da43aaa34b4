"""How many ranks a machine gets."""

import pytest

import keima.learning.ranks.torchrun
from keima.learning.ranks.torchrun import count_ranks_to_start


def on_a_machine(monkeypatch: pytest.MonkeyPatch, *, gpus: int, cores: int) -> None:
    monkeypatch.setattr(keima.learning.ranks.torchrun, "count_gpus", lambda: gpus)
    monkeypatch.setattr(keima.learning.ranks.torchrun.os, "sched_getaffinity", lambda _: range(cores))


@pytest.mark.parametrize(
    ("asked", "gpus", "cores", "count", "sentence"),
    [
        (8, 8, 64, 8, ""),
        (4, 8, 64, 4, ""),
        (8, 2, 64, 2, "8 GPUs requested, 2 found: 2 ranks with a GPU each"),
        (8, 1, 64, 1, "8 GPUs requested, 1 found: 1 rank with a GPU each"),
        (
            8,
            0,
            2,
            2,
            "8 GPUs requested, none found: 2 ranks on the CPU, one per core; --device cpu starts all 8",
        ),
        (2, 0, 4, 2, "2 GPUs requested, none found: 2 ranks on the CPU"),
        (1, 0, 4, 1, ""),
        (None, 8, 64, 8, ""),
        (None, 0, 4, 2, "No GPU found: 2 ranks on the CPU"),
        (None, 0, 1, 1, "No GPU found: 1 rank on the CPU"),
    ],
)
def test_there_is_one_rank_per_gpu_or_else_per_core_and_differences_are_reported(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, gpus: int, cores: int, count: int, sentence: str
) -> None:
    on_a_machine(monkeypatch, gpus=gpus, cores=cores)
    assert count_ranks_to_start(asked, "auto", usual=2) == (count, sentence)


def test_on_the_cpu_there_are_as_many_ranks_as_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_machine(monkeypatch, gpus=2, cores=2)
    assert count_ranks_to_start(8, "cpu") == (8, "")
