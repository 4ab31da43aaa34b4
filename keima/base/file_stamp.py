"""Detect changes of a file without reading it."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


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
        return cls.from_status(path.stat())

    @classmethod
    def from_status(cls, status: os.stat_result) -> "FileStamp":
        """Return the stamp of a file with this status."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


def stamp_of(path: Path) -> FileStamp | None:
    """Return the stamp of a file; None if it is missing or inaccessible."""
    try:
        return FileStamp.of(path)
    except OSError:
        return None


class StampedFiles(Generic[T]):
    """The files of a folder with an ending; each is read again only when it has changed.

    Args:
        folder: may be missing.
        ending: of their names.
        read: reads a file.
    """

    def __init__(self, folder: Path, ending: str, read: Callable[[Path], T]) -> None:
        self._folder, self._ending, self._read_file = folder, ending, read
        self._known: dict[str, tuple[FileStamp, T]] = {}

    def read(self) -> list[T]:
        """Return what the files have now, in the order of their names."""
        known, self._known = self._known, {}
        for name, stamp in self._list_stamped():
            found = known.get(name)
            if found is None or found[0] != stamp:
                found = stamp, self._read_file(self._folder / name)
            self._known[name] = found
        return [value for _, value in self._known.values()]

    def _list_stamped(self) -> list[tuple[str, FileStamp]]:
        found = []
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(self._ending):
                    with suppress(OSError):
                        found.append((entry.name, FileStamp.from_status(entry.stat())))
        return sorted(found)
