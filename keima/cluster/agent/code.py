"""The code on a worker's machine: its files, its hash, and the releases that bootstrap puts there.

Like all of ``distributed/remote``, it runs on a worker's machine before anything is installed: standard library only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

from keima.cluster.agent.process import CommandFailed, elsewhere, locked, running

FOLDERS = ("keima",)  # of code that a worker runs
SUFFIXES = (".py", ".npz")
FILES = ("start_worker.py", "requirements.txt", "requirements-openspiel.txt", "scripts/setup.sh")
COMPLETE_MARK = ".whole"  # marks a complete release
RELEASES = "releases"
KEEP_RELEASES = 2
LOCK_SECONDS = 4.0
MOST_UNPACKED = 256 * 2**20  # bytes


def code_files(root: Path, extra: str = "") -> list[str]:
    """Return the files that a worker runs, relative to ``root``, sorted; ``extra`` is a module or package of the
    user's.
    """
    found = [path for folder in FOLDERS for path in (root / folder).rglob("*")]
    if extra:
        found += [root / f"{extra}.py", *(root / extra).rglob("*")]
    names = [path.relative_to(root) for path in found if path.suffix in SUFFIXES and path.is_file()]
    shown = {name.as_posix() for name in names if not any(part.startswith((".", "__pycache__")) for part in name.parts)}
    return sorted(shown | {name for name in FILES if (root / name).is_file()})


def code_hash(root: Path, extra: str = "") -> str:
    """Return the hash of the ``code_files``; empty if there is no code."""
    names = code_files(root, extra)
    if "start_worker.py" not in names:
        return ""
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{hashlib.sha256((root / name).read_bytes()).hexdigest()} {name}\n".encode())
    return digest.hexdigest()[:16]


def unpack_release(request: dict[str, Any]) -> dict[str, Any]:
    """Create the release ``hash`` from ``archive``, and delete releases that no worker needs."""
    archive, name, extra = Path(request["archive"]), request["hash"], request["extra"]
    releases = Path(RELEASES)
    releases.mkdir(exist_ok=True, mode=0o700)
    target, part, old = releases / name, releases / f"{name}.part", releases / f"{name}.old.part"
    with locked(releases / ".lock", LOCK_SECONDS):
        for left in releases.glob("*.part"):
            shutil.rmtree(left, ignore_errors=True)
        already = (target / COMPLETE_MARK).exists() and code_hash(target, extra) == name
        if not already:
            extract(archive, part)
            found = code_hash(part, extra)
            if found != name:
                raise CommandFailed(f"the code that arrived has the hash {found or 'of no code'} instead of {name}")
            (part / COMPLETE_MARK).touch()
            os.sync()
            if target.exists():  # changed by hand
                target.rename(old)
            part.rename(target)
            shutil.rmtree(old, ignore_errors=True)
        archive.unlink()
        forget_releases(releases, keep=target)
    return {"already": already}


def unpack_cache(request: dict[str, Any]) -> dict[str, Any]:
    """Add compiled code from ``archive`` to ``folder``; existing files are the machine's own and stay."""
    archive, folder = Path(request["archive"]), Path(request["folder"]).expanduser()
    part = folder / f"{archive.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True, mode=0o700)
    try:
        extract(archive, part)
        new = [each for each in sorted(part.iterdir()) if not (folder / each.name).exists()]
        for each in new:
            each.rename(folder / each.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        archive.unlink()
    return {"new": len(new)}


def extract(archive: Path, folder: Path) -> None:
    """Unpack regular files, none of them outside ``folder``."""
    left = MOST_UNPACKED
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = Path(member.name)
            if not member.isreg() or name.is_absolute() or ".." in name.parts:
                raise CommandFailed(f"{archive} holds {member.name!r}, which does not belong into a release")
            left -= member.size
            source = tar.extractfile(member)
            if left < 0 or source is None:
                raise CommandFailed(f"{archive} is larger than a release can be")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(source.read())


def forget_releases(releases: Path, *, keep: Path) -> None:
    """Delete all releases but the newest, ``keep``, and those that a worker runs, or may run on a machine that
    shares them.
    """
    whole = sorted(releases.glob(f"*/{COMPLETE_MARK}"), key=lambda path: path.stat().st_mtime, reverse=True)
    records = [running(place) or elsewhere(place) for place in Path("workers").glob("*")]
    used = " ".join(argument for record in records if record for argument in record["argv"])
    others = [path.parent for path in whole if path.parent != keep]
    for folder in others[KEEP_RELEASES - 1 :]:
        if folder.name not in used:
            shutil.rmtree(folder, ignore_errors=True)
