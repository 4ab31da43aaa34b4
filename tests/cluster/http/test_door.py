"""The door without a network: machines, mailboxes, and what each side may delete when."""

import os
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.http.door import GONE_SECONDS, Door, DoorRefusal, Machine, last_report
from keima.cluster.http.links import make_link, revoke_link
from keima.cluster.http.protocol import OutboxFile, Registration, SyncRequest, WorkerReport
from keima.config.sections.crowd import CrowdSettings
from keima.worker.worker_folder import Heartbeat, WorkerFolder
from tests.cluster.http.open_door import CODE, KEY, RUN_ID, assignment, batch_file, sha256


class Rig:
    """A door with a clock of the test, and one machine."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.now = folder, 1000.0
        self.settings = CrowdSettings(**settings)
        self.door = self.reopened()
        self.link = make_link(folder, "everyone")

    def reopened(self) -> Door:
        """Return the door as a new process would open it."""
        self.door = Door(
            self.folder,
            run_id=RUN_ID,
            settings=self.settings,
            code_hash=CODE,
            clock=lambda: self.now,
        )
        return self.door

    def machine(self, key: str = KEY, *, workers: int = 1, name: str = "Anna") -> Machine:
        """Return a registered machine."""
        self.door.register(self.door.admit_link(self.link.secret), Registration(name=name, workers=workers, key=key))
        return self.door.admit_machine(key)

    def sync(
        self,
        machine: Machine,
        *,
        outbox: dict[str, bytes] | None = None,
        session: str = "s",
        paused: bool = False,
        **more: Any,
    ) -> Any:
        """Report for the machine's first worker, and return its orders."""
        files = tuple(OutboxFile(name=name, bytes=len(data)) for name, data in (outbox or {}).items())
        report = WorkerReport(worker=machine.worker_names[0], outbox=files, **more)
        return self.door.sync(
            machine, SyncRequest(session=session, code=CODE, workers=(report,), paused=paused)
        ).orders[0]

    def mailbox(self, machine: Machine) -> WorkerFolder:
        """Return the mailbox of its first worker."""
        return WorkerFolder(self.folder / "workers" / machine.worker_names[0])

    def hand_in(self, machine: Machine, name: str, data: bytes) -> None:
        """Send a batch in one part."""
        worker = machine.worker_names[0]
        self.door.check_upload(machine, worker, name, offset=0, size=len(data), total=len(data))
        self.door.store_part(worker, name, data, offset=0, total=len(data), sha256=sha256(data))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "crowd")


def refused(status: HTTPStatus, text: str | None = None) -> Any:
    return pytest.raises(DoorRefusal, match=text, check=lambda error: error.status == status)


def test_a_machine_that_registers_again_keeps_its_workers(rig: Rig) -> None:
    first = rig.machine(workers=2)
    assert [name.startswith("crowd-anna-") for name in first.worker_names] == [True, True]
    assert rig.machine(workers=2) == first
    assert rig.reopened().admit_machine(KEY) == first


def test_two_machines_of_a_name_have_workers_of_their_own(rig: Rig) -> None:
    assert set(rig.machine("a" * 43).worker_names).isdisjoint(rig.machine("b" * 43).worker_names)


def test_a_name_of_other_characters_gets_a_plain_one(rig: Rig) -> None:
    machine = rig.machine(name="../Ünï <b>\n")
    assert machine.worker_names[0].startswith("crowd-n-b-")
    assert machine.name == "../Ünï b"


def test_only_hashes_of_keys_are_kept(rig: Rig) -> None:
    rig.machine()
    files = [path.read_text() for path in (rig.folder / "machines").iterdir()]
    assert len(files) == 1 and KEY not in files[0]


def test_wrong_secrets_and_keys_are_refused(rig: Rig) -> None:
    with refused(HTTPStatus.UNAUTHORIZED):
        rig.door.admit_link("x" * 24)
    with refused(HTTPStatus.UNAUTHORIZED):
        rig.door.admit_machine("x" * 43)


def test_an_expired_link_lets_no_new_machine_in_but_lets_those_play_on_that_came_by_it(rig: Rig) -> None:
    machine = rig.machine()
    make_link(rig.folder, "everyone")
    with refused(HTTPStatus.FORBIDDEN, "expired"):
        rig.door.admit_link(rig.link.secret)
    assert rig.door.admit_machine(KEY) == machine


def test_a_revoked_link_ends_its_machines(rig: Rig) -> None:
    rig.machine()
    revoke_link(rig.folder, "everyone")
    make_link(rig.folder, "everyone")
    with refused(HTTPStatus.FORBIDDEN, "revoked"):
        rig.door.admit_machine(KEY)


def test_a_worker_that_is_not_believed_ends_its_machine(rig: Rig) -> None:
    machine = rig.machine(workers=2)
    (rig.folder / "refused.json").write_text(
        f'{{"{machine.worker_names[1]}": "its visits are not those of its seeds"}}'
    )
    with refused(HTTPStatus.FORBIDDEN, "its visits"):
        rig.door.admit_machine(KEY)


def test_there_is_room_for_so_many_machines_and_workers(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "crowd", most_machines=2, workers_per_link=3)
    rig.machine("a" * 43)
    with refused(HTTPStatus.SERVICE_UNAVAILABLE, "fewer"):
        rig.machine("b" * 43, workers=3)
    rig.machine("b" * 43)
    with refused(HTTPStatus.SERVICE_UNAVAILABLE, "no room"):
        rig.machine("c" * 43)


def test_a_report_brings_the_assignment_once_and_the_files_that_it_needs(rig: Rig) -> None:
    machine = rig.machine()
    assert rig.sync(machine).assignment is None
    mailbox = rig.mailbox(machine)
    (mailbox.inbox / "model-000001.model").write_bytes(b"old")
    (mailbox.inbox / "model-000002.model").write_bytes(b"model")
    (mailbox.inbox / "model-000002.from-000001.delta").write_bytes(b"delta")
    mailbox.write_assignment(assignment(machine.worker_names[0], model_version=2))
    orders = rig.sync(machine)
    assert {file.name: file.sha256 for file in orders.files} == {
        "model-000002.model": sha256(b"model"),
        "model-000002.from-000001.delta": sha256(b"delta"),
    }
    assert '"model_version": 2' in orders.assignment
    assert rig.sync(machine, assignment=orders.stamp).assignment is None


def test_a_batch_is_removed_there_only_after_the_fleet_has_taken_it_here(rig: Rig) -> None:
    machine, data = rig.machine(), b"games"
    worker, mailbox = machine.worker_names[0], rig.mailbox(machine)
    mailbox.write_assignment(assignment(worker))
    name = batch_file(worker, data)
    assert rig.sync(machine, outbox={name: data}).uploads == ((name, 0),)
    rig.hand_in(machine, name, data)
    assert (mailbox.outbox / name).read_bytes() == data
    waiting = rig.sync(machine, outbox={name: data})
    assert (waiting.uploads, waiting.remove) == ((), ())
    mailbox.write_assignment(assignment(worker, delivered=10))
    (mailbox.outbox / name).unlink()
    done = rig.sync(machine, outbox={name: data})
    assert done.remove == (name,) and '"delivered": 10' in done.assignment
    rig.sync(machine, outbox={})
    assert not rig.door._mailboxes[worker].accepted, "it would remember two thousand of each worker"


def test_a_door_that_was_opened_again_asks_for_what_it_does_not_remember(rig: Rig) -> None:
    machine, data = rig.machine(), b"games"
    name = batch_file(machine.worker_names[0], data)
    rig.mailbox(machine).write_assignment(assignment(machine.worker_names[0]))
    rig.hand_in(machine, name, data)
    (rig.mailbox(machine).outbox / name).unlink()
    rig.reopened()
    orders = rig.sync(machine, outbox={name: data})
    assert orders.uploads == ((name, 0),) and not orders.remove  # the ledger knows the batch, and counts it once


def test_an_upload_is_continued_where_it_was_cut(rig: Rig) -> None:
    machine, data = rig.machine(), bytes(range(200)) * 10
    worker = machine.worker_names[0]
    name, total = batch_file(worker, data), len(data)
    rig.mailbox(machine).write_assignment(assignment(worker))
    assert rig.door.store_part(worker, name, data[:700], offset=0, total=total, sha256=sha256(data)) == 700
    rig.reopened()
    assert rig.sync(machine, outbox={name: data}).uploads == ((name, 700),)
    with refused(HTTPStatus.CONFLICT, "700"):
        rig.door.store_part(worker, name, data[900:], offset=900, total=total, sha256=sha256(data))
    rig.door.store_part(worker, name, data[700:], offset=700, total=total, sha256=sha256(data))
    assert (rig.mailbox(machine).outbox / name).read_bytes() == data


def test_a_batch_with_another_hash_is_not_accepted_and_can_be_sent_again(rig: Rig) -> None:
    machine, data = rig.machine(), b"games"
    worker, name = machine.worker_names[0], batch_file(machine.worker_names[0], b"games")
    with refused(HTTPStatus.UNPROCESSABLE_ENTITY):
        rig.door.store_part(worker, name, b"gamez", offset=0, total=5, sha256=sha256(data))
    rig.hand_in(machine, name, data)
    assert (rig.mailbox(machine).outbox / name).read_bytes() == data


@pytest.mark.parametrize(
    "name",
    [
        "../../x.games",
        "000000000-10-a--other-0123456789abcdef.games",
        f"000000000-10-{'a' * 150}--{RUN_ID}-0123456789abcdef.games",
        "assignment.json",
        "x" * 200,
    ],
)
def test_names_that_are_no_batch_of_the_run_are_refused(rig: Rig, name: str) -> None:
    machine = rig.machine()
    with refused(HTTPStatus.BAD_REQUEST):
        rig.door.check_upload(machine, machine.worker_names[0], name, offset=0, size=1, total=1)


def test_a_machine_reaches_no_other_machines_mailbox(rig: Rig) -> None:
    anna, ben = rig.machine("a" * 43), rig.machine("b" * 43, name="Ben")
    data = b"games"
    name = batch_file(ben.worker_names[0], data)
    with refused(HTTPStatus.NOT_FOUND):
        rig.door.check_upload(anna, ben.worker_names[0], name, offset=0, size=5, total=5)
    with refused(HTTPStatus.NOT_FOUND):
        rig.door.inbox_file(anna, ben.worker_names[0], "assignment.json")
    foreign = SyncRequest(session="s", code=CODE, workers=(WorkerReport(worker=ben.worker_names[0]),))
    assert rig.door.sync(anna, foreign).orders == ()


@pytest.mark.parametrize("name", ["../worker.json", ".part", "/etc/passwd", "nothing", "model-000001.model.part"])
def test_only_whole_files_of_the_inbox_are_given_out(rig: Rig, name: str) -> None:
    machine = rig.machine()
    (rig.mailbox(machine).inbox / "model-000001.model.part").write_bytes(b"half")
    with refused(HTTPStatus.NOT_FOUND):
        rig.door.inbox_file(machine, machine.worker_names[0], name)


def test_two_processes_cannot_share_a_place_but_one_may_follow_another(rig: Rig) -> None:
    machine = rig.machine()
    rig.sync(machine, session="first")
    with refused(HTTPStatus.CONFLICT):
        rig.sync(machine, session="second")
    rig.now += 31
    rig.sync(machine, session="second")
    with refused(HTTPStatus.CONFLICT):
        rig.sync(machine, session="first")


def test_other_code_is_told_to_update(rig: Rig) -> None:
    machine = rig.machine()
    with refused(HTTPStatus.UPGRADE_REQUIRED):
        rig.door.sync(machine, SyncRequest(session="s", code="other", workers=()))


def heartbeat(worker: str, **changes: Any) -> str:
    return Heartbeat(
        **{"run_id": RUN_ID, "worker": worker, "beat": 1, "pid": 1, "state": "playing", **changes}
    ).model_dump_json()


def speed_in(mailbox: WorkerFolder) -> float:
    found = mailbox.read_heartbeat()
    assert found is not None
    return found.speed


def test_a_worker_is_believed_to_be_no_faster_than_its_games_have_come(rig: Rig) -> None:
    machine, data = rig.machine(), b"games"
    worker, mailbox = machine.worker_names[0], rig.mailbox(machine)
    rig.sync(machine, heartbeat=heartbeat(worker, speed=1e6))
    assert speed_in(mailbox) == 0.0
    mailbox.write_assignment(assignment(worker))
    rig.sync(machine)
    rig.now += 100
    rig.hand_in(machine, batch_file(worker, data, games=9999), data)
    rig.sync(machine, heartbeat=heartbeat(worker, speed=1e6))
    assert speed_in(mailbox) == 0.0  # the Coach has received none
    mailbox.write_assignment(assignment(worker, delivered=50))
    rig.sync(machine)
    rig.sync(machine, heartbeat=heartbeat(worker, speed=1e6))
    assert speed_in(mailbox) == pytest.approx(1.5)  # three times 50 games in 100 s
    rig.sync(machine, heartbeat=heartbeat(worker, speed=0.4))
    assert speed_in(mailbox) == 0.4


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[" * 50_000, heartbeat("crowd-ben-0000-1"), '{"beat": -1}', heartbeat("x").replace(RUN_ID, "y")],
)
def test_a_heartbeat_that_is_none_is_refused(rig: Rig, text: str) -> None:
    machine = rig.machine()
    with refused(HTTPStatus.BAD_REQUEST):
        rig.sync(machine, heartbeat=text)


def test_a_machine_that_asks_too_often_is_told_when_it_may(rig: Rig) -> None:
    rig.machine()
    with refused(HTTPStatus.TOO_MANY_REQUESTS) as found:
        for _ in range(1000):
            rig.door.admit_machine(KEY)
    assert found.value.retry_seconds > 0
    rig.now += 10
    rig.door.admit_machine(KEY)


def test_a_mailbox_holds_only_so_many_bytes(rig: Rig) -> None:
    machine = rig.machine()
    worker, big = machine.worker_names[0], 16 * 2**20
    for number in range(4):
        path = rig.mailbox(machine).outbox / batch_file(worker, b"", first=number)
        with path.open("wb") as file:
            file.truncate(big)
    with refused(HTTPStatus.TOO_MANY_REQUESTS, "not taken"):
        rig.door.check_upload(machine, worker, batch_file(worker, b"x", first=9), offset=0, size=1, total=1)


def test_many_machines_report_more_rarely(rig: Rig) -> None:
    assert rig.door.sync_seconds() == 2.0
    for number in range(600):
        machine = rig.machine(f"{number:043d}")
        rig.sync(machine, session=str(number))
    assert rig.door.sync_seconds() == 6.0


def test_models_of_machines_that_have_left_are_removed(rig: Rig) -> None:
    machine = rig.machine()
    mailbox = rig.mailbox(machine)
    mailbox.write_assignment(assignment(machine.worker_names[0], model_version=2))
    of_a_match = mailbox.inbox / "player-000001-0123.model"  # of an earlier version, which sent them here too
    for path in (mailbox.model_path(1), mailbox.model_path(2), of_a_match):
        path.write_bytes(b"model")
        os.utime(path, (1, 1))
    rig.sync(machine)
    assert last_report(rig.folder, machine.worker_names[0]) == pytest.approx(time.time(), abs=60)
    rig.door.tidy()
    assert [path.name for path in sorted(mailbox.inbox.glob("*.model"))] == ["model-000002.model"]
    rig.now += 200
    rig.door.tidy()
    assert not list(mailbox.inbox.glob("model-*")) and (mailbox.inbox / "assignment.json").exists()


def test_other_figures_are_bounded_too(rig: Rig) -> None:
    machine = rig.machine()
    text = heartbeat(machine.worker_names[0], games_per_second=1e9, evaluations_per_second=1e9, processor_seconds=1e9)
    rig.sync(machine, heartbeat=text)
    found = rig.mailbox(machine).read_heartbeat()
    assert found is not None
    assert (found.games_per_second, found.evaluations_per_second) == (0.0, 0.0)
    assert found.processor_seconds < 60


def test_fewer_workers_do_not_hide_one_that_is_not_believed(rig: Rig) -> None:
    machine = rig.machine(workers=2)
    (rig.folder / "refused.json").write_text(f'{{"{machine.worker_names[1]}": "it lies"}}')
    with refused(HTTPStatus.FORBIDDEN, "it lies"):
        rig.machine(workers=1)


def test_parts_of_batches_take_little_room(rig: Rig) -> None:
    machine, worker = rig.machine(), ""
    worker = machine.worker_names[0]
    for number in range(2):
        name = batch_file(worker, b"x", first=number)
        rig.door.check_upload(machine, worker, name, offset=0, size=1, total=2)
        rig.door.store_part(worker, name, b"x", offset=0, total=2, sha256=sha256(b"xx"))
    with refused(HTTPStatus.TOO_MANY_REQUESTS):
        rig.door.check_upload(machine, worker, batch_file(worker, b"x", first=9), offset=0, size=1, total=2)


def test_machines_that_never_report_are_forgotten(rig: Rig) -> None:
    silent, present = rig.machine("a" * 43), rig.machine("b" * 43, name="Ben")
    rig.sync(present)
    rig.now += 4000
    rig.door.tidy()
    with refused(HTTPStatus.UNAUTHORIZED):
        rig.door.admit_machine("a" * 43)
    assert rig.door.admit_machine("b" * 43) == present
    assert not (rig.folder / "workers" / silent.worker_names[0]).exists()


def test_a_machine_that_was_away_for_a_month_is_forgotten_once_its_games_are_received(rig: Rig) -> None:
    machine = rig.machine()
    rig.sync(machine)
    batch = rig.mailbox(machine).outbox / batch_file(machine.worker_names[0], b"games")
    batch.write_bytes(b"games")
    rig.now += 4000
    rig.door.tidy()
    rig.door._wall = lambda: time.time() + GONE_SECONDS + 60
    rig.door.tidy()
    assert rig.door.admit_machine(KEY) == machine
    batch.unlink()
    rig.sync(machine)
    rig.door.tidy()
    assert rig.door.admit_machine(KEY) == machine, "the clock may be wrong: it has just reported"
    rig.now += 4000
    rig.door.tidy()
    with refused(HTTPStatus.UNAUTHORIZED):
        rig.door.admit_machine(KEY)
    assert rig.machine().worker_names == machine.worker_names


def test_models_of_machines_stay_where_the_clock_is_set_forward_or_the_door_was_opened_again(rig: Rig) -> None:
    machine = rig.machine()
    mailbox = rig.mailbox(machine)
    mailbox.write_assignment(assignment(machine.worker_names[0], model_version=1))
    mailbox.model_path(1).write_bytes(b"model")
    rig.sync(machine)
    rig.door._wall = lambda: time.time() + 86_400
    rig.door.tidy()
    assert mailbox.model_path(1).exists()
    rig.reopened()._wall = lambda: time.time() + 86_400
    rig.door.tidy()
    assert mailbox.model_path(1).exists()


def test_nobody_registers_machines_without_end(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "crowd", machines_per_link=5, most_machines=1000, workers_per_link=10_000)
    with refused(HTTPStatus.TOO_MANY_REQUESTS):
        for number in range(10):
            rig.machine(f"{number:043d}")
            rig.door._machines.clear()


def test_the_stop_of_an_earlier_session_is_not_passed_on(rig: Rig) -> None:
    machine = rig.machine()
    mailbox = rig.mailbox(machine)
    mailbox.write_assignment(assignment(machine.worker_names[0], stop=True))
    assert rig.sync(machine).assignment is not None  # of this session
    os.utime(mailbox.inbox / "assignment.json", (1, 1))
    assert rig.sync(machine).assignment is None


@pytest.mark.parametrize("name", ["\u3164\u3164", "the run's own machines", " ", "\u202e", "a" + "\u0301" * 59])
def test_names_cannot_hide_or_pretend(rig: Rig, name: str) -> None:
    found = rig.machine(name=name).name
    assert found == "somebody" or len(found) <= 2
