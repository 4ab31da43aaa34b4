"""The cluster as the Coach sees it: it never waits for a machine, and real worker processes play on machines that are
folders of this one.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keima.base.reports.worker_status import WorkerState
from keima.cluster.fleet.backend import Fleet
from keima.cluster.machines.machine import WorkerSlot
from keima.cluster.machines.process_manager import ProcessStatus
from keima.cluster.ssh.errors import Refused, Unreachable
from keima.cluster.ssh.transport import Transport
from keima.data.records import decode_batch
from keima.worker.worker_folder import Heartbeat, WorkerFolder
from tests.cluster.local_fleet import Network, fleet_settings, open_fleet, worker_settings
from tests.lab.processes import state
from tests.small_run import model_bytes

pytestmark = pytest.mark.medium

PATIENCE = 120.0

Open = Callable[..., Fleet]


class StandIn:
    """A process manager whose workers send heartbeats and play nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.beats = 0
        self.waited_for = threading.Event()  # before a machine is prepared
        self.waited_for.set()
        self.waits = ""  # what processes wait for
        self.running: set[str] = set()

    def prepare(
        self, transport: Transport, log_event: Callable[[str], None], should_continue: Callable[[], bool]
    ) -> tuple[WorkerSlot, ...]:
        self.waited_for.wait(PATIENCE)
        return (WorkerSlot(transport.worker),)

    def start(self, transport: Transport, slot: WorkerSlot) -> None:
        self.running.add(slot.name)

    def stop(self, transport: Transport, worker: str, *, seconds: float = 10.0) -> None:
        self.running.discard(worker)

    def process_status(self, transport: Transport, worker: str) -> ProcessStatus:
        return ProcessStatus(running=worker in self.running, waits=self.waits)

    def read_log_end(self, transport: Transport, worker: str) -> str:
        return "nothing"

    @classmethod
    def end_all(cls, root: Path) -> None:
        """Let workers that still play report that they have ended, so that the test's end does not wait for them."""
        for path in root.glob("hosts/*/workers/*/worker.json"):
            heartbeat = json.loads(path.read_text())
            if heartbeat["pid"] == 1:
                path.write_text(json.dumps({**heartbeat, "beat": 10**9, "state": "ended"}))

    def beat(self, name: str, **values: Any) -> None:
        self.beats += 1
        given = {
            "run_id": "run",
            "worker": name,
            "beat": self.beats,
            "pid": 1,
            "state": "playing",
            "model_version": 1,
            **values,
        }
        WorkerFolder(self.root / "hosts" / name / "workers" / name).create_folders().write_heartbeat(
            Heartbeat.model_validate(given)
        )


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    fleets: list[Fleet] = []

    def open_one(*names: str, **options: Any) -> Fleet:
        changes = options.pop("changes", {})
        machines = [worker_settings(name) for name in names]
        fleets.append(open_fleet(tmp_path, machines, settings=fleet_settings(tmp_path, **changes), **options))
        return fleets[-1]

    yield open_one
    for fleet in fleets:
        StandIn.end_all(tmp_path)
        fleet.close()


def wait_until(fleet: Fleet, done: Callable[[], object], *, doing: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, fleet.cluster()
        doing()
        fleet.collect()
        time.sleep(0.02)


def states(fleet: Fleet) -> dict[str, WorkerState]:
    return {worker.name: worker.state for worker in fleet.cluster().workers}


def all_active(fleet: Fleet) -> bool:
    return set(states(fleet).values()) == {WorkerState.ACTIVE}


def show_all(fleet: Fleet, granted: int = 100) -> None:
    for worker in fleet.workers:
        fleet.grant(worker, granted=granted, delivered=0)


class StoredGames:
    """What the Coach would know: receives everything and counts."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.delivered: dict[str, int] = {}
        self.batches: set[str] = set()

    def take(self) -> None:
        for pending in self.fleet.collect():
            batch = decode_batch(pending.fetch(2**20))
            if pending.batch_id not in self.batches:
                assert batch.first_game == self.delivered.get(pending.worker, 0)
                self.batches.add(pending.batch_id)
                self.delivered[pending.worker] = batch.first_game + batch.num_games
            self.fleet.release(pending, delivered=self.delivered[pending.worker])


# With stand-ins.


def test_no_call_waits_for_a_slow_or_missing_machine(opened: Open, tmp_path: Path) -> None:
    processes, network, over, ended = StandIn(tmp_path), Network(tmp_path / "hosts"), threading.Event(), list[str]()

    def slow(what: str, file: str) -> None:
        over.wait(PATIENCE)
        ended.append(file)
        raise Unreachable("worker1", "no answer")

    network.failing["worker1"] = slow
    processes.waited_for = over
    fleet = opened("worker1", "worker2", process_manager=lambda machine: processes, network=network)
    fleet.publish(1, b"model")
    show_all(fleet)
    for _ in range(20):
        fleet.collect()
        fleet.heartbeats()
        fleet.cluster()
        fleet.plan_grants(dict.fromkeys(fleet.workers, 0), 40)
    assert ended == []  # all that while, no machine has answered
    over.set()


def test_states_metrics_and_grants_follow_the_workers_reports(opened: Open, tmp_path: Path) -> None:
    processes = StandIn(tmp_path)
    changes = {
        "distributed": {"workers": [{"host": "worker1"}, {"host": "worker2"}], "worker_weights": {"worker2": 2.0}}
    }
    fleet = opened("worker1", "worker2", "worker3", process_manager=lambda machine: processes, changes=changes)
    fleet.publish(1, b"model")
    show_all(fleet, granted=0)

    def beat() -> None:
        processes.beat("worker1", games_per_second=5.0, speed=10.0, parallel_games=8)
        processes.beat("worker2", games_per_second=10.0, speed=10.0, parallel_games=8)

    wait_until(fleet, lambda: list(states(fleet).values()).count(WorkerState.ACTIVE) == 2, doing=beat)
    shares = fleet.plan_grants(dict.fromkeys(fleet.workers, 0), 40)
    assert set(shares) == {"worker1", "worker2"} and sum(shares.values()) > 0
    beat()
    wait_until(fleet, lambda: fleet.cluster().games_per_second == 15.0, doing=beat)
    view = fleet.cluster()
    assert (view.active, view.total, view.network.model_version) == (2, 3, 1)
    assert [round(worker.share, 3) for worker in view.workers] == [0.333, 0.667, 0.0]
    assert view.network.sync_seconds is not None
    assert view.workers[2].state is WorkerState.SYNCING
    wait_until(fleet, lambda: fleet.cluster().network.network_mb_per_minute > 0)


def test_a_worker_that_reports_impossible_figures_is_granted_a_bounded_number_of_games(
    opened: Open, tmp_path: Path
) -> None:
    processes, most = StandIn(tmp_path), 2**53
    fleet = opened("worker1", "worker2", process_manager=lambda machine: processes)
    fleet.publish(1, b"model")
    show_all(fleet, granted=40)

    def beat() -> None:
        processes.beat("worker1", finished=most, begun=most, granted=most, parallel_games=2**20, speed=1e9)
        processes.beat("worker2", finished=40, begun=40, granted=40, parallel_games=8, speed=10.0)

    wait_until(fleet, lambda: all_active(fleet), doing=beat)
    for _ in range(3):
        beat()
        shares = fleet.plan_grants(dict.fromkeys(fleet.workers, 0), 40)
        # Multiples of what is granted ahead, and no more.
        assert 0 < shares["worker2"] <= 4 * 40 < sum(shares.values()) <= (16 + 4) * 40


def test_a_machine_can_be_added_and_removed_during_a_run(opened: Open, tmp_path: Path) -> None:
    processes, events = StandIn(tmp_path), list[str]()
    fleet = opened("worker1", process_manager=lambda machine: processes, log_event=events.append)
    fleet.publish(1, b"model")
    show_all(fleet)
    fleet.add(worker_settings("worker2"))
    with pytest.raises(ValueError, match="worker2 already"):
        fleet.add(worker_settings("worker2"))

    def beat() -> None:
        show_all(fleet)
        for worker in fleet.workers:
            processes.beat(worker)

    wait_until(fleet, lambda: len(fleet.workers) == 2 and all_active(fleet), doing=beat)
    fleet.remove("worker1")
    assert "worker1" not in fleet.plan_grants(dict.fromkeys(fleet.workers, 0), 40)
    with pytest.raises(ValueError, match="no machine worker7 to remove; the machines are: worker1, worker2"):
        fleet.remove("worker7")
    idle = {"state": "waiting", "granted": 0, "begun": 5, "finished": 5}
    wait_until(fleet, lambda: fleet.workers == ("worker2",), doing=lambda: processes.beat("worker1", **idle))
    assert "worker1" not in processes.running
    assert any("worker1 has been removed" in text for text in events)


def test_a_worker_that_waits_in_a_queue_for_longer_than_a_lease_gets_no_games_until_it_plays(
    opened: Open, tmp_path: Path
) -> None:
    waiting, playing, later = StandIn(tmp_path), StandIn(tmp_path), [0.0]
    waiting.waits = "waits for resources"
    fleet = opened(
        "worker1",
        "worker2",
        process_manager=lambda machine: waiting if machine.name == "worker1" else playing,
        clock=lambda: time.monotonic() + later[0],
    )
    fleet.publish(1, b"model")
    show_all(fleet)
    wait_until(fleet, lambda: states(fleet)["worker2"] is WorkerState.ACTIVE, doing=lambda: playing.beat("worker2"))
    wait_until(fleet, lambda: fleet.cluster().workers[0].reason == "waits for resources")
    assert fleet.workers == ("worker1", "worker2")
    later[0] = 1000.0
    wait_until(fleet, lambda: fleet.workers == ("worker2",), doing=lambda: playing.beat("worker2"))
    assert states(fleet)["worker1"] is WorkerState.SYNCING
    waiting.waits = ""
    wait_until(fleet, lambda: len(fleet.workers) == 2, doing=lambda: waiting.beat("worker1"))


def test_an_unknown_account_is_not_shown_to_a_worker(opened: Open, tmp_path: Path) -> None:
    processes = StandIn(tmp_path)
    fleet = opened("worker1", process_manager=lambda machine: processes)
    fleet.publish(1, b"model")
    fleet.add(worker_settings("worker2"))
    wait_until(fleet, lambda: len(fleet.workers) == 2 and "worker1" in processes.running)
    time.sleep(0.5)
    assert "worker2" not in processes.running
    fleet.grant("worker2", granted=700, delivered=600)
    wait_until(fleet, lambda: "worker2" in processes.running)
    text = (tmp_path / "hosts" / "worker2" / "workers" / "worker2" / "inbox" / "assignment.json").read_text()
    assert (json.loads(text)["granted"], json.loads(text)["delivered"]) == (700, 600)


def test_a_machine_plays_as_many_games_side_by_side_as_its_settings_say(opened: Open, tmp_path: Path) -> None:
    processes = StandIn(tmp_path)
    fleet = opened(process_manager=lambda machine: processes)
    fleet.add(worker_settings("worker1", parallel_games=3))
    fleet.publish(1, b"model")
    fleet.grant("worker1", granted=10, delivered=0)
    folder = WorkerFolder(tmp_path / "hosts" / "worker1" / "workers" / "worker1").create_folders()
    wait_until(fleet, folder.read_assignment)
    assignment = folder.read_assignment()
    assert assignment and assignment.parallel_games == 3


def test_leases_are_renewed_while_nothing_else_changes(opened: Open, tmp_path: Path) -> None:
    processes = StandIn(tmp_path)
    fleet = opened(
        "worker1", process_manager=lambda machine: processes, changes={"distributed": {"lease_seconds": 10.0}}
    )
    fleet.publish(1, b"model")
    folder = WorkerFolder(tmp_path / "hosts" / "worker1" / "workers" / "worker1")
    leases: set[str] = set()

    def poll() -> None:
        assignment = folder.read_assignment()
        leases.update([assignment.lease] if assignment else [])

    wait_until(fleet, lambda: len(leases) >= 4, doing=poll)


def test_a_worker_that_cannot_play_says_so_in_its_status(opened: Open, tmp_path: Path) -> None:
    processes, network = StandIn(tmp_path), Network(tmp_path / "hosts")
    fleet = opened("worker1", "worker2", process_manager=lambda machine: processes, network=network)

    def refuse(what: str, file: str) -> None:
        raise Refused("worker1", "its host key has changed", "run ssh-keygen -R worker1")

    network.failing["worker1"] = refuse
    network.cut.add("worker2")
    fleet.restart("worker1")
    fleet.restart("worker2")
    wait_until(fleet, lambda: set(states(fleet).values()) == {WorkerState.ERROR, WorkerState.OFFLINE})
    status = fleet.heartbeats()
    assert status["worker1"] and "ssh-keygen -R worker1" in status["worker1"].error
    assert status["worker2"] and "put it in" in status["worker2"].error
    assert fleet.workers == ("worker1", "worker2")


def test_closing_twice_is_harmless_and_nothing_can_be_added_afterwards(opened: Open, tmp_path: Path) -> None:
    processes = StandIn(tmp_path)
    fleet = opened("worker1", process_manager=lambda machine: processes)
    fleet.publish(1, b"model")
    wait_until(fleet, lambda: processes.running)
    fleet.close()
    assert processes.running == set()
    fleet.close()
    assert fleet.collect() == []
    with pytest.raises(ValueError, match="the run is ending"):
        fleet.add(worker_settings("worker2"))


# With real worker processes.


def pid_of(tmp_path: Path, name: str) -> int:
    record = json.loads((tmp_path / "hosts" / name / "workers" / name / "process.json").read_text())
    return int(record["pid"])


def is_running(pid: int) -> bool:
    return state(pid) not in "XZ"


@pytest.mark.slow  # tests/cluster/local/test_worker_deaths.py has the same on this machine
@pytest.mark.trial
def test_a_killed_worker_is_restarted_and_no_game_is_lost(opened: Open, tmp_path: Path) -> None:
    fleet = opened("worker1")
    ledger = StoredGames(fleet)
    fleet.grant("worker1", granted=80, delivered=0)
    fleet.publish(1, model_bytes(1))
    wait_until(fleet, lambda: ledger.delivered.get("worker1", 0) >= 20, doing=ledger.take)
    first = pid_of(tmp_path, "worker1")
    os.kill(first, signal.SIGKILL)
    wait_until(fleet, lambda: ledger.delivered["worker1"] == 80, doing=ledger.take)
    second = pid_of(tmp_path, "worker1")
    assert second != first and is_running(second)
    fleet.close()
    assert not is_running(second)


@pytest.mark.trial
def test_a_killed_coach_takes_over_its_workers_and_their_games_when_resumed(opened: Open, tmp_path: Path) -> None:
    network = Network(tmp_path / "hosts")
    fleet = opened("worker1", network=network)
    fleet.grant("worker1", granted=60, delivered=0)
    fleet.publish(1, model_bytes(1))
    ledger = StoredGames(fleet)
    wait_until(fleet, lambda: ledger.delivered.get("worker1", 0) >= 10, doing=ledger.take)
    network.cut.add("worker1")  # as good as dead
    pid = pid_of(tmp_path, "worker1")
    outbox = tmp_path / "hosts" / "worker1" / "workers" / "worker1" / "outbox"
    deadline = time.monotonic() + PATIENCE
    while sum(int(path.name.split("-")[1]) for path in outbox.glob("*.games")) < 60 - ledger.delivered["worker1"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    new = opened("worker1")
    ledger.fleet = new
    new.grant("worker1", granted=80, delivered=ledger.delivered["worker1"])
    new.publish(1, model_bytes(1))
    wait_until(new, lambda: ledger.delivered["worker1"] == 80, doing=ledger.take)
    assert pid_of(tmp_path, "worker1") == pid
    wait_until(new, lambda: not list(outbox.glob("*.games")), doing=ledger.take)


@pytest.mark.slow  # tests/cluster has the same with real machines
@pytest.mark.trial
def test_a_removed_machine_loses_no_finished_game(opened: Open, tmp_path: Path) -> None:
    fleet = opened("worker1", "worker2")
    ledger = StoredGames(fleet)
    for worker in fleet.workers:
        fleet.grant(worker, granted=5000, delivered=0)
    fleet.publish(1, model_bytes(1))
    wait_until(fleet, lambda: len(ledger.delivered) == 2, doing=ledger.take)
    pid = pid_of(tmp_path, "worker1")
    fleet.remove("worker1")
    wait_until(fleet, lambda: fleet.workers == ("worker2",), doing=ledger.take)
    ledger.take()
    folder = WorkerFolder(tmp_path / "hosts" / "worker1" / "workers" / "worker1")
    last = folder.read_heartbeat()
    assert last and ledger.delivered["worker1"] == last.finished == last.begun < 5000
    assert folder.batch_files() == []
    assert not is_running(pid)
    assert is_running(pid_of(tmp_path, "worker2"))
