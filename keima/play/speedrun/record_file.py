"""What proves a record: the files that ``keima verify`` reads, out of a run's folder or a single file.

Both come from strangers. Only files with names that such a run has are taken, so no code comes along, and the ledger
must have the tables of a ledger and nothing else. The single file is a zip file without compression: it is never larger
than it looks.
"""

import re
import shutil
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from keima.base.files import PART
from keima.base.run_folder import LEDGER_NAME, RECORD_NAME
from keima.data.ledger_rows import TABLES
from keima.play.network_loader import SETTINGS

FOLDERS = ("games", "models")
_MEMBER = re.compile(
    rf"{re.escape(RECORD_NAME)}|{re.escape(SETTINGS)}|{re.escape(LEDGER_NAME)}"
    r"|models/model-\d+\.model|games/[\w-]+\.(games|zip)"
)
_OF_SQLITE = "CREATE TABLE sqlite_sequence(name,seq)"


def gather_record(run: Path, folder: Path) -> None:
    """Lay the files of the record in a run's folder into an empty folder: as links, and the ledger as a copy.

    Raises:
        ValueError: the ledger is none.
        OSError: a file is missing or unreadable, or the folder cannot be written.
    """
    for path in [run / RECORD_NAME, run / SETTINGS, *_list_members(run)]:
        target = folder / path.relative_to(run)
        target.parent.mkdir(exist_ok=True)
        target.symlink_to(path.resolve(strict=True))
    copy_ledger(run / LEDGER_NAME, folder / LEDGER_NAME)


def _list_members(run: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((run / folder).glob("*")):
            if _MEMBER.fullmatch(f"{folder}/{path.name}") and path.is_file():
                yield path


def copy_ledger(ledger: Path, copy: Path) -> None:
    """Copy a ledger, with what is still in its write-ahead log.

    Raises:
        ValueError: it is damaged, or has other tables than a ledger.
        OSError: it is missing.
    """
    ledger = ledger.resolve(strict=True)
    try:
        with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as db:
            db.execute("PRAGMA trusted_schema = OFF")
            known = {_OF_SQLITE, *(_as_stored(text) for text in TABLES)}
            for (text,) in db.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL"):
                if _as_stored(text) not in known:  # a view or trigger would be executed
                    raise ValueError(f"{ledger} has what no ledger of this version has: {' '.join(text.split())[:80]}")
            db.execute("VACUUM INTO ?", (str(copy),))
    except sqlite3.Error as error:
        raise ValueError(f"{ledger} is damaged: {error}") from None


def _as_stored(text: str) -> str:
    return " ".join(text.replace("IF NOT EXISTS ", "").split())


def pack_record(folder: Path, file: Path) -> None:
    """Pack the gathered files of a record into one.

    Raises:
        OSError: it cannot be written; nothing is left then.
    """
    part = file.with_name(file.name + PART)
    try:
        with zipfile.ZipFile(part, "w") as archive:
            for path in [folder / RECORD_NAME, folder / SETTINGS, folder / LEDGER_NAME, *_list_members(folder)]:
                archive.write(path, path.relative_to(folder).as_posix())
        part.replace(file)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def unpack_record(file: Path, folder: Path) -> None:
    """Unpack such a file into an empty folder.

    Raises:
        ValueError: it is damaged, or no such file.
        OSError: it cannot be read, or the folder not be written.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            for member in members:
                if not _MEMBER.fullmatch(member.filename) or member.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"{file} is no record: {member.filename!r} does not belong there")
            if sum(member.file_size for member in members) > file.stat().st_size:
                raise ValueError(f"{file} is damaged: its members are larger than the file")
            for member in members:
                target = folder / member.filename
                target.parent.mkdir(exist_ok=True)
                with archive.open(member) as source, target.open("xb") as written:
                    shutil.copyfileobj(source, written)
    except (zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError, FileExistsError) as error:
        raise ValueError(f"{file} is damaged: {error}") from None
