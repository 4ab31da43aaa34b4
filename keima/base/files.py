"""Atomic writes and bounded reads.

A reader never sees half a file, and a finished file survives a power cut: write a temporary file, sync it, rename it,
sync the folder.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

PART = ".part"


class FileTooLarge(ValueError):
    """A file is larger than its kind allows."""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Write ``data`` to ``path`` atomically: a reader sees either the old file or the whole new one.

    Only one writer per path at a time. Temporary files of killed writers are replaced.

    Args:
        path: the file.
        data: its content.
        mode: its permissions.
        durable: sync it, so that it is on the disk when this returns; without, a power cut may leave any part of it.

    Raises:
        OSError: the disk is full, or the folder is missing or not writable. ``path`` is then unchanged, except that an
            existing file may be the new one if only the folder could not be synced.
    """
    new = not path.exists()
    part = path.with_name(path.name + PART)
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if durable:
        try:
            sync_folder(path.parent)
        except OSError:
            if new:  # the caller counts it as not written, and would write its games again
                path.unlink(missing_ok=True)
            raise


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write new files durably, as ``write_atomically`` does, but with one sync of each folder for all of them.

    Raises:
        OSError: one could not be written; then any of them may exist.
    """
    parts = {path: path.with_name(path.name + PART) for path in files}
    written: list[BinaryIO] = []
    try:
        for path, part in parts.items():
            part.unlink(missing_ok=True)
            written.append(os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"))
            written[-1].write(files[path])
            written[-1].flush()
        for file in written:  # only now: the first sync writes most of what the others wait for
            os.fsync(file.fileno())
        for path, part in parts.items():
            part.replace(path)
    finally:
        for file in written:
            file.close()
        for part in parts.values():
            part.unlink(missing_ok=True)
    for folder in {path.parent for path in files}:
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Sync ``folder``, so that renames and removals in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_limited(path: Path, limit: int) -> bytes:
    """Return the content of ``path``; never reads more than ``limit`` + 1 bytes.

    Raises:
        FileTooLarge: the file holds more than ``limit`` bytes.
        OSError: the file is missing or unreadable.
    """
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise FileTooLarge(f"{path} holds more than the {limit:,} bytes allowed for it")
    return data


def remove_stale_parts(folder: Path) -> list[Path]:
    """Remove the temporary files of killed writers from ``folder``; no writer may be at work there.

    Returns:
        The files removed, sorted.
    """
    stale = sorted(path for path in folder.glob(f"*{PART}") if path.is_file() or path.is_symlink())
    for path in stale:
        path.unlink(missing_ok=True)
    return stale


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of ``data`` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
