"""Shared fixtures of the tests of SSH."""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from keima.cluster.ssh.transport import LocalStream
from tests.cluster.sshd import Sshd, running_sshd

PATIENCE = 120.0


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of the connecting user."""
    home = tmp_path / "user"
    monkeypatch.setenv("HOME", str(home))
    for name in ("SSH_AUTH_SOCK", "KEIMA_KEY_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def server(tmp_path: Path, user: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "server", user) as running:
        yield running


@pytest.fixture(autouse=True)
def no_local_stream_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs of local streams end with their tests, also those of connections that stand for a killed Coach's."""
    begun: list[LocalStream] = []
    begin = LocalStream.__init__

    def noted(self: LocalStream, worker: str, line: Sequence[str]) -> None:
        begin(self, worker, line)
        begun.append(self)

    monkeypatch.setattr(LocalStream, "__init__", noted)
    yield
    for stream in begun:
        stream.close()


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """No thread and no open file outlives a test, whatever goes wrong in it."""
    threads, files = set(threading.enumerate()), open_files()
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(PATIENCE)  # it has been told to end
    assert not set(threading.enumerate()) - threads
    until = time.monotonic() + PATIENCE
    while open_files() > files and time.monotonic() < until:  # a moment after its thread
        time.sleep(0.01)
    assert open_files() <= files


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])
