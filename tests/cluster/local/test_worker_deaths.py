"""Worker processes that are killed are reported and restarted, and their unfinished games are replayed."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.local import processes as local
from keima.cluster.local.processes import LocalProcesses
from keima.coach.backends.pending_batch import PendingBatch
from keima.data.records import decode_batch
from tests.cluster.local.short_lived import PATIENCE, write_device
from tests.small_run import GAME, model_bytes, small_settings

FIRST, GAMES = 60, 300  # of each worker: until one of them is killed, and in all


class Account:
    """Grants games to workers, takes back those of dead ones, and receives what they hand over, as the Coach does."""

    def __init__(self, backend: LocalProcesses) -> None:
        self.backend, self.games, self.seeds = backend, dict.fromkeys(backend.workers, 0), list[int]()
        self.total = FIRST * len(backend.workers)
        self.granted = dict.fromkeys(backend.workers, FIRST)
        self.withdrawn: dict[str, int] = {}
        self.show()
        backend.publish(1, model_bytes(1))

    def show(self) -> None:
        for worker, games in self.games.items():
            self.backend.grant(worker, granted=self.granted[worker], delivered=games)

    def grant_all(self) -> None:
        """Grant the rest of the games."""
        self.total, self.granted = 2 * GAMES, dict.fromkeys(self.granted, GAMES)
        self.show()

    def left(self) -> int:
        """Return the games that no worker is to play."""
        return self.total - sum(self.granted.values())

    def poll(self) -> None:
        batches = self.backend.collect()
        for worker, games in self.backend.withdrawn().items():
            self.granted[worker] -= games
            self.withdrawn[worker] = self.withdrawn.get(worker, 0) + games
        self.show()
        if self.left():
            self.granted[self.backend.workers[0]] += self.left()
            self.show()
        self.take_in(batches)

    def take_in(self, batches: list[PendingBatch]) -> None:
        for pending in batches:
            batch = decode_batch(pending.fetch(10**7))
            assert batch.first_game == self.games[pending.worker], "no game is missing and none is there twice"
            self.games[pending.worker] += len(batch.seeds)
            self.seeds += batch.seeds.tolist()
            self.backend.release(pending, delivered=self.games[pending.worker])

    def poll_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline
            self.poll()
            time.sleep(0.02)


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def backend(tmp_path: Path, events: list[str]) -> Iterator[LocalProcesses]:
    settings = small_settings(tmp_path, self_play={"parallel_games": 40}, distributed={"batch_size": 20})
    opened = LocalProcesses(
        tmp_path, count=2, game=GAME, settings=settings, run_id="run", log_event=events.append, compiled=True
    )
    yield opened
    opened.close()


@pytest.mark.trial
def test_a_worker_that_is_killed_while_it_plays_is_replaced_and_others_get_its_games(
    backend: LocalProcesses, events: list[str]
) -> None:
    account = Account(backend)

    def has_begun() -> bool:
        heartbeat = backend.heartbeats()["local-1"]
        return heartbeat is not None and heartbeat.begun > 0

    account.poll_until(has_begun)
    victim = backend.heartbeats()["local-1"]
    assert victim
    os.kill(victim.pid, signal.SIGSTOP)  # it cannot play what it is granted now, however late it is killed
    account.grant_all()
    os.kill(victim.pid, signal.SIGKILL)
    account.poll_until(lambda: sum(account.games.values()) == 2 * GAMES)
    assert len(set(account.seeds)) == 2 * GAMES
    assert list(account.withdrawn) == ["local-1"]
    assert account.games["local-1"] == GAMES - account.withdrawn["local-1"] < GAMES, "what it has handed over counts"
    assert [text for text in events if text.startswith("worker local-1 ended with exit code -9 and is started again")]
    assert not [text for text in events if "local-2" in text]
    account.poll_until(lambda: backend.workers == ("local-1", "local-2"))
    successor = backend.heartbeats()["local-1"]
    assert successor and successor.pid != victim.pid


@pytest.mark.medium
def test_each_worker_sees_its_assigned_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    devices = ["2", "GPU-8932f937-d72c", ""]
    settings = small_settings(tmp_path)
    opened = LocalProcesses(
        tmp_path,
        count=3,
        game=GAME,
        settings=settings,
        run_id="run",
        devices=devices,
        target=write_device,
        compiled=True,
    )
    opened.publish(1, b"model")
    folders = [tmp_path / f"local-{number}" for number in (1, 2, 3)]
    deadline = time.monotonic() + PATIENCE
    while not all((folder / "device").exists() for folder in folders):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    opened.close()
    assert [(folder / "device").read_text() for folder in folders] == devices
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2"


@pytest.mark.parametrize(("devices", "expected"), [(["0", ""], ["cuda", "auto"]), (None, ["auto", "auto"])])
def test_a_worker_with_a_gpu_may_not_play_on_the_cpu_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: list[str] | None, expected: list[str]
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(local, "start_process", lambda target, arguments, **how: started.append(arguments))
    settings = small_settings(tmp_path)
    backend = LocalProcesses(
        tmp_path, count=2, game=GAME, settings=settings, run_id="run", devices=devices, compiled=True
    )
    backend.publish(1, model_bytes(1))
    assert [target.keywords["device"] for _, target, _ in started] == expected
