"""A slot on its node, without Ray: which folder it takes, and what happens when it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keima.base.files import write_atomically
from keima.cluster.agent.packing import remote_program
from keima.cluster.agent.process import find_running
from keima.cluster.ray.slot import RaySlot
from tests.cluster.small_project import end_all, make_project, wait_until
from tests.sources import ROOT

RUN = "0123456789abcdef"
# A slot in a process of its own, which carries out what it reads, and says what comes of it.
PROGRAM = """
import json, sys
from pathlib import Path
from keima.cluster.ray.slot import RaySlot

slot = RaySlot(Path(sys.argv[1]), sys.argv[2])
for line in sys.stdin:
    print(json.dumps(slot.call(*json.loads(line)), default=str), flush=True)
"""


class Process:
    """A slot in a process of its own, as on a node."""

    def __init__(self, root: Path) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(root), remote_program()[1]],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, operation: str, *arguments: object) -> object:
        assert self._program.stdin and self._program.stdout
        self._program.stdin.write(json.dumps([operation, *arguments]) + "\n")
        self._program.stdin.flush()
        kind, result = json.loads(self._program.stdout.readline())
        assert kind == "ok", result
        return result

    def take_folder(self, fresh: str, *, run: str = RUN) -> str | None:
        place = self.call("take_folder", run, run, fresh)
        assert place is None or isinstance(place, dict)
        return place and place["worker"]

    def kill(self) -> None:
        self._program.kill()
        self._program.wait()

    def end(self) -> None:
        for pipe in (self._program.stdin, self._program.stdout):
            assert pipe
            pipe.close()
        self.kill()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """The folder of a node that has our remote program."""
    content, name = remote_program()
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_bytes(content)
    yield tmp_path
    end_all(tmp_path)


@pytest.fixture
def begin(node: Path) -> Iterator[Callable[[], Process]]:
    """Begins a slot."""
    slots: list[Process] = []

    def begin_one() -> Process:
        slots.append(Process(node))
        return slots[-1]

    yield begin_one
    for slot in slots:
        slot.end()


def leave_games(node: Path, worker: str, *, run: str = RUN, games: int = 10) -> Path:
    """Leave a batch in a worker's outbox, as an earlier slot of the run did."""
    path = node / "workers" / worker / "outbox" / f"000000000-{games}-{worker}--{run}-00ff.games"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"games")
    return path


def give_assignment(node: Path, worker: str, *, run: str = RUN) -> None:
    folder = node / "workers" / worker / "inbox"
    folder.mkdir(parents=True)
    write_atomically(folder / "assignment.json", json.dumps({"run_id": run}).encode())


@pytest.mark.medium
def test_a_new_slot_takes_a_folder_of_its_own(begin: Callable[[], Process]) -> None:
    assert begin().take_folder("ray-3") == "ray-3"


@pytest.mark.medium
def test_a_slot_takes_the_folder_that_an_earlier_slot_of_its_run_has_left(
    node: Path, begin: Callable[[], Process]
) -> None:
    leave_games(node, "ray-2", run="another0run")
    give_assignment(node, "ray-10")
    give_assignment(node, "ray-9")
    first, second, third = begin(), begin(), begin()
    assert [slot.take_folder("ray-20") for slot in (first, second, third)] == ["ray-9", "ray-10", "ray-20"]


@pytest.mark.medium
def test_games_that_another_run_has_set_aside_also_count(node: Path, begin: Callable[[], Process]) -> None:
    aside = leave_games(node, f"ray-4.{RUN}")
    assert aside.exists()
    assert begin().take_folder("ray-20") == "ray-4"


@pytest.mark.medium
def test_a_folder_has_one_slot_at_a_time(begin: Callable[[], Process]) -> None:
    first, second = begin(), begin()
    assert first.take_folder("ray-1") == "ray-1"
    assert second.take_folder("ray-1") is None
    first.kill()
    wait_until(lambda: second.take_folder("ray-1") == "ray-1")


@pytest.mark.medium
def test_games_without_a_slot_are_found_and_let_go_once_they_are_fetched(
    node: Path, begin: Callable[[], Process]
) -> None:
    slot, other = begin(), begin()
    assert slot.take_folder("ray-1") == "ray-1"
    assert slot.call("find_left_games", RUN, RUN) == []
    path = leave_games(node, "ray-2")
    leave_games(node, "ray-3", run="another0run")
    assert slot.call("find_left_games", RUN, RUN) == ["ray-2"]
    assert slot.call("find_left_games", RUN, RUN) == ["ray-2"]
    assert other.call("find_left_games", RUN, RUN) == []
    path.unlink()
    assert slot.call("find_left_games", RUN, RUN) == []
    wait_until(lambda: other.call("lock_folder", "ray-2"))


@pytest.mark.medium
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_worker_ends_with_its_slot_and_hands_over_first(
    node: Path, begin: Callable[[], Process], how: signal.Signals
) -> None:
    make_project(node / "project")
    slot = begin()
    assert slot.take_folder("ray-1") == "ray-1"
    place = node / "workers" / "ray-1"
    request = {
        "place": str(place),
        "argv": [sys.executable, str(node / "project" / "keima" / "__main__.py"), "--folder", str(place)],
        "env": {},
        "log": str(node / "logs" / "worker_ray-1.log"),
    }
    command = [sys.executable, "-I", remote_program()[1], "n1", "start", json.dumps(request)]
    slot.call("run", command, 60.0)
    wait_until((place / "begun").exists)
    assert find_running(place)
    os.kill(slot._program.pid, how)
    wait_until(lambda: not find_running(place))
    assert (place / "handed-over").exists()


def test_errors_are_told_and_not_raised(tmp_path: Path) -> None:
    slot = RaySlot(tmp_path, "")
    assert slot.call("get", "missing", 10) == ("missing", str(tmp_path / "missing"))
    slot.call("put", "a", bytes(11), True)
    kind, text = slot.call("get", "a", 10)
    assert kind == "large" and "11 bytes" in text
    kind, (what, _) = slot.call("put", "a/b", b"", True)
    assert kind == "failed" and "a" in what
