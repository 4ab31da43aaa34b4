"""The report of a game in a file that cannot be read."""

from dataclasses import dataclass

from keima.base.reports.text import printable_line


@dataclass(frozen=True)
class BadGame:
    """A game that cannot be read or cannot be learned from."""

    line: int  # of the file, from 1: the offending line, or the game's first
    reason: str  # printable, though it may quote the file

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", printable_line(self.reason))
