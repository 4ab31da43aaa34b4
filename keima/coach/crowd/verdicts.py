"""The files in ``<run>/crowd/`` by which the checker, the Coach and the door tell each other who is distrusted.

    verdicts.jsonl   a line for each liar that the checker has found, for each newcomer whose first games have been
                     checked, and where checks are far behind; it only appends
    refused.json     {worker: reason} of all distrusted workers of the ledger; the Coach replaces it, the door reads it
    checker.json     what the checker knows of each worker, from which its next process continues

A line of verdicts is read once it ends; what is not a verdict, such as half a line of a killed process, is skipped.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keima.base.files import read_limited, write_atomically

FOLDER = "crowd"  # in the run's folder
VERDICTS, REFUSED, STATE = "verdicts.jsonl", "refused.json", "checker.json"
MAX_REASON = 500  # characters
MAX_REFUSED_BYTES = 16 * 2**20


def make_folder(run_dir: Path) -> Path:
    """Return the folder of these files, which is created if it is missing."""
    folder = run_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def append_verdict(folder: Path, worker: str, reason: str) -> None:
    """Add a verdict, on the disk when this returns.

    Raises:
        OSError: the disk does not take it.
    """
    _append_line(folder, {"worker": worker, "reason": reason[:MAX_REASON]})


def append_pass(folder: Path, worker: str) -> None:
    """Add that a newcomer's first games have been checked.

    Raises:
        OSError: the disk does not take it.
    """
    _append_line(folder, {"worker": worker, "passed": True})


def append_backlog(folder: Path, games: int) -> None:
    """Add that so many games wait for their check.

    Raises:
        OSError: the disk does not take it.
    """
    _append_line(folder, {"waiting": games})


def _append_line(folder: Path, content: Mapping[str, object]) -> None:
    line = json.dumps(content).encode() + b"\n"
    descriptor = os.open(folder / VERDICTS, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # after the half line of a killed process
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class VerdictReader:
    """Reads the verdicts of a run as they are added.

    Attributes:
        passed: the workers whose first games have been checked, as far as it has read.
        waiting: games that waited for their check, as the last call found; 0: it found nothing of it.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path, self._read = run_dir / FOLDER / VERDICTS, 0  # bytes
        self.passed, self.waiting = set[str](), 0

    def read_new(self) -> dict[str, str]:
        """Return the verdicts since the last call: worker and reason.

        Raises:
            OSError: the file cannot be read.
        """
        self.waiting = 0
        try:
            if self._path.stat().st_size == self._read:
                return {}
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return {}
        complete = data[: data.rfind(b"\n") + 1]
        self._read += len(complete)
        verdicts = dict[str, str]()
        for found in map(_parse_line, complete.splitlines()):
            match found:
                case {"worker": str(worker), "reason": str(reason)}:
                    verdicts[worker] = reason[:MAX_REASON]
                case {"worker": str(worker), "passed": True}:
                    self.passed.add(worker)
                case {"waiting": int(games)}:
                    self.waiting = games
        return verdicts


def _parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def read_refused(path: Path) -> dict[str, str]:
    """Return the distrusted workers of a list for the door, with the reasons.

    Raises:
        OSError: there is none, or it cannot be read.
        ValueError: it is damaged.
    """
    try:
        found = json.loads(read_limited(path, MAX_REFUSED_BYTES))
        return {str(worker): str(reason) for worker, reason in found.items()}
    except (AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def write_refused(run_dir: Path, distrusted: Mapping[str, str]) -> None:
    """Replace the list of distrusted workers for the door.

    Raises:
        OSError: the disk does not take it.
    """
    write_atomically(make_folder(run_dir) / REFUSED, json.dumps(dict(distrusted), sort_keys=True, indent=1).encode())
