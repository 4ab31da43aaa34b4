"""What every transport promises: on this machine, over SSH, and through a slot of a Ray cluster."""

import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from keima.base.files import FileTooLarge
from keima.cluster.ssh.errors import RemoteFailure, Unreachable
from keima.cluster.ssh.ssh_transport import connect
from keima.cluster.ssh.transport import Entry, LocalTransport, Stream, StreamEnded, Transport
from tests.cluster.ray.nodes import ON_RAY, Slots, ray_slots
from tests.cluster.sshd import Sshd, lasting_sshd, needs_sshd

SIZES = [0, 1, 32 * 2**10, 32 * 2**10 + 1, 5 * 2**20 + 7]  # bytes; the last one is big enough for SCP
LIMIT = 2**30


@dataclass
class Place:
    """A transport, and the folder it leads to, which happens to be on this machine."""

    transport: Transport
    root: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with lasting_sshd(tmp_path_factory.mktemp("ssh")) as running:
        yield running


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slots]:
    with ray_slots(tmp_path_factory.mktemp("nodes")) as made:
        yield made


RAY = pytest.param("ray", marks=ON_RAY)


@pytest.fixture(params=["local", pytest.param("ssh", marks=needs_sshd), RAY])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    root = tmp_path / "it's a root"
    transport: Transport
    if request.param == "local":
        transport = LocalTransport(root)
    elif request.param == "ray":
        transport = request.getfixturevalue("slots").transport(root)
    else:
        server: Sshd = request.getfixturevalue("server")
        transport = connect(server.worker(directory=str(root)), host_key_policy="strict")
    yield Place(transport, root)
    transport.close()


@pytest.mark.medium
@pytest.mark.parametrize("size", SIZES)
def test_a_file_that_was_put_can_be_fetched(place: Place, size: int) -> None:
    data = os.urandom(size)
    place.transport.put(data, "inbox/a file")
    assert (place.root / "inbox/a file").read_bytes() == data
    assert place.transport.get("inbox/a file", size) == data
    assert (place.transport.sent, place.transport.received) == (size, size)


@pytest.mark.medium
@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_replaced_whole(place: Place, size: int) -> None:
    for each in (size, 100, size):
        data = os.urandom(each)
        place.transport.put(data, "a/b")
        assert place.transport.get("a/b", LIMIT) == data
    assert [path.name for path in (place.root / "a").iterdir()] == ["b"]


def test_new_folders_are_private(place: Place) -> None:
    place.transport.put(b"", "a/b/c")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (place.root / "a", place.root / "a/b")} == {0o700}


def test_a_file_that_need_not_be_durable_also_appears_whole(place: Place) -> None:
    data = os.urandom(2 * 2**20)
    place.transport.put(data, "a/b", durable=False)
    assert place.transport.get("a/b", LIMIT) == data
    assert [path.name for path in (place.root / "a").iterdir()] == ["b"]


@pytest.mark.medium
@pytest.mark.parametrize("rest", [b"another beginning", os.urandom(2 * 2**20)], ids=["short", "long"])
@pytest.mark.parametrize("size", SIZES)
def test_left_overs_of_another_file_do_no_harm(place: Place, rest: bytes, size: int) -> None:
    data = os.urandom(size)
    place.root.mkdir()
    (place.root / "b.part").write_bytes(rest)
    place.transport.put(data, "b")
    assert place.transport.get("b", LIMIT) == data
    assert [path.name for path in place.root.iterdir() if path.name != "b.part"] == ["b"]


def test_a_file_that_is_too_large_is_not_fetched(place: Place) -> None:
    place.transport.put(bytes(1000), "a")
    with pytest.raises(FileTooLarge, match="1,000 bytes"):
        place.transport.get("a", 999)
    assert place.transport.received == 0


@pytest.mark.parametrize("name", ["missing", "no such folder/missing"])
def test_a_missing_file_is_reported_as_missing(place: Place, name: str) -> None:
    place.transport.put(b"", "there")
    with pytest.raises(FileNotFoundError, match=f"{place.transport.worker}.*missing"):
        place.transport.get(name, LIMIT)


def test_a_folder_is_not_a_file(place: Place) -> None:
    place.transport.put(b"", "a/b")
    with pytest.raises(RemoteFailure, match="is not a file"):
        place.transport.get("a", LIMIT)
    with pytest.raises(RemoteFailure):
        place.transport.remove("a")
    with pytest.raises(RemoteFailure):
        place.transport.put(b"", "a/b/c")
    assert place.transport.list_files("a") == [Entry("b", 0)]  # and everything continues


def test_only_whole_files_are_listed(place: Place) -> None:
    for name, size in (("b.games", 3), ("a.games", 70_000), ("c.games", 0)):
        place.transport.put(bytes(size), f"outbox/{name}")
    outbox = place.root / "outbox"
    (outbox / "d.games.part").write_bytes(b"half")
    (outbox / "folder").mkdir()
    (outbox / "link").symlink_to("/etc/passwd")
    (outbox / "two\nlines").write_bytes(b"")
    os.mkfifo(outbox / "pipe")
    assert place.transport.list_files("outbox") == [Entry("a.games", 70_000), Entry("b.games", 3), Entry("c.games", 0)]


def test_hundreds_of_files_are_listed(place: Place) -> None:
    outbox = place.root / "outbox"
    outbox.mkdir(parents=True)
    for number in range(700):
        (outbox / f"{number:04}").touch()
    assert [entry.name for entry in place.transport.list_files("outbox")] == [f"{number:04}" for number in range(700)]


def test_a_missing_folder_has_no_files(place: Place) -> None:
    assert place.transport.list_files("outbox") == []


def test_a_removed_file_is_gone_and_may_be_removed_again(place: Place) -> None:
    place.transport.put(b"1", "a/b")
    for _ in range(2):
        place.transport.remove("a/b")
    place.transport.remove("no/such/folder")
    assert place.transport.list_files("a") == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../a", "a/../../b", "", ".", "a\nb", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(place: Place, name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: place.transport.put(b"", name),
        lambda: place.transport.get(name, 1),
        lambda: place.transport.list_files(name),
        lambda: place.transport.remove(name),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="is not a name"):
            call()


def test_a_program_runs_in_the_folder(place: Place) -> None:
    done = place.transport.run(["sh", "-c", 'pwd; echo "$1" >&2; exit 7', "sh", "it's $HOME; `x`\n*"])
    assert (done.code, done.stdout.decode(), done.stderr.decode()) == (7, f"{place.root}\n", "it's $HOME; `x`\n*\n")


def test_a_program_that_is_killed_ends_with_128_and_its_signal(place: Place) -> None:
    assert place.transport.run(["sh", "-c", "kill -9 $$"]).code == 137


def test_a_missing_program_ends_with_127(place: Place) -> None:
    assert place.transport.run(["no-such-program"]).code == 127


def test_a_program_has_an_empty_standard_input(place: Place) -> None:
    assert place.transport.run(["sh", "-c", "cat; echo end"]).stdout == b"end\n"


def test_long_output_is_complete(place: Place) -> None:
    line = "yes 0123456789abcdef | head -c 3000000"
    done = place.transport.run(["sh", "-c", f"{line} >&2; {line}; {line} >&2; echo end"], seconds=60.0)
    assert (len(done.stdout), len(done.stderr), done.stdout[-4:]) == (3_000_004, 6_000_000, b"end\n")


def test_a_program_that_starts_another_and_ends_is_not_waited_for_any_longer(place: Place) -> None:
    done = place.transport.run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $!"])
    os.kill(int(done.stdout), signal.SIGKILL)  # it still runs


@pytest.mark.medium
def test_a_program_that_takes_too_long_is_not_waited_for(place: Place) -> None:
    with pytest.raises(Unreachable, match=r"sleep has not ended after 0.3 s"):
        place.transport.run(["sleep", "30"], seconds=0.3)


# Streams


def all_of(stream: Stream, size: int) -> bytes:
    """Return the next ``size`` bytes."""
    data, until = b"", time.monotonic() + 30
    while len(data) < size and time.monotonic() < until:
        data += stream.receive(1.0)
    return data


def test_a_stream_leads_to_a_program_in_the_folder_and_back(place: Place) -> None:
    stream = place.transport.open(["sh", "-c", 'pwd; exec cat "$1"', "sh", "-"])
    assert all_of(stream, len(f"{place.root}\n")) == f"{place.root}\n".encode()
    for data in (b"one", b"\0\xff\n", os.urandom(100_000)):
        stream.send(data)
        assert all_of(stream, len(data)) == data
    stream.close()


def test_a_silent_program_is_waited_for_only_as_long_as_is_said(place: Place) -> None:
    stream = place.transport.open(["cat"])
    for seconds in (0.0, 0.1):
        assert stream.receive(seconds) == b""
    stream.send(b"x")
    assert all_of(stream, 1) == b"x"
    stream.close()


@pytest.mark.parametrize("program", [["true"], ["sh", "-c", "kill -9 $$"], ["no-such-program"]])
def test_the_end_of_a_streams_program_is_noticed_and_the_transport_goes_on(place: Place, program: list[str]) -> None:
    stream = place.transport.open(program)
    with pytest.raises(StreamEnded):
        while True:
            stream.receive(5.0)
    stream.close()
    assert place.transport.run(["echo", "here"]).stdout == b"here\n"


def test_everything_that_a_program_said_before_its_end_arrives(place: Place) -> None:
    stream = place.transport.open(["sh", "-c", "head -c 300000 /dev/zero; echo on standard error >&2"])
    said = b""
    with pytest.raises(StreamEnded):
        while True:
            said += stream.receive(5.0)
    assert said == bytes(300_000)
    stream.close()


def test_a_program_ends_with_its_stream(place: Place) -> None:
    stream = place.transport.open(["sh", "-c", "cat; touch ended"])
    stream.close()
    until = time.monotonic() + 60
    while not (place.root / "ended").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_closed_transport_has_no_streams(place: Place) -> None:
    stream = place.transport.open(["cat"])
    place.transport.close()
    with pytest.raises((Unreachable, StreamEnded)):
        stream.send(b"x")
    with pytest.raises((Unreachable, StreamEnded)):
        stream.receive(1.0)


@pytest.mark.medium
def test_a_program_that_takes_nothing_is_not_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("transport", "ssh_transport"):
        monkeypatch.setattr(f"keima.cluster.ssh.{module}.SEND_SECONDS", 0.3)
    stream = place.transport.open(["sleep", "20"])
    with pytest.raises(Unreachable):
        stream.send(bytes(2**24))
    stream.close()


def test_closing_twice_does_no_harm(place: Place) -> None:
    place.transport.close()
    place.transport.close()
