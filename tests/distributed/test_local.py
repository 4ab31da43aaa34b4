"""Worker processes of this machine: replaced when they die, given up when they die again and again, started one by one to compile."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distributed.local import FIRST_TIME, RESTARTS, LocalProcesses
from tests.distributed.short_lived import PATIENCE, die, idle
from tests.training.small_run import GAME, small_settings
from training.worker_folder import Heartbeat, WorkerFolder

Open = Callable[..., LocalProcesses]


@pytest.fixture
def open_processes(tmp_path: Path) -> Iterator[Open]:
    opened: list[LocalProcesses] = []

    def open_in_folder(*, count: int, **options: object) -> LocalProcesses:
        settings = small_settings(tmp_path)
        opened.append(LocalProcesses(tmp_path, count=count, game=GAME, settings=settings, run_id="run", **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_in_folder
    for backend in opened:
        backend.close()


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_worker_that_dies_again_and_again_is_given_up_with_its_log(open_processes: Open) -> None:
    told: list[str] = []
    backend = open_processes(count=1, target=die, compiled=True, tell=told.append)
    backend.publish(1, b"model")

    def given_up() -> bool:
        backend.collect()
        return not backend.workers

    wait_until(given_up)
    assert sum("ended with exit code 3 and is started again" in text for text in told) == RESTARTS
    heartbeat = backend.status()["local-1"]
    assert heartbeat and heartbeat.state == "error"
    assert "worker_local-1.log" in heartbeat.error


def test_where_nothing_is_compiled_the_others_wait_for_the_first_worker(open_processes: Open, tmp_path: Path) -> None:
    told: list[str] = []
    backend = open_processes(count=3, target=idle, compiled=False, tell=told.append)
    assert not list(tmp_path.glob("*/begun"))
    backend.publish(1, b"model")
    assert told == [FIRST_TIME]
    wait_until(lambda: (tmp_path / "local-1" / "begun").exists())
    backend.collect()
    assert backend.running() == ["local-1"]
    heartbeat = {"run_id": "run", "worker": "local-1", "beat": 1, "pid": 1, "state": "waiting"}
    WorkerFolder(tmp_path / "local-1").write_heartbeat(Heartbeat.model_validate(heartbeat))
    backend.collect()
    assert backend.running() == ["local-1", "local-2", "local-3"]


def test_nobody_is_started_before_there_is_a_model(open_processes: Open) -> None:
    backend = open_processes(count=2, target=idle, compiled=True)
    backend.collect()
    assert backend.running() == []


def test_the_heartbeats_of_an_earlier_sitting_are_forgotten(open_processes: Open, tmp_path: Path) -> None:
    heartbeat = {"run_id": "run", "worker": "local-1", "beat": 1, "pid": 1, "state": "playing", "games_per_second": 7.0}
    WorkerFolder(tmp_path / "local-1").make().write_heartbeat(Heartbeat.model_validate(heartbeat))
    assert open_processes(count=1, target=idle).status() == {"local-1": None}
