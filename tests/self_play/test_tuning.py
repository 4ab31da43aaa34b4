"""The number of parallel games is measured once a week for each kind of network, and then known."""

import os
import time
from collections.abc import Collection
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from numpy.typing import NDArray

from keima.config.sections.search import SearchSettings
from keima.games import load_game
from keima.self_play import tuning
from keima.self_play.tuning import (
    AUTO_SIZES,
    PLAN_LIFETIME_SECONDS,
    SelfPlayPlan,
    count_search_threads,
    load_or_measure_plan,
    measure_plan,
)


def evaluate(observations: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    raise AssertionError("the measurement itself is replaced")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers that were measured, a new one for each measurement."""
    results: list[int] = []

    def measure(*_: object, **__: object) -> SelfPlayPlan:
        results.append(AUTO_SIZES[len(results)])
        return SelfPlayPlan(parallel_games=results[-1], threads=1, found=f"{results[-1]} parallel games")

    monkeypatch.setattr(tuning, "measure_plan", measure)
    return results


def ask(folder: Path, *, network: str = "small", simulations: int = 8) -> tuple[int, str]:
    settings = SearchSettings(num_simulations=simulations, cheap_simulations=1)
    plan = load_or_measure_plan(load_game("tic_tac_toe"), evaluate, settings, network=network, folder=folder)
    return plan.parallel_games, plan.found


def test_a_worker_measures_once_and_the_next_one_knows(tmp_path: Path, measured: list[int]) -> None:
    assert ask(tmp_path) == (16, "16 parallel games")
    (file,) = tmp_path.iterdir()
    assert ask(tmp_path) == (16, f"16 parallel games, as measured before ({file})")
    assert ask(tmp_path, network="large")[0] == 32
    assert ask(tmp_path, simulations=9)[0] == 64
    assert ask(tmp_path)[0] == 16
    assert len(measured) == 3


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"parallel_games": 17, "threads": 1, "found": "x"}',
        '{"parallel_games": 16, "threads": 0, "found": "x"}',
        '{"parallel_games": 16}',
    ],
)
def test_a_damaged_result_is_measured_again(tmp_path: Path, measured: list[int], content: str) -> None:
    ask(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert ask(tmp_path)[0] == 32
    assert ask(tmp_path)[0] == 32
    assert len(measured) == 2


def test_an_old_result_is_measured_again(tmp_path: Path, measured: list[int]) -> None:
    ask(tmp_path)
    (file,) = tmp_path.iterdir()
    long_ago = time.time() - PLAN_LIFETIME_SECONDS - 1
    os.utime(file, (long_ago, long_ago))
    assert ask(tmp_path)[0] == 32


def test_without_storage_it_is_measured_each_time(tmp_path: Path, measured: list[int]) -> None:
    (tmp_path / "file").touch()
    assert [ask(tmp_path / "file")[0] for _ in range(2)] == [16, 32]


class Machine:
    """A clock on which a call of the network takes a fixed time and a bit for each position; now and then it stalls."""

    def __init__(self, *, stalls: Collection[int]) -> None:
        self.now, self.calls, self.stalls = 0.0, 0, stalls

    def time(self) -> float:
        return self.now

    def evaluate(self, observations: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.calls += 1
        self.now += 0.02 + 0.0001 * max(64, len(observations)) + (5.0 if self.calls in self.stalls else 0.0)
        return np.zeros((len(observations), 9), np.float32), np.zeros(len(observations), np.float32)


@pytest.mark.parametrize(
    ("share", "most", "threads"), [(0.9, 16, 3), (0.25, 16, 5), (0.05, 16, 16), (0.05, 4, 4), (0.0, 1, 2)]
)
def test_threads_search_while_others_wait_for_the_device(share: float, most: int, threads: int) -> None:
    assert count_search_threads(share, most) == threads


@pytest.mark.medium
def test_a_busy_moment_does_not_change_the_measured_number() -> None:
    game, settings = load_game("tic_tac_toe"), SearchSettings(num_simulations=16, lookahead_plies=0)
    chosen = set()
    for stalls in ((), range(10, 12), range(40, 42), range(70, 72)):
        machine = Machine(stalls=stalls)
        plan = measure_plan(game, machine.evaluate, settings, clock=machine.time, own_device=False, max_threads=1)
        chosen.add(plan.parallel_games)
        assert machine.calls > 72
    assert len(chosen) == 1


def test_workers_that_start_together_wait_for_one_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(*_: object, **__: object) -> SelfPlayPlan:
        time.sleep(0.2)
        measured.append(len(measured))
        return SelfPlayPlan(parallel_games=AUTO_SIZES[len(measured)], threads=1, found="found")

    monkeypatch.setattr(tuning, "measure_plan", measure)
    both = [Thread(target=ask, args=(tmp_path,)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert measured == [0]
