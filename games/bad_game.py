"""A place in a file of games that holds none."""

from dataclasses import dataclass

from games.text import printable


@dataclass(frozen=True)
class BadGame:
    """A game that cannot be read, or not be learned from."""

    line: int  # of the file, from 1: what is wrong, or where the game begins
    reason: str  # printable, though it may quote the file

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", printable(self.reason))
