"""The code on a worker's machine: its files, its hash, and the releases that bootstrap puts there.

Like all of this folder, it runs on a worker's machine before anything is installed: standard library only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from keima.cluster.agent.commands import Done, UnpackCacheRequest, UnpackRequest
from keima.cluster.agent.process import CommandFailed, find_process_elsewhere, find_running, hold_lock

# What a worker runs. A change of anything else leaves its releases as they are.
ROOMS = (
    "base",
    "cluster/agent",
    "cluster/ssh",
    "compilation",
    "config",
    "data",
    "evaluation",
    "games",
    "networks",
    "search",
    "self_play",
    "worker",
)
MODULES = (
    "__init__",
    "__main__",
    "paths",
    "cli/__init__",
    "cli/main",
    "cli/worker",
    "cluster/__init__",
    "cluster/ray/__init__",
    "cluster/ray/slot",
)
PROGRAM = "keima/__main__.py"  # ``PROGRAM worker`` plays
SUFFIXES = (".py", ".npz", ".sh")
NO_CODE = ("__pycache__", "templates")  # folders of these names
COMPLETE_MARK = ".whole"  # marks a complete release
RELEASES = "releases"
KEEP_RELEASES = 2
LOCK_SECONDS = 4.0
MOST_UNPACKED = 256 * 2**20  # bytes


def code_files(root: Path, extra: str = "", own: Path | None = None) -> list[tuple[str, Path]]:
    """Return the files that a worker runs: their names in a release, sorted, and where they are.

    Args:
        root: the folder of the package, such as a checkout or a release.
        extra: a module or package of the user's.
        own: the folder that it is in; by default ``root``.
    """
    package = root / "keima"
    found = [path for room in ROOMS for path in (package / room).rglob("*")]
    found += [package / f"{module}.py" for module in MODULES]
    files = dict(_named_code_files(found, root))
    if extra:
        own = own or root
        files.update(_named_code_files([own / f"{extra}.py", *(own / extra).rglob("*")], own))
    return sorted(files.items())


def _named_code_files(paths: list[Path], root: Path) -> Iterator[tuple[str, Path]]:
    """Yield code among files, each with its name relative to ``root``."""
    for path in paths:
        parts = path.relative_to(root).parts
        if path.suffix in SUFFIXES and path.is_file() and not any(part in NO_CODE or part[0] == "." for part in parts):
            yield "/".join(parts), path


def code_hash(root: Path, extra: str = "", own: Path | None = None) -> str:
    """Return the hash of the ``code_files``; empty if there is no code."""
    files = code_files(root, extra, own)
    if PROGRAM not in dict(files):
        return ""
    digest = hashlib.sha256()
    for name, path in files:
        digest.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()} {name}\n".encode())
    return digest.hexdigest()[:16]


def unpack_release(request: UnpackRequest) -> Done:
    """Create a release from its wheel, and delete releases that no worker needs."""
    archive, name, extra = Path(request.archive), request.hash, request.extra
    releases = Path(RELEASES)
    releases.mkdir(exist_ok=True, mode=0o700)
    target, part, old = releases / name, releases / f"{name}.part", releases / f"{name}.old.part"
    with hold_lock(releases / ".lock", LOCK_SECONDS):
        for left in releases.glob("*.part"):
            shutil.rmtree(left, ignore_errors=True)
        if not (target / COMPLETE_MARK).exists() or code_hash(target, extra) != name:
            extract_wheel(archive, part)
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
        delete_old_releases(releases, keep=target)
    return Done()


def unpack_cache(request: UnpackCacheRequest) -> Done:
    """Add compiled code to a folder; existing files are the machine's own and stay."""
    archive, folder = Path(request.archive), Path(request.folder).expanduser()
    part = folder / f"{archive.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True, mode=0o700)
    try:
        extract_archive(archive, part)
        for each in sorted(part.iterdir()):
            if not (folder / each.name).exists():
                each.rename(folder / each.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        archive.unlink()
    return Done()


def extract_wheel(archive: Path, folder: Path, *, most: int = MOST_UNPACKED) -> None:
    """Unpack a wheel's files of at most so many bytes, none of them outside ``folder``."""
    with zipfile.ZipFile(archive) as wheel:
        if sum(member.file_size for member in wheel.infolist()) > most:
            raise CommandFailed(f"{archive} is larger than a release can be")
        for member in wheel.infolist():
            name = Path(member.filename)
            if member.is_dir() or name.is_absolute() or ".." in name.parts:
                raise CommandFailed(f"{archive} holds {member.filename!r}, which does not belong in a release")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(wheel.read(member))


def extract_archive(archive: Path, folder: Path) -> None:
    """Unpack regular files, none of them outside ``folder``."""
    left = MOST_UNPACKED
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = Path(member.name)
            if not member.isreg() or name.is_absolute() or ".." in name.parts:
                raise CommandFailed(f"{archive} holds {member.name!r}, which does not belong in a release")
            left -= member.size
            source = tar.extractfile(member)
            if left < 0 or source is None:
                raise CommandFailed(f"{archive} is larger than a release can be")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(source.read())


def delete_old_releases(releases: Path, *, keep: Path) -> None:
    """Delete all releases but the newest, ``keep``, and those that a worker runs, or may run on a machine that
    shares them.
    """
    whole = sorted(releases.glob(f"*/{COMPLETE_MARK}"), key=lambda path: path.stat().st_mtime, reverse=True)
    records = [find_running(place) or find_process_elsewhere(place) for place in Path("workers").glob("*")]
    used = " ".join(argument for record in records if record for argument in record["argv"])
    others = [path.parent for path in whole if path.parent != keep]
    for folder in others[KEEP_RELEASES - 1 :]:
        if folder.name not in used:
            shutil.rmtree(folder, ignore_errors=True)
