"""A file that grows by whole pieces."""

from pathlib import Path


class AppendedFile:
    """A file to which pieces are appended whole; a piece that cannot be written waits for the next call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting = b""

    def append(self, piece: bytes) -> None:
        """Append the piece, after those that wait.

        Raises:
            OSError: the disk does not take it; the file is as it was.
        """
        self._waiting += piece
        with self.path.open("ab", buffering=0) as file:
            end, left = file.tell(), self._waiting
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(end)
                raise
        self._waiting = b""
