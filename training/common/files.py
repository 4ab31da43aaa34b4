"""Files that appear whole or not at all, and are never read past a limit.

A reader must never see half a file, and a finished file must survive a power cut: write beside it, sync, rename, sync
the folder.
"""

import hashlib
import os
from pathlib import Path

PART = ".part"


class FileTooLarge(ValueError):
    """A file holds more bytes than its kind may."""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Put ``data`` at ``path``: a reader sees what was there before or all of the new file.

    When this returns, it is on the disk.

    One writer per path at a time; what a killed one left behind is replaced, never followed or reused.

    Args:
        path: where it appears.
        data: all of it.
        mode: who may read it.
        durable: whether it is synced, which takes long; else a power cut may leave anything of it.

    Raises:
        OSError: the disk is full, the folder is missing or not writable; ``path`` is then as it was. Only where there
        was a file before
            and the folder alone cannot be synced, it may be the new one.
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
            if new:  # else a batch of games that counts as not handed over would be there, and once more with the games that follow
                path.unlink(missing_ok=True)
            raise


def sync_folder(folder: Path) -> None:
    """Make renames and removals in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_limited(path: Path, limit: int) -> bytes:
    """The content of ``path``, of which never more than ``limit`` + 1 bytes are read.

    Raises:
        FileTooLarge: it holds more than ``limit`` bytes.
        OSError: it is missing or unreadable.
    """
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise FileTooLarge(f"{path} holds more than the {limit:,} bytes allowed for it")
    return data


def remove_stale_parts(folder: Path) -> list[Path]:
    """Remove what killed writers left in ``folder``; call it only where no writer is at work.

    Returns:
        The files removed, sorted.
    """
    stale = sorted(path for path in folder.glob(f"*{PART}") if path.is_file() or path.is_symlink())
    for path in stale:
        path.unlink(missing_ok=True)
    return stale


def sha256_hex(data: bytes) -> str:
    """The SHA-256 of ``data`` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
