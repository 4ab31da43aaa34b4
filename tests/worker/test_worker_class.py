"""Custom workers: the class named in the config plays, and a class that cannot be loaded is reported with the
reason.
"""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keima.cluster.local.processes import LocalProcesses
from keima.coach.backends.backend import FolderBackend, InlineBackend
from keima.data.records import decode_batch
from keima.data.verify import verify_batch
from keima.games import Game
from keima.search.puct import Evaluate
from keima.self_play.parallel_games import SelfPlay
from keima.worker.loop import Worker
from keima.worker.worker_class import NoWorkerClass, load_worker_class
from keima.worker.worker_folder import Assignment
from tests.small_run import GAME, model_bytes, small_settings
from tests.sources import ROOT

GUIDE = ROOT / "docs" / "custom_worker.md"
PATIENCE = 240.0  # seconds, most of them for compiling on a busy machine
CUSTOM = {"worker_class": "custom_worker.CustomWorker"}


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder from which modules are imported, like the folder of start_main.py."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in {"custom_worker", "broken", "own"}:
            del sys.modules[name]


@pytest.fixture
def guide(beside: Path) -> None:
    (beside / "custom_worker.py").write_text(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0])


def test_the_usual_worker_is_the_default() -> None:
    assert load_worker_class(small_settings(Path()).distributed.worker_class) is Worker


def test_a_class_in_the_user_s_package_is_found(beside: Path) -> None:
    (beside / "own" / "deep").mkdir(parents=True)
    (beside / "own" / "deep" / "worker.py").write_text("from training.worker import Worker\nclass Mine(Worker): pass\n")
    assert load_worker_class("own.deep.worker.Mine").__name__ == "Mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Worker", "expected module.Class"),
        ("nowhere.CustomWorker", "there is no module nowhere; put nowhere.py into"),
        ("own.nowhere.Mine", "there is no module own.nowhere; put own/nowhere.py into"),
        ("broken.Mine", "its module cannot be imported: ZeroDivisionError"),
        ("broken.poor.Mine", "its module needs no_such_package, which is not installed"),
        ("keima.worker.loop.NoSuchClass", "the module keima.worker.loop has no NoSuchClass"),
        ("keima.worker.loop.salvage_games", "salvage_games must be a class derived from keima.worker.Worker"),
        ("keima.self_play.parallel_games.SelfPlay", "SelfPlay must be a class derived from keima.worker.Worker"),
    ],
)
def test_a_class_that_cannot_be_loaded_is_named_with_the_reason(beside: Path, name: str, message: str) -> None:
    (beside / "own").mkdir()
    (beside / "own" / "__init__.py").touch()
    (beside / "broken.py").write_text("1 / 0\n")
    if name == "broken.poor.Mine":
        (beside / "broken.py").unlink()
        (beside / "broken").mkdir()
        (beside / "broken" / "poor.py").write_text("import no_such_package\n")
    with pytest.raises(NoWorkerClass, match=re.escape(message)):
        load_worker_class(name)


def play(backend: FolderBackend, games: int) -> None:
    """Let it play this many games, and check that they are correct."""
    backend.publish(1, model_bytes(1))
    worker = backend.workers[0]
    backend.grant(worker, granted=games, delivered=0)
    deadline, played = time.monotonic() + PATIENCE, 0
    while played < games:
        assert time.monotonic() < deadline, backend.heartbeats()
        waiting = backend.collect()
        for pending in waiting:
            batch = decode_batch(pending.fetch(2**20))
            verify_batch(batch, GAME)
            played += batch.num_games
            backend.release(pending, delivered=played)
        time.sleep(0.02)


@pytest.mark.usefixtures("guide")
def test_the_guide_s_worker_plays_at_its_own_temperature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temperatures: list[float] = []
    usual = Worker.make_self_play

    def noted(self: Worker, game: Game, evaluate: Evaluate, assignment: Assignment) -> SelfPlay:
        temperatures.append(assignment.search.temperature)
        return usual(self, game, evaluate, assignment)

    monkeypatch.setattr(Worker, "make_self_play", noted)
    backend = InlineBackend(
        tmp_path / "w", game=GAME, settings=small_settings(tmp_path, distributed=CUSTOM), run_id="run"
    )
    play(backend, 10)
    backend.close()
    assert temperatures == [1.3]


@pytest.mark.trial
@pytest.mark.usefixtures("guide")
def test_the_guide_s_worker_plays_in_separate_processes(tmp_path: Path) -> None:
    backend = LocalProcesses(
        tmp_path / "w", count=1, game=GAME, settings=small_settings(tmp_path, distributed=CUSTOM), run_id="run"
    )
    try:
        play(backend, 10)
    finally:
        backend.close()


@pytest.mark.parametrize("kind", ["inline", "processes"])
def test_a_class_that_cannot_be_loaded_ends_the_program_before_anything_is_started(tmp_path: Path, kind: str) -> None:
    settings = small_settings(tmp_path, distributed={"worker_class": "nowhere.CustomWorker"})
    with pytest.raises(NoWorkerClass, match="nowhere"):
        if kind == "inline":
            InlineBackend(tmp_path, game=GAME, settings=settings, run_id="run")
        else:
            LocalProcesses(tmp_path, count=1, game=GAME, settings=settings, run_id="run")
