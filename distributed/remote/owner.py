"""Whose a worker's folder is: the record of it, and what is done when a folder goes from one run to another.

The record is a file of the folder's outbox, ``<coach>.owner``: it appears whole, and whoever lists the outbox sees at
once whose it is. Its lease is the token in the folder's assignment, which the owner changes at every contact. Whether a
token has stood still for too long is seen by who wants the folder, by its own clock. All that changes an owner is done
under a lock beside the folder.

Like all of ``distributed/remote*.py`` it runs on a worker's machine too, before anything is installed: standard library
only.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributed.remote.process import LOCK_SECONDS, Failed, elsewhere, locked, running, start, stop

OWNER = ".owner"  # the suffix of a record
GAMES = ".games"
LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")  # a run's, in the name of a folder
STRANGER = "unknown"  # the run of games that do not say
KEPT = ("outbox", "launch.lock")  # of a folder that goes to another run
TOKEN = 100  # characters


def own(request: dict[str, Any]) -> dict[str, Any]:
    """Enter ``owner`` as the owner of the folder ``place``, if it may be that; else say who is.

    It may: where nobody is, where it is already, where its own run is (``fresh``: it has not owned the folder before),
    where the owner and its lease are still those of ``expired``, and always with ``force``.
    """
    place, mine = Path(request["place"]), request["owner"]
    (place / "outbox").mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(lock_of(place), LOCK_SECONDS):
        found, token = owner_of(place), token_of(place)
        if found and found["coach"] != mine["coach"]:
            same_run = request["fresh"] and found["run_id"] == mine["run_id"]
            expired = request["expired"] == {"coach": found["coach"], "token": token}
            if not (same_run or expired or request["force"]):
                return {"mine": False, "owner": found, "token": token, "contents": "", "unsorted": False}
        others = [path for path in (place / "outbox").glob(f"*{OWNER}") if path.stem != mine["coach"]]
        contents = contents_of(place) or (
            found["label"] if found else STRANGER if any((place / "outbox").glob(f"*{GAMES}")) else ""
        )
        write_owner(place, mine)
        for path in others:
            path.unlink()
    aside = any(set_aside_of(place, label) for label in request["labels"])
    strays = any(games_of_others(place / "outbox", contents, request["labels"], re.compile(request["tagged"])))
    return {"mine": True, "owner": found, "token": token, "contents": contents, "unsorted": aside or strays}


def give_way(request: dict[str, Any]) -> dict[str, Any]:
    """Empty the folder ``place`` of what is not of the run with these ``labels``; bring back what is.

    No other run's worker runs there.

    Games go to ``<place>.<label of their run>``, where that run finds them when it comes back. ``tagged`` finds the run
    in a batch's name, and those that do not say are of the run ``contents``.
    """
    place, labels, coach = Path(request["place"]), request["labels"], request["coach"]
    with locked(lock_of(place), LOCK_SECONDS):
        check_owner(place, coach)
        contents = contents_of(place) or request["contents"] or labels[0]
        moved = move_games(place / "outbox", place, contents, labels, re.compile(request["tagged"]))
        if contents not in labels:
            for path in (place / "outbox").iterdir():
                if path.suffix not in (GAMES, OWNER):
                    path.unlink()
            for path in place.iterdir():
                if path.name not in KEPT:
                    remove(path)
        returned = bring_back(place, labels)
    return {"moved": moved, "returned": returned}


def start_owned(request: dict[str, Any]) -> dict[str, Any]:
    """As ``start``, for the Coach ``coach`` that has entered itself; without one, for whoever asks."""
    coach, place = request.get("coach", ""), Path(request["place"])
    if not coach:
        return start(request)
    with locked(lock_of(place), LOCK_SECONDS):
        check_owner(place, coach)
        return start(request)


def stop_owned(request: dict[str, Any]) -> dict[str, Any]:
    """As ``stop``, likewise."""
    check_owner(Path(request["place"]), request.get("coach", ""))
    return stop(request)


def move_games(outbox: Path, place: Path, contents: str, labels: list[str], tagged: re.Pattern[str]) -> int:
    """Put the games of other runs aside, each to its run's; returns how many."""
    found = list(games_of_others(outbox, contents, labels, tagged))
    for path, whose in found:
        folder = place.with_name(f"{place.name}.{whose}") / "outbox"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.rename(folder / path.name)
    return len(found)


def games_of_others(
    outbox: Path, contents: str, labels: list[str], tagged: re.Pattern[str]
) -> Iterator[tuple[Path, str]]:
    """The games of other runs, and the label of each one's; those that do not say are of the run ``contents``."""
    for path in sorted(outbox.glob(f"*{GAMES}")):
        match = tagged.search(path.name)
        whose = match[1] if match else contents or labels[0]
        if whose not in labels:
            yield path, whose


def bring_back(place: Path, labels: list[str]) -> int:
    """Bring the games back that were set aside."""
    returned = 0
    for label in labels:
        for folder in list(set_aside_of(place, label)):
            for path in sorted((folder / "outbox").glob(f"*{GAMES}")):
                path.rename(place / "outbox" / path.name)
                returned += 1
            remove(folder)
    return returned


def set_aside_of(place: Path, label: str) -> list[Path]:
    """The folders in which games of this run were set aside; earlier versions added a number where there was one
    already.
    """
    found = [place.with_name(f"{place.name}.{label}"), *place.parent.glob(f"{place.name}.{label}.[0-9]*")]
    return [path for path in found if path.is_dir()]


def check_owner(place: Path, coach: str) -> None:
    """Go on only if the folder is this Coach's; one that names none is not held up.

    Raises:
        Failed: it is another's.
    """
    found = owner_of(place) if coach else None
    if found and found["coach"] not in ("", coach):
        raise Failed(f"{place} is of run {found['run_id']} of {found['host']}", "owner")


def owner_of(place: Path) -> dict[str, Any] | None:
    """Who owns a folder.

    One of an earlier version leaves no record: it is known by its assignment, if its worker runs.
    """
    for path in sorted((place / "outbox").glob(f"*{OWNER}")):
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(path.read_text())
            if isinstance(found, dict) and all(isinstance(found.get(key), str) for key in ("run_id", "host", "label")):
                return dict(found, coach=path.stem)
    said = assignment_of(place)
    if said and not said.get("stop") and (running(place) or elsewhere(place)):
        seconds = said.get("lease_seconds")
        patience = float(seconds) if isinstance(seconds, (int, float)) else 0.0
        return {
            "run_id": str(said.get("run_id")),
            "label": contents_of(place),
            "host": "",
            "coach": "",
            "lease_seconds": patience,
        }
    return None


def write_owner(place: Path, owner: dict[str, Any]) -> None:
    """Leave the record, whole."""
    path = place / "outbox" / f"{owner['coach']}{OWNER}"
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(owner))
    part.replace(path)


def contents_of(place: Path) -> str:
    """The label of the run of which the folder is full; empty when nothing there needs care."""
    said = assignment_of(place)
    if said is None:
        return STRANGER if (place / "inbox" / "assignment.json").exists() else ""
    run = said.get("run_id")
    return run if isinstance(run, str) and LABEL.fullmatch(run) else STRANGER


def token_of(place: Path) -> str:
    """The lease, which changes as long as somebody renews it."""
    return str((assignment_of(place) or {}).get("lease", ""))[:TOKEN]


def assignment_of(place: Path) -> dict[str, Any] | None:
    """What the folder's worker was told last, if that can be read."""
    try:
        found = json.loads((place / "inbox" / "assignment.json").read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def lock_of(place: Path) -> Path:
    """The lock under which a folder's owner changes; it is beside the folder, which may come and go."""
    return place.with_name(f".{place.name}.lock")


def remove(path: Path) -> None:
    """Remove a file or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
