"""Records as single files that can be shown to others: a zip file without compression, of what ``keima verify`` reads.

It comes from strangers. Nothing in it is compressed, so it is never larger than it looks, and its members have names
that a run's folder has.
"""

import re
import shutil
import sqlite3
import tempfile
import zipfile
from contextlib import closing, suppress
from pathlib import Path

from keima.base.files import PART
from keima.base.run_folder import LEDGER_NAME, RECORD_NAME
from keima.play.network_loader import SETTINGS

FOLDERS = ("games", "models")
_MEMBER = re.compile(
    rf"{re.escape(RECORD_NAME)}|{re.escape(SETTINGS)}|{re.escape(LEDGER_NAME)}|({'|'.join(FOLDERS)})/\w[\w.-]*"
)


def pack_record(run: Path, file: Path) -> None:
    """Write the record in the folder of a run, with the ledger, settings, games and models, to one file.

    Raises:
        OSError: it cannot be written, or a file of the run cannot be read; nothing is left then.
    """
    members = [run / RECORD_NAME, run / SETTINGS]
    members += sorted(path for folder in FOLDERS for path in (run / folder).glob("*") if path.suffix != PART)
    part = file.with_name(file.name + PART)
    try:
        with tempfile.TemporaryDirectory(dir=file.parent) as folder, zipfile.ZipFile(part, "w") as archive:
            copy = Path(folder) / LEDGER_NAME
            with closing(sqlite3.connect(f"{(run / LEDGER_NAME).resolve().as_uri()}?mode=ro", uri=True)) as db:
                db.execute("VACUUM INTO ?", (str(copy),))  # with what is still in the write-ahead log
            archive.write(copy, LEDGER_NAME)
            for path in members:
                archive.write(path, path.relative_to(run).as_posix())
        part.replace(file)
    except sqlite3.Error as error:
        raise OSError(f"{run / LEDGER_NAME} cannot be copied: {error}") from None
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
