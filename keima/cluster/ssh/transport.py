"""Files to and from a machine, and programs on it: the cluster's interface to SSH, and the same for local folders."""

import errno
import os
import select
import shlex
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from keima.base.files import PART, FileTooLarge, read_limited, write_atomically
from keima.cluster.ssh.errors import RemoteFailure, Unreachable

REMEDIES = {
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "raise its user's disk quota, or free space",
    errno.EACCES: "give its user the right to write there, or choose another `directory`",
    errno.EPERM: "give its user the right to write there, or choose another `directory`",
    errno.EROFS: "its disk is mounted read-only: remount it, or choose another `directory`",
    errno.EIO: "its disk fails (see dmesg there): repair it, or choose another `directory`",
}
NO_FOLDER = 121  # exit code of a shell that cannot enter its folder
NO_FOLDER_SAID = "@@no folder"
SEND_SECONDS = 5.0  # for a lasting program to take what it is sent
END_SECONDS = 1.0  # for it to end when its input does
STREAM_CHUNK = 2**16  # bytes


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


class StreamEnded(RemoteFailure):
    """A lasting program has ended, although its machine may be well."""


class Stream(Protocol):
    """A lasting program on a machine: bytes go to its standard input and come from its standard output.

    It is told of our end by the end of its input. What it says on standard error is dropped.
    """

    def send(self, data: bytes) -> None:
        """Send all of ``data``.

        Raises:
            StreamEnded: the program has ended.
            Unreachable: it does not take them, or the connection was lost.
        """
        ...

    def receive(self, seconds: float) -> bytes:
        """Return some bytes as soon as there are any; none after ``seconds`` without any.

        Raises:
            StreamEnded: the program has ended, and everything that it said was returned.
            Unreachable: the connection was lost.
        """
        ...

    def close(self) -> None:
        """End its input, and do not wait for the program."""
        ...


class Transport(Protocol):
    """A machine's folder, and the programs that can be run in it.

    Use it from one thread at a time. Names are relative to the folder: ``workers/worker1/worker.json``. Every call ends
    within a few seconds of the last progress. Calls raise only ClusterError, and ValueError for a name outside the
    folder; ``get`` also raises the errors it lists. After Unreachable the transport is unusable: close it and connect
    again.
    """

    worker: str  # the machine's name
    meanwhile: Callable[[], None]  # called now and then during long transfers, in the caller's thread; raises nothing

    @property
    def sent(self) -> int:
        """Bytes of files sent so far."""
        ...

    @property
    def received(self) -> int:
        """Bytes of files received so far."""
        ...

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

    def list_files(self, folder: str) -> list[Entry]:
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

    def open(self, argv: Sequence[str]) -> Stream:
        """Begin a program in the folder that lasts until it is closed, at most as long as this connection.

        A missing program, or a folder that cannot be entered, ends the stream.
        """
        ...

    def close(self) -> None:
        """Disconnect at once; programs that ``run`` has begun continue to run."""
        ...


class LocalTransport:
    """A folder of this machine: for tests, benchmarks, and workers without SSH."""

    def __init__(self, root: Path, *, worker: str = "local") -> None:
        """Use the folder ``root``, which need not exist yet."""
        self.worker = worker
        self.sent = 0
        self.received = 0
        self.meanwhile: Callable[[], None] = do_nothing
        self._root = root.expanduser().absolute()
        self._streams: list[LocalStream] = []

    def put(self, data: bytes, name: str, *, durable: bool = True) -> None:
        """See ``Transport``; always durable."""
        path = self._root / check_name(name)
        with _translate_os_errors(self.worker, f"writing {path}"):
            for folder in reversed(path.parents):
                folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, data)
        self.sent += len(data)

    def get(self, name: str, limit: int) -> bytes:
        """See ``Transport``."""
        path = self._root / check_name(name)
        with _translate_os_errors(self.worker, f"reading {path}", missing_is_said=True):
            found = path.stat()
            check_readable(self.worker, str(path), found.st_mode, found.st_size, limit)
            data = read_limited(path, limit)
        self.received += len(data)
        return data

    def list_files(self, folder: str) -> list[Entry]:
        """See ``Transport``."""
        path = self._root / check_name(folder)
        entries = []
        with _translate_os_errors(self.worker, f"listing {path}"):
            for child in path.iterdir() if path.is_dir() else ():
                with suppress(FileNotFoundError):  # deleted in this moment
                    found = child.lstat()
                    entries.append((child.name, found.st_mode, found.st_size))
        return complete_files(entries)

    def remove(self, name: str) -> None:
        """See ``Transport``."""
        path = self._root / check_name(name)
        with _translate_os_errors(self.worker, f"removing {path}"), suppress(FileNotFoundError):
            path.unlink()

    def run(self, argv: Sequence[str], *, seconds: float = 5.0) -> Completed:
        """See ``Transport``."""
        line = ["/bin/sh", "-c", shell_command(str(self._root), argv)]
        pipe = subprocess.PIPE
        with (
            _translate_os_errors(self.worker, f"running {argv[0]}"),
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
        return check_folder_entered(
            self.worker, str(self._root), Completed(code if code >= 0 else 128 - code, stdout, stderr)
        )

    def open(self, argv: Sequence[str]) -> Stream:
        """See ``Transport``."""
        with _translate_os_errors(self.worker, f"running {argv[0]}"):
            self._streams.append(LocalStream(self.worker, ["/bin/sh", "-c", stream_command(str(self._root), argv)]))
        return self._streams[-1]

    def close(self) -> None:
        """See ``Transport``."""
        for stream in self._streams:
            stream.close()


class LocalStream:
    """A ``Stream`` of this machine, in a session of its own, so that Ctrl-C does not reach it."""

    def __init__(self, worker: str, line: Sequence[str]) -> None:
        self._worker = worker
        pipe, nothing_said = subprocess.PIPE, subprocess.DEVNULL
        self._program = subprocess.Popen(
            line, stdin=pipe, stdout=pipe, stderr=nothing_said, bufsize=0, start_new_session=True
        )
        assert self._program.stdin and self._program.stdout
        self._input, self._output = self._program.stdin, self._program.stdout
        os.set_blocking(self._input.fileno(), False)

    def send(self, data: bytes) -> None:
        """See ``Stream``."""
        left = memoryview(data)
        while left:
            if self._input.closed or not _wait_until_ready(self._input.fileno(), select.POLLOUT, SEND_SECONDS):
                raise Unreachable(self._worker, f"its program has read nothing for {SEND_SECONDS:g} s")
            try:
                left = left[os.write(self._input.fileno(), left) :]
            except BrokenPipeError as error:
                raise StreamEnded(self._worker, "its program has ended") from error

    def receive(self, seconds: float) -> bytes:
        """See ``Stream``."""
        if self._output.closed:
            raise Unreachable(self._worker, "the connection is closed")
        if not _wait_until_ready(self._output.fileno(), select.POLLIN, seconds):
            return b""
        data = os.read(self._output.fileno(), STREAM_CHUNK)
        if not data:
            raise StreamEnded(self._worker, "its program has ended")
        return data

    def close(self) -> None:
        """See ``Stream``."""
        self._input.close()
        self._output.close()
        try:
            self._program.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._program.pid, signal.SIGKILL)
            self._program.wait()


def _wait_until_ready(descriptor: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def do_nothing() -> None:
    """Do nothing."""


def check_name(name: str) -> str:
    """Return the name, if it stays within the folder.

    Raises:
        ValueError: it leads elsewhere.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or not name.isprintable():
        raise ValueError(f"{name!r} is not a name within a machine's folder")
    return name


def shell_command(root: str, argv: Sequence[str]) -> str:
    """Return the command line for a POSIX shell that runs the program in the folder ``root``, which is created if
    needed.

    The shell stays, to report a program that was killed: 128 + n. A shell that is killed itself looks like a lost
    connection.
    """
    return f"{_enter_folder_command(root)}; {shlex.join(argv)} </dev/null; exit $?"


def stream_command(root: str, argv: Sequence[str]) -> str:
    """Return the command line of a ``Stream``'s program, which takes the place of the shell."""
    return f"{_enter_folder_command(root)}; exec {shlex.join(argv)} 2>/dev/null"


def _enter_folder_command(root: str) -> str:
    folder = shlex.quote(root)
    failed = f"{{ echo '{NO_FOLDER_SAID}' >&2; exit {NO_FOLDER}; }}"
    return f"umask 077; LC_ALL=C mkdir -p {folder} && cd {folder} || {failed}"


def check_folder_entered(worker: str, root: str, done: Completed) -> Completed:
    """Return the result of a ``shell_command``.

    Raises:
        RemoteFailure: the folder ``root`` could not be created or entered.
    """
    said = done.stderr.decode("utf-8", "replace")
    if done.code != NO_FOLDER or NO_FOLDER_SAID not in said:
        return done
    why = " ".join(said.partition(NO_FOLDER_SAID)[0].split()) or "it cannot be opened"
    number = next((number for number in REMEDIES if os.strerror(number) in why), errno.EACCES)
    raise RemoteFailure(worker, f"the folder {root} cannot be made there ({why})", REMEDIES[number])


def complete_files(entries: Sequence[tuple[str, int, int]]) -> list[Entry]:
    """Return the regular files among (name, mode, size), without unfinished ones.

    Names are not trusted: they may come from another machine.
    """
    good = [(name, size) for name, mode, size in entries if stat.S_ISREG(mode) and not name.endswith(PART)]
    return [Entry(name, size) for name, size in sorted(good) if is_listable(name)]


def is_listable(name: str) -> bool:
    """Return whether a name that another machine has listed can be one of a file in that folder."""
    return "/" not in name and name not in ("", ".", "..") and name.isprintable()


def check_readable(worker: str, path: str, mode: int, size: int, limit: int) -> None:
    """Accept only a regular file of at most ``limit`` bytes.

    Raises:
        FileTooLarge: it has more.
        RemoteFailure: it is a folder, or the like.
    """
    if not stat.S_ISREG(mode):
        raise RemoteFailure(worker, f"{path} is not a file", "remove whatever is at this path")
    if size > limit:
        raise FileTooLarge(f"{worker}: {path} holds {size:,} bytes, more than the {limit:,} allowed for it")


def remote_failure(worker: str, doing: str, error: OSError) -> RemoteFailure:
    """Convert the error to a RemoteFailure, with a remedy for the most common ones."""
    return RemoteFailure(worker, f"{doing}: {error.strerror or error}", REMEDIES.get(error.errno or 0, ""))


@contextmanager
def _translate_os_errors(worker: str, doing: str, *, missing_is_said: bool = False) -> Iterator[None]:
    """Turn the system's errors into RemoteFailure; FileNotFoundError passes if ``missing_is_said``."""
    try:
        yield
    except FileNotFoundError as error:
        if missing_is_said:
            raise FileNotFoundError(errno.ENOENT, f"{worker}: there is no such file", error.filename) from None
        raise remote_failure(worker, doing, error) from error
    except OSError as error:
        raise remote_failure(worker, doing, error) from error
