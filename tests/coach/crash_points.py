"""Interrupting a program at every operation on files and the database, to see the effect of each kill or disk error."""

import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from keima.base.files import sha256_hex

FILE_OPERATIONS = ("open", "fsync", "replace", "rename", "unlink", "rmdir", "mkdir", "link", "truncate")
DEAD_WITHOUT_PROCESS = "run.db-shm"  # SQLite's scratch space


class Snapshots:
    """What kills at different moments leave of ``folder``: copies next to it, without repetition.

    Args:
        folder: of the program under test.
        trifles: names of files that make no difference alone.
    """

    def __init__(self, folder: Path, *, trifles: frozenset[str] = frozenset()) -> None:
        self._folder, self._trifles = folder, trifles | {DEAD_WITHOUT_PROCESS}
        self._states: dict[str, Path] = {}

    @property
    def states(self) -> list[Path]:
        return list(self._states.values())

    def poll(self) -> None:
        """A kill at this moment."""
        found = sorted(path for path in self._folder.rglob("*") if path.name not in self._trifles)
        content = sha256_hex(
            b"".join(str(path).encode() + (path.read_bytes() if path.is_file() else b"/") for path in found)
        )
        if content not in self._states:
            self._states[content] = self._folder.with_name(f"state-{len(self._states)}")
            shutil.copytree(self._folder, self._states[content])


@contextmanager
def before_each_operation(call: Callable[[], None]) -> Iterator[None]:
    """Within the block, ``call`` before each operation on a file or folder, and before each statement on a database."""
    busy, turn = False, threading.RLock()

    def happen() -> None:
        nonlocal busy
        with turn:  # while ``call`` lasts, other threads wait: their operations count, too
            if not busy:  # operations of ``call`` itself do not count
                busy = True
                try:
                    call()
                finally:
                    busy = False

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*values: Any, **options: Any) -> Any:
            happen()
            return function(*values, **options)

        return operation

    class Noted(sqlite3.Connection):
        def execute(self, *values: Any) -> sqlite3.Cursor:
            happen()
            return super().execute(*values)

        def executemany(self, *values: Any) -> sqlite3.Cursor:
            happen()
            return super().executemany(*values)

    connect = sqlite3.connect
    with pytest.MonkeyPatch.context() as patch:
        for name in FILE_OPERATIONS:
            patch.setattr(os, name, noted(getattr(os, name)))
        patch.setattr(sqlite3, "connect", lambda *values, **options: connect(*values, factory=Noted, **options))
        yield


class FullOnce:
    """A disk that is full at its ``number``-th operation, and at no other."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, "no space left on device")


def refused_at(number: int, action: Callable[[], object]) -> BaseException | None:
    """Carry out ``action`` on a disk that is full at the ``number``-th operation only; return what it raises.

    Raises:
        IndexError: it has fewer operations.
    """
    disk = FullOnce(number)
    with before_each_operation(disk):
        try:
            action()
        except OSError as error:
            return error
    if disk.left > 0:
        raise IndexError(number)
    return None
