"""Files to and from a machine, and programs on it: what the cluster needs of SSH, and the same for local folders."""

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
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "raise its user's disk quota, or free space",
    errno.EACCES: "give its user the right to write there, or choose another `directory`",
    errno.EPERM: "give its user the right to write there, or choose another `directory`",
    errno.EROFS: "its disk is mounted read-only: remount it, or choose another `directory`",
}
NO_FOLDER = 121  # exit code of a shell that cannot enter its folder
NO_FOLDER_SAID = "@@no folder"


@dataclass(frozen=True)
class Entry:
    """A file of a folder: its name within the folder, and its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True)
class Completed:
    """A program that has ended: its exit status (128 + n: killed by signal n), and its output."""

    code: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """A machine's folder, and the programs that can be run in it.

    Use it from one thread at a time. Names are relative to the folder: ``workers/worker1/worker.json``. Every call ends
    within a few seconds of the last progress. Calls raise only ClusterError, and ValueError for a name outside the
    folder; ``get`` also raises the errors it lists. After Unreachable the transport is unusable: close it and connect
    again.
    """

    worker: str  # the machine's name
    sent: int  # bytes of files so far
    received: int

    def put(self, data: bytes, name: str, *, durable: bool = True) -> None:
        """Write ``data`` to the file ``name``, with the folders that it needs. Readers see the old file or the whole
        new one.

        Args:
            data: the content.
            name: the file.
            durable: whether the file must be on the disk when this returns. False saves time if readers check the whole
                file and it can be sent again. What an earlier call for the same file sent before an interruption is not
                sent again.
        """
        ...

    def get(self, name: str, limit: int) -> bytes:
        """Return the content of a file of at most ``limit`` bytes.

        Raises:
            FileTooLarge: it has more, and was not fetched.
            FileNotFoundError: there is no such file.
        """
        ...

    def names(self, folder: str) -> list[Entry]:
        """Return the complete files of a folder, sorted by name, without unfinished ones; none if there is no such
        folder.
        """
        ...

    def remove(self, name: str) -> None:
        """Delete a file, if it exists."""
        ...

    def run(self, argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        """Run a program in the folder, without input, and wait for it and its output.

        A missing program ends with 127, as in shells.

        Raises:
            Unreachable: it has not ended after ``seconds``, or the connection was lost; whether it did its work is
                unknown.
        """
        ...

    def close(self) -> None:
        """Disconnect at once; programs there continue to run."""
        ...


class LocalTransport:
    """A folder of this machine: for tests, benchmarks, and workers without SSH."""

    def __init__(self, root: Path, *, worker: str = "local") -> None:
        """Use the folder ``root``, which need not exist yet."""
        self.worker = worker
        self.sent = 0
        self.received = 0
        self._root = root.expanduser().absolute()

    def put(self, data: bytes, name: str, *, durable: bool = True) -> None:
        """See ``Transport``; always durable."""
        path = self._root / checked_name(name)
        with _translated(self.worker, f"writing {path}"):
            for folder in reversed(path.parents):
                folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, data)
        self.sent += len(data)

    def get(self, name: str, limit: int) -> bytes:
        """See ``Transport``."""
        path = self._root / checked_name(name)
        with _translated(self.worker, f"reading {path}", missing_is_said=True):
            found = path.stat()
            check_readable(self.worker, str(path), found.st_mode, found.st_size, limit)
            data = read_limited(path, limit)
        self.received += len(data)
        return data

    def names(self, folder: str) -> list[Entry]:
        """See ``Transport``."""
        path = self._root / checked_name(folder)
        entries = []
        with _translated(self.worker, f"listing {path}"):
            for child in path.iterdir() if path.is_dir() else ():
                with suppress(FileNotFoundError):  # deleted in this moment
                    found = child.lstat()
                    entries.append((child.name, found.st_mode, found.st_size))
        return whole_files(entries)

    def remove(self, name: str) -> None:
        """See ``Transport``."""
        path = self._root / checked_name(name)
        with _translated(self.worker, f"removing {path}"), suppress(FileNotFoundError):
            path.unlink()

    def run(self, argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        """See ``Transport``."""
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
        """See ``Transport``."""


def checked_name(name: str) -> str:
    """Return the name, if it stays within the folder.

    Raises:
        ValueError: it leads elsewhere.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or not name.isprintable():
        raise ValueError(f"{name!r} is no name within a machine's folder")
    return name


def shell_line(root: str, argv: Sequence[str]) -> str:
    """Return the command line for a POSIX shell that runs the program in the folder ``root``, which is created if
    needed.

    The shell stays, to report a program that was killed: 128 + n. A shell that is killed itself looks like a lost
    connection.
    """
    folder = shlex.quote(root)
    enter = f"LC_ALL=C mkdir -p {folder} && cd {folder} || {{ echo '{NO_FOLDER_SAID}' >&2; exit {NO_FOLDER}; }}"
    return f"umask 077; {enter}; {shlex.join(argv)} </dev/null; exit $?"


def in_folder(worker: str, root: str, done: Completed) -> Completed:
    """Return the result of a ``shell_line``.

    Raises:
        RemoteFailure: the folder ``root`` could not be created or entered.
    """
    said = done.stderr.decode("utf-8", "replace")
    if done.code != NO_FOLDER or NO_FOLDER_SAID not in said:
        return done
    why = " ".join(said.partition(NO_FOLDER_SAID)[0].split()) or "it cannot be entered"
    number = next((number for number in REMEDIES if os.strerror(number) in why), errno.EACCES)
    raise RemoteFailure(worker, f"the folder {root} cannot be made there ({why})", REMEDIES[number])


def whole_files(entries: Sequence[tuple[str, int, int]]) -> list[Entry]:
    """Return the regular files among (name, mode, size), without unfinished ones.

    Names are not trusted: they may come from another machine.
    """
    good = [(name, size) for name, mode, size in entries if stat.S_ISREG(mode) and not name.endswith(PART)]
    return [Entry(name, size) for name, size in sorted(good) if "/" not in name and name != ".." and name.isprintable()]


def check_readable(worker: str, path: str, mode: int, size: int, limit: int) -> None:
    """Accept only a regular file of at most ``limit`` bytes.

    Raises:
        FileTooLarge: it has more.
        RemoteFailure: it is a folder, or the like.
    """
    if not stat.S_ISREG(mode):
        raise RemoteFailure(worker, f"{path} is no file", "remove what is in its place")
    if size > limit:
        raise FileTooLarge(f"{worker}: {path} holds {size:,} bytes, more than the {limit:,} allowed for it")


def failure(worker: str, doing: str, error: OSError) -> RemoteFailure:
    """Return the error as a RemoteFailure, with a remedy for the most common ones."""
    return RemoteFailure(worker, f"{doing}: {error.strerror or error}", REMEDIES.get(error.errno or 0, ""))


@contextmanager
def _translated(worker: str, doing: str, *, missing_is_said: bool = False) -> Iterator[None]:
    """Turn the system's errors into RemoteFailure; FileNotFoundError passes if ``missing_is_said``."""
    try:
        yield
    except FileNotFoundError as error:
        if missing_is_said:
            raise FileNotFoundError(errno.ENOENT, f"{worker}: there is no such file", error.filename) from None
        raise failure(worker, doing, error) from error
    except OSError as error:
        raise failure(worker, doing, error) from error
