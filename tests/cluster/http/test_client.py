"""A machine's side of the door, over real TLS, also over bad networks and to wrong servers."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keima.cluster.http.certificate import make_certificate, read_fingerprint
from keima.cluster.http.client import DoorClient, DoorRefused, DoorUnreachable, WrongServer
from keima.cluster.http.protocol import InboxFile, SyncRequest, WorkerReport
from tests.cluster.http.bad_network import bad_network
from tests.cluster.http.open_door import CODE, KEY, OpenDoor, assignment, batch_file, open_door, sha256

LARGE = bytes(range(256)) * 2**14  # 4 MiB


@pytest.fixture
def door(tmp_path: Path) -> Iterator[OpenDoor]:
    with open_door(tmp_path / "crowd") as opened:
        yield opened


def through(door: OpenDoor, port: int, *, key: str = KEY, seconds: float = 30.0) -> DoorClient:
    return door.client(key=key, seconds=seconds, address=f"https://127.0.0.1:{port}")


def test_a_machine_learns_what_the_run_plays_and_registers(door: OpenDoor) -> None:
    facts = door.client().read_run()
    assert (facts.run, facts.game, facts.code) == ("a run", "tic-tac-toe", CODE)
    assert door.client().fetch_wheel() == b"a wheel"
    assert len(door.register(workers=3).workers) == 3


def test_a_batch_that_was_handed_in_is_in_the_mailbox(door: OpenDoor) -> None:
    (worker,) = door.register().workers
    name = batch_file(worker, LARGE)
    door.client(key=KEY).send_batch(worker, name, LARGE, sha256(LARGE), offset=0)
    assert (door.mailbox(worker).outbox / name).read_bytes() == LARGE


def test_a_repeated_upload_changes_nothing(door: OpenDoor) -> None:
    (worker,) = door.register().workers
    name, client = batch_file(worker, b"games"), door.client(key=KEY)
    for _ in range(3):
        client.send_batch(worker, name, b"games", sha256(b"games"), offset=0)
    (door.mailbox(worker).outbox / name).unlink()  # the fleet has taken it
    client.send_batch(worker, name, b"games", sha256(b"games"), offset=0)
    assert not list(door.mailbox(worker).outbox.glob("*.games"))


def test_a_server_with_another_certificate_is_sent_nothing(door: OpenDoor, tmp_path: Path) -> None:
    with open_door(tmp_path / "forged") as forged:
        client = door.client(key=KEY, address=f"https://127.0.0.1:{forged.port}")
        with bad_network(forged.port) as network, pytest.raises(WrongServer, match="Nothing was sent"):
            through(door, network.port).read_run()
        assert b"Bearer" not in network.seen  # it is encrypted in any case
        with pytest.raises(WrongServer):
            client.read_run()
        assert not forged.door._machines


def test_a_certificate_of_its_own_is_refused_where_the_link_has_no_fingerprint(door: OpenDoor) -> None:
    with pytest.raises(WrongServer, match="not valid"):
        door.client(fingerprint="").read_run()


def test_a_certificate_is_made_once(tmp_path: Path) -> None:
    first = read_fingerprint(make_certificate(tmp_path)[0])
    assert read_fingerprint(make_certificate(tmp_path)[0]) == first
    assert (tmp_path / "door.key").stat().st_mode & 0o077 == 0


def test_a_wrong_secret_is_refused_in_one_sentence(door: OpenDoor) -> None:
    with pytest.raises(DoorRefused, match="this link is not known here: copy all of it") as refused:
        door.client(secret="x" * 24).read_run()
    assert refused.value.status == 401


def test_nobody_can_guess_for_long(door: OpenDoor) -> None:
    client = door.client(secret="x" * 24)
    statuses = []
    for _ in range(40):
        with pytest.raises(DoorRefused) as refused:
            client.read_run()
        statuses.append(refused.value.status)
    assert statuses[0] == 401 and statuses[-1] == 429


def model_in_mailbox(door: OpenDoor, worker: str) -> InboxFile:
    mailbox = door.mailbox(worker)
    mailbox.model_path(1).write_bytes(LARGE)
    mailbox.write_assignment(assignment(worker))
    request = SyncRequest(session="s", code=CODE, workers=(WorkerReport(worker=worker),))
    return door.client(key=KEY).sync(request).orders[0].files[0]


def test_a_model_is_fetched_and_checked(door: OpenDoor, tmp_path: Path) -> None:
    (worker,) = door.register().workers
    file, target = model_in_mailbox(door, worker), tmp_path / "model"
    door.client(key=KEY).fetch_file(worker, file, target)
    assert target.read_bytes() == LARGE


def test_a_fetch_over_a_line_that_is_cut_again_and_again_arrives(door: OpenDoor, tmp_path: Path) -> None:
    (worker,) = door.register().workers
    file, target = model_in_mailbox(door, worker), tmp_path / "model"
    with bad_network(door.port) as network:
        network.cut_after = 3 * 2**19  # a part and a half
        for _ in range(8):
            try:
                through(door, network.port).fetch_file(worker, file, target)
                break
            except DoorUnreachable:
                continue
        assert 1 < network.connections <= 8
    assert target.read_bytes() == LARGE


def test_a_model_that_is_replaced_meanwhile_is_not_mixed(door: OpenDoor, tmp_path: Path) -> None:
    (worker,) = door.register().workers
    file, target = model_in_mailbox(door, worker), tmp_path / "model"
    door.mailbox(worker).model_path(1).write_bytes(LARGE[::-1])
    with pytest.raises(DoorUnreachable, match="changed meanwhile"):
        door.client(key=KEY).fetch_file(worker, file, target)
    assert not target.exists()


def test_an_upload_over_a_line_that_is_cut_again_and_again_arrives(door: OpenDoor) -> None:
    (worker,) = door.register().workers
    name, mailbox = batch_file(worker, LARGE), door.mailbox(worker)
    mailbox.write_assignment(assignment(worker))
    report = {"worker": worker, "outbox": [{"name": name, "bytes": len(LARGE)}]}
    request = SyncRequest.model_validate({"session": "s", "code": CODE, "workers": [report]})
    with bad_network(door.port) as network:
        network.cut_uploads_after = 3 * 2**19  # a part and a half
        for _ in range(8):
            ((_, offset),) = door.client(key=KEY).sync(request).orders[0].uploads
            try:
                through(door, network.port).send_batch(worker, name, LARGE, sha256(LARGE), offset=offset)
                break
            except DoorUnreachable:
                continue
    assert (mailbox.outbox / name).read_bytes() == LARGE


def test_a_black_hole_ends_a_request_in_time(door: OpenDoor) -> None:
    with bad_network(door.port) as network:
        network.is_black_hole = True
        with pytest.raises(DoorUnreachable):
            through(door, network.port, seconds=0.3).read_run()


def test_a_kept_connection_that_has_ended_is_opened_again(door: OpenDoor) -> None:
    with bad_network(door.port) as network:
        client = through(door, network.port)
        client.read_run()
        network.drops = True
        while network.drops:
            time.sleep(0.01)
        client.read_run()
        assert network.connections == 2
