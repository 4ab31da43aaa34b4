"""A real OpenSSH server on a port of this machine, for tests: its own host key, authorized keys and home folder."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest

from keima.cluster.ssh.errors import Refused
from keima.cluster.ssh.ssh_transport import connect
from keima.config.sections.workers import WorkerSettings

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
needs_sshd = pytest.mark.skipif(SSHD is None, reason="no sshd on this machine: apt-get install openssh-server")

CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
LogLevel VERBOSE
SetEnv HOME={home} {environment}
{more}
MaxStartups 100
Subsystem sftp {sftp}
"""


class Sshd:
    """The server, and the files of the user who logs in."""

    def __init__(self, folder: Path, user_home: Path) -> None:
        self.folder = folder  # the server's
        self.ssh = user_home / ".ssh"  # of the connecting user
        self.home = folder / "home"  # of the account on the server
        for each in (self.folder, self.home, self.ssh):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.port = 0  # until it is started; then always the same
        self.key = self.ssh / "id_ed25519"
        if not self.key.exists():
            keygen(self.key)
        self.allow(self.key)
        keygen(self.folder / "host_key")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def allow(self, key: Path) -> None:
        with (self.folder / "authorized_keys").open("a") as file:
            file.write(key.with_name(f"{key.name}.pub").read_text())

    def trust(self, name: str | None = None) -> None:
        """Put its host key into the user's known_hosts."""
        kind, blob = (self.folder / "host_key.pub").read_text().split()[:2]
        with (self.ssh / "known_hosts").open("a") as file:
            file.write(f"{name or f'[127.0.0.1]:{self.port}'} {kind} {blob}\n")

    def start(self, *, sftp: str = "internal-sftp", more: str = "", environment: str = "") -> None:
        values = {"folder": self.folder, "home": self.home, "sftp": sftp, "more": more, "environment": environment}
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
        for _ in range(3):  # somebody else may take a free port first
            port = self.port or free_port()
            (self.folder / "config").write_text(CONFIG.format(port=port, **values))
            if self._comes_to_listen():
                self.port = port
                return
        raise RuntimeError(f"sshd does not listen: {self.log}")

    def _comes_to_listen(self) -> bool:
        """Start the process, and wait until it listens; False: it has ended."""
        with (self.folder / "log").open("ab") as log:
            before = len(self.log)
            self.process = subprocess.Popen(
                [str(SSHD), "-D", "-e", "-f", str(self.folder / "config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + 60
        while "Server listening on" not in self.log[before:]:
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < until, self.log
            time.sleep(0.02)
        return True

    def _wait_until_none_listens(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                return
            time.sleep(0.02)

    def sessions(self) -> list[int]:
        """Return the processes of its connections: those below the listening one."""
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                text = stat.read_text()
                parents[int(text.split()[0])] = int(text.rpartition(")")[2].split()[1])
        assert self.process is not None
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found[1:]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every session, as if the machine crashed or froze."""
        for pid in self.sessions():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            self.process = None
            # The process of a connection keeps the listening socket open for another moment.
            self._wait_until_none_listens()

    def worker(self, **settings: object) -> WorkerSettings:
        """Return the worker's entry in the cluster's settings."""
        named = {"name": "worker1", "host": "127.0.0.1", "port": self.port, "user": getpass.getuser()}
        return WorkerSettings.model_validate({**named, "directory": str(self.folder / "keima"), **settings})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def keygen(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> None:
    path.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)], check=True, stdin=subprocess.DEVNULL
    )


@contextmanager
def running_sshd(
    folder: Path,
    user_home: Path,
    *,
    sftp: str = "internal-sftp",
    more: str = "",
    environment: str = "",
    trusted: bool = True,
) -> Iterator[Sshd]:
    """A server that is known to the user with this home, and lets that user in.

    ``more`` are lines of its configuration, and ``environment`` variables of every session; of several SetEnv sshd
    heeds the first.
    """
    server = Sshd(folder, user_home)
    server.start(sftp=sftp, more=more, environment=environment)
    if trusted:
        server.trust()
    try:
        yield server
    finally:
        server.stop()


def reach(
    machine: WorkerSettings, policy: Literal["strict", "accept-new"] = "strict", *, login_seconds: float = 30.0
) -> None:
    """Connect, check that it works, and close."""
    transport = connect(machine, host_key_policy=policy, login_seconds=login_seconds)
    try:
        assert transport.run(["echo", "here"]).stdout == b"here\n"
    finally:
        transport.close()


def refusal(machine: WorkerSettings, policy: Literal["strict", "accept-new"] = "strict") -> Refused:
    with pytest.raises(Refused) as refused:
        reach(machine, policy)
    assert str(refused.value).startswith("worker1: ")
    assert refused.value.remedy
    return refused.value


def shell(command: str) -> None:
    """Run a remedy, as its reader would."""
    subprocess.run(["bash", "-c", command], check=True, capture_output=True)


@contextmanager
def lasting_sshd(folder: Path) -> Iterator[Sshd]:
    """Yield a server for several tests, in an empty folder, which also has the home of the connecting user."""
    with pytest.MonkeyPatch.context() as patch, running_sshd(folder / "server", folder / "user") as running:
        patch.setenv("HOME", str(folder / "user"))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        yield running
