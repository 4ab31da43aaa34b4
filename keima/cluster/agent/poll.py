"""One poll of all workers of a machine: what the main node learns from it, and the small things that it changes.

For each worker's folder it puts the new assignment, deletes files that the main node has taken, and returns the
heartbeat, the files in the outbox, whether the process runs, and small finished files themselves. A folder that belongs
to another Coach is not touched. What is wrong with one folder is told for that folder alone.

Like all of this folder, it runs on a worker's machine before anything is installed: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keima.cluster.agent.commands import (
    MOST_HEARTBEAT,
    MOST_NAMES,
    FolderAnswer,
    FolderRequest,
    Linked,
    LinkRequest,
    PollAnswer,
    PollRequest,
)
from keima.cluster.agent.owner import OWNER, check_owner, owner_lock_path
from keima.cluster.agent.process import CommandFailed, find_process_elsewhere, find_running, hold_lock, read_record

POLL_LOCK_SECONDS = 0.5  # while another Coach changes the owner; the next poll tries again
PART = ".part"
GAMES = ".games"


def answer_poll(request: PollRequest) -> tuple[PollAnswer, bytes]:
    """Return the answer, and the content of the files that it names."""
    games, left = re.compile(request.games), request.limit
    answers, content = [], b""
    for each in request.workers:
        try:
            answer, data = poll_worker(FolderRequest(**each), games, left)
        except CommandFailed as error:
            answer, data = FolderAnswer(failed=str(error)), b""
        except Exception as error:
            answer, data = FolderAnswer(failed=f"{type(error).__name__}: {error}"), b""
        answers.append(answer)
        content += data
        left -= len(data)
    return PollAnswer(tuple(answers)), content


def poll_worker(each: FolderRequest, games: re.Pattern[str], left: int) -> tuple[FolderAnswer, bytes]:
    """Return the answer for one worker, and the content of the files it names."""
    place, wrong = Path(each.place), ""
    if not is_owner(place, each.coach):
        return FolderAnswer(mine=False), b""
    if each.assignment is not None or each.remove:
        with hold_ownership(place, each.coach) as mine:
            if not mine:
                return FolderAnswer(mine=False), b""
            wrong = apply_changes(place, each)
    heartbeat, running = read_new_heartbeat(place / "worker.json", each.seen), is_process_running(place)
    entries = list_complete_files(place / "outbox")
    files, unread, data = read_files(place / "outbox", entries, each, games, left)
    answer = FolderAnswer(
        wrong=wrong, running=running, names=tuple(entries), files=tuple(files), unread=tuple(unread), **heartbeat
    )
    return answer, data


def is_owner(place: Path, coach: str) -> bool:
    """Return whether the folder has the record of this Coach and no other."""
    return not coach or [path.name for path in (place / "outbox").glob(f"*{OWNER}")] == [f"{coach}{OWNER}"]


@contextlib.contextmanager
def hold_ownership(place: Path, coach: str) -> Iterator[bool]:
    """Keep the folder's owner as it is meanwhile; yield whether it is this Coach."""
    if not coach:  # games that were set aside
        yield True
        return
    with hold_lock(owner_lock_path(place), POLL_LOCK_SECONDS):
        yield is_owner(place, coach)


def apply_changes(place: Path, each: FolderRequest) -> str:
    """Put the assignment, then delete files; return why not, or nothing.

    Files stay if the assignment, which counts them, could not be put.
    """
    try:
        if each.assignment is not None:
            replace_file(place / "inbox" / "assignment.json", each.assignment.encode())
        for name in each.remove:
            (place / "outbox" / check_file_name(name)).unlink(missing_ok=True)
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def check_file_name(name: str) -> str:
    """Return a name that stays within its folder."""
    if "/" in name or name in ("", ".", ".."):
        raise CommandFailed(f"{name!r} is not a file name")
    return name


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old content or all of the new, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f"{path.name}.{os.getpid()}{PART}")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_new_heartbeat(path: Path, seen: str) -> dict[str, Any]:
    """Return the heartbeat's stamp, and its text if the stamp is new, or why it cannot be read."""
    try:
        found = path.stat()
        stamp = f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"
        if stamp == seen:
            return {"stamp": stamp}
        if not stat.S_ISREG(found.st_mode):
            return {"stamp": stamp, "unreadable": f"{path} is not a file"}
        if found.st_size > MOST_HEARTBEAT:
            return {"stamp": stamp, "unreadable": f"it holds {found.st_size:,} bytes"}
        return {"stamp": stamp, "heartbeat": path.read_bytes()[: MOST_HEARTBEAT + 1].decode("utf-8", "replace")}
    except FileNotFoundError:
        return {"stamp": ""}
    except OSError as error:
        return {"stamp": "", "unreadable": f"{type(error).__name__}: {error}"}


def is_process_running(place: Path) -> bool | None:
    """Return whether the recorded process runs, or may run on another machine; None without a record."""
    if not read_record(place):
        return None
    return (find_running(place) or find_process_elsewhere(place)) is not None


def list_complete_files(folder: Path) -> list[tuple[str, int]]:
    """Return name and size of the complete files of a folder: the oldest games, and before them all others."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # deleted in this moment
                if entry.is_file(follow_symlinks=False) and entry.name.isprintable() and not entry.name.endswith(PART):
                    found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
    return sorted(found, key=lambda each: (each[0].endswith(GAMES), each[0]))[:MOST_NAMES]


def read_files(
    outbox: Path, entries: list[tuple[str, int]], each: FolderRequest, games: re.Pattern[str], left: int
) -> tuple[list[tuple[str, int]], list[str], bytes]:
    """Return name and size of the files that are sent, names of those that cannot be read, and the content."""
    have, want = set(each.have), set(each.want)
    files: list[tuple[str, int]] = []
    unread, data = [], b""
    for name, size in entries:
        if not (name in want or (games.fullmatch(name) and name not in have)) or size > left - len(data):
            continue
        try:
            content = (outbox / name).read_bytes()
        except OSError:
            unread.append(name)
            continue
        if len(content) <= left - len(data):
            files.append((name, len(content)))
            data += content
    return files, unread, data


def link_file(request: LinkRequest) -> Linked:
    """Hard-link a file into the inbox of a worker."""
    place = Path(request.place)
    with hold_lock(owner_lock_path(place), POLL_LOCK_SECONDS):
        check_owner(place, request.coach)
        target = place / "inbox" / check_file_name(request.target)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            target.unlink(missing_ok=True)
            os.link(request.source, target)
        except OSError:
            return Linked(False)
    return Linked(True)
