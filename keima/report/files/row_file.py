"""A JSON list on disk that grows in place: adding a row takes constant time."""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from keima.base.files import read_limited

logger = logging.getLogger(__name__)

LIST_HEAD, ROW_SEPARATOR, LIST_TAIL = b"[\n", b",\n", b"\n]\n"
MODE = 0o644  # readable by all
ROW_LIMIT = 2**26  # bytes of a row that is read, and of a list that another program wrote


class RowFile:
    """A file of ``[``, one JSON object per line, and ``]``: a whole JSON document after each added row.

    A row and the new closing bracket are written over the old bracket by one call. A writer that is killed within that
    call may leave a torn last row, which the next writer removes. A file that is not such a list is renamed, and the
    list starts again.

    Args:
        path: the file.
        key: the member of each object that numbers the rows, which rise.
    """

    def __init__(self, path: Path, *, key: str) -> None:
        self.path, self._key = path, key
        self._end = -1  # the end of the last row; 0: no rows, -1: not determined yet
        self._waiting: list[bytes] = []  # rows that could not be written yet

    def write_row(self, number: int, row: bytes) -> None:
        """Add the row of this number, after removing rows of this and later numbers.

        Raises:
            OSError: the disk does not take it; the file is as it was, and the row is written with the next one.
        """
        self._waiting.append(row)
        if self._end < 0 or not self._is_unchanged():
            self._end = self._end_of_rows_before(number)
        start, piece = self._end, (ROW_SEPARATOR if self._end else LIST_HEAD) + ROW_SEPARATOR.join(self._waiting)
        with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT, MODE), "wb", buffering=0) as file:
            try:
                _write_from(file.fileno(), start, piece + LIST_TAIL)
            except OSError:
                with suppress(OSError):
                    _write_from(file.fileno(), start, LIST_TAIL if start else b"")
                raise
        self._end, self._waiting = start + len(piece), []

    def _is_unchanged(self) -> bool:
        return self.path.exists() and self.path.stat().st_size == self._end + len(LIST_TAIL)

    def _end_of_rows_before(self, number: int) -> int:
        """Return the end of the last row with a lower number; a file that is not a list is renamed."""
        end = 0
        try:
            with self.path.open("rb") as file:
                first = file.readline()
                if first != LIST_HEAD and first:
                    raise ValueError
                for line in file:
                    row = line.rstrip(b",\n")
                    if row == LIST_TAIL.strip() or self._row_number(row, torn=not line.endswith(b"\n")) >= number:
                        break
                    end = file.tell() - len(line) + len(row)
        except FileNotFoundError:
            return 0
        except ValueError:
            aside = self.path.with_name(f"{self.path.name}.unreadable-{time.time_ns()}")
            logger.warning(
                "%s is not a list of rows with %r each; it is kept as %s, and a new list is started",
                self.path,
                self._key,
                aside.name,
            )
            self.path.rename(aside)
            return 0
        return end

    def _row_number(self, row: bytes, *, torn: bool) -> float:
        """Return the number of a row; infinity for an incomplete one."""
        try:
            return int(json.loads(row)[self._key])
        except (ValueError, KeyError, TypeError):
            if torn:
                return float("inf")
            raise ValueError from None


def _write_from(file: int, start: int, data: bytes) -> None:
    """Replace the file's content from ``start`` on."""
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, start + len(data) - len(left))
        left = left[written:]
    os.ftruncate(file, start + len(data))


def read_rows(path: Path) -> Iterator[bytes]:
    """Yield the rows of a list, as JSON texts. JSON lists with other layouts are read, too.

    Raises:
        ValueError: it is not a JSON list, or only part of one, or has a row of more than ``ROW_LIMIT`` bytes.
        OSError: it is missing or may not be read.
    """
    with path.open("rb") as file:
        if file.readline(len(LIST_HEAD)) != LIST_HEAD or file.read(1) not in b"{]":
            yield from _rows_of_any_list(path)
            return
        file.seek(len(LIST_HEAD))
        while (line := file.readline(ROW_LIMIT + 1)).endswith(b"\n"):
            row = line.rstrip(ROW_SEPARATOR)
            if row == LIST_TAIL.strip():
                return
            yield row
    raise ValueError(
        f"it has a row of more than {ROW_LIMIT:,} bytes" if len(line) > ROW_LIMIT else "it ends within a row"
    )


def _rows_of_any_list(path: Path) -> Iterator[bytes]:
    try:
        rows = json.loads(read_limited(path, ROW_LIMIT))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(rows, list):
        raise ValueError("it is not a list")
    for row in rows:
        yield json.dumps(row).encode()
