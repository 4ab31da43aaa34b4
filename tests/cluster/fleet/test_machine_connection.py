"""The connection to one machine, step by step: what is copied when, and which model a worker plays with."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from keima.base.files import FileTooLarge, read_limited, sha256_hex
from keima.base.reports.worker_status import WorkerState
from keima.cluster.fleet import mirror
from keima.cluster.fleet.mirror import find_waiting_files
from keima.cluster.fleet.remote_worker import ASKED_SECONDS
from keima.cluster.fleet.tracked_worker import Restart, Stop
from keima.cluster.machines.machine import WorkerSlot
from keima.data.batch_file import MAX_BATCH_BYTES
from keima.evaluation.match_jobs import Contestant, EvaluationJob
from keima.networks.files.model import Model, describe_model, encode_model
from keima.networks.network import build_network
from keima.worker.model_push import PublishedModel, WholeModelNeeded
from tests.cluster.fleet.connected_machine import NAME, Machine, full
from tests.cluster.local_fleet import worker_settings
from tests.small_run import GAME, NETWORK


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# Files up and down.


def test_no_worker_is_started_before_it_has_a_model_and_an_assignment(machine: Machine) -> None:
    machine.step(steps=3)
    assert machine.started == []
    machine.publish(1)
    machine.step(steps=3)
    assert machine.started == []
    machine.assign(granted=30)
    machine.step()
    assert machine.started == [NAME]
    assert (machine.assignment().granted, machine.assignment().model_version) == (30, 1)
    assert machine.folder().model_path(1).read_bytes() == b"model 1"


def test_games_are_fetched_oldest_first_and_removed_after_the_account_was_raised(machine: Machine) -> None:
    machine.play()
    second, first = machine.finish(10), machine.finish(0)
    machine.step()
    assert list(machine.connection.arrived) == [(NAME, first), (NAME, second)]
    machine.step(steps=5)
    assert machine.in_outbox() == machine.in_mirror() == [first, second]
    machine.assign(delivered=10)
    (machine.mirror().outbox / first).unlink()
    machine.network.done.clear()
    machine.step()
    assert machine.in_outbox() == [second]
    done = [(what, file.rpartition("/")[2]) for _, what, file in machine.network.done]
    assert done.index(("put", "assignment.json")) < done.index(("remove", first))
    assert len(machine.connection.arrived) == 2


def test_no_file_is_removed_while_the_assignment_cannot_be_written(machine: Machine) -> None:
    machine.play()
    file = machine.finish(0)
    machine.step()
    in_the_way = machine.folder().inbox / "assignment.json"
    in_the_way.unlink()
    in_the_way.mkdir()
    machine.assign(delivered=10)
    (machine.mirror().outbox / file).unlink()
    machine.step(steps=3)
    assert machine.in_outbox() == [file]
    assert machine.state() is WorkerState.ERROR and "Is a directory" in machine.reason
    in_the_way.rmdir()
    machine.beat(model_version=1)
    machine.step()
    assert machine.in_outbox() == []
    assert machine.state() is WorkerState.ACTIVE


def test_after_a_crash_of_the_main_node_everything_is_fetched_or_removed_again(machine: Machine) -> None:
    machine.play()
    taken, fetched = machine.finish(0), machine.finish(10)
    machine.step()
    (machine.mirror().outbox / taken).unlink()  # in the ledger, and then the main node was killed
    new = machine.finish(20)
    machine.connection = machine.open_connection()
    assert find_waiting_files(machine.root / "workers", "run") == {NAME: {fetched}}
    machine.step()
    assert [file for _, file in machine.connection.arrived] == [taken, new]
    assert machine.started == [NAME]  # the worker runs, and is taken over
    for file in (taken, fetched, new):
        (machine.mirror().outbox / file).unlink()
    machine.publish(1)
    machine.assign(delivered=30)
    machine.step(steps=2)
    assert machine.in_outbox() == []


def test_after_a_restart_no_file_is_removed_before_an_assignment_counts_it(machine: Machine) -> None:
    machine.play()
    file = machine.finish(0)
    machine.step()
    machine.connection = machine.open_connection()
    machine.publish(1)
    machine.step()
    (machine.mirror().outbox / file).unlink()  # in the ledger, but no assignment says so yet
    machine.step(steps=3)
    assert machine.in_outbox() == [file]
    machine.assign(delivered=10)
    machine.step()
    assert machine.in_outbox() == []


def test_the_bytes_sent_and_received_are_counted_over_several_connections(machine: Machine) -> None:
    machine.play()
    before = machine.connection.snapshot
    machine.finish(0)
    machine.step()
    after = machine.connection.snapshot
    assert before.sent > 0 and after.received > before.received
    machine.network.cut.add(machine.connection.name)
    machine.step()
    machine.network.cut.clear()
    machine.step(steps=3)
    again = machine.connection.snapshot
    assert again.sent >= after.sent and again.received >= after.received
    assert again.bytes_transferred == again.sent + again.received


def test_a_file_that_is_too_large_stays_where_it_is_and_a_placeholder_says_so(machine: Machine) -> None:
    machine.play()
    file = machine.finish(0)
    os.truncate(machine.folder().outbox / file, MAX_BATCH_BYTES + 5)
    received = machine.connection.snapshot.bytes_transferred
    machine.step()
    with pytest.raises(FileTooLarge):
        read_limited(machine.mirror().outbox / file, MAX_BATCH_BYTES)
    assert machine.connection.snapshot.bytes_transferred - received < 10_000
    (machine.mirror().outbox / file).unlink()
    machine.assign()
    machine.step()
    assert machine.in_outbox() == []


def test_files_without_a_batch_name_are_not_fetched(machine: Machine) -> None:
    machine.play()
    for name in ("x.games", "000000000-10-worker1-00.games.part", "000000000-10-w.exe", "0-1-a.games"):
        (machine.folder().outbox / name).write_bytes(b"x")
    machine.step(steps=2)
    assert not machine.connection.arrived


def test_a_full_disk_here_is_an_error_with_the_remedy_and_recovers(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.play()
    file = machine.finish(0)
    with monkeypatch.context() as patch:
        patch.setattr("keima.cluster.fleet.mirror.write_atomically", full)
        machine.step()
        assert machine.state() is WorkerState.ERROR
        assert "main node's disk" in machine.reason
    machine.beat(model_version=1)
    machine.step()
    assert machine.state() is WorkerState.ACTIVE
    assert machine.in_mirror() == [file]


# Models.


def test_a_busy_worker_is_sent_the_newest_model_only_after_enough_games(tmp_path: Path) -> None:
    machine = Machine(tmp_path, distributed={"sync_interval": 50})
    machine.play()
    machine.beat(model_version=1, finished=7)
    machine.step()
    machine.publish(2)
    machine.publish(3)
    machine.beat(model_version=1, finished=49)
    machine.step()
    assert machine.assignment().model_version == 1
    machine.beat(model_version=1, finished=50)
    machine.step()
    assert machine.assignment().model_version == 3
    assert not machine.folder().model_path(2).exists()
    assert (machine.state(), machine.reason) == (WorkerState.SYNCING, "switching to model 3")
    machine.publish(4)
    machine.beat(model_version=3, finished=60)
    machine.step()
    assert machine.state() is WorkerState.ACTIVE
    machine.beat(model_version=3, finished=109)
    machine.step()
    assert machine.assignment().model_version == 3
    machine.beat(model_version=3, finished=110)
    machine.step()
    assert machine.assignment().model_version == 4


def test_a_stopped_worker_is_sent_no_models_until_it_runs_again(machine: Machine) -> None:
    machine.play()
    machine.connection.queue_command(NAME, Stop())
    machine.step(steps=3)
    assert not machine.running
    machine.network.done.clear()
    for version in range(2, 5):
        machine.publish(version)
        machine.step(steps=2)
    assert not [file for _, what, file in machine.network.done if what == "put" and "model-" in file]
    machine.connection.queue_command(NAME, Restart())
    machine.step(steps=3)
    assert machine.running
    assert [file[-18:] for _, what, file in machine.network.done if what == "put" and "model-" in file] == [
        "model-000004.model"
    ]


def test_an_idle_worker_is_sent_a_new_model_at_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, distributed={"sync_interval": 50})
    machine.play()
    machine.publish(2)
    machine.beat(model_version=1, state="waiting")
    machine.step()
    assert machine.assignment().model_version == 2


def test_in_synchronous_mode_a_grant_never_reaches_a_worker_before_its_model(tmp_path: Path) -> None:
    machine = Machine(tmp_path, distributed={"sync_interval": 50}, training={"asynchronous": False})
    machine.play()
    machine.publish(2)
    machine.assign(granted=200)
    machine.network.done.clear()
    machine.step()
    puts = [file.rpartition("/")[2] for _, what, file in machine.network.done if what == "put"]
    assert puts == ["model-000002.model", "assignment.json"]
    assert (machine.assignment().granted, machine.assignment().model_version) == (200, 2)


def test_a_machine_receives_a_model_once_for_all_its_workers(tmp_path: Path) -> None:
    names = ("worker1-1", "worker1-2", "worker1-3")
    machine = Machine(tmp_path, slots=names)
    machine.step()
    machine.play(*names)
    assert sum(what == "put" and "model-" in file for _, what, file in machine.network.done) == 1
    assert all(machine.folder(name).model_path(1).read_bytes() == b"model 1" for name in names)
    assert machine.started == list(names)


def test_the_first_worker_of_a_machine_compiles_before_the_others_start(tmp_path: Path) -> None:
    machine = Machine(tmp_path, slots=("worker1-1", "worker1-2"))
    machine.step()
    machine.publish(1)
    for name in ("worker1-1", "worker1-2"):
        machine.assign(name)
    for _ in range(5):
        machine.step()
        machine.beat("worker1-1", state="compiling")
    assert machine.started == ["worker1-1"]
    machine.beat("worker1-1", state="waiting")
    machine.step(steps=2)
    assert machine.started == ["worker1-1", "worker1-2"]


def test_a_worker_with_the_last_model_gets_a_delta_and_the_whole_file_if_it_asks(
    machine: Machine,
) -> None:
    first, second = two_models_that_differ_little()
    machine.play()
    machine.connection.publish(PublishedModel(version=2, data=first, sha256=sha256_hex(first)))
    machine.beat(model_version=1, finished=10)
    machine.step()
    machine.beat(model_version=2, finished=10)
    machine.step()
    machine.connection.publish(PublishedModel(version=3, data=second, sha256=sha256_hex(second)))
    machine.beat(model_version=2, finished=50)
    machine.step()
    assert (machine.folder().inbox / "model-000003.from-000002.delta").exists()
    assert not machine.folder().model_path(3).exists()
    machine.beat(model_version=2, state="error", error=str(WholeModelNeeded(3, "the base is damaged")))
    machine.step()
    assert machine.folder().model_path(3).read_bytes() == second
    sent = len(machine.network.done)
    machine.beat(model_version=2, state="error", error=str(WholeModelNeeded(3, "the base is damaged")))
    machine.step(steps=3)
    assert not [file for _, what, file in machine.network.done[sent:] if what == "put" and "model" in file]


def test_a_model_damaged_on_the_machine_is_sent_again_soon_after_the_worker_asks(machine: Machine) -> None:
    machine.play()
    path = machine.folder().model_path(1)
    good = path.read_bytes()
    path.write_bytes(b"damaged")
    asking = {"state": "error", "error": f"model 1: {WholeModelNeeded(1, 'it is damaged')}"}
    machine.beat(**asking)
    machine.step(after=ASKED_SECONDS)
    assert path.read_bytes() == good
    path.write_bytes(b"damaged again")
    machine.beat(**asking)
    machine.step(after=ASKED_SECONDS / 2)
    assert path.read_bytes() == b"damaged again"  # whatever is wrong there, the link is not kept busy
    machine.beat(**asking)
    machine.step(after=ASKED_SECONDS / 2)
    assert path.read_bytes() == good


@pytest.mark.parametrize(("fast_link", "name"), [(1.0, "model-000003.model"), (1e15, "model-000003.from-000002.delta")])
def test_the_whole_model_is_sent_over_a_link_faster_than_applying_a_delta(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, fast_link: float, name: str
) -> None:
    monkeypatch.setattr(mirror, "FAST_LINK", fast_link)
    monkeypatch.setattr(mirror, "LARGE_MODEL_BYTES", 1)
    machine.play()
    for version, data in enumerate(two_models_that_differ_little(), start=2):
        machine.connection.publish(PublishedModel(version=version, data=data, sha256=sha256_hex(data)))
        machine.beat(model_version=version - 1, finished=50 * version)
        machine.step()
        if version == 2:
            machine.beat(model_version=version, finished=50 * version)
            machine.step()
    assert (machine.folder().inbox / name).exists()


def two_models_that_differ_little() -> tuple[bytes, bytes]:
    network: dict[str, Any] = {**NETWORK, "channels": 64}
    weights = {name: tensor.clone() for name, tensor in build_network(GAME, **network).eval().state_dict().items()}
    files = []
    for version in (2, 3):
        files.append(encode_model(Model(description=describe_model(GAME, network, version), weights=weights), GAME))
        next(iter(weights.values())).view(-1)[0] += 1.0
    return files[0], files[1]


def test_player_models_arrive_before_their_match_orders_and_results_come_back(machine: Machine) -> None:
    machine.play()
    own, opponent = (
        Contestant(version=1, sha256=sha256_hex(b"model 1")),
        Contestant(version=9, sha256=sha256_hex(b"guest")),
    )
    job = EvaluationJob(
        id="job-1",
        first=own,
        second=opponent,
        seed=1,
        opening_plies=2,
        match_pairs=2,
        first_pair=0,
        pairs=2,
        num_simulations=8,
    )
    wanted = machine.assignment().model_copy(update={"players": (own, opponent), "matches": (job,), "lease": "new"})
    machine.connection.set_players({own: b"model 1", opponent: b"guest"})
    machine.connection.assign(NAME, wanted)
    machine.network.done.clear()
    machine.step()
    puts = [file.rpartition("/")[2] for _, what, file in machine.network.done if what == "put"]
    assert puts == [opponent.file_name, "assignment.json"]  # the other one is already there for self-play
    assert (machine.folder().inbox / own.file_name).read_bytes() == b"model 1"
    assert machine.assignment().matches == (job,)
    result = machine.folder().outbox / job.file_name
    result.write_bytes(b"result")
    (machine.folder().outbox / "another.match").write_bytes(b"not ordered")
    machine.step(steps=2)
    (machine.mirror().outbox / job.file_name).unlink()
    machine.step(steps=2)
    assert [path.name for path in machine.mirror().outbox.iterdir()] == []  # it is fetched once
    assert result.exists()


@pytest.mark.parametrize("alone", [False, True])
def test_workers_start_one_at_a_time_on_one_machine_and_all_at_once_if_each_has_its_own(
    tmp_path: Path, alone: bool
) -> None:
    names = ("worker1-1", "worker1-2", "worker1-3")
    machine = Machine(tmp_path, slots=names)
    machine.slots = tuple(WorkerSlot(name, alone=alone) for name in names)
    machine.publish(1)
    for name in names:
        machine.assign(name)
    machine.step(steps=3)
    assert len(machine.started) == (3 if alone else 1)


def test_a_player_model_that_was_dropped_is_sent_again_when_needed(machine: Machine) -> None:
    machine.play()
    opponent = Contestant(version=9, sha256=sha256_hex(b"guest"))
    without = machine.assignment()
    machine.connection.set_players({opponent: b"guest"})
    for lease, players in (("first", (opponent,)), ("second", ()), ("third", (opponent,))):
        machine.connection.assign(NAME, without.model_copy(update={"players": players, "lease": lease}))
        machine.step()
        if not players:
            (machine.folder().inbox / opponent.file_name).unlink()  # as the worker does
    assert machine.assignment().players == (opponent,)
    assert (machine.folder().inbox / opponent.file_name).read_bytes() == b"guest"


# Polls.

SLOTS = ("worker1-1", "worker1-2", "worker1-3", "worker1-4")


@pytest.fixture
def slots(tmp_path: Path) -> Machine:
    """A machine with several workers, which play."""
    machine = Machine(tmp_path, slots=SLOTS)
    machine.step()
    machine.play(*SLOTS)
    machine.network.done.clear()
    return machine


def done(machine: Machine) -> list[tuple[str, str]]:
    """Return what was done since the last call, each with the file's name."""
    found = [(what, file.rpartition("/")[2]) for _, what, file in machine.network.done]
    machine.network.done.clear()
    return found


def test_one_poll_a_step_serves_all_workers_of_a_machine(slots: Machine) -> None:
    for name in SLOTS:
        slots.beat(name, model_version=1)
    slots.step()
    (polled,) = slots.network.polls
    assert {*polled.split()} >= {f"workers/{name}" for name in SLOTS}
    assert [what for what, _ in done(slots)] == ["look"]
    files = {name: slots.finish(0, name) for name in SLOTS}
    slots.step()
    assert dict(slots.connection.arrived) == files
    assert [what for what, _ in done(slots)] == ["look"]
    for name in SLOTS:
        slots.assign(name, granted=200, delivered=10)
        (slots.mirror(name).outbox / files[name]).unlink()
    slots.step()
    assert [what for what, _ in done(slots)] == ["look", *["put", "remove"] * 4]
    assert [slots.assignment(name).delivered for name in SLOTS] == [10] * 4
    assert not any(slots.folder(name).batch_files() for name in SLOTS)


def test_a_model_for_all_workers_costs_one_transfer_a_link_each_and_two_polls(slots: Machine) -> None:
    for name in SLOTS:
        slots.beat(name, model_version=1, state="waiting")
    slots.publish(2)
    slots.step()
    model = slots.folder().model_path(2).name
    assert done(slots) == [
        ("look", SLOTS[-1]),
        ("put", model),
        *[("link", name) for name in SLOTS[1:]],
        ("look", SLOTS[-1]),
        *[("put", "assignment.json")] * 4,
    ]
    assert {slots.assignment(name).model_version for name in SLOTS} == {2}


def test_many_small_files_come_with_few_polls_and_large_ones_each_by_itself(slots: Machine) -> None:
    small = [slots.finish(10 * number, SLOTS[0], data=bytes(100)) for number in range(30)]
    large = slots.finish(300, SLOTS[0], data=bytes(2**22 + 1))
    slots.step(steps=2)
    assert [file for _, file in slots.connection.arrived] == [*small, large]
    assert done(slots) == [("look", SLOTS[-1]), ("get", large), ("look", SLOTS[-1])]
    assert slots.connection.snapshot.received >= 30 * 100 + 2**22


def test_a_backlog_larger_than_a_poll_may_bring_is_fetched_without_a_pause(slots: Machine) -> None:
    for name in SLOTS:
        for number in range(3):
            slots.finish(10 * number, name, data=bytes(2**19))
    delays = []
    while len(slots.connection.arrived) < 12:
        slots.now += 0.1
        delays.append(slots.connection.step())
        assert len(delays) < 12
    assert delays[:-1] == [0.0] * (len(delays) - 1) and delays[-1] > 0
    assert {what for what, _ in done(slots)} == {"look"}


def test_what_is_wrong_with_one_worker_s_folder_concerns_that_worker_alone(slots: Machine) -> None:
    inbox = slots.folder(SLOTS[1]).inbox
    (inbox / "assignment.json").unlink()
    (inbox / "assignment.json").mkdir()
    (slots.folder(SLOTS[2]).root / "worker.json").write_bytes(b"{")
    file = slots.finish(0, SLOTS[0])
    for name in SLOTS:
        slots.assign(name, granted=200)
    slots.beat(SLOTS[0], model_version=1)
    slots.beat(SLOTS[3], model_version=1)
    slots.step()
    states = [worker.state for worker in slots.connection.snapshot.workers]
    assert states == [WorkerState.ACTIVE, WorkerState.ERROR, WorkerState.ERROR, WorkerState.ACTIVE]
    assert list(slots.connection.arrived) == [(SLOTS[0], file)]
    assert [slots.assignment(name).granted for name in (SLOTS[0], *SLOTS[2:])] == [200] * 3


def test_heartbeats_of_all_workers_stay_fresh_while_one_is_sent_a_large_model(slots: Machine) -> None:
    heard: list[set[int]] = []

    def beats() -> set[int]:
        return {worker.heartbeat.beat for worker in slots.connection.snapshot.workers[1:] if worker.heartbeat}

    def slowly(what: str, file: str) -> None:
        """Let ten seconds pass during the transfer of the model."""
        while what == "put" and "model-" in file and len(heard) < 10:
            slots.now += 1.0
            for name in SLOTS[1:]:
                slots.beat(name, model_version=1, finished=len(heard))
            last, until = beats(), time.monotonic() + 120
            while beats() == last:
                assert time.monotonic() < until
                slots.network.cables[-1].meanwhile()
            heard.append(beats())
            states = {worker.state for worker in slots.connection.snapshot.workers[1:]}
            assert states == {WorkerState.ACTIVE}

    for name in SLOTS:
        slots.beat(name, model_version=1, finished=0)
    slots.step()
    slots.beat(SLOTS[0], model_version=1, finished=50)
    slots.network.failing[NAME] = slowly
    slots.publish(2)
    slots.step()
    assert len(heard) == 10 and slots.assignment(SLOTS[0]).model_version == 2


def test_a_killed_agent_costs_nothing_but_another_one(slots: Machine) -> None:
    stream = slots.network.cables[-1]._streams[-1]
    stream._program.kill()
    stream._program.wait()
    for name in SLOTS:
        slots.beat(name, model_version=1)
    file = slots.finish(0, SLOTS[3])
    slots.step()
    assert list(slots.connection.arrived) == [(SLOTS[3], file)]
    assert {worker.state for worker in slots.connection.snapshot.workers} == {WorkerState.ACTIVE}
    assert [what for what, _ in done(slots)] == ["look", "open", "look"] and len(slots.network.connections) == 1


# What the machine's owner wants: quiet hours, and a limit of bandwidth.


def test_in_quiet_hours_a_worker_finishes_its_games_and_rests_until_they_end(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.machine_settings = worker_settings(NAME, quiet_hours="mon-fri 13:00-18:00")
    machine.connection = machine.open_connection()
    machine.play()
    machine.local_time = machine.local_time.replace(hour=13)
    machine.beat(model_version=1)
    machine.step(steps=2)
    assert machine.running == {NAME} and machine.state() is WorkerState.ACTIVE
    machine.beat(model_version=1, state="waiting")
    machine.step(steps=2)
    assert machine.running == set() and machine.stopped == [NAME]
    assert (machine.state(), machine.reason) == (WorkerState.OFFLINE, "quiet hours until Fri 18:00")
    before = len(machine.network.done)
    machine.publish(2)
    machine.step(after=1.0, steps=20)
    assert machine.started == [NAME] and "put" not in [what for _, what, _ in machine.network.done[before:]]
    machine.local_time = machine.local_time.replace(hour=18)
    machine.step(steps=3)
    assert machine.started == [NAME, NAME]


def test_games_that_take_too_long_end_with_the_quiet_hour(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.machine_settings = worker_settings(NAME, quiet_hours="13:00-18:00")
    machine.connection = machine.open_connection()
    machine.play()
    machine.local_time = machine.local_time.replace(hour=13)
    for _ in range(65):
        machine.beat(model_version=1)
        machine.step(after=1.0)
    assert machine.stopped == [NAME]


def test_a_machine_with_a_bandwidth_of_its_own_brings_games_no_faster(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.machine_settings = worker_settings(NAME, bandwidth=0.1)
    machine.connection = machine.open_connection()
    machine.play()
    for number in range(40):
        machine.finish(number, data=bytes(50_000))
    began = machine.now
    while len(machine.connection.arrived) < 40:
        machine.beat(model_version=1)
        machine.step(after=0.5)
        assert machine.state() is WorkerState.ACTIVE
    assert 18.0 <= machine.now - began <= 25.0
