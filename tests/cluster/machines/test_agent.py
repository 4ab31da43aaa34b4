"""The agent of a machine: many commands and polls over one stream, and what happens when it fails."""

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.agent import client as agents
from keima.cluster.agent.call import call_remote
from keima.cluster.agent.client import AgentTransport
from keima.cluster.agent.commands import ALIVE, POLL, STOP, AliveRequest, PollRequest, Stopped, StopRequest
from keima.cluster.agent.packing import remote_program
from keima.cluster.machines.machine import ask_if_alive
from keima.cluster.ssh.errors import Refused, RemoteFailure, Unreachable
from keima.cluster.ssh.ssh_transport import connect
from keima.cluster.ssh.transport import LocalTransport, Stream, StreamEnded, Transport
from tests.cluster.small_project import wait_until
from tests.cluster.sshd import Sshd, lasting_sshd, needs_sshd

PLACE = "workers/worker1"
COACH = "0123456789abcdef"
FOLDER = {"place": PLACE, "coach": COACH, "seen": ""}
REQUEST = PollRequest([FOLDER], games=r".*\.games", limit=10_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with lasting_sshd(tmp_path_factory.mktemp("ssh")) as running:
        yield running


@pytest.fixture(params=["local", pytest.param("ssh", marks=needs_sshd)])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentTransport]:
    inner: Transport
    if request.param == "local":
        inner = LocalTransport(tmp_path, worker="worker1")
    else:
        server: Sshd = request.getfixturevalue("server")
        inner = connect(server.worker(directory=str(tmp_path)), host_key_policy="strict")
    transport = AgentTransport(inner, python=sys.executable)
    yield transport
    transport.close()


def with_worker(root: Path) -> Path:
    """Make the folder of a worker that plays for us; return its outbox."""
    outbox = root / PLACE / "outbox"
    outbox.mkdir(parents=True)
    (outbox / f"{COACH}.owner").write_text("{}")
    return outbox


def seen(transport: AgentTransport, **changes: Any) -> tuple[dict[str, Any], bytes]:
    """Poll the worker once."""
    answer, data = transport.ask_agent(POLL, replace(REQUEST, workers=[FOLDER | changes]), seconds=120.0)
    return answer["ok"]["workers"][0], data


def agents_in(root: Path) -> list[int]:
    """Return the processes of the agents in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            if b"serve" in words and b"-I" in words and (path / "cwd").readlink() == root:
                found.append(int(path.name))
    return found


def test_commands_and_polls_share_one_agent(there: AgentTransport, tmp_path: Path) -> None:
    outbox = with_worker(tmp_path)
    (outbox / "1.games").write_bytes(b"one")
    for _ in range(3):
        assert not ask_if_alive(there, "worker1").running
        result, data = seen(there)
        assert (result["mine"], result["files"], data) == (True, [["1.games", 3]], b"one")
    assert len(agents_in(tmp_path)) == 1


def test_the_program_is_put_there_first_and_again_when_it_is_gone(there: AgentTransport, tmp_path: Path) -> None:
    for _ in range(2):
        assert not ask_if_alive(there, "worker1").running
        (tmp_path / remote_program()[1]).unlink()
        os.kill(agents_in(tmp_path)[0], signal.SIGKILL)


def test_a_killed_agent_is_begun_again(there: AgentTransport, tmp_path: Path) -> None:
    with_worker(tmp_path)
    for _ in range(3):
        assert seen(there)[0]["mine"]
        os.kill(agents_in(tmp_path)[0], signal.SIGKILL)
    assert not ask_if_alive(there, "worker1").running


def held(path: Path) -> Callable[[], None]:
    """Hold a lock that a command needs; return what releases it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return lambda: os.close(descriptor)


def test_an_agent_that_is_killed_during_a_command_is_asked_again(there: AgentTransport, tmp_path: Path) -> None:
    with_worker(tmp_path)
    release = held(tmp_path / PLACE / "launch.lock")
    killed: list[int] = []

    def kill() -> None:
        if not killed:
            killed.extend(agents_in(tmp_path))
            os.kill(killed[0], signal.SIGKILL)
            release()

    ask_if_alive(there, "worker1")
    there.meanwhile = kill
    assert call_remote(there, STOP, StopRequest(PLACE, 0.1)) == Stopped(found=False, killed=False)
    assert killed


def test_polls_are_answered_while_a_slow_command_is_carried_out(there: AgentTransport, tmp_path: Path) -> None:
    with_worker(tmp_path)
    release = held(tmp_path / PLACE / "launch.lock")
    results: list[bool] = []

    def poll() -> None:
        if not results:
            results.extend(seen(there)[0]["mine"] for _ in range(3))
            release()

    ask_if_alive(there, "worker1")
    there.meanwhile = poll
    assert call_remote(there, STOP, StopRequest(PLACE, 0.1)) == Stopped(found=False, killed=False)
    assert results == [True] * 3


def test_a_posted_poll_is_not_waited_for(there: AgentTransport, tmp_path: Path) -> None:
    with_worker(tmp_path)
    seen(there)
    number, dropped = there.post_request(POLL, REQUEST), there.post_request(POLL, REQUEST)
    there.discard_reply(dropped)
    assert seen(there)[0]["mine"]
    reply = there.check_for_reply(number)
    assert reply and reply[0]["ok"]["workers"][0]["mine"]
    with pytest.raises(StreamEnded):
        there.check_for_reply(number)  # once


@pytest.mark.medium
def test_a_frozen_agent_is_not_waited_for_and_the_machine_disconnected(there: AgentTransport, tmp_path: Path) -> None:
    assert not ask_if_alive(there, "worker1").running
    (pid,) = agents_in(tmp_path)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unreachable, match="has not been answered"):
            there.ask_agent(ALIVE, AliveRequest(PLACE), seconds=0.3)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_an_agent_ends_with_its_connection(there: AgentTransport, tmp_path: Path) -> None:
    assert not ask_if_alive(there, "worker1").running
    assert agents_in(tmp_path)
    there.close()
    wait_until(lambda: not agents_in(tmp_path))


def test_an_agent_without_requests_ends(tmp_path: Path) -> None:
    content, name = remote_program()
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_bytes(content.replace(b"IDLE_SECONDS = 60", b"IDLE_SECONDS =  1"))
    transport = AgentTransport(LocalTransport(tmp_path, worker="worker1"), python=sys.executable)
    assert not ask_if_alive(transport, "worker1").running
    wait_until(lambda: not agents_in(tmp_path))
    assert not ask_if_alive(transport, "worker1").running  # another one
    transport.close()


def test_an_agent_whose_folder_was_moved_is_replaced(tmp_path: Path) -> None:
    root = tmp_path / "root"
    transport = AgentTransport(LocalTransport(root, worker="worker1"), python=sys.executable)
    assert not ask_if_alive(transport, "worker1").running
    root.rename(tmp_path / "moved")
    with_worker(root)
    assert seen(transport)[0]["mine"]
    transport.close()


# Shells and agents that say something else.


class Odd(LocalTransport):
    """A machine whose login shell is not as it should be."""

    def __init__(self, root: Path, line: str) -> None:
        super().__init__(root, worker="worker1")
        self._line = line

    def open(self, argv: Sequence[str]) -> Stream:
        return super().open(["sh", "-c", self._line, "sh", *argv])


@pytest.mark.parametrize("noise", ["Welcome!", "@@", "@@ 0000000100000001", "x" * 70_000])
def test_noise_before_the_first_answer_is_skipped(tmp_path: Path, noise: str) -> None:
    with_worker(tmp_path)
    transport = AgentTransport(Odd(tmp_path, f"printf '%s' '{noise}'; exec \"$@\""), python=sys.executable)
    assert seen(transport)[0]["mine"]
    transport.close()


def test_an_account_without_a_shell_is_reported_with_what_it_says(tmp_path: Path) -> None:
    transport = AgentTransport(Odd(tmp_path, "echo This account is currently not available.; exit 1"))
    with pytest.raises(RemoteFailure, match=r"This account is currently not available.*log in there by ssh"):
        ask_if_alive(transport, "worker1")
    transport.close()


def test_a_machine_without_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "mkdir", "uname"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    transport = AgentTransport(LocalTransport(tmp_path, worker="worker1"))
    with pytest.raises(Refused, match="no working Python"):
        ask_if_alive(transport, "worker1")
    transport.close()


class Scripted:
    """A stream of an agent that says what the test wants."""

    def __init__(self, said: bytes, *, ends: bool) -> None:
        self._said, self._ends = said, ends

    def send(self, data: bytes) -> None:
        pass

    def receive(self, seconds: float) -> bytes:
        said, self._said = self._said, b""
        if not said and self._ends:
            raise StreamEnded("worker1", "its program has ended")
        if not said:
            time.sleep(seconds)
        return said

    def close(self) -> None:
        pass


class Liar(LocalTransport):
    """A machine whose first agent is not ours."""

    def __init__(self, root: Path, answer: Callable[[bytes], bytes], *, ends: bool, program: str = "") -> None:
        super().__init__(root, worker="worker1")
        self._answer, self._ends, self._program, self.lies = answer, ends, program or remote_program()[1][8:], 0

    def open(self, argv: Sequence[str]) -> Stream:
        self.lies += 1
        if self.lies > 1:
            return super().open(argv)
        mark = f"@@{argv[5]} ".encode()
        hello = json.dumps({"program": self._program}).encode()
        return Scripted(mark + b"%08x%08x" % (len(hello), 0) + hello + self._answer(mark), ends=self._ends)


NONSENSE: dict[str, Callable[[bytes], bytes]] = {
    "garbage": lambda mark: b"\x00\xff" * 50,
    "no number": lambda mark: mark + b"0000000g00000000{}",
    "too large": lambda mark: mark + b"fffffff000000000" + b" " * 100,
    "too much": lambda mark: mark + b"00000002fffffff0{}",
    "no JSON": lambda mark: mark + b"0000000500000000{oops",
    "nested": lambda mark: mark + b"000186a000000000" + b"[" * 100_000,
    "no answer": lambda mark: mark + b"0000000600000000[0, 1]",
    "another question": lambda mark: mark + b"0000000700000000[7, {}]",
}


@pytest.mark.parametrize("what", NONSENSE)
def test_from_an_agent_that_makes_no_sense_the_machine_is_to_be_disconnected(tmp_path: Path, what: str) -> None:
    transport = AgentTransport(Liar(tmp_path, NONSENSE[what], ends=False), python=sys.executable)
    with pytest.raises(Unreachable, match="invalid answer"):
        transport.ask_agent(ALIVE, AliveRequest(PLACE), seconds=5.0)
    transport.close()


def test_an_agent_of_another_version_is_not_listened_to(tmp_path: Path) -> None:
    transport = AgentTransport(Liar(tmp_path, lambda mark: b"", ends=False, program="0123456789abcdef.pyz"))
    with pytest.raises(Unreachable, match="another version"):
        transport.ask_agent(ALIVE, AliveRequest(PLACE), seconds=5.0)
    transport.close()


def test_after_half_an_answer_and_its_end_another_agent_is_asked(tmp_path: Path) -> None:
    liar = Liar(tmp_path, lambda mark: mark + b"00000f0000000000[0, {", ends=True)
    transport = AgentTransport(liar, python=sys.executable)
    assert not ask_if_alive(transport, "worker1").running
    assert liar.lies >= 2
    transport.close()


def test_half_an_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "PROGRESS_SECONDS", 0.1)
    liar = Liar(tmp_path, lambda mark: mark + b"00000f0000000000[0, {", ends=False)
    transport = AgentTransport(liar, python=sys.executable)
    with pytest.raises(Unreachable, match="has not been answered"):
        transport.ask_agent(ALIVE, AliveRequest(PLACE), seconds=0.1)
    transport.close()
