"""Worker processes of this machine: restarted when they die, given up when they keep dying, started one by one to
compile.
"""

import os
import time
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from pathlib import Path

import pytest

from keima.base.system.priority import WORKER_PRIORITY
from keima.cluster.local.processes import FIRST_TIME, RESTARTS, LocalProcesses, last_log_line
from keima.worker.worker_folder import Heartbeat, WorkerFolder
from tests.cluster.local.short_lived import PATIENCE, die, die_once, idle
from tests.small_run import GAME, small_settings

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


@pytest.mark.medium
def test_a_worker_that_keeps_dying_is_given_up_with_its_log(open_processes: Open) -> None:
    events: list[str] = []
    backend = open_processes(count=1, target=die, compiled=True, log_event=events.append)
    backend.publish(1, b"model")

    def given_up() -> bool:
        backend.collect()
        return not backend.workers

    wait_until(given_up)
    assert sum("ended with exit code 3 and is started again" in text for text in events) == RESTARTS
    heartbeat = backend.heartbeats()["local-1"]
    assert heartbeat and heartbeat.state == "error"
    assert "worker_local-1.log" in heartbeat.error
    backend.publish(2, b"model")  # which nobody would remove
    assert [path.name for path in backend.folders["local-1"].inbox.glob("model-*")] == ["model-000001.model"]


@pytest.mark.medium
def test_with_an_empty_compile_cache_the_others_wait_for_the_first_worker(open_processes: Open, tmp_path: Path) -> None:
    events: list[str] = []
    backend = open_processes(count=3, target=idle, compiled=False, log_event=events.append)
    assert not list(tmp_path.glob("*/begun"))
    backend.publish(1, b"model")
    assert events == [FIRST_TIME]
    wait_until(lambda: (tmp_path / "local-1" / "begun").exists())
    backend.collect()
    assert backend.running_workers() == ["local-1"]
    heartbeat = {"run_id": "run", "worker": "local-1", "beat": 1, "pid": 1, "state": "waiting"}
    WorkerFolder(tmp_path / "local-1").write_heartbeat(Heartbeat.model_validate(heartbeat))
    backend.collect()
    assert backend.running_workers() == ["local-1", "local-2", "local-3"]


@pytest.mark.medium
def test_the_learner_has_priority_over_workers_for_the_cores(open_processes: Open, tmp_path: Path) -> None:
    backend = open_processes(count=2, target=idle, compiled=True)
    backend.publish(1, b"model")
    wait_until(lambda: len(list(tmp_path.glob("*/begun"))) == 2)
    niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + WORKER_PRIORITY)
    assert [os.getpriority(os.PRIO_PROCESS, child.pid or 0) for child in active_children()] == [niceness, niceness]


def test_no_worker_is_started_before_there_is_a_model(open_processes: Open) -> None:
    backend = open_processes(count=2, target=idle, compiled=True)
    backend.collect()
    assert backend.running_workers() == []


def test_heartbeats_of_an_earlier_session_are_forgotten(open_processes: Open, tmp_path: Path) -> None:
    heartbeat = {"run_id": "run", "worker": "local-1", "beat": 1, "pid": 1, "state": "playing", "games_per_second": 7.0}
    WorkerFolder(tmp_path / "local-1").create_folders().write_heartbeat(Heartbeat.model_validate(heartbeat))
    assert open_processes(count=1, target=idle).heartbeats() == {"local-1": None}


def is_ready(folder: Path) -> None:
    heartbeat = {"run_id": "run", "worker": folder.name, "beat": 1, "pid": 1, "state": "waiting"}
    WorkerFolder(folder).write_heartbeat(Heartbeat.model_validate(heartbeat))


@pytest.mark.medium
def test_the_games_of_a_dead_worker_are_withdrawn_before_it_is_replaced(open_processes: Open, tmp_path: Path) -> None:
    deaths: list[tuple[str, str]] = []
    backend = open_processes(
        count=2,
        names=["gpu-0", "gpu-1"],
        target=die_once,
        compiled=True,
        log_death=lambda name, what: deaths.append((name, what)),
    )
    (tmp_path / "gpu-1" / "begun").touch()  # it lives
    (tmp_path / "gpu-0" / "logs" / "worker_gpu-0.log").write_text("playing\nOutOfMemoryError: none left\n\n")
    for worker in backend.workers:
        backend.grant(worker, granted=50, delivered=20)
    backend.publish(1, b"model")

    def buried() -> bool:
        backend.collect()
        return backend.running_workers() == ["gpu-1"]

    wait_until(buried)
    (tmp_path / "gpu-0" / "outbox" / "000000020-5-gpu-0-aa.games").touch()
    assert backend.workers == ("gpu-0", "gpu-1"), "its games are still its own"
    assert backend.withdrawn() == {"gpu-0": 25}
    backend.publish(2, b"model")
    assert backend.running_workers() == ["gpu-1"]
    backend.grant("gpu-0", granted=25, delivered=20)
    assert backend.running_workers() == ["gpu-0", "gpu-1"]
    assert backend.workers == ("gpu-1",), "it is not ready"
    assert backend.withdrawn() == {}
    is_ready(tmp_path / "gpu-0")
    backend.collect()
    assert backend.workers == ("gpu-0", "gpu-1")
    ((name, what),) = deaths
    assert name == "gpu-0"
    assert what.startswith(
        "ended with exit code 3 and is started again; its log ends: OutOfMemoryError: none left; see "
    )


@pytest.mark.medium
def test_a_worker_that_may_not_be_restarted_does_not_stop_the_others(open_processes: Open, tmp_path: Path) -> None:
    events: list[str] = []
    backend = open_processes(count=2, target=die_once, compiled=True, restarts=0, log_event=events.append)
    (tmp_path / "local-2" / "begun").touch()
    for worker in backend.workers:
        backend.grant(worker, granted=50, delivered=0)
    backend.publish(1, b"model")

    def named() -> bool:
        backend.collect()
        return bool(events)

    wait_until(named)
    assert backend.withdrawn() == {"local-1": 50}
    backend.grant("local-1", granted=0, delivered=0)
    assert backend.workers == ("local-2",) and backend.running_workers() == ["local-2"]
    assert events[0].startswith("worker local-1 ended 1 times in 10 minutes, last with exit code 3")


@pytest.mark.medium
def test_a_single_worker_may_be_granted_games_while_it_is_restarted(open_processes: Open, tmp_path: Path) -> None:
    backend = open_processes(count=1, target=die_once, compiled=True)
    backend.grant("local-1", granted=50, delivered=0)
    backend.publish(1, b"model")

    def withdrawn() -> bool:
        backend.collect()
        return backend.withdrawn() == {"local-1": 50}

    wait_until(withdrawn)
    backend.grant("local-1", granted=0, delivered=0)
    assert backend.running_workers() == ["local-1"] == list(backend.workers)


def test_the_last_line_of_a_log_is_the_last_meaningful_one(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    assert last_log_line(log) == ""
    log.write_bytes(b"")
    assert last_log_line(log) == ""
    log.write_bytes(b"x" * 10_000 + b"\n  the end \xff\n\n")
    assert last_log_line(log) == "the end \ufffd"
