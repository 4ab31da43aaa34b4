"""A column that grows at its end and shrinks at its front."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class RingColumn:
    """The newest rows of an endless column: append at the end, drop from the front."""

    def __init__(self, dtype: type[np.generic], *shape: int) -> None:
        self._buffer: NDArray[Any] = np.empty((0, *shape), dtype)
        self._start, self._end = 0, 0

    @property
    def rows(self) -> NDArray[Any]:
        """The rows as a view, which the next ``append`` may overwrite."""
        return self._buffer[self._start : self._end]

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows at the end."""
        if self._end + len(rows) > len(self._buffer):
            self._make_room(len(rows))
        self._buffer[self._end : self._end + len(rows)] = rows
        self._end += len(rows)

    def drop(self, count: int) -> None:
        """Drop the ``count`` oldest rows."""
        self._start += count

    def _make_room(self, count: int) -> None:
        """Move the rows to the front, of a larger buffer if ``count`` more would fill over 3/4 of this one."""
        kept = self.rows
        needed = len(kept) + count
        if needed > 0.75 * len(self._buffer):
            self._buffer = np.empty((2 * needed, *kept.shape[1:]), kept.dtype)
        self._buffer[: len(kept)] = kept
        self._start, self._end = 0, len(kept)
