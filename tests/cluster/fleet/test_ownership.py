"""Two Coaches that meet on one machine: who owns the worker, what the other one may do, and where the games go."""

import json
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keima.base.reports.worker_status import WorkerState
from keima.cluster.agent.client import AgentTransport
from keima.cluster.agent.process import claim_place, process_id_scope
from keima.cluster.fleet import ownership
from keima.cluster.fleet.ownership import ASK_SECONDS, Claimant, describe_owner, make_owner
from keima.cluster.fleet.poll import poll_workers
from keima.cluster.ssh.errors import Unreachable
from keima.data.records import encode_batch
from keima.worker.worker_folder import batch_name
from tests.cluster.fleet.connected_machine import NAME, Machine
from tests.small_networks import CONNECT_FOUR
from tests.synthetic import synthetic_batch

LEASE = 900.0  # as the settings have it


class Coach(Machine):
    """A Coach of a run; all of them reach the same machine."""

    def __init__(self, root: Path, run_id: str, *, beside: Machine | None = None, **facts: Any) -> None:
        root.mkdir(exist_ok=True)
        owner = replace(make_owner(run_id, run_dir=root, lease_seconds=LEASE), **facts)
        super().__init__(root, run_id=run_id, claimant=Claimant(owner=owner))
        if beside:
            self.network.root, self.running = beside.network.root, beside.running

    def finish(self, first: int, name: str = NAME, *, data: bytes = b"games") -> str:
        file = f"{batch_name(self.run_id, name, first, 10, f'{first:016x}')}.games"
        (self.folder(name).create_folders().outbox / file).write_bytes(data)
        return file

    def want(self) -> None:
        """Put in place everything that a Coach has when its workers are to play."""
        self.publish(1)
        self.assign()

    def aside(self, of: Machine) -> list[str]:
        return [path.name for path in self.folder(f"{NAME}.{of.run_id}").create_folders().batch_files()]

    def gone(self) -> "Coach":
        """Return the same run's next session, after this one was killed."""
        self.claimant = Claimant(owner=make_owner(self.run_id, run_dir=self.root, lease_seconds=LEASE))
        self.connection = self.open_connection()
        return self


def elsewhere(**facts: Any) -> dict[str, Any]:
    """Return the record of a Coach on another main node."""
    return {
        "host": "other.example.org",
        "user": "",
        "folder": "",
        "world": "other.example.org-1/some-boot/1",
        "pid": 1,
        **facts,
    }


@pytest.fixture
def coaches(tmp_path: Path) -> Callable[..., tuple[Coach, Coach]]:
    def make(**facts: Any) -> tuple[Coach, Coach]:
        first = Coach(tmp_path / "first", "aaaa", **facts)
        return first, Coach(tmp_path / "second", "bbbb", beside=first)

    return make


def test_a_second_coach_touches_nothing_of_a_worker_that_plays_for_another_one(
    coaches: Callable[..., tuple[Coach, Coach]], tmp_path: Path
) -> None:
    first, second = coaches()
    first.play()
    file = first.finish(0)
    second.want()
    second.network.done.clear()
    second.step(steps=20)
    assert (second.started, second.stopped) == ([], []) and first.running == {NAME}
    assert second.state() is WorkerState.ERROR
    assert second.reason.startswith(f"{NAME} plays for {describe_owner(first.claimant.owner)}, lease until ")
    assert str(tmp_path / "first") in second.reason and f"@{socket.gethostname()}" in second.reason
    assert f"cluster takeover {NAME} takes it over" in second.reason
    touched = [
        name
        for _, what, name in second.network.done
        if what in ("get", "put", "remove") and not name.startswith(".remote/")
    ]
    assert touched == []
    first.beat(model_version=1)
    first.step()
    assert list(first.connection.arrived) == [(NAME, file)] and not second.connection.arrived
    assert first.state() is WorkerState.ACTIVE and first.assignment().run_id == "aaaa"


def test_a_coach_whose_worker_was_taken_over_touches_nothing_more_and_gets_its_games(
    coaches: Callable[..., tuple[Coach, Coach]],
) -> None:
    first, second = coaches()
    first.play()
    file = first.finish(0)
    second.want()
    second.step()
    second.connection.take_over(NAME)
    second.step(steps=2)
    assert second.stopped == [NAME] and second.started == [NAME]
    assert second.assignment().run_id == "bbbb"
    assert second.aside(first) == [file] and second.in_outbox() == []
    mine = second.finish(0)
    first.assign(granted=200)  # it would write an assignment and restart a worker that has ended
    first.running.discard(NAME)
    first.step(steps=3)
    assert first.state() is WorkerState.ERROR and "plays for run second" in first.reason
    assert first.started == [NAME] and second.assignment().run_id == "bbbb"
    assert list(first.connection.arrived) == [(NAME, file)] and second.in_outbox() == [mine]
    (first.mirror().outbox / file).unlink()  # it is in the ledger
    first.step(after=ASK_SECONDS, steps=2)
    assert second.aside(first) == [] and second.in_outbox() == [mine]


def test_games_that_were_set_aside_come_back_with_their_run(coaches: Callable[..., tuple[Coach, Coach]]) -> None:
    first, second = coaches()
    first.play()
    files = [first.finish(0), first.finish(10)]
    second.want()
    second.connection.take_over(NAME)
    second.step(steps=2)
    mine = second.finish(0)
    second.connection.leave(drain=False, seconds=0.0)
    second.step(steps=2)
    assert second.connection.done and list(second.connection.arrived) == [(NAME, mine)]
    first.gone().want()
    first.step(steps=2)
    assert first.in_outbox() == files and [name for _, name in first.connection.arrived] == files
    assert first.aside(second) == [mine]  # which is not in the ledger yet, as far as is known here
    assert not (first.folder(f"{NAME}.aaaa").root).exists()


def test_a_released_worker_is_free_at_once(coaches: Callable[..., tuple[Coach, Coach]]) -> None:
    first, second = coaches()
    first.play()
    first.connection.leave(drain=False, seconds=0.0)
    first.step(steps=2)
    second.want()
    second.step(steps=2)
    assert second.started == [NAME] and second.state() is not WorkerState.ERROR


def test_an_unrenewed_lease_expires_by_the_clock_of_the_waiting_coach(
    coaches: Callable[..., tuple[Coach, Coach]],
) -> None:
    first, second = coaches(**elsewhere())
    first.play()
    file = first.finish(0)
    second.want()
    second.step(after=LEASE / 2)
    second.step(after=LEASE / 2 - 1)
    assert second.state() is WorkerState.ERROR and "plays for run aaaa of other.example.org" in second.reason
    first.assign(granted=101)  # it is still there: the lease starts again
    first.step()
    second.step(after=ASK_SECONDS + 1)
    second.step(after=LEASE - 1)
    assert second.state() is WorkerState.ERROR and second.stopped == []
    second.step(after=ASK_SECONDS)
    second.step()
    assert second.stopped == [NAME] and second.started == [NAME]
    assert second.aside(first) == [file]


@pytest.mark.parametrize("facts", [{"pid": 2**22 + 1}, {"start_ticks": 1}])
def test_a_killed_coach_of_this_machine_is_not_waited_for(
    coaches: Callable[..., tuple[Coach, Coach]], facts: dict[str, Any]
) -> None:
    first, second = coaches(**facts)
    first.play()
    second.want()
    second.step(steps=2)
    assert second.started == [NAME]


def test_a_coach_on_a_clone_of_this_machine_is_not_taken_for_a_dead_one(
    coaches: Callable[..., tuple[Coach, Coach]],
) -> None:
    host, _, processes = process_id_scope().split("/")
    first, second = coaches(world=f"{host}/another-boot/{processes}", pid=2**22 + 1)
    first.play()
    second.want()
    second.step(steps=2)
    assert second.started == [] and second.state() is WorkerState.ERROR
    assert "this machine before its restart, or another with the same name" in second.reason
    second.step(after=LEASE + ASK_SECONDS, steps=2)
    assert second.started == [NAME]


def test_the_next_session_of_a_run_has_its_workers_at_once_and_the_last_one_has_none(tmp_path: Path) -> None:
    first = Coach(tmp_path / "first", "aaaa", **elsewhere())
    first.play()
    file = first.finish(0)
    again = Coach(tmp_path / "again", "aaaa", beside=first)
    again.want()
    again.step(steps=2)
    assert list(again.connection.arrived) == [(NAME, file)]
    assert (again.started, again.stopped) == ([], []) and first.running == {NAME}
    first.step(after=ASK_SECONDS, steps=3)
    assert "plays for run again" in first.reason and "because another Coach owns it" in first.reason
    assert f"{again.claimant.owner.coach}.owner" in [path.name for path in again.folder().outbox.iterdir()]


def test_a_takeover_counts_once_so_that_two_coaches_do_not_alternate(
    coaches: Callable[..., tuple[Coach, Coach]],
) -> None:
    first, second = coaches()
    for coach in (first, second):
        coach.claimant = replace(coach.claimant, takeover=True)
        coach.connection = coach.open_connection()
        coach.want()
        coach.step(steps=2)
    for _ in range(3):
        first.step(after=ASK_SECONDS)
        second.step()
    assert first.state() is WorkerState.ERROR and second.assignment().run_id == "bbbb"


def test_batches_of_another_run_are_neither_fetched_nor_removed_whatever_their_names_say(
    coaches: Callable[..., tuple[Coach, Coach]],
) -> None:
    first, second = coaches()
    first.play()
    foreign = second.finish(0)
    batch = synthetic_batch(CONNECT_FOUR, games=2)
    unnamed = {run: f"00000000{number}-2-worker1-{run}.games" for number, run in enumerate(("aaaa", "bbbb"))}
    for run, name in unnamed.items():
        (first.folder().outbox / name).write_bytes(encode_batch(replace(batch, run_id=run)))
    for number in range(3):
        first.assign(granted=100 + number)
        first.step()
    assert list(first.connection.arrived) == [(NAME, unnamed["aaaa"])]
    assert first.in_outbox() == sorted(unnamed.values()) and first.aside(second) == [foreign]
    assert first.in_mirror() == [unnamed["aaaa"]] and first.stopped == [] and first.state() is WorkerState.ACTIVE


def test_an_interrupted_takeover_is_continued(
    coaches: Callable[..., tuple[Coach, Coach]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = coaches()
    first.play()
    file = first.finish(0)
    second.want()

    def cut(*arguments: object, **options: object) -> None:
        raise Unreachable(NAME, "the cable is out")

    with monkeypatch.context() as patch:
        patch.setattr(second, "stop", cut)
        second.connection.take_over(NAME)
        second.step(steps=2)
    first.step()
    assert "plays for run second" in first.reason and second.started == []
    second.gone().want()  # and killed
    second.step(steps=2)
    assert second.stopped == [NAME] and second.started == [NAME] and second.assignment().run_id == "bbbb"
    assert second.aside(first) == [file]


def test_games_mixed_with_those_of_another_run_each_go_to_their_own(
    coaches: Callable[..., tuple[Coach, Coach]],
) -> None:
    first, second = coaches()
    first.play()
    theirs, mine = first.finish(0), second.finish(0)
    second.want()
    second.connection.take_over(NAME)
    second.step(steps=2)
    assert second.aside(first) == [theirs] and [name for _, name in second.connection.arrived] == [mine]


def test_a_coach_of_an_earlier_version_is_recognized_by_its_assignment(
    coaches: Callable[..., tuple[Coach, Coach]],
) -> None:
    first, second = coaches()
    first.play()
    file = first.finish(0)
    (first.folder().outbox / f"{first.claimant.owner.coach}.owner").unlink()
    second.want()
    second.step(steps=2)  # no worker runs there, so nobody plays for it
    assert second.started == [NAME] and second.aside(first) == [file]


def test_the_worker_of_an_earlier_version_is_left_alone_as_long_as_its_lease_is_renewed(
    coaches: Callable[..., tuple[Coach, Coach]],
) -> None:
    first, second = coaches()
    first.play()
    (first.folder().outbox / f"{first.claimant.owner.coach}.owner").unlink()  # such a Coach leaves no record
    claim_place(first.folder().root, ["start_worker.py"])  # a process that runs: this one
    second.want()
    second.step(steps=2)
    assert (second.started, second.stopped) == ([], [])
    assert f"{NAME} plays for run aaaa of an earlier version, lease until" in second.reason
    second.step(after=LEASE + ASK_SECONDS, steps=2)
    assert second.stopped == [NAME] and second.started == [NAME]


def test_a_poll_of_a_folder_that_has_changed_hands_touches_nothing(
    coaches: Callable[..., tuple[Coach, Coach]],
) -> None:
    first, second = coaches()
    first.play()
    file = first.finish(0)
    first.step()
    (first.mirror().outbox / file).unlink()  # it is in the ledger, and may be deleted there
    mirror, wanted = first.connection._workers[NAME].mirror, first.assignment()
    second.want()
    second.step()
    second.connection.take_over(NAME)
    second.step(steps=2)
    mine, placed = second.finish(0), second.assignment()
    transport = AgentTransport(first.network.connect(first.connection.machine), python=sys.executable)
    changed = wanted.model_copy(update={"lease": "another"})
    request = mirror.make_poll_request(lambda: changed, unassigned=False)
    assert request.assignment and request.remove == (file,)
    (result,) = poll_workers(transport, [request], limit=2**20, python=sys.executable)
    assert (result.answer.mine, result.entries, result.files, result.answer.heartbeat) == (False, (), {}, None)
    with pytest.raises(ownership.FolderMoved):
        mirror.store_files(result, limit=2**20, machine=NAME, report_file=list[str]().append)
    assert second.assignment() == placed and second.in_outbox() == [mine]
    assert mirror.make_poll_request(lambda: changed, unassigned=False) == request  # it is not taken for done


def test_an_invalid_record_names_no_owner(coaches: Callable[..., tuple[Coach, Coach]]) -> None:
    first, _ = coaches()
    (first.folder().create_folders().outbox / "0123456789abcdef.owner").write_text(json.dumps(["nobody"]))
    first.play()
    assert first.started == [NAME]
