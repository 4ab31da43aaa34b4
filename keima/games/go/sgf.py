"""Smart Game Format: reading and writing games of Go.

This follows the specification of FF[4] (Arno Hollosi, https://www.red-bean.com/sgf/). This module splits a file into
games, so that files of any size are read in bounded memory and a broken game does not affect the others; sgfmill parses
each game.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

from sgfmill.sgf import Node, Sgf_game
from sgfmill.sgf_grammar import parse_sgf_game
from sgfmill.sgf_properties import interpret_go_point

from keima.games.authoring.bad_game import BadGame
from keima.games.game import Game

COLORS = "BW"  # of the players
SGF_LETTERS = "abcdefghijklmnopqrstuvwxyz"
RESULT = re.compile(r"[BW]\+(R|T|F|[0-9]+(\.[0-9]+)?)?|0|Draw|Void|\?")
PROPERTY = re.compile(r"[A-Z]{1,8}")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

PIECE = 2**16  # bytes of a file that are read at a time
MOST_BYTES, MOST_MARKS = 2**22, 2**17  # of one game; marks are brackets, parentheses, semicolons and backslashes
LARGEST_SIZE = 26  # points on a side, limited by the letters
START = re.compile(rb"\(\s*;")
PERHAPS = re.compile(rb"\(\s{0,1000}\Z")  # perhaps the first half of START
MARK = re.compile(rb"[][\\();]")
# A game's first node at the start of a line, even within another game that does not end.
ANOTHER = re.compile(rb"\s*\(\s*;\s*(?:FF|GM|CA|AP|SZ)\s*\[[^]\\]*\]")
SETUP = ("AB", "AW", "AE")


@dataclass(frozen=True, kw_only=True)
class SgfGame:
    """The main line of a game that was read. Actions are those of ``keima.games.go.rules`` on a board of this size."""

    size: int
    komi: float
    handicap: int  # 0 if the file does not say
    setup: tuple[tuple[int, ...], tuple[int, ...]]  # points with black and with white stones before the first move
    player: int  # who moves first
    moves: tuple[tuple[int, int], ...]  # player and action, not necessarily legal
    result: str  # as in the file, such as W+3.5; empty if the file does not say
    line: int  # of the file, from 1, where the game begins


def sgf_text(
    game: Game,
    actions: Sequence[int],
    *,
    tags: Mapping[str, str],
    result: str,
    comments: Sequence[str] | None = None,
    marks: Sequence[Mapping[str, Sequence[str]]] = (),
) -> str:
    """Return a game of Go as an SGF file, one node per line.

    Args:
        game: Go, with any options.
        actions: the moves, from the start.
        tags: properties of the game, such as PB and PW, the players' names; format, size, komi, rules and result are
            added.
        result: such as B+R, W+3.5, B+T, 0 (a draw), Void or ? (unknown).
        comments: one per position, beginning before the first move; [L + 1] or fewer.
        marks: further properties of these positions with their values, such as {"LB": ["dd:1"]}; [L + 1] or fewer.

    Raises:
        ValueError: the game is not Go, or a property or the result cannot be written.
        IllegalAction: a move is not legal.
    """
    if game.name != "go":
        raise ValueError(f"SGF is written for go, not for {game.name}")
    if not RESULT.fullmatch(result):
        raise ValueError(f"a game's result in SGF is such as B+R, W+3.5, 0 or ?, not {result!r}")
    size, state = game.options["size"], game.initial_state()
    own = {
        "GM": "1",
        "FF": "4",
        "CA": "UTF-8",
        "AP": "Keima",
        "SZ": str(size),
        "KM": f"{game.options['komi']:g}",
        "RU": "Tromp-Taylor",
    }
    moves = [{name: [text] for name, text in (own | dict(tags) | own | {"RE": result}).items()}]
    for action in actions:
        moves.append({COLORS[game.current_player(state)]: [point_name(size, int(action))]})
        game.play(state, int(action))
    notes = [{"C": [comment]} if comment else {} for comment in comments or ()]
    if max(len(notes), len(marks)) > len(moves):
        raise ValueError(
            f"there are comments or marks for {max(len(notes), len(marks))} positions, and the game has {len(moves)}"
        )
    lines = []
    for node in zip_longest(moves, marks, notes, fillvalue=dict[str, list[str]]()):
        lines.append(";" + "".join(_format_property(name, values) for part in node for name, values in part.items()))
    return "(" + "\n".join(lines) + ")\n"


def score_text(lead: float) -> str:
    """Return a result in points as in SGF and GTP, such as W+3.5, or 0 for a draw; ``lead`` is Black's, after komi."""
    return f"{'B' if lead > 0 else 'W'}+{abs(lead):g}" if lead else "0"


def point_name(size: int, action: int) -> str:
    """Return an action as in SGF, such as dd; empty for the pass."""
    return "" if action == size * size else SGF_LETTERS[action % size] + SGF_LETTERS[action // size]


def _format_property(name: str, values: Sequence[str]) -> str:
    if not PROPERTY.fullmatch(name):
        raise ValueError(f"{name!r} is not a property name in SGF: use capital letters")
    return name + "".join(f"[{_escape_text(value)}]" for value in values)


def _escape_text(text: str) -> str:
    return CONTROL.sub(" ", text).replace("\\", "\\\\").replace("]", "\\]")


def read_sgf(path: Path) -> Iterator[SgfGame | BadGame]:
    """Read the games of a file of any size, in order. Text between games is skipped.

    Raises:
        OSError: the file is missing or cannot be read.
    """
    with path.open("rb") as file:
        found = False
        for each in split_into_games(file):
            found = True
            yield _parse_game(*each) if isinstance(each, tuple) else each
        if not found:
            yield BadGame(1, "the file has no game in SGF: a game begins with (;")


@dataclass
class _SgfDraft:
    """A game tree that is being read."""

    line: int  # where it begins
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    marks: int = 0
    depth: int = 0  # of parentheses
    inside: bool = False  # of a value's brackets
    escaped: int = -1  # the place of a byte after a backslash in the current piece

    @property
    def too_large(self) -> bool:
        """Whether the game exceeds the limits."""
        return self.size > MOST_BYTES or self.marks > MOST_MARKS

    def feed(self, piece: bytes, begin: int) -> int | None:
        """Read a piece of the file from ``begin``; return the end of the game in it, or None."""
        end = None
        for mark in MARK.finditer(piece, begin):
            place, sign = mark.start(), piece[mark.start()]
            if place == self.escaped:
                continue
            self.marks += 1
            if self.inside:
                self.inside = sign != b"]"[0]
                if sign == b"\\"[0]:
                    self.escaped = place + 1
            elif sign == b"["[0]:
                self.inside = True
            elif sign in b"()":
                self.depth += 1 if sign == b"("[0] else -1
                if self.depth == 0:
                    end = place + 1
                    break
        self.escaped = 0 if self.escaped == len(piece) else -1
        part = piece[begin:end]
        self.size += len(part)
        self.parts.append(part)
        if self.too_large:
            self.parts.clear()
        return end

    def finish(self) -> tuple[int, bytes] | BadGame:
        """Return the complete game."""
        if self.too_large:
            return BadGame(
                self.line, f"the game has more than {MOST_BYTES:,} bytes or {MOST_MARKS:,} brackets and semicolons"
            )
        return self.line, b"".join(self.parts)

    def report_broken_off(self) -> BadGame:
        """Return the report of a game that has no end."""
        return BadGame(
            self.line, f"the game does not end: {'a bracket' if self.inside else 'a parenthesis'} is not closed"
        )


def split_into_games(file: BinaryIO) -> Iterator[tuple[int, bytes] | BadGame]:
    """Split a file into its games, each with the line where it begins.

    If a game does not end, reading continues at the next line that begins a game.
    """
    draft: _SgfDraft | None = None
    rest, number, fresh = b"", 1, True  # a possible START; the current line's number; whether the piece begins a line
    while piece := file.readline(PIECE):
        if draft and fresh and ANOTHER.match(piece):
            yield draft.report_broken_off()
            draft = None
        fresh = piece.endswith(b"\n")
        place, first = 0, number - rest.count(b"\n")
        number += fresh
        if draft is None:
            piece = rest + piece
        rest = b""
        while place < len(piece):
            if draft is None:
                start = START.search(piece, place)
                if start is None:
                    perhaps = PERHAPS.search(piece, place)
                    rest = perhaps[0] if perhaps else b""
                    break
                place = start.start()
                draft = _SgfDraft(line=first + piece.count(b"\n", 0, place))
            end = draft.feed(piece, place)
            if end is None:
                break
            yield draft.finish()
            draft, place = None, end
    if draft:
        yield draft.report_broken_off()


def _parse_game(line: int, tree: bytes) -> SgfGame | BadGame:
    try:
        coarse = parse_sgf_game(tree)
        root = {name: values[0].strip() for name, values in coarse.sequence[0].items()}
        _require_go(root)
        game = Sgf_game.from_coarse_game_tree(coarse, override_encoding="ISO-8859-1")
        nodes = list(game.main_sequence_iter())
        setup = _read_setup(nodes[0], game.get_size())
        moves = tuple(move for node in nodes for move in _read_moves(node, game.get_size()))
        later = next((number for number, node in enumerate(nodes) if number and node.has_setup_stones()), None)
        if later is not None:
            return BadGame(line, f"stones are set up in the middle of the game, in its node {later + 1}")
        handicap = _read_number(root, "HA", "handicap")
        told = {b"B": 0, b"W": 1}.get(root.get("PL", b"").upper()[:1], int(bool(setup[0]) and not setup[1]))
        return SgfGame(
            size=game.get_size(),
            komi=_komi_in_points(_read_number(root, "KM", "komi")),
            handicap=int(handicap),
            setup=setup,
            player=moves[0][0] if moves else told,
            moves=moves,
            result=root.get("RE", b"").decode("latin-1"),
            line=line,
        )
    except ValueError as error:
        return BadGame(line, f"the game cannot be read: {error}")


def _require_go(root: Mapping[str, bytes]) -> None:
    if root.get("GM", b"1") not in (b"1", b""):
        raise ValueError(f"it is not Go, but game {_shorten_text(root['GM'])} of the format")
    size = root.get("SZ", b"19")
    if not re.fullmatch(rb"[0-9]{1,2}", size) or not 1 <= int(size) <= LARGEST_SIZE:
        raise ValueError(
            f"its board is {_shorten_text(size)}, and only square boards of up to {LARGEST_SIZE} points on a side "
            "are read"
        )


def _shorten_text(text: bytes) -> str:
    return repr(text[:40].decode("latin-1"))


def _read_number(root: Mapping[str, bytes], name: str, meaning: str) -> float:
    """Return a number of the first node; 0 if it is missing."""
    text = root.get(name, b"").replace(b",", b".") or b"0"
    if not re.fullmatch(rb"[+-]?[0-9]{1,4}(\.[0-9]{0,6})?", text):
        raise ValueError(f"its {meaning} is {_shorten_text(text)}, which is not a number")
    return float(text)


def _komi_in_points(written: float) -> float:
    """Convert komi to points.

    Some Chinese servers write stones, which are two points each, or hundredths of them: 375 and 3.75 mean 7.5.
    """
    komi = written / 100 if abs(written) >= 100 else written
    return 2 * komi if (4 * komi) % 2 == 1 else komi


def _read_setup(root: Node, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the points with black and with white stones before the first move."""
    values = [value for name in SETUP if root.has_property(name) for value in root.get_raw_list(name)]
    if len(values) > 2 * size * size:
        raise ValueError("it sets up more stones than its board has points")
    try:
        black, white, empty = root.get_setup_stones()
    except ValueError as error:
        raise ValueError("it sets up a stone that is not on its board") from error
    both = [
        tuple(sorted((size - 1 - row) * size + column for row, column in stones - empty)) for stones in (black, white)
    ]
    return both[0], both[1]


def _read_moves(node: Node, size: int) -> Iterator[tuple[int, int]]:
    """Yield the move of a node, if it has one."""
    found = [(player, node.get_raw_list(color)) for player, color in enumerate(COLORS) if node.has_property(color)]
    if len(found) > 1 or any(len(values) > 1 for _, values in found):
        raise ValueError("there are two moves in one of its nodes")
    for player, (value,) in found:
        try:
            point = interpret_go_point(value.strip(), size)
        except ValueError as error:
            raise ValueError(f"a move of it is {_shorten_text(value)}, which is not on its board") from error
        yield player, size * size if point is None else (size - 1 - point[0]) * size + point[1]
