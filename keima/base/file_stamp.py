"""Detect changes of a file without reading it."""

from pathlib import Path
from typing import NamedTuple


class FileStamp(NamedTuple):
    """Changes whenever a file is written or replaced."""

    inode: int
    size: int  # bytes
    changed: int  # nanoseconds since 1970

    @property
    def written(self) -> float:
        """When the file was last written, in seconds since 1970."""
        return self.changed / 1e9

    @classmethod
    def of(cls, path: Path) -> "FileStamp":
        """Return the stamp of a file.

        Raises:
            OSError: it is missing, or its folder may not be read.
        """
        status = path.stat()
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


def stamp_of(path: Path) -> FileStamp | None:
    """Return the stamp of a file; None if it is missing or inaccessible."""
    try:
        return FileStamp.of(path)
    except OSError:
        return None
