"""Attacks on the door over HTTP: each is refused in one sentence, and none holds it up."""

import json
import socket
import ssl
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest

from keima.cluster.http import server
from keima.cluster.http.client import DoorRefused
from tests.cluster.http.open_door import CODE, KEY, OpenDoor, batch_file, open_door, sha256
from tests.cluster.small_project import wait_until


@pytest.fixture
def door(tmp_path: Path) -> Iterator[OpenDoor]:
    with open_door(tmp_path / "crowd") as opened:
        yield opened


def connect(door: OpenDoor) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection(("127.0.0.1", door.port), timeout=10))


def ask(door: OpenDoor, head: str, body: bytes = b"") -> tuple[int, str]:
    with connect(door) as opened:
        opened.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        answer = b""
        while chunk := opened.recv(65536):
            answer += chunk
    return int(answer.split(b" ", 2)[1]), answer.decode("utf-8", "replace")


def authorized(door: OpenDoor, line: str, *headers: str, key: str = KEY) -> str:
    return "\n".join([f"{line} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", "Connection: close", *headers])


def test_a_request_without_a_secret_is_told_what_it_needs(door: OpenDoor) -> None:
    status, answer = ask(door, "GET /v1/run HTTP/1.1\nHost: x\nConnection: close")
    assert status == 401 and "keima join LINK" in answer


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/files", "/v1/nothing", "/.git/config", "//v1/run", "/v1/run/../run"])
def test_there_is_nothing_else(door: OpenDoor, path: str) -> None:
    assert ask(door, f"GET {path} HTTP/1.1\nHost: x\nConnection: close")[0] in (401, 404)


@pytest.mark.parametrize("name", ["..%2f..%2fworker.json", "%2e%2e", "..%5c..%5cx", "assignment.json%00", "%ff"])
def test_path_names_reach_no_other_file(door: OpenDoor, name: str) -> None:
    (worker,) = door.register().workers
    door.mailbox(worker).root.joinpath("worker.json").write_text("secret")
    status, answer = ask(door, authorized(door, f"GET /v1/files/{worker}/{name}"))
    assert status == 404 and "secret" not in answer


def test_oversized_headers_are_refused(door: OpenDoor) -> None:
    head = b"GET /v1/run HTTP/1.1\r\nHost: x\r\nX-Long: "
    with connect(door) as opened:  # nothing is left unread, so that the answer arrives before the end
        opened.sendall(head + b"a" * (server.MOST_HEAD_BYTES + 1 - len(head)))
        answer = opened.recv(65536)
    assert answer.startswith(b"HTTP/1.1 4")
    assert door.register().workers, "the door answers others"


@pytest.mark.parametrize("length", ["-1", "abc", "99999999999999999999", "2000000000"])
def test_a_body_of_a_wrong_or_great_length_is_refused_before_it_is_read(door: OpenDoor, length: str) -> None:
    door.register()
    status, _ = ask(door, authorized(door, "POST /v1/sync", f"Content-Length: {length}"))
    assert status in (400, 411, 413)


def test_a_body_without_a_length_is_refused(door: OpenDoor) -> None:
    door.register()
    status, _ = ask(door, authorized(door, "POST /v1/sync", "Transfer-Encoding: chunked"), b"5\r\nhello\r\n0\r\n\r\n")
    assert status == 411


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"session": 1}', b"[" * 100_000, b"\xff\xfe"])
def test_what_is_no_report_is_refused_in_one_sentence(door: OpenDoor, body: bytes) -> None:
    door.register()
    status, answer = ask(door, authorized(door, "POST /v1/sync", f"Content-Length: {len(body)}"), body)
    assert status == 400
    assert answer.rsplit("\r\n\r\n", 1)[1].count("\n") == 1


def test_a_zip_bomb_is_stored_as_bytes_and_never_unpacked(door: OpenDoor) -> None:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", b"\0" * 2**26)
    (worker,) = door.register().workers
    bomb = packed.getvalue()
    name = batch_file(worker, bomb)
    door.client(key=KEY).send_batch(worker, name, bomb, sha256(bomb), offset=0)
    assert (door.mailbox(worker).outbox / name).stat().st_size == len(bomb)  # the receiver refuses it: no batch


def test_a_head_that_comes_too_slowly_is_cut_and_others_are_answered(
    door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begin = list[server.PatientProtocol](), server.PatientProtocol._wait_for_head

    def note(connection: server.PatientProtocol) -> None:
        begin(connection)
        begun.append(connection)

    monkeypatch.setattr(server.PatientProtocol, "_wait_for_head", note)
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    slow = [connect(door) for _ in range(20)]
    for each in slow:
        each.sendall(b"GET /v1/run HTTP/1.1\r\nHost: x\r\n")
    wait_until(lambda: len(begun) == 20)
    monkeypatch.setattr(server, "HEAD_SECONDS", 60.0)  # a busy machine may be slow itself
    assert door.client().read_run().code == CODE
    time.sleep(0.8)
    for each in slow:
        each.settimeout(5)
        with suppress(OSError):
            assert each.recv(10) == b""
        each.close()


def test_one_address_has_only_so_many_connections(tmp_path: Path) -> None:
    with open_door(tmp_path / "crowd", connections_per_address=5) as door:
        opened = [connect(door) for _ in range(5)]
        with pytest.raises(OSError), connect(door) as sixth:
            sixth.sendall(b"GET /v1/run HTTP/1.1\r\nHost: x\r\n\r\n")
            if not sixth.recv(10):
                raise ConnectionResetError
        for each in opened:
            each.close()
        wait_until(lambda: not server._open)
        assert door.client().read_run().code == CODE


def test_answers_are_not_kept_and_not_guessed_at(door: OpenDoor) -> None:
    _, answer = ask(door, "GET /v1/run HTTP/1.1\nHost: x\nConnection: close")
    assert "cache-control: no-store" in answer.lower() and "nosniff" in answer.lower()


def test_a_stolen_key_of_another_run_is_no_key_here(door: OpenDoor, tmp_path: Path) -> None:
    door.register()
    with open_door(tmp_path / "other") as other:
        report = json.dumps({"session": "s", "code": CODE, "workers": []}).encode()
        status, answer = ask(other, authorized(other, "POST /v1/sync", f"Content-Length: {len(report)}"), report)
    assert status == 401 and "not registered here" in answer


def test_connections_without_tls_count_too(tmp_path: Path) -> None:
    with open_door(tmp_path / "crowd", connections_per_address=5) as door:
        plain = [socket.create_connection(("127.0.0.1", door.port), timeout=5) for _ in range(5)]
        wait_until(lambda: server._open.total() == 5)
        with pytest.raises(OSError), connect(door):
            pass
        for each in plain:
            each.close()
        wait_until(lambda: not server._open)
        assert door.client().read_run().code == CODE


def test_wrong_secrets_do_not_shut_out_others_at_the_same_address(door: OpenDoor) -> None:
    wrong = door.client(secret="x" * 24)
    for _ in range(50):
        with pytest.raises(DoorRefused):
            wrong.read_run()
    assert door.client().read_run().code == CODE
