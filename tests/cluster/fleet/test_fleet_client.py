"""The fleet in a process of its own: what the Coach may rely on, whatever becomes of that process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keima.base.run_lock import RunLock, RunLocked, is_held
from keima.cluster.fleet.mirror import open_mirror
from keima.cluster.fleet.process import client as fleet_client
from keima.cluster.fleet.process.client import FleetClient
from keima.coach.backends.pending_batch import PendingBatch
from keima.data.records import decode_batch
from keima.evaluation.match_jobs import Contestant, EvaluationJob
from tests.cluster.hosted_fleet import PLAYS, SCRIPTED, open_client
from tests.cluster.local_fleet import fleet_settings, worker_settings
from tests.lab.processes import command_line, state
from tests.small_run import model_bytes
from tests.sources import ROOT

pytestmark = pytest.mark.medium

PATIENCE = 120.0
KILLED_COACH = """
import sys, time
from pathlib import Path

from tests.cluster.hosted_fleet import SCRIPTED, open_client

if __name__ == "__main__":
    client = open_client(Path(sys.argv[1]), SCRIPTED)
    print(client.process_id, flush=True)
    time.sleep(600)
"""


class Scripted:
    """A client of a scripted fleet, and what that has been told."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.events, self.later = folder, list[str](), 0.0
        self.client: FleetClient = open_client(
            folder, SCRIPTED, log_event=self.events.append, clock=lambda: time.monotonic() + self.later, **options
        )

    def told(self) -> list[list[Any]]:
        path = self.folder / "told"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, (self.told(), self.events)
            self.client.collect()
            time.sleep(0.01)

    def process(self) -> int:
        """Return the id of the fleet's process."""
        assert self.client.process_id
        return self.client.process_id

    def kill(self) -> None:
        os.kill(self.process(), signal.SIGKILL)

    def hang(self) -> None:
        """Have the process hang now."""
        (self.folder / "hang").touch()
        self.until(lambda: not (self.folder / "hang").exists())

    def lost(self) -> bool:
        return any("the fleet's process is lost" in event for event in self.events)


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Scripted]:
    opened = Scripted(tmp_path)
    yield opened
    opened.client.close()


def contestant(version: int) -> Contestant:
    return Contestant(version=version, sha256="ab" * 32)


def job(name: str) -> EvaluationJob:
    return EvaluationJob(
        id=name,
        first=contestant(1),
        second=None,
        seed=1,
        opening_plies=0,
        match_pairs=4,
        first_pair=0,
        pairs=2,
        num_simulations=2,
    )


def test_what_the_coach_wants_reaches_the_fleet_and_its_state_comes_back(scripted: Scripted) -> None:
    client = scripted.client
    client.grant("a", granted=10, delivered=2)
    client.grant("a", granted=10, delivered=2)
    client.publish(1, b"first")
    scripted.until(lambda: ["model", 1, "first"] in scripted.told())
    assert scripted.told()[1:] == [["grant", "a", 10, 2], ["model", 1, "first"]], "what has not changed is not sent"
    assert client.workers == ("a", "b")
    scripted.until(lambda: client.heartbeats()["a"])  # its state comes after it has noted what it was told
    heartbeats = client.heartbeats()
    assert heartbeats["a"] and heartbeats["a"].beat == 7 and heartbeats["b"] is None
    report = client.cluster()
    assert report and report.active == 2
    assert client.match_executors().ready_workers() == ["a"]


def test_a_process_says_what_it_is_and_for_which_run(scripted: Scripted) -> None:
    assert f"-m keima.cluster.fleet.process.program {scripted.folder}" in command_line(scripted.process())


def test_it_imports_neither_torch_nor_numba(scripted: Scripted) -> None:
    loaded = Path(f"/proc/{scripted.process()}/maps").read_text()
    assert "pydantic_core" in loaded
    assert "libtorch" not in loaded and "llvmlite" not in loaded


def test_decisions_count_once_and_not_if_they_were_made_before_the_last_grants(scripted: Scripted) -> None:
    client, found = scripted.client, list[dict[str, int]]()

    def decided() -> bool:
        found.append(client.plan_grants({}, 40))
        return bool(found[-1])

    scripted.until(decided)
    assert found[-1] == {"a": 40, "b": 40}
    assert client.plan_grants({}, 40) == {}
    client.grant("a", granted=40, delivered=0)
    scripted.until(decided)
    assert found[-1] == {"b": 40}, "the fleet has heard of the grant"
    client.grant("b", granted=40, delivered=0)
    for _ in range(50):
        client.collect()
        assert client.plan_grants({}, 40) == {}
        time.sleep(0.01)


def test_withdrawn_games_are_listed_until_the_account_is_lowered(scripted: Scripted) -> None:
    client = scripted.client
    client.grant("b", granted=150, delivered=0)
    scripted.until(client.withdrawn)
    assert client.withdrawn() == client.withdrawn() == {"b": 50}
    client.grant("b", granted=100, delivered=0)
    assert client.withdrawn() == {}
    scripted.until(lambda: ["grant", "b", 100, 0] in scripted.told())
    assert client.withdrawn() == {}


def test_events_and_the_log_reach_the_coach(scripted: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    (scripted.folder / "one.event").write_text("a machine has been removed")
    scripted.until(lambda: "a machine has been removed" in scripted.events)
    (record,) = [record for record in caplog.records if "also logged" in record.getMessage()]
    assert (record.name, record.levelname) == ("tests.cluster.scripted_fleet", "ERROR")
    assert record.getMessage() == "also logged: a machine has been removed ?"


def test_files_that_have_come_are_collected_until_they_are_released(scripted: Scripted) -> None:
    open_mirror(scripted.client.root, "a", "run")
    (scripted.folder / "000000000-1-x.arrives").write_bytes(b"games")
    scripted.until(scripted.client.collect)
    (batch,) = scripted.client.collect()
    assert (batch.worker, batch.batch_id, batch.fetch(100)) == ("a", "000000000-1-x", b"games")
    scripted.client.release(batch, delivered=1, refused="not of this game")
    assert scripted.client.collect() == []
    scripted.until(lambda: ["release", "000000000-1-x", 1, "not of this game"] in scripted.told())


def test_a_killed_process_is_replaced_and_told_everything(scripted: Scripted) -> None:
    client, matches = scripted.client, scripted.client.match_executors()
    client.grant("a", granted=10, delivered=2)
    client.publish(3, b"third")
    client.plan_grants({}, 40)
    matches.deploy_models({contestant(1): b"player"})
    matches.assign_jobs("a", [job("x-1")])
    scripted.until(lambda: ["jobs", "a", ["x-1"]] in scripted.told())
    client.grant("a", granted=20, delivered=5)  # not sent yet
    (scripted.folder / "told").unlink()
    scripted.kill()
    scripted.until(lambda: ["jobs", "a", ["x-1"]] in scripted.told())
    assert scripted.told() == [
        ["opened", ["a", "b"], False],
        ["grant", "a", 20, 5],
        ["model", 3, "third"],
        ["players", [1]],
        ["jobs", "a", ["x-1"]],
    ]
    (event,) = [event for event in scripted.events if "the fleet's process is lost" in event]
    assert "SIGKILL" in event and "another one is started" in event
    scripted.until(lambda: client.plan_grants({}, 40) == {"a": 20, "b": 40})


def waiting_batch(scripted: Scripted) -> PendingBatch:
    """Return a batch in the mirror of worker a, once it is collected."""
    open_mirror(scripted.client.root, "a", "run")
    (scripted.folder / "000000000-1-x.arrives").write_bytes(b"games")
    scripted.until(scripted.client.collect)
    return scripted.client.collect()[0]


def in_mirror(scripted: Scripted, batch: PendingBatch) -> bool:
    return (scripted.client.root / batch.worker / "outbox" / batch.file_name).exists()


def test_a_batch_that_is_stored_while_there_is_no_process_is_removed_by_the_next(scripted: Scripted) -> None:
    batch = waiting_batch(scripted)
    scripted.kill()
    scripted.until(scripted.lost)
    scripted.client.release(batch, delivered=1)
    assert scripted.client.collect() == []
    scripted.until(lambda: not in_mirror(scripted, batch))
    assert ["release", batch.batch_id, 1, ""] in scripted.told()


def test_a_stored_batch_that_the_killed_process_had_not_removed_is_offered_once_more(scripted: Scripted) -> None:
    batch = waiting_batch(scripted)
    scripted.hang()
    scripted.client.release(batch, delivered=1)
    assert scripted.client.collect() == []
    scripted.kill()
    scripted.until(scripted.client.collect)
    assert [each.batch_id for each in scripted.client.collect()] == [batch.batch_id]
    scripted.client.release(batch, delivered=1)
    scripted.until(lambda: not in_mirror(scripted, batch))


def test_a_hanging_process_is_replaced(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = scripted.process()
    scripted.hang()
    monkeypatch.setattr(fleet_client, "SILENT_SECONDS", 1.0)
    scripted.until(scripted.lost)
    monkeypatch.undo()
    scripted.until(lambda: len([each for each in scripted.told() if each[0] == "opened"]) == 2)
    assert not Path(f"/proc/{hanging}").exists()
    assert "it has sent nothing for 1 s" in next(event for event in scripted.events if "is lost" in event)


def test_a_coach_that_has_not_polled_for_long_takes_no_process_for_hanging(scripted: Scripted) -> None:
    scripted.hang()
    for _ in range(3):
        scripted.later += 1000.0
        scripted.client.collect()
    assert not scripted.lost()
    scripted.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_all_processes_of_a_run_are_left_to_the_coach(scripted: Scripted, number: signal.Signals) -> None:
    process = scripted.process()
    os.kill(process, number)
    before = len(scripted.told())
    scripted.client.grant("a", granted=5, delivered=0)
    scripted.until(lambda: len(scripted.told()) > before)
    assert scripted.process() == process and not scripted.lost()


@pytest.mark.parametrize(
    ("fails", "kind", "text"),
    [
        ("ValueError", ValueError, "no such class"),
        ("RunLocked", RunLocked, "process 7"),
        ("KeyError", RuntimeError, "lost"),
    ],
)
def test_a_fleet_that_cannot_be_opened_is_an_error_before_the_run(
    tmp_path: Path, fails: str, kind: type[Exception], text: str
) -> None:
    lock = RunLock(tmp_path)
    with pytest.raises(kind, match=text):
        open_client(tmp_path, SCRIPTED, options={"fails": fails}, lock=lock)
    assert not is_held(tmp_path)


def test_the_end_of_a_run_hands_over_what_came_last(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path, lock=RunLock(tmp_path))
    process = scripted.process()
    outbox = open_mirror(scripted.client.root, "a", "run").outbox
    (outbox / "000000000-1-x.games").write_bytes(b"games")
    scripted.kill()
    scripted.client.close()
    assert is_held(tmp_path) is False
    assert scripted.told()[-1] == ["closed"], "a process that was lost is replaced to end the run"
    assert not Path(f"/proc/{process}").exists()
    (batch,) = scripted.client.collect()
    scripted.client.release(batch, delivered=1)
    assert not list(outbox.iterdir()) and scripted.client.collect() == []
    scripted.client.close()


def test_the_lock_is_held_while_the_process_is_replaced(tmp_path: Path) -> None:
    scripted = Scripted(tmp_path, lock=RunLock(tmp_path))
    scripted.kill()
    for _ in range(20):
        assert is_held(tmp_path)
        scripted.client.collect()
        time.sleep(0.01)
    scripted.client.close()


def test_it_ends_with_a_killed_coach(tmp_path: Path) -> None:
    (tmp_path / "coach.py").write_text(KILLED_COACH)
    coach = subprocess.Popen(
        [sys.executable, tmp_path / "coach.py", tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert coach.stdout
    fleet = int(coach.stdout.readline())
    assert state(fleet) not in "ZX"
    coach.kill()
    coach.wait()
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{fleet}").exists() and state(fleet) not in "ZX":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    coach.stdout.close()


@pytest.mark.slow
@pytest.mark.trial
def test_no_game_is_lost_or_counted_twice_when_the_process_is_killed(tmp_path: Path) -> None:
    machines = [worker_settings("worker1"), worker_settings("worker2")]
    settings = fleet_settings(tmp_path, distributed={"workers": [each.model_dump() for each in machines]})
    events: list[str] = []
    client: FleetClient = open_client(tmp_path, PLAYS, settings=settings, log_event=events.append)
    numbers: dict[str, list[int]] = {worker: [] for worker in client.workers}
    taken: set[str] = set()
    try:
        client.publish(1, model_bytes(1))
        for worker in client.workers:
            client.grant(worker, granted=100, delivered=0)
        deadline, killed = time.monotonic() + 3 * PATIENCE, False
        while any(len(found) < 100 for found in numbers.values()):
            assert time.monotonic() < deadline, (numbers, events)
            for pending in client.collect():
                batch = decode_batch(pending.fetch(2**20))
                if pending.batch_id not in taken:
                    taken.add(pending.batch_id)
                    numbers[pending.worker] += range(batch.first_game, batch.first_game + batch.num_games)
                client.release(pending, delivered=len(numbers[pending.worker]))
            if not killed and len(taken) >= 3 and client.process_id:
                os.kill(client.process_id, signal.SIGKILL)
                killed = True
            time.sleep(0.02)
    finally:
        client.close()
    assert all(sorted(found) == list(range(100)) for found in numbers.values())
    assert killed
