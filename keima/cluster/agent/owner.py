"""The owner of a worker's folder: its record, and what happens when a folder passes from one run to another.

The record is a file in the folder's outbox, ``<coach>.owner``. It appears whole, and a listing of the outbox shows the
owner. Its lease is the token in the folder's assignment, which the owner changes at every contact. A Coach that wants
the folder watches by its own clock whether the token changes. All changes of an owner are made under a lock beside the
folder.

Like all of this folder, it runs on a worker's machine before anything is installed: standard library only.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keima.cluster.agent.commands import (
    Done,
    GiveWayRequest,
    Owned,
    Owner,
    OwnRequest,
    Started,
    StartRequest,
    Stopped,
    StopRequest,
    to_json,
)
from keima.cluster.agent.process import (
    LOCK_SECONDS,
    CommandFailed,
    find_process_elsewhere,
    find_running,
    hold_lock,
    start_detached,
    stop_process_group,
)

OWNER = ".owner"  # the suffix of a record
GAMES_SUFFIX = ".games"
LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of a run, in the name of a folder
UNKNOWN_RUN = "unknown"  # the run of games that do not name one
KEPT = ("outbox", "launch.lock")  # in a folder that passes to another run
TOKEN_CHARACTERS = 100  # characters


def enter_owner(request: OwnRequest) -> Owned:
    """Enter ``owner`` as the owner of the folder ``place`` if that is allowed; return the present owner otherwise.

    It is allowed if the folder has no owner, is already owned by it, belongs to its own run (``fresh``: it has not
    owned the folder before), or still has the owner and lease of ``expired``; and always with ``force``.
    """
    place, mine = Path(request.place), Owner(**request.owner)
    (place / "outbox").mkdir(parents=True, exist_ok=True, mode=0o700)
    with hold_lock(owner_lock_path(place), LOCK_SECONDS):
        found, token = read_owner(place), read_lease_token(place)
        if found and found.coach != mine.coach:
            same_run = request.fresh and found.run_id == mine.run_id
            expired = request.expired == {"coach": found.coach, "token": token}
            if not (same_run or expired or request.force):
                return Owned(mine=False, owner=found, token=token, contents="", unsorted=False)
        others = [path for path in (place / "outbox").glob(f"*{OWNER}") if path.stem != mine.coach]
        contents = read_contents_label(place) or (
            found.label if found else UNKNOWN_RUN if any((place / "outbox").glob(f"*{GAMES_SUFFIX}")) else ""
        )
        write_owner(place, mine)
        for path in others:
            path.unlink()
    aside = any(set_aside_folders(place, label) for label in request.labels)
    strays = any(find_games_of_others(place / "outbox", contents, request.labels, re.compile(request.tagged)))
    return Owned(mine=True, owner=found, token=token, contents=contents, unsorted=aside or strays)


def set_aside_other_runs(request: GiveWayRequest) -> Done:
    """Move what is not of the run with these ``labels`` out of the folder ``place``, and bring back what is.

    No worker of another run may be running there. Games go to ``<place>.<label of their run>``, where that run finds
    them when it comes back. ``tagged`` finds the run in a batch's name; batches without one are of the run
    ``contents``.
    """
    place, labels = Path(request.place), request.labels
    with hold_lock(owner_lock_path(place), LOCK_SECONDS):
        check_owner(place, request.coach)
        contents = read_contents_label(place) or request.contents or labels[0]
        set_aside_games(place / "outbox", place, contents, labels, re.compile(request.tagged))
        if contents not in labels:
            for path in (place / "outbox").iterdir():
                if path.suffix not in (GAMES_SUFFIX, OWNER):
                    path.unlink()
            for path in place.iterdir():
                if path.name not in KEPT:
                    delete_path(path)
        restore_games(place, labels)
    return Done()


def start_owned_worker(request: StartRequest) -> Started:
    """Do as ``start_detached`` for the Coach ``coach``, which must own the folder; without one, for any caller."""
    place = Path(request.place)
    if not request.coach:
        return start_detached(request)
    with hold_lock(owner_lock_path(place), LOCK_SECONDS):
        check_owner(place, request.coach)
        return start_detached(request)


def stop_owned_worker(request: StopRequest) -> Stopped:
    """Do as ``stop_process_group``, likewise."""
    check_owner(Path(request.place), request.coach)
    return stop_process_group(request)


def set_aside_games(outbox: Path, place: Path, contents: str, labels: Sequence[str], tagged: re.Pattern[str]) -> None:
    """Set the games of other runs aside, in a folder for each run."""
    for path, whose in list(find_games_of_others(outbox, contents, labels, tagged)):
        folder = place.with_name(f"{place.name}.{whose}") / "outbox"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.rename(folder / path.name)


def find_games_of_others(
    outbox: Path, contents: str, labels: Sequence[str], tagged: re.Pattern[str]
) -> Iterator[tuple[Path, str]]:
    """Yield the games of other runs with the label of each; those without a label are of the run ``contents``."""
    for path in sorted(outbox.glob(f"*{GAMES_SUFFIX}")):
        match = tagged.search(path.name)
        whose = match[1] if match else contents or labels[0]
        if whose not in labels:
            yield path, whose


def restore_games(place: Path, labels: Sequence[str]) -> None:
    """Bring back the games that were set aside."""
    for label in labels:
        for folder in list(set_aside_folders(place, label)):
            for path in sorted((folder / "outbox").glob(f"*{GAMES_SUFFIX}")):
                path.rename(place / "outbox" / path.name)
            delete_path(folder)


def set_aside_folders(place: Path, label: str) -> list[Path]:
    """Return the folders with this run's games; earlier versions added a number if there was one already."""
    found = [place.with_name(f"{place.name}.{label}"), *place.parent.glob(f"{place.name}.{label}.[0-9]*")]
    return [path for path in found if path.is_dir()]


def check_owner(place: Path, coach: str) -> None:
    """Check that the folder belongs to this Coach; an owner without a name does not count.

    Raises:
        Failed: it belongs to another Coach.
    """
    found = read_owner(place) if coach else None
    if found and found.coach not in ("", coach):
        raise CommandFailed(f"{place} is of run {found.run_id} of {found.host}", "owner")


def read_owner(place: Path) -> Owner | None:
    """Return the owner of a folder.

    An owner of an earlier version has no record: it is known by its assignment, if its worker runs.
    """
    for path in sorted((place / "outbox").glob(f"*{OWNER}")):
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(path.read_text())
            if isinstance(found, dict) and all(isinstance(found.get(key), str) for key in ("run_id", "host", "label")):
                known = {name: found[name] for name in Owner.__dataclass_fields__ if name in found}
                return Owner(**{**known, "coach": path.stem})
    said = read_last_assignment(place)
    if said and not said.get("stop") and (find_running(place) or find_process_elsewhere(place)):
        seconds = said.get("lease_seconds")
        patience = float(seconds) if isinstance(seconds, (int, float)) else 0.0
        return Owner(str(said.get("run_id")), read_contents_label(place), host="", lease_seconds=patience)
    return None


def write_owner(place: Path, owner: Owner) -> None:
    """Write the record atomically."""
    path = place / "outbox" / f"{owner.coach}{OWNER}"
    part = path.with_name(f"{path.name}.part")
    part.write_text(to_json(owner))
    part.replace(path)


def read_contents_label(place: Path) -> str:
    """Return the label of the run whose files fill the folder; empty if nothing there needs care."""
    said = read_last_assignment(place)
    if said is None:
        return UNKNOWN_RUN if (place / "inbox" / "assignment.json").exists() else ""
    run = said.get("run_id")
    return run if isinstance(run, str) and LABEL.fullmatch(run) else UNKNOWN_RUN


def read_lease_token(place: Path) -> str:
    """Return the lease, which changes as long as it is renewed."""
    return str((read_last_assignment(place) or {}).get("lease", ""))[:TOKEN_CHARACTERS]


def read_last_assignment(place: Path) -> dict[str, Any] | None:
    """Return the last assignment of the folder's worker, if it can be read."""
    try:
        found = json.loads((place / "inbox" / "assignment.json").read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def owner_lock_path(place: Path) -> Path:
    """Return the lock for changes of a folder's owner; it is beside the folder, which may come and go."""
    return place.with_name(f".{place.name}.lock")


def delete_path(path: Path) -> None:
    """Delete a file or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
