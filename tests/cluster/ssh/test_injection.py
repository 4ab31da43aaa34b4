"""No name, path or value of the settings, and no text of a machine, is ever run by a shell or obeyed by a terminal."""

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keima.cluster.agent.call import call_remote, find_answer
from keima.cluster.agent.commands import START, StartRequest
from keima.cluster.machines.machine import (
    ask_if_alive,
    log_name,
    read_log_end,
    stop_worker,
    worker_place,
)
from keima.cluster.ssh.errors import RemoteFailure
from keima.cluster.ssh.ssh_transport import connect
from keima.cluster.ssh.transport import Completed, Transport
from keima.config.sections.workers import WorkerSettings
from tests.cluster.small_project import wait_until
from tests.cluster.sshd import Sshd, needs_sshd

pytestmark = [needs_sshd, pytest.mark.usefixtures("nothing_is_left")]

DO_IT = "touch OWNED"
NASTY = [
    f"-rf --help $({DO_IT}) `{DO_IT}` *?[a-z]{{1,2}}~!#%",
    f"x; {DO_IT}; y | {DO_IT} & b > c < d",
    f"it's here ; {DO_IT} ; '",
    f'say "so" && {DO_IT} && "',
    "$HOME ${PATH} back\\slash \\' \\\" ünïcödé 棋 ♞",
]
PROGRAM = "import json, os, sys; json.dump([sys.argv[1:], os.environ['NASTY'], os.getcwd()], open('seen.part', 'w')); "
PROGRAM += "os.rename('seen.part', 'seen.json'); import time; time.sleep(60)"
TERMINAL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x08red\x00 \u202etxt.exe"


def owned(server: Sshd) -> list[Path]:
    return list(server.folder.rglob("OWNED"))


@pytest.fixture(params=NASTY)
def nasty(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def there(server: Sshd, nasty: str) -> Iterator[Transport]:
    """A machine whose folder has such a name."""
    transport = connect(server.worker(directory=str(server.folder / nasty)), host_key_policy="strict")
    yield transport
    transport.close()


def test_the_name_of_a_folder_is_only_a_name(server: Sshd, there: Transport, nasty: str) -> None:
    there.put(b"1", "a/b.json")
    assert there.get("a/b.json", 10) == b"1"
    assert [entry.name for entry in there.list_files("a")] == ["b.json"]
    assert there.run(["pwd"]).stdout.decode().rstrip("\n") == str(server.folder / nasty)
    assert there.run(["printf", "%s", nasty]).stdout.decode() == nasty
    there.remove("a/b.json")
    assert not owned(server)


@pytest.mark.medium
def test_a_started_program_gets_its_arguments_and_variables_unchanged(
    server: Sshd, there: Transport, nasty: str
) -> None:
    argv = [sys.executable, "-c", PROGRAM, nasty]
    request = StartRequest(worker_place("w"), argv, env={"NASTY": nasty}, log=log_name("w"))
    call_remote(there, START, request, python=sys.executable, private=True)
    seen = server.folder / nasty / "seen.json"
    wait_until(seen.exists)
    assert json.loads(seen.read_text()) == [[nasty], nasty, str(server.folder / nasty)]
    assert ask_if_alive(there, "w", python=sys.executable).running
    assert stop_worker(there, "w", python=sys.executable).found
    assert not owned(server)


def test_the_name_of_an_interpreter_is_only_a_name(server: Sshd, there: Transport, nasty: str) -> None:
    assert not ask_if_alive(there, "w", python=f"/no/such/{nasty}").running  # the next one is taken
    assert not owned(server)


@pytest.mark.medium
def test_files_put_on_a_machine_are_readable_by_its_user_alone(server: Sshd) -> None:
    transport = connect(server.worker(), host_key_policy="strict")
    try:
        transport.put(b"1", f"{worker_place('w')}/inbox/assignment.json")
        argv = [sys.executable, "-c", "print(1)"]
        request = StartRequest(worker_place("w"), argv, env={"SECRET": "s"}, log=log_name("w"))
        call_remote(transport, START, request, python=sys.executable, private=True)
        stop_worker(transport, "w", python=sys.executable)
    finally:
        transport.close()
    found = list((server.folder / "keima").rglob("*"))
    assert len(found) > 6
    assert [path for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    assert [path for path in found if path.is_file() and b"SECRET" in path.read_bytes()] == []


def test_a_worker_s_log_does_nothing_to_the_terminal(server: Sshd) -> None:
    transport = connect(server.worker(), host_key_policy="strict")
    try:
        transport.put(f"first {TERMINAL}\nsecond\n".encode(), log_name("w"))
        text = read_log_end(transport, "w", python=sys.executable)
    finally:
        transport.close()
    assert text.split("\n")[-1] == "second"
    assert "red" in text and all(letter.isprintable() for letter in text.replace("\n", ""))


def test_a_machine_s_error_does_nothing_to_the_terminal() -> None:
    with pytest.raises(RemoteFailure) as failed:
        find_answer("w", Completed(1, b"", TERMINAL.encode()), "0" * 16)
    assert "red" in str(failed.value) and str(failed.value).isprintable()


@pytest.mark.parametrize("key", ["directory", "python", "key_path", "proxy_jump", "env"])
@pytest.mark.parametrize("text", ["two\nlines", "tab\there", "\x1b[2J", "\x00"])
def test_multi_line_settings_are_refused(key: str, text: str) -> None:
    with pytest.raises(ValueError, match="one line of text"):
        WorkerSettings.model_validate({"host": "h", key: {"A": text} if key == "env" else text})
