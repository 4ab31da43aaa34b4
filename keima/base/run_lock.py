"""One writer per run: a lock that the Coach holds, and that the system releases however the process ends."""

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

LOCK = "coach.lock"
TRIES, PAUSE_SECONDS = 5, 0.02  # another process may just be testing the lock


class RunLocked(RuntimeError):
    """Another process works on this run."""


class RunLock:
    """The right to write to the run in ``folder``, until ``close`` or the end of the process.

    Raises:
        RunLocked: another process has it; the message has its process id.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if not _try_lock(self._file):
            holder = os.pread(self._file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise RunLocked(
                f"{folder} is in use: process {holder} holds {path.name}; stop it first, or choose another run name"
            )
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def fileno(self) -> int:
        """Return the lock's file descriptor: a process that inherits it holds the lock too, until both have ended."""
        return self._file

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_held(folder: Path) -> bool:
    """Return whether a process works on the run in ``folder``; True if this user may not read the lock."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _try_lock(file: int) -> bool:
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE_SECONDS if left else 0)
        else:
            return True
    return False
