"""The syntax of the Universal Chess Interface (Stefan Meyer-Kahlen, 2004), between a GUI and an engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keima.play.time_keeping import Clock

if TYPE_CHECKING:  # an engine answers the first commands before it has loaded anything
    from keima.games import Game
    from keima.games.game import States
    from keima.search.analysis import MoveAnalysis

NUMBER_WORDS = ("wtime", "btime", "winc", "binc", "movestogo", "depth", "nodes", "movetime", "mate")
FLAGS = ("ponder", "infinite")
CLOCKS = ("wtime", "btime"), ("winc", "binc")
LARGEST_NUMBER = 2**53


class BrokenCommand(ValueError):
    """A malformed command."""


@dataclass(frozen=True, kw_only=True)
class GoArguments:
    """The arguments of ``go``; times are in milliseconds, None if not given."""

    wtime: int | None = None
    btime: int | None = None
    winc: int | None = None
    binc: int | None = None
    movestogo: int | None = None
    depth: int | None = None
    nodes: int | None = None
    movetime: int | None = None
    mate: int | None = None
    ponder: bool = False
    infinite: bool = False
    searchmoves: tuple[str, ...] = ()
    complaints: tuple[str, ...] = field(default=())  # about ignored words

    @property
    def has_limit(self) -> bool:
        """Whether any limit is given."""
        return self.infinite or any(
            getattr(self, name) is not None for name in ("wtime", "btime", "depth", "nodes", "movetime")
        )

    def clock(self, player: int) -> Clock | None:
        """Return the clock of White (0) or Black (1), if there is one."""
        (time, increment) = (getattr(self, names[player]) for names in CLOCKS)
        if time is None:
            return None
        return Clock(
            remaining=max(time, 0) / 1000, increment=max(increment or 0, 0) / 1000, moves_to_go=self.movestogo or None
        )


def parse_go(words: Sequence[str]) -> GoArguments:
    """Parse the arguments of ``go``. Unknown words are ignored, because the GUI expects an answer in any case."""
    found: dict[str, Any] = {}
    complaints: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word in FLAGS:
            found[word] = True
        elif word == "searchmoves":
            end = next((i for i, other in enumerate(left) if other in (*FLAGS, *NUMBER_WORDS)), len(left))
            found[word], left = tuple(left[:end]), left[end:]
        elif word not in NUMBER_WORDS:
            complaints.append(f"go: {word!r} is unknown and ignored")
        elif not left or (number := parse_whole_number(left[0])) is None:
            complaints.append(f"go: {word} needs a whole number")
        else:
            found[word] = number
            left.pop(0)
    return GoArguments(**found, complaints=tuple(complaints))


def parse_whole_number(text: str) -> int | None:
    """Parse a number of a sane size."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > len(str(LARGEST_NUMBER)):
        return None
    return int(text)


def parse_position(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Parse the arguments of ``position``: the FEN (None: the starting position), and the moves from there.

    Raises:
        BrokenCommand: it is neither of the two.
    """
    cut = words.index("moves") if "moves" in words else len(words)
    where, moves = words[:cut], tuple(word.lower() for word in words[cut + 1 :])
    if where and where[0] == "fen" and len(where) > 1:
        return " ".join(where[1:]), moves
    if list(where) == ["startpos"]:
        return None, moves
    raise BrokenCommand("position expects startpos or fen and a position, then optionally moves and the moves")


def parse_setoption(words: Sequence[str]) -> tuple[str, str]:
    """Parse the arguments of ``setoption``: a name and a value, which may be empty.

    Raises:
        BrokenCommand: there is no name.
    """
    cut = words.index("value") if "value" in words else len(words)
    if len(words) < 2 or words[0] != "name" or cut < 2:
        raise BrokenCommand("setoption expects name and the name of an option, then optionally value and its value")
    return " ".join(words[1:cut]), " ".join(words[cut + 1 :])


def to_centipawns(value: float) -> int:
    """Convert a value in [-1, 1] to centipawns: ``90 tan(1.5637541897 value)``, Lc0's scale. 0.5 is 89, and 1 is
    12,780.
    """
    return round(90 * math.tan(1.5637541897 * value))


def format_score(line: MoveAnalysis) -> str:
    """Return the score of a move: moves to mate if proven, else centipawns."""
    if line.plies is None:
        return f"cp {to_centipawns(line.value)}"
    return f"mate {(line.plies + 1) // 2}" if line.value > 0 else f"mate -{line.plies // 2}"


def moves_as_uci(game: Game, state: States, actions: Sequence[int]) -> list[str]:
    """Return a line of play from a position, in UCI notation."""
    from keima.games.chess.notation import uci_of

    state, found = state.copy(), []
    for action in actions:
        found.append(uci_of(state, action))
        game.play(state, action)
    return found
