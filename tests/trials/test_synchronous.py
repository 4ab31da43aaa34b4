"""In synchronous mode a seed gives the same games again, byte for byte."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from keima.cluster.local.processes import LocalProcesses
from keima.coach.opening import MakeBackend
from keima.config.schema import Settings
from tests.coach.coaching import coaching, inline
from tests.small_run import small_settings

Build = Callable[[Path, Settings], MakeBackend]


def in_this_process(folder: Path, settings: Settings) -> MakeBackend:
    return lambda game, run_id: inline(folder, settings, run_id)


def in_two_processes(folder: Path, settings: Settings) -> MakeBackend:
    return lambda game, run_id: LocalProcesses(folder / "workers", count=2, game=game, settings=settings, run_id=run_id)


def play(folder: Path, build: Build, *, seed: int) -> dict[str, bytes]:
    """Return the files in games/ of a run, and its models."""
    folder.mkdir()
    settings = small_settings(folder, run={"iterations": 3, "seed": seed}, training={"asynchronous": False})
    with coaching(folder, settings, make_backend=build(folder, settings), sleep=time.sleep) as coach:
        coach.run()
    return {
        path.name: path.read_bytes() for pattern in ("games/*.games", "models/*.model") for path in folder.glob(pattern)
    }


@pytest.mark.trial
@pytest.mark.parametrize("build", [in_this_process, pytest.param(in_two_processes, marks=pytest.mark.slow)])
def test_two_runs_with_the_same_seed_have_the_same_games_and_models_byte_for_byte(tmp_path: Path, build: Build) -> None:
    first = play(tmp_path / "first", build, seed=1)
    assert len(first) > 6
    assert play(tmp_path / "second", build, seed=1) == first
