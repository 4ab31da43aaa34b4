"""The number of parallel games is measured once a week for each kind of network, and then known."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from configs.schema import SearchSettings
from games import load_game
from training.self_play import tuning
from training.self_play.tuning import AUTO_SIZES, KNOWN_SECONDS, known_parallel_games


def evaluate(observations: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    raise AssertionError("the measurement itself is replaced")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers that were measured, a new one for each measurement."""
    results: list[int] = []

    def measure(*_: object) -> tuple[int, str]:
        results.append(AUTO_SIZES[len(results)])
        return results[-1], f"{results[-1]} parallel games"

    monkeypatch.setattr(tuning, "measure_parallel_games", measure)
    return results


def ask(folder: Path, *, network: str = "small", simulations: int = 8) -> tuple[int, str]:
    settings = SearchSettings(num_simulations=simulations, cheap_simulations=1)
    return known_parallel_games(load_game("tic_tac_toe"), evaluate, settings, network=network, folder=folder)


def test_a_worker_measures_once_and_the_next_one_knows(tmp_path: Path, measured: list[int]) -> None:
    assert ask(tmp_path) == (16, "16 parallel games")
    (file,) = tmp_path.iterdir()
    assert ask(tmp_path) == (16, f"16 parallel games, as measured before ({file})")
    assert ask(tmp_path, network="large")[0] == 32
    assert ask(tmp_path, simulations=9)[0] == 64
    assert ask(tmp_path)[0] == 16
    assert len(measured) == 3


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"parallel_games": 17, "found": "x"}', '{"parallel_games": 16}'])
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
    long_ago = time.time() - KNOWN_SECONDS - 1
    os.utime(file, (long_ago, long_ago))
    assert ask(tmp_path)[0] == 32


def test_without_storage_it_is_measured_each_time(tmp_path: Path, measured: list[int]) -> None:
    (tmp_path / "file").touch()
    assert [ask(tmp_path / "file")[0] for _ in range(2)] == [16, 32]
