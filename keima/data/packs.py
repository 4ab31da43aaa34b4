"""Older batches of a run, many in one file: weeks of games would be a hundred thousand files otherwise.

A pack is a zip file without compression, ``games/000000001-000000500.zip``, named after the sequence numbers in the
ledger that it covers. It holds the files as they were received, so ``unzip`` restores them. The ledger does not change.
A pack is on the disk before the single files are removed: a kill at any moment loses nothing.
"""

import functools
import itertools
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from keima.base.files import PART, FileTooLarge, read_limited, sha256_hex, sync_folder
from keima.data.batch_file import MAX_BATCH_BYTES, SUFFIX
from keima.data.ledger import Ledger
from keima.data.ledger_rows import BatchRow
from keima.data.records import CorruptBatch

PACKED = 500  # batches in a pack
LOOSE = 250  # that always stay files of their own
MOST_BYTES = 2**29  # in a pack
PACK = re.compile(r"(\d{9,})-(\d{9,})\.zip")


def games_path(folder: Path, batch_id: str) -> Path:
    """Return the file of a received batch of the run in ``folder``, as long as it is in no pack."""
    return folder / "games" / f"{batch_id}{SUFFIX}"


def is_pack(path: Path) -> bool:
    """Return whether a file has the name of a pack."""
    return PACK.fullmatch(path.name) is not None


def list_packs(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the packs of the run in ``folder``, each with its first and last sequence number."""
    games = folder / "games"
    return _list_packs_at(games, games.stat().st_mtime_ns) if games.is_dir() else {}


@functools.lru_cache(maxsize=8)
def _list_packs_at(games: Path, changed: int) -> dict[Path, tuple[int, int]]:
    """Return the packs in a folder, as they are since it was ``changed`` last."""
    found = {path: PACK.fullmatch(path.name) for path in sorted(games.glob("*.zip"))}
    return {path: (int(match[1]), int(match[2])) for path, match in found.items() if match}


def read_batch_file(folder: Path, row: BatchRow) -> bytes:
    """Return the content of the file of a received batch, wherever it is.

    Raises:
        CorruptBatch: its pack is damaged.
        FileTooLarge: it is larger than a batch can be.
        OSError: it is missing or unreadable.
    """
    path = games_path(folder, row.id)
    try:
        return read_limited(path, MAX_BATCH_BYTES)
    except FileNotFoundError:
        pack = _find_pack(folder, row)
        if pack is None or path.name not in _open_pack(pack).NameToInfo:
            raise
        return _read_packed(pack, path.name)


def _find_pack(folder: Path, row: BatchRow) -> Path | None:
    """Return the pack that covers a batch, whether or not it holds it."""
    return next((pack for pack, (first, last) in list_packs(folder).items() if first <= row.sequence <= last), None)


def list_packed(pack: Path) -> Sequence[str]:
    """Return the names of the files in a pack.

    Raises:
        CorruptBatch: the pack is damaged.
        OSError: it cannot be read.
    """
    return _open_pack(pack).namelist()


def read_pack(pack: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files in a pack with their names.

    Raises:
        CorruptBatch, FileTooLarge, OSError: as ``read_batch_file``.
    """
    for name in list_packed(pack):
        yield name, _read_packed(pack, name)


@functools.lru_cache(maxsize=2)
def _open_pack(pack: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(pack)
    except zipfile.BadZipFile as error:
        raise CorruptBatch(f"{pack} is damaged: {error}") from None


def _read_packed(pack: Path, name: str) -> bytes:
    archive = _open_pack(pack)
    if archive.getinfo(name).file_size > MAX_BATCH_BYTES:
        raise FileTooLarge(f"{pack} holds a {name} that is larger than a batch can be")
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise CorruptBatch(f"{name} in {pack} is damaged: {error}") from None


def pack_old_batches(ledger: Ledger) -> Path | None:
    """Put the oldest batches into a pack, if there are enough; return it.

    Files that are damaged or missing are left as they are, for the audit to name.

    Raises:
        OSError: the pack cannot be written; nothing was removed.
    """
    folder = ledger.folder / "games"
    loose = {entry.name for entry in os.scandir(folder) if entry.name.endswith(SUFFIX)} if folder.is_dir() else set()
    if len(loose) < PACKED + LOOSE:
        return None
    packed = max((last for _, last in list_packs(ledger.folder).values()), default=0)
    rows = ledger.received_batches(after=packed)
    recent = {f"{row.id}{SUFFIX}" for row in rows}
    _remove_packed_files(ledger, sorted(loose - recent))
    rows = rows[:-LOOSE][:PACKED]
    if len(rows) < PACKED:
        return None
    sizes = itertools.accumulate(row.bytes for row in rows)
    rows = [row for row, size in zip(rows, sizes, strict=True) if size <= MOST_BYTES] or rows[:1]
    path = folder / f"{rows[0].sequence:09}-{rows[-1].sequence:09}.zip"
    part = path.with_name(path.name + PART)
    try:
        held = _write_pack(part, ledger.folder, [row for row in rows if f"{row.id}{SUFFIX}" in loose])
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    for row in held:
        games_path(ledger.folder, row.id).unlink(missing_ok=True)
    return path


def _write_pack(part: Path, folder: Path, rows: Sequence[BatchRow]) -> list[BatchRow]:
    """Write a pack with the intact files of these batches; return the batches in it."""
    held = list[BatchRow]()
    with part.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        with zipfile.ZipFile(file, "w") as archive:
            for row in rows:
                path = games_path(folder, row.id)
                try:
                    data = read_limited(path, MAX_BATCH_BYTES)
                except (FileNotFoundError, FileTooLarge):
                    continue
                if sha256_hex(data) == row.sha256:
                    archive.writestr(zipfile.ZipInfo.from_file(path, path.name, strict_timestamps=False), data)
                    held.append(row)
        file.flush()
        os.fsync(file.fileno())
    return held


def _remove_packed_files(ledger: Ledger, names: Sequence[str]) -> None:
    """Remove files that a pack has too, since a kill came between its writing and their removal."""
    for name in names:
        row = ledger.batch(name.removesuffix(SUFFIX))
        if row is None or (pack := _find_pack(ledger.folder, row)) is None:
            continue
        with suppress(CorruptBatch, FileTooLarge):
            if name in list_packed(pack) and sha256_hex(_read_packed(pack, name)) == row.sha256:
                games_path(ledger.folder, row.id).unlink(missing_ok=True)
