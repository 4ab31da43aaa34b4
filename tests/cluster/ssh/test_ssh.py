"""SSH with lost machines, full disks and interrupted files."""

import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from keima.cluster.agent.call import call_remote
from keima.cluster.agent.client import AgentTransport
from keima.cluster.agent.commands import ALIVE, AliveRequest
from keima.cluster.ssh import ssh_transport
from keima.cluster.ssh.errors import ClusterError, Refused, RemoteFailure, Unreachable
from keima.cluster.ssh.ssh_transport import SshTransport, connect
from keima.cluster.ssh.wire import Channel, SftpClient, begin_sftp
from tests.cluster.sshd import Sshd, needs_sshd, reach, refusal, running_sshd, shell

pytestmark = [needs_sshd, pytest.mark.usefixtures("nothing_is_left")]
LIMIT = 2**30
NOISY = "/usr/lib/openssh/sftp-server"  # is started by the account's shell, unlike internal-sftp
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


# No answer


def test_a_machine_without_an_ssh_server_cannot_be_reached(server: Sshd) -> None:
    server.stop()
    with pytest.raises(Unreachable, match=r"worker1: nothing listens at 127\.0\.0\.1"):
        reach(server.worker())


def test_a_host_without_an_address_cannot_be_reached(server: Sshd) -> None:
    with pytest.raises(Unreachable, match=r"no-such-host.invalid has no address"):
        reach(server.worker(host="no-such-host.invalid"))


@pytest.mark.medium
@pytest.mark.parametrize(
    "says", [b"", b"SSH-2.0-silent\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["nothing", "name", "http"]
)
def test_a_server_that_does_not_speak_ssh_is_not_waited_for(server: Sshd, says: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        client: list[socket.socket] = []

        def accept() -> None:
            client.append(other.accept()[0])
            client[0].sendall(says)

        thread = threading.Thread(target=accept)
        thread.start()
        with pytest.raises(Unreachable):
            reach(server.worker(port=other.getsockname()[1]), login_seconds=1.0)
        thread.join()
        client[0].close()


LOST_AFTER = 3.0  # seconds; with one second a busy machine is taken for a lost one

CALLS: dict[str, Callable[[SshTransport], object]] = {
    "put": lambda transport: transport.put(b"1", "new"),
    "put much": lambda transport: transport.put(bytes(8 * 2**20), "new"),
    "get": lambda transport: transport.get("old", LIMIT),
    "names": lambda transport: transport.list_files("folder"),
    "remove": lambda transport: transport.remove("old"),
    "run": lambda transport: transport.run(["true"], seconds=1.0),
}
WAIT_ALIKE = {"get", "names", "put", "remove"}  # as long as "put much", on a machine that answers no more


@pytest.mark.medium
@pytest.mark.parametrize(
    ("how", "call"),
    [
        *((signal.SIGKILL, call) for call in CALLS),
        *(pytest.param(signal.SIGSTOP, call, marks=[pytest.mark.slow] * (call in WAIT_ALIKE)) for call in CALLS),
    ],
)
def test_every_call_notices_a_lost_machine(server: Sshd, how: signal.Signals, call: str) -> None:
    (server.folder / "keima").mkdir()
    (server.folder / "keima/old").write_bytes(bytes(5 * 2**20))
    seconds = 30.0 if how == signal.SIGKILL else LOST_AFTER  # a killed one is noticed at once
    transport = connect(server.worker(), host_key_policy="strict", seconds=seconds)
    try:
        server.signal(how)
        with pytest.raises(Unreachable, match="worker1: "):
            CALLS[call](transport)
        with pytest.raises(Unreachable, match="closed"):
            transport.list_files("folder")
    finally:
        transport.close()


@pytest.mark.medium
@pytest.mark.parametrize("call", ["put much", "run"])
def test_a_connection_cut_during_a_transfer_is_noticed(server: Sshd, call: str) -> None:
    transport = connect(server.worker(), host_key_policy="strict", seconds=1.0)
    cut = threading.Timer(0.2, server.signal, [signal.SIGKILL])
    cut.start()
    with pytest.raises(Unreachable):
        if call == "run":
            transport.run(["sleep", "9"], seconds=9.0)
        while True:
            transport.put(os.urandom(16 * 2**20), "big")
    cut.join()
    transport.close()
    reach(server.worker())


# Accounts and disks that do not cooperate


def test_a_noisy_account_is_diagnosed(tmp_path: Path, user: Path) -> None:
    with running_sshd(tmp_path / "server", user, sftp=NOISY) as server:
        (server.home / ".bashrc").write_text("echo Welcome!\n")
        assert "bashrc" in refusal(server.worker()).remedy


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_server_that_runs_a_command_of_its_own_is_not_taken_for_a_noisy_account(
    tmp_path: Path, user: Path, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    def begin_when_it_has_ended(channel: Channel) -> SftpClient:
        while not channel.closed:
            time.sleep(0.01)
        return begin_sftp(channel)

    if has_ended:
        monkeypatch.setattr(ssh_transport, "begin_sftp", begin_when_it_has_ended)
    with running_sshd(tmp_path / "server", user, more="ForceCommand /bin/echo This account is closed.") as server:
        assert "ForceCommand" in refusal(server.worker()).remedy


@pytest.mark.medium
def test_a_noisy_account_with_internal_sftp_works_without_scp(server: Sshd) -> None:
    (server.home / ".bashrc").write_text("echo Welcome!\n")
    transport = connect(server.worker(), host_key_policy="strict")
    data = os.urandom(3 * 2**20)
    for _ in range(2):
        transport.put(data, "a")
        assert transport.get("a", LIMIT) == data
    assert transport.run(["echo", "here"]).stdout.endswith(b"here\n")
    assert transport.sent == 2 * len(data)
    agent = AgentTransport(transport, python=sys.executable)
    assert call_remote(agent, ALIVE, AliveRequest("workers/worker1")).running is False
    agent.close()


def test_a_machine_without_scp_gets_its_files_by_sftp(tmp_path: Path, user: Path) -> None:
    with running_sshd(tmp_path / "server", user, environment="PATH=/nowhere") as server:
        transport = connect(server.worker(), host_key_policy="strict")
        for name, data in {"a": os.urandom(3 * 2**20), "a.model": b"small"}.items():
            transport.put(data, name)
            assert transport.get(name, LIMIT) == data
        transport.close()


SCP = """#!/bin/sh
echo "$@" >>{noted}
exec {scp} "$@"
"""


@pytest.mark.medium
def test_models_go_by_scp_whatever_their_size(tmp_path: Path, user: Path) -> None:
    tools, noted = tmp_path / "tools", tmp_path / "noted"
    tools.mkdir()
    (tools / "scp").write_text(SCP.format(noted=noted, scp=shutil.which("scp")))
    (tools / "scp").chmod(0o700)
    models = {
        "inbox/model-000001.model": 20_000,
        "inbox/model-000002.from-000001.delta": 1,
        "inbox/player-000001-ab.model": 2 * 2**20,
    }
    with running_sshd(tmp_path / "server", user, environment=f"PATH={tools}:/usr/bin:/bin") as server:
        transport = connect(server.worker(), host_key_policy="strict")
        transport.put(b"{}", "inbox/assignment.json")
        assert not noted.exists()
        for name, size in models.items():
            data, before = os.urandom(size), transport.sent
            transport.put(data, name, durable=False)
            assert transport.get(name, LIMIT) == data
            assert transport.sent == before + size
        transport.close()
    lines = noted.read_text().splitlines()
    assert [(line.split()[0], name in line) for line, name in zip(lines, models, strict=True)] == [("-t", True)] * len(
        models
    )


def test_a_machine_without_sftp_is_refused_with_the_remedy(tmp_path: Path, user: Path) -> None:
    with running_sshd(tmp_path / "server", user, sftp="/bin/false") as server:
        assert "Subsystem sftp internal-sftp" in refusal(server.worker()).remedy


def test_a_folder_without_write_permission_is_reported(tmp_path: Path, user: Path) -> None:
    with running_sshd(tmp_path / "server", user, sftp="internal-sftp -R") as server:
        transport = connect(server.worker(directory=str(server.home)), host_key_policy="strict")
        for size in (1, 3 * 2**20):
            with pytest.raises(RemoteFailure, match=r"Permission denied.*`directory`"):
                transport.put(bytes(size), "a")
        assert transport.list_files("folder") == []
        transport.close()


def test_a_folder_that_cannot_be_made_is_reported(server: Sshd) -> None:
    """As if users may not write to their own home."""
    transport = connect(server.worker(directory="/sys/keima"), host_key_policy="strict")
    with pytest.raises(RemoteFailure, match=r"the folder /sys/keima cannot be made there .*`directory`"):
        transport.run(["true"])
    with pytest.raises(RemoteFailure, match=r"`directory`"):
        transport.put(b"", "a")
    transport.close()


def test_a_server_that_allows_no_session_is_refused_with_the_remedy(tmp_path: Path, user: Path) -> None:
    with running_sshd(tmp_path / "server", user, more="MaxSessions 0") as server:
        refused = refusal(server.worker())
        assert "too few sessions" in refused.what and "MaxSessions 10" in refused.remedy


@pytest.mark.medium
@pytest.mark.parametrize(("most", "logins"), [(1, 3), (2, 2), (3, 1)])
def test_a_server_that_allows_few_sessions_is_logged_into_more_than_once(
    tmp_path: Path, user: Path, most: int, logins: int
) -> None:
    with running_sshd(tmp_path / "server", user, more=f"MaxSessions {most}") as server:
        transport = AgentTransport(connect(server.worker(), host_key_policy="strict"), python=sys.executable)
        for number in range(10):
            assert call_remote(transport, ALIVE, AliveRequest("workers/worker1")).running is False
            transport.put(bytes(2**20), f"{number}.model")
            assert transport.run(["ls", f"{number}.model"]).code == 0
        transport.close()
        assert server.log.count("Accepted publickey") == logins


@pytest.mark.medium
def test_only_a_few_connections_by_way_of_one_machine_are_made_at_a_time(
    tmp_path: Path, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keima.cluster.ssh.wire.MOST_LOGINS", 2)
    reached: list[int] = []

    def reach_it(number: int) -> None:
        reach(server.worker(), login_seconds=240.0)  # the last one waits for all others
        reached.append(number)

    with running_sshd(tmp_path / "server", user, more="MaxStartups 5:100:5") as server:
        threads = [threading.Thread(target=reach_it, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(reached) == 12


def test_windows_is_refused_by_name(tmp_path: Path, user: Path) -> None:
    with running_sshd(tmp_path / "server", user, more="VersionAddendum OpenSSH_for_Windows_9.5") as server:
        refused = refusal(server.worker())
    assert "runs Windows, and a worker needs Linux" in refused.what and "WSL 2" in refused.remedy


def test_macos_is_refused_by_name(tmp_path: Path, user: Path) -> None:
    """Its sshd has the same banner as others; the output of its uname replaces ours."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "uname").write_text("#!/bin/sh\necho Darwin\n")
    (tools / "uname").chmod(0o700)
    with running_sshd(tmp_path / "server", user, environment=f"PATH={tools}:/usr/bin:/bin") as server:
        transport = connect(server.worker(), host_key_policy="strict")
        with pytest.raises(Refused, match="runs macOS, and a worker needs Linux"):
            call_remote(transport, ALIVE, AliveRequest("workers/worker1"))
        transport.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    shell(f"mount -t tmpfs -o size=4m none {disk}")
    yield disk
    shell(f"umount -l {disk}")


@root_only
@pytest.mark.parametrize("scp", ["with scp", "without scp"])
@pytest.mark.parametrize("size", [900_000, 5 * 2**20])
def test_a_full_disk_is_reported_as_full_and_nothing_is_lost(
    server: Sshd, small_disk: Path, size: int, scp: str
) -> None:
    if scp == "without scp":
        (server.home / ".bashrc").write_text("echo Welcome!\n")
    transport = connect(server.worker(directory=str(small_disk)), host_key_policy="strict")
    transport.put(b"old", "a")
    (small_disk / "filler").write_bytes(bytes(int(3.5 * 2**20)))
    with pytest.raises(RemoteFailure, match=r"No space left on device; free space") as failed:
        transport.put(bytes(size), "a")
    assert not isinstance(failed.value, Refused)
    assert {path.name for path in small_disk.iterdir()} == {"a", "filler"}
    transport.put(b"new", "a")  # and everything continues
    assert transport.get("a", LIMIT) == b"new"
    transport.close()


@root_only
@pytest.mark.parametrize("size", [10, 5 * 2**20])
@pytest.mark.parametrize("folder", ["", "keima"])
def test_a_disk_mounted_read_only_is_reported_with_the_remedy(
    server: Sshd, small_disk: Path, size: int, folder: str
) -> None:
    shell(f"mount -o remount,ro {small_disk}")
    transport = connect(server.worker(directory=str(small_disk / folder)), host_key_policy="strict")
    with pytest.raises(RemoteFailure, match=r"Read-only file system.*remount it, or choose another `directory`"):
        transport.put(bytes(size), "folder/a")
    transport.close()


# The same file from two sides, and interrupted ones


@pytest.mark.medium
def test_machines_that_share_a_home_may_be_sent_the_same_small_file_at_once(server: Sshd) -> None:
    data, failed = os.urandom(50_000), list[ClusterError]()

    def put_often() -> None:
        transport = connect(server.worker(), host_key_policy="strict")
        try:
            for _ in range(30):
                transport.put(data, ".remote/program")
        except ClusterError as error:
            failed.append(error)
        transport.close()

    threads = [threading.Thread(target=put_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [path.name for path in (server.folder / "keima/.remote").iterdir()] == ["program"]
    assert (server.folder / "keima/.remote/program").read_bytes() == data


def test_a_folder_that_another_connection_makes_in_the_same_moment_is_used(
    server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = connect(server.worker(), host_key_policy="strict")
    make = transport._sftp.mkdir

    def make_second(path: str, mode: int) -> None:
        Path(path).mkdir()
        make(path, mode)

    monkeypatch.setattr(transport._sftp, "mkdir", make_second)
    transport.put(b"data", "models/1")
    assert transport.get("models/1", LIMIT) == b"data"
    with pytest.raises(RemoteFailure, match="writing"):
        transport.put(b"data", "models/1/below_a_file")


@pytest.mark.medium
@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_received_parts_are_not_sent_again(server: Sshd, share: float) -> None:
    transport = connect(server.worker(), host_key_policy="strict")
    data = os.urandom(6 * 2**20)
    there = int(len(data) * share)
    (server.folder / "keima").mkdir()
    (server.folder / "keima/model.part").write_bytes(data[:there])
    transport.put(data, "model")
    assert transport.get("model", LIMIT) == data
    assert transport.sent == len(data) - there
    transport.close()


@pytest.mark.medium
def test_an_interrupted_put_is_continued(server: Sshd) -> None:
    data = os.urandom(48 * 2**20)
    part = server.folder / "keima/model.part"
    transport = connect(server.worker(), host_key_policy="strict", seconds=30.0)

    def cut() -> None:
        if part.exists() and part.stat().st_size >= 2**20:
            server.signal(signal.SIGKILL)

    transport.meanwhile = cut  # nothing more is sent while it looks for the processes
    with pytest.raises(Unreachable):
        transport.put(data, "model")
    transport.close()
    there = part.stat().st_size
    again = connect(server.worker(), host_key_policy="strict")
    again.put(data, "model")
    assert again.get("model", LIMIT) == data
    assert 0 < there == len(data) - again.sent
    again.close()


@pytest.mark.medium
def test_a_home_directory_is_found(server: Sshd) -> None:
    for directory in ("~", "~/"):
        transport = connect(server.worker(directory=directory), host_key_policy="strict")
        assert Path(transport.run(["pwd"]).stdout.decode().strip()) == Path(
            transport.run(["sh", "-c", "echo ~root"]).stdout.decode().strip()
        )
        transport.close()
    assert "full path" in refusal(server.worker(directory="~somebody/keima")).remedy


def test_every_error_is_one_of_ours(server: Sshd) -> None:
    transport = connect(server.worker(), host_key_policy="strict")
    transport.put(b"", "a/b")
    (server.folder / "keima/a").joinpath(os.fsdecode(b"\xff\xfe")).touch()  # a name that cannot be decoded
    calls: list[Callable[[], object]] = [
        lambda: transport.list_files("a"),
        lambda: transport.put(b"", "a/" + "x" * 300),
        lambda: transport.put(b"", "a"),
        lambda: transport.run(["x" * 200_000]),
    ]
    for each in calls:
        with suppress(ClusterError):
            each()
    transport.close()
