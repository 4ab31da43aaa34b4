"""The connection to a machine during failures, when the machine belongs to another run, and when it is removed."""

import itertools
import json
import shutil
from pathlib import Path

import pytest

from keima.base.reports.worker_status import WorkerState
from keima.cluster.fleet.machine_connection import SLOW_RETRY_SECONDS, SOON_SECONDS, expected_workers
from keima.cluster.fleet.mirror import find_waiting_files
from keima.cluster.fleet.tracked_worker import Restart, Stop, Tick
from keima.cluster.ssh.errors import NotReadyYet, Refused, Unreachable
from tests.cluster.fleet.connected_machine import GAMES, NAME, Machine
from tests.cluster.local_fleet import worker_settings


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# Trouble.


def test_a_lost_machine_is_offline_after_ten_seconds_and_back_at_once(machine: Machine) -> None:
    machine.play()
    machine.network.cut.add(NAME)
    machine.step()
    assert machine.state() is WorkerState.ACTIVE
    machine.step(after=5.5)
    assert (machine.state(), machine.reason) == (WorkerState.OFFLINE, "the cable is out; put it in")
    machine.network.cut.clear()
    machine.step(after=1.1)
    machine.beat(model_version=1)
    machine.step()
    assert machine.state() is WorkerState.ACTIVE
    assert machine.started == [NAME]


@pytest.mark.parametrize("seconds", [0.2, 1.0, 4.0])
def test_a_worker_is_polled_twice_per_heartbeat_interval(tmp_path: Path, seconds: float) -> None:
    machine = Machine(tmp_path, distributed={"heartbeat_seconds": seconds, "offline_seconds": 10.0})
    machine.play()
    assert machine.connection.step() == seconds / 2


@pytest.mark.parametrize("seconds", [1.0, 7.0, 20.0])
def test_no_pause_between_attempts_is_longer_than_the_settings_say(tmp_path: Path, seconds: float) -> None:
    machine = Machine(tmp_path, distributed={"retry_seconds": seconds, "heartbeat_seconds": 0.5})
    machine.network.cut.add(NAME)
    attempts = []
    for _ in range(1500):
        before = len(machine.network.connections)
        machine.step(after=0.1)
        if len(machine.network.connections) > before:
            attempts.append(machine.now)
    longest = max(later - earlier for earlier, later in itertools.pairwise(attempts))
    assert longest == pytest.approx(seconds, abs=0.11)


def test_a_machine_that_will_come_is_tried_again_soon_however_long_it_takes(tmp_path: Path) -> None:
    machine = Machine(tmp_path, distributed={"retry_seconds": 60.0})

    def comes_later(what: str, file: str) -> None:
        raise NotReadyYet(NAME, "its slot waits for a node")

    machine.network.failing[NAME] = comes_later
    machine.step(after=1.0, steps=500)
    assert (machine.state(), machine.reason) == (WorkerState.OFFLINE, "its slot waits for a node")
    machine.network.failing.clear()
    machine.step(after=SOON_SECONDS + 0.1)
    assert machine.connection.snapshot.inspected


@pytest.mark.parametrize("lets_us_in", [False, True])
def test_attempts_to_connect_become_rarer_up_to_the_cap_and_a_success_resets_them(
    tmp_path: Path, lets_us_in: bool
) -> None:
    def fail(what: str, file: str) -> None:
        if what != "connect" or not lets_us_in:
            raise Unreachable(NAME, "it does not answer")

    machine = Machine(tmp_path, distributed={"retry_seconds": 60.0})
    machine.network.failing[NAME] = fail
    attempts = []
    for _ in range(4000):
        before = len(machine.network.connections)
        machine.step(after=0.1)
        if len(machine.network.connections) > before:
            attempts.append(machine.now)
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(attempts)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 60 and len(attempts) < 25
    assert sum("it does not answer" in line for line in machine.connection.news) == 1
    machine.network.failing.clear()
    machine.step(after=60.0)
    machine.network.cut.add(NAME)
    machine.step()
    machine.network.cut.clear()
    machine.step(after=1.0)
    assert machine.connection.snapshot.inspected and machine.network.connections[-1] == NAME


def test_a_refused_machine_is_retried_once_a_minute_and_at_once_after_a_restart(machine: Machine) -> None:
    machine.refusal = Refused(NAME, "torch is 1.0, here 2.0", "run --bootstrap")
    machine.step(after=0.5, steps=100)
    assert len(machine.network.connections) == 1
    assert (machine.state(), machine.reason) == (WorkerState.ERROR, "torch is 1.0, here 2.0; run --bootstrap")
    machine.step(after=SLOW_RETRY_SECONDS)
    assert len(machine.network.connections) == 2
    machine.refusal = None
    machine.connection.queue_command(NAME, Tick())  # what is wrong has been put right
    machine.step()
    assert machine.connection.snapshot.inspected


def test_a_process_that_keeps_ending_is_restarted_until_it_is_given_up_with_its_log(machine: Machine) -> None:
    machine.play()
    for _ in range(100):
        machine.running.clear()
        machine.step(after=2.1)
    assert machine.started == [NAME] * 6
    assert machine.state() is WorkerState.ERROR
    assert "Segmentation fault" in machine.reason
    machine.connection.queue_command(NAME, Restart())
    machine.step()
    assert machine.started == [NAME] * 7


def test_the_death_of_a_process_from_an_earlier_session_is_reported_as_a_death(machine: Machine) -> None:
    machine.running.add(NAME)
    machine.play()
    assert machine.started == []
    machine.running.clear()
    machine.connection.news.clear()
    machine.step(after=2.1, steps=2)
    assert list(machine.connection.news) == [f"{NAME}: its process has ended and is started again"]


def test_stop_and_restart_do_what_they_say(machine: Machine) -> None:
    machine.play()
    machine.connection.queue_command(NAME, Stop())
    machine.step(steps=3)
    assert (machine.running, machine.state()) == (set(), WorkerState.OFFLINE)
    machine.connection.queue_command(NAME, Restart())
    machine.step(steps=2)
    assert machine.running == {NAME}
    machine.connection.queue_command(NAME, Restart())
    machine.step(steps=2)
    assert (machine.running, len(machine.started)) == ({NAME}, 3)


def test_a_worker_whose_folder_was_deleted_gets_everything_again_at_once(machine: Machine) -> None:
    machine.play()
    shutil.rmtree(machine.folder().root)
    machine.running.clear()
    machine.step(after=2.1, steps=2)
    assert machine.started == [NAME] * 2
    assert machine.folder().model_path(1).exists()
    assert machine.assignment().model_version == 1
    machine.beat(model_version=1)
    machine.step()
    assert machine.state() is WorkerState.ACTIVE


def test_a_bug_becomes_an_error_of_this_machine_and_the_connection_continues(machine: Machine) -> None:
    def bug(what: str, file: str) -> None:
        raise ZeroDivisionError("oops")

    machine.play()
    machine.network.failing[NAME] = bug
    machine.step()
    assert machine.state() is WorkerState.ERROR and "ZeroDivisionError: oops" in machine.reason
    machine.network.failing.clear()
    machine.step(after=SLOW_RETRY_SECONDS)
    machine.beat(model_version=1)
    machine.step()
    assert machine.state() is WorkerState.ACTIVE


@pytest.mark.parametrize("text", [b"{", b"[" * 50_000, b'{"run_id": "run"}', b"x" * 100_000, b"null"])
def test_an_unreadable_heartbeat_is_an_error_until_there_is_a_better_one(machine: Machine, text: bytes) -> None:
    machine.play()
    (machine.folder().root / "worker.json").write_bytes(text)
    machine.step()
    assert machine.state() is WorkerState.ERROR and "heartbeat" in machine.reason
    machine.beat(model_version=1)
    machine.step()
    assert machine.state() is WorkerState.ACTIVE


def test_a_dead_worker_with_an_unreadable_heartbeat_is_restarted(machine: Machine) -> None:
    machine.play()
    machine.assign(granted=200)
    file = machine.finish(0)
    (machine.folder().root / "worker.json").write_bytes(b"{")
    machine.running.clear()
    machine.step(after=3.0)
    assert machine.state() is WorkerState.ERROR and "heartbeat" in machine.reason
    assert machine.started == [NAME] * 2
    assert machine.in_mirror() == [file] and machine.assignment().granted == 200
    machine.beat(model_version=1)
    machine.step()
    assert machine.state() is WorkerState.ACTIVE


def test_a_worker_with_persistently_impossible_heartbeats_is_ended_and_restarted(machine: Machine) -> None:
    machine.play()
    (machine.folder().root / "worker.json").write_bytes(b"{")
    machine.step(after=1.0, steps=62)
    assert machine.stopped == [NAME] and machine.started == [NAME] * 2


def test_a_wiped_machine_gets_everything_again(machine: Machine) -> None:
    machine.play()
    machine.network.cut.add(NAME)
    machine.step()
    (machine.network.root / NAME / "workers").rename(machine.root / "gone")
    machine.running.clear()
    machine.network.cut.clear()
    machine.step(after=2.0, steps=2)
    assert machine.started == [NAME] * 2
    assert machine.assignment().model_version == 1
    assert machine.folder().model_path(1).exists()


# Other runs.


def test_a_mirror_of_another_run_is_put_aside(tmp_path: Path) -> None:
    Machine(tmp_path, run_id="aaaa")
    (tmp_path / "workers" / NAME / "outbox" / GAMES.format(0)).write_bytes(b"games")
    Machine(tmp_path, run_id="bbbb")
    assert find_waiting_files(tmp_path / "workers", "bbbb") == {NAME: set()}
    assert (tmp_path / "workers" / f"{NAME}.aaaa" / "outbox" / GAMES.format(0)).exists()


def test_processes_that_are_no_longer_configured_are_ended_and_their_games_fetched(tmp_path: Path) -> None:
    machine = Machine(tmp_path, slots=("worker1-1", "worker1-2"))
    machine.step()
    machine.play("worker1-1", "worker1-2")
    file = machine.finish(0, "worker1-2")
    machine.slots = machine.slots[:1]
    assert expected_workers(worker_settings(NAME), tmp_path / "workers") == ["worker1-1", "worker1-2"]
    machine.connection = machine.open_connection()
    machine.step()
    assert [slot.name for slot in machine.connection.snapshot.workers] == ["worker1-1"]
    assert ("worker1-2", file) in machine.connection.arrived
    assert machine.running == {"worker1-1"}
    (machine.mirror("worker1-2").outbox / file).unlink()
    machine.step(steps=2)
    assert machine.folder("worker1-2").batch_files() == []


# The end.


def test_a_removed_machine_finishes_its_games(machine: Machine) -> None:
    machine.play()
    machine.assign(granted=0)
    machine.connection.leave(drain=True, seconds=100.0)
    machine.beat(model_version=1, granted=0, begun=30, finished=20)
    machine.step(steps=3)
    assert machine.running and not machine.connection.done
    file = machine.finish(0)
    machine.beat(model_version=1, granted=0, begun=30, finished=30, state="waiting")
    machine.step(steps=3)
    assert machine.running and not machine.connection.done  # the Coach has not received it yet
    (machine.mirror().outbox / file).unlink()
    machine.step(steps=2)
    assert machine.connection.done and not machine.running
    assert machine.in_outbox() == []


def test_a_removed_machine_that_does_not_finish_is_abandoned_after_a_time_limit(machine: Machine) -> None:
    machine.play()
    machine.connection.leave(drain=True, seconds=100.0)
    for _ in range(99):
        machine.beat(model_version=1, begun=30, finished=20)
        machine.step(after=1.0)
    assert not machine.connection.done
    machine.step(after=2.0)
    assert machine.connection.done and not machine.running


def test_a_removed_machine_that_cannot_be_reached_is_abandoned_soon(machine: Machine) -> None:
    machine.play()
    machine.network.cut.add(NAME)
    machine.step()
    machine.connection.leave(drain=True, seconds=100.0)
    machine.step(after=1.0)
    assert not machine.connection.done
    machine.step(after=1.0, steps=20)
    assert machine.connection.done


def test_games_handed_over_at_the_end_of_the_run_are_fetched(machine: Machine) -> None:
    machine.play()
    machine.connection.leave(drain=False, seconds=20.0)
    machine.beat(model_version=1)
    machine.step()
    assert machine.running
    file = machine.finish(0)
    machine.running.clear()
    machine.beat(model_version=1, state="ended")
    machine.step(steps=2)
    assert machine.connection.done
    assert list(machine.connection.arrived) == [(NAME, file)]
    assert machine.started == [NAME]


def out_of_reach_for_long(machine: Machine) -> None:
    """Make the next attempt to connect far away."""
    machine.network.cut.add(NAME)
    machine.step(after=1.0, steps=20)
    before = len(machine.network.connections)
    machine.step()
    assert len(machine.network.connections) == before


def test_at_the_end_of_the_run_a_missing_machine_is_tried_once_more_and_not_waited_for(tmp_path: Path) -> None:
    machine = Machine(tmp_path, distributed={"retry_seconds": 60.0})
    machine.play()
    out_of_reach_for_long(machine)
    before = len(machine.network.connections)
    machine.connection.leave(drain=False, seconds=20.0)
    machine.step(steps=2)
    assert machine.connection.done
    assert len(machine.network.connections) == before + 1


def test_at_the_end_of_the_run_a_machine_that_is_back_but_was_not_retried_yet_hands_over_everything(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path, distributed={"retry_seconds": 60.0})
    machine.play()
    out_of_reach_for_long(machine)
    file = machine.finish(0)
    machine.network.cut.clear()
    machine.connection.leave(drain=False, seconds=20.0)
    machine.step(steps=3)
    assert machine.connection.done and not machine.running
    assert list(machine.connection.arrived) == [(NAME, file)]
    assert machine.started == [NAME]


def test_the_run_id_of_a_folder_is_not_trusted(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    folder = machine.folder().create_folders()
    folder.inbox.joinpath("assignment.json").write_text(json.dumps({"run_id": "../../x; rm -rf ~"}))
    machine.finish(0)
    machine.step()
    assert machine.folder(f"{NAME}.unknown").outbox.exists()
