"""Files to and from a machine, and programs on it: what the cluster needs of SSH, and the same on this machine."""

import errno
import os
import shlex
import signal
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from distributed.ssh.errors import RemoteFailure, Unreachable
from training.common.files import PART, FileTooLarge, read_limited, write_atomically

REMEDIES = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "raise its user's disk quota, or make room",
    errno.EACCES: "give its user the right to write there, or choose another `directory`",
    errno.EPERM: "give its user the right to write there, or choose another `directory`",
    errno.EROFS: "its disk is mounted read-only: remount it, or choose another `directory`",
}
NO_FOLDER = 121  # exit code of a shell whose folder is not to be had
NO_FOLDER_SAID = "@@no folder"


@dataclass(frozen=True)
class Entry:
    """One file of a folder: its name within the folder, and its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True)
class Completed:
    """A program that has ended: its exit status (128 + n: killed by signal n), and what it said."""

    code: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """A machine's folder, and the programs that can be run in it.

    For one thread at a time. Names are relative to the folder: ``workers/worker1/worker.json``. Every call ends within
    a few seconds of the last progress. But for ``get``, calls raise nothing but ClusterError, and ValueError for a name
    that leads out of the folder. After Unreachable the transport is of no more use: close it and connect anew.
    """

    worker: str  # the machine's name
    sent: int  # bytes of files so far
    received: int

    def put(self, data: bytes, name: str, *, durable: bool = True) -> None:
        """Make ``data`` the file ``name``, with the folders that it needs: a reader sees the old file or the whole new
        one.

        When this returns, the new file is on the disk; unless it need not be ``durable``, which saves time where a
        power cut does no harm, because whoever reads the file checks all of it, and it can be sent again. What an
        earlier call for the same file got across before it was cut off is not sent again.
        """
        ...

    def get(self, name: str, limit: int) -> bytes:
        """The content of a file of at most ``limit`` bytes.

        Raises:
            FileTooLarge: it has more, and they were not fetched.
            FileNotFoundError: there is no such file.
        """
        ...

    def names(self, folder: str) -> list[Entry]:
        """The whole files of a folder, sorted by name, without those that are still being written; none if there is no
        such folder.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        ...

    def run(self, argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        """Run a program in the folder, with nothing to read, and wait for it and its output.

        A program that is not there ends with 127, as shells have it.

        Raises:
            Unreachable: it has not ended after ``seconds``, or the connection is lost; whether it did its work is not
            known.
        """
        ...

    def close(self) -> None:
        """Let go of the machine, at once; what runs there runs on."""
        ...


class LocalTransport:
    """A folder of this machine: for tests, benchmarks, and workers that need no SSH."""

    def __init__(self, root: Path, *, worker: str = "local") -> None:
        """Use the folder ``root``, which need not exist yet."""
        self.worker = worker
        self.sent = 0
        self.received = 0
        self._root = root.expanduser().absolute()

    def put(self, data: bytes, name: str, *, durable: bool = True) -> None:
        """As the protocol has it; always durable."""
        path = self._root / checked(name)
        with _translated(self.worker, f"writing {path}"):
            for folder in reversed(path.parents):
                folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, data)
        self.sent += len(data)

    def get(self, name: str, limit: int) -> bytes:
        """As the protocol has it."""
        path = self._root / checked(name)
        with _translated(self.worker, f"reading {path}", missing_is_said=True):
            found = path.stat()
            check_readable(self.worker, str(path), found.st_mode, found.st_size, limit)
            data = read_limited(path, limit)
        self.received += len(data)
        return data

    def names(self, folder: str) -> list[Entry]:
        """As the protocol has it."""
        path = self._root / checked(folder)
        entries = []
        with _translated(self.worker, f"listing {path}"):
            for child in path.iterdir() if path.is_dir() else ():
                with suppress(FileNotFoundError):  # removed in this moment
                    found = child.lstat()
                    entries.append((child.name, found.st_mode, found.st_size))
        return whole_files(entries)

    def remove(self, name: str) -> None:
        """As the protocol has it."""
        path = self._root / checked(name)
        with _translated(self.worker, f"removing {path}"), suppress(FileNotFoundError):
            path.unlink()

    def run(self, argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        """As the protocol has it."""
        line = ["/bin/sh", "-c", shell_line(str(self._root), argv)]
        pipe = subprocess.PIPE
        with (
            _translated(self.worker, f"running {argv[0]}"),
            subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
            ) as program,
        ):
            try:
                stdout, stderr = program.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)
                raise Unreachable(self.worker, f"{argv[0]} has not ended after {seconds:g} s") from None
        code = program.returncode
        return in_folder(self.worker, str(self._root), Completed(code if code >= 0 else 128 - code, stdout, stderr))

    def close(self) -> None:
        """As the protocol has it."""


def checked(name: str) -> str:
    """The name itself, if it stays within the folder.

    Raises:
        ValueError: it leads elsewhere.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or not name.isprintable():
        raise ValueError(f"{name!r} is no name within a machine's folder")
    return name


def shell_line(root: str, argv: Sequence[str]) -> str:
    """What to tell a POSIX shell so that it runs the program in the folder ``root``, which is made if need be.

    The shell stays, to tell of a program that was killed: 128 + n. A shell that is killed itself looks like a lost
    connection.
    """
    folder = shlex.quote(root)
    enter = f"LC_ALL=C mkdir -p {folder} && cd {folder} || {{ echo '{NO_FOLDER_SAID}' >&2; exit {NO_FOLDER}; }}"
    return f"umask 077; {enter}; {shlex.join(argv)} </dev/null; exit $?"


def in_folder(worker: str, root: str, done: Completed) -> Completed:
    """What ``shell_line`` has come to.

    Raises:
        RemoteFailure: the folder ``root`` could not be made, or entered.
    """
    said = done.stderr.decode("utf-8", "replace")
    if done.code != NO_FOLDER or NO_FOLDER_SAID not in said:
        return done
    why = " ".join(said.partition(NO_FOLDER_SAID)[0].split()) or "it cannot be entered"
    number = next((number for number in REMEDIES if os.strerror(number) in why), errno.EACCES)
    raise RemoteFailure(worker, f"the folder {root} cannot be made there ({why})", REMEDIES[number])


def whole_files(entries: Sequence[tuple[str, int, int]]) -> list[Entry]:
    """The regular files among (name, mode, size), but for unfinished ones.

    Names are not trusted: they may come from elsewhere.
    """
    good = [(name, size) for name, mode, size in entries if stat.S_ISREG(mode) and not name.endswith(PART)]
    return [Entry(name, size) for name, size in sorted(good) if "/" not in name and name != ".." and name.isprintable()]


def check_readable(worker: str, path: str, mode: int, size: int, limit: int) -> None:
    """Let pass only a regular file of at most ``limit`` bytes.

    Raises:
        FileTooLarge: it has more.
        RemoteFailure: it is a folder, or the like.
    """
    if not stat.S_ISREG(mode):
        raise RemoteFailure(worker, f"{path} is no file", "remove what is in its place")
    if size > limit:
        raise FileTooLarge(f"{worker}: {path} holds {size:,} bytes, more than the {limit:,} allowed for it")


def failure(worker: str, doing: str, error: OSError) -> RemoteFailure:
    """The error as the cluster's own, with the remedy for the commonest ones."""
    return RemoteFailure(worker, f"{doing}: {error.strerror or error}", REMEDIES.get(error.errno or 0, ""))


@contextmanager
def _translated(worker: str, doing: str, *, missing_is_said: bool = False) -> Iterator[None]:
    """Turn whatever the system objects to into RemoteFailure, but for a missing file, if that is to be said as it is."""
    try:
        yield
    except FileNotFoundError as error:
        if missing_is_said:
            raise FileNotFoundError(errno.ENOENT, f"{worker}: there is no such file", error.filename) from None
        raise failure(worker, doing, error) from error
    except OSError as error:
        raise failure(worker, doing, error) from error
