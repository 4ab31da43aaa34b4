"""Portable Game Notation: reading and writing games of chess.

After the standard of S. J. Edwards (1994): written in its export format, read in its import format and more leniently,
because many programs write such files. Files of any size are read game by game in constant memory.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import zstandard

from keima.games.authoring.bad_game import BadGame
from keima.games.chess.board import PLY
from keima.games.chess.notation import START_FEN, fen_of, position_from_fen
from keima.games.chess.rules import LONGEST, chess
from keima.games.chess.san import action_of_san, play_action, play_and_name
from keima.games.game import Actions, Game, States

RESULTS = ("1-0", "0-1", "1/2-1/2", "*")
SEVEN_TAGS = {"Event": "?", "Site": "?", "Date": "????.??.??", "Round": "?", "White": "?", "Black": "?", "Result": "*"}
COLUMNS = 79  # of text; the standard demands fewer than 80
LONGEST_LINE = 2**20  # characters; a longer one makes its game bad
MOST_TAGS = 256
MOST_TAG_CHARACTERS = 2**16  # in all tags of a game
STANDARD = {"", "standard", "normal", "chess", "from position"}  # names of standard chess

TAG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+#=:-]*")
TAG = re.compile(rf'\s*\[\s*({TAG_NAME.pattern})\s+"([^"\\]*(?:\\.[^"\\]*)*)"\s*\]\s*')
# A tag with unescaped quotes, or without its end.
CARELESS_TAG = re.compile(rf'\s*\[\s*({TAG_NAME.pattern})\s+"(.*?)"?\s*\]?\s*')
ESCAPED = re.compile(r'\\(["\\])')
TOKEN = re.compile(r"[{}();]|\$[0-9]*|<[^>]*>|[^\s{}();$<]+|<")
NUMBER = re.compile(r"[0-9]*\.+|[0-9]+$")  # a move number, before a move or alone
READ_AS = {text: text for text in RESULTS} | {"1/2": "1/2-1/2", "½-½": "1/2-1/2"}
# Annotations after a move; -- is itself a (null) move.
REMARK = re.compile(r"(?!--)[!?=+#/~∞±∓⩲⩱□N-]+|e\.?p\.?|D|ch\.?|dis\.?ch\.?|mate")


@dataclass(frozen=True, kw_only=True, eq=False)
class PgnGame:
    """A game that was read."""

    tags: Mapping[str, str]  # as in the file
    actions: Actions  # [L], of ``keima.games.chess.rules``, from the start or from ``start_fen``
    result: str  # one of ``RESULTS``; * if unknown
    start_fen: str | None  # None: the standard start
    line: int  # of the file, from 1, where the game begins


def pgn_text(
    game: Game, actions: Sequence[int], *, tags: Mapping[str, str], result: str, start_fen: str | None = None
) -> str:
    """Return a game in PGN's export format: tags, an empty line, moves in lines of less than 80 characters, an empty
    line.

    Args:
        game: chess, with any options.
        actions: the moves, from the start.
        tags: known values of the seven standard tags, then any others; Result, SetUp and FEN are set here.
        result: 1-0, 0-1, 1/2-1/2 or *.
        start_fen: the start position, if not the standard one.

    Raises:
        ValueError: the game is not chess, or a tag, the result or the position cannot be written.
        IllegalAction: a move is not legal.
    """
    if game.name != "chess":
        raise ValueError(f"PGN is for chess, not for {game.name}")
    if result not in RESULTS:
        raise ValueError(f"a game's result in PGN is one of {', '.join(RESULTS)}, not {result!r}")
    given = SEVEN_TAGS | dict(tags) | {"Result": result}
    if start_fen is not None:
        given |= {"SetUp": "1", "FEN": start_fen}
    state = position_from_fen(game, start_fen or START_FEN)
    lines = [_format_tag(name, text) for name, text in given.items()]
    return "\n".join([*lines, "", *_fill_lines([*_number_moves(state, actions), result]), "", ""])


def _format_tag(name: str, text: str) -> str:
    if not TAG_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a tag name in PGN: use letters, digits and underscores")
    plain = re.sub(r"[\x00-\x1f\x7f]+", " ", text)
    quoted = re.sub(r'(["\\])', r"\\\1", plain)
    return f'[{name} "{quoted}"]'


def _number_moves(state: States, actions: Sequence[int]) -> Iterator[str]:
    """Yield the moves with their numbers, played on ``state``."""
    first = int(state[PLY])
    for ply, action in enumerate(actions, first):
        if ply % 2 == 0 or ply == first:
            yield f"{ply // 2 + 1}{'...' if ply % 2 else '.'}"
        yield play_and_name(state, int(action))


def _fill_lines(words: Iterable[str]) -> Iterator[str]:
    """Fill lines with words."""
    line = ""
    for word in words:
        if line and len(line) + 1 + len(word) > COLUMNS:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def pgn_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file of any size, decoded as UTF-8, or else as Latin-1. A .zst file is decompressed.

    A line longer than ``LONGEST_LINE`` is truncated, but is still longer than that.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: the compressed file is damaged.
    """
    with path.open("rb") as file:
        source: BinaryIO = file
        if path.suffix == ".zst":
            source = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
        try:
            while line := source.readline(LONGEST_LINE + 1):
                yield _decode_line(line)
                while line and not line.endswith(b"\n"):
                    line = source.readline(LONGEST_LINE)
        except zstandard.ZstdError as error:
            raise ValueError(f"{path} is damaged: {error}") from error


def _decode_line(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


def read_pgn(lines: Iterable[str]) -> Iterator[PgnGame | BadGame]:
    """Read the games of a PGN file, in order and in constant memory.

    Comments, variations, annotations and lines that begin with % are skipped. After a game that cannot be read, reading
    continues at the next line that looks like a tag. Moves must be legal, but players may continue after a draw that
    nobody claimed, and may resign or agree on a draw at any time.

    Args:
        lines: of the file, with or without line ends, as from ``pgn_lines``.
    """
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        yield from reader.read_line(number, line.removeprefix("\ufeff") if number == 1 else line)
    yield from reader.finish_current_game()


class _BadPgnGame(Exception):
    """The current game cannot be read."""


@dataclass
class _PgnDraft:
    """A game that is being read."""

    line: int = 0  # where the game begins; 0: not begun
    tags: dict[str, str] = field(default_factory=dict)
    characters: int = 0  # of the tags
    state: States | None = None  # after the moves so far; None before the first
    start_fen: str | None = None
    actions: list[int] = field(default_factory=list)


class _Reader:
    """Turns lines into games; its memory is bounded by the limits of one game."""

    def __init__(self) -> None:
        self._game = chess(max_plies=LONGEST, claim_draws=False)
        self._draft = _PgnDraft()
        self._number = 0  # of the current line
        self._comment = 0  # the line where the current comment began; 0: no comment
        self._variations, self._variation = 0, 0  # open parentheses, and the line of the first
        self._after_blank = True
        self._lost = False  # whether lines are skipped until the next tag

    def read_line(self, number: int, line: str) -> Iterator[PgnGame | BadGame]:
        """Read one line."""
        self._number = number
        after_blank, self._after_blank = self._after_blank, not line or line.isspace()
        try:
            if len(line) > LONGEST_LINE:
                raise _BadPgnGame(f"the line has more than {LONGEST_LINE:,} characters")
            if self._after_blank or (line[0] == "%" and not self._comment):
                return
            tags = _parse_tags(line)
            if tags and (after_blank or not (self._comment or self._variations)):
                yield from self._take_tags(tags, after_blank)
            elif not self._lost:
                yield from self._take_moves(line)
        except _BadPgnGame as error:
            if not self._lost:
                yield BadGame(number, str(error))
            self._begin_draft(lost=True)

    def finish_current_game(self) -> Iterator[PgnGame | BadGame]:
        """Finish the current game, if any, at the end of the file or before the next game."""
        try:
            if self._comment:
                yield BadGame(self._comment, "a comment begins here and does not end")
            elif self._variations:
                yield BadGame(self._variation, "a variation begins here and does not end")
            elif self._draft.line:
                yield self._finish_game("*")
        except _BadPgnGame as error:
            yield BadGame(self._draft.line, str(error))
        self._begin_draft()

    def _begin_draft(self, *, lost: bool = False) -> None:
        self._draft, self._comment, self._variations, self._lost = _PgnDraft(), 0, 0, lost

    def _take_tags(self, tags: list[tuple[str, str]], after_blank: bool) -> Iterator[PgnGame | BadGame]:
        """Take tags, which begin a new game unless they continue those of a game without moves."""
        again = after_blank and tags[0][0] in self._draft.tags
        if again or self._lost or self._comment or self._variations or self._draft.state is not None:
            yield from self.finish_current_game()
        draft = self._draft
        draft.line = draft.line or self._number
        for name, text in tags:
            draft.characters += len(name) + len(text)
            draft.tags.setdefault(name, text)
        if len(draft.tags) > MOST_TAGS or draft.characters > MOST_TAG_CHARACTERS:
            raise _BadPgnGame(
                f"the game has more than {MOST_TAGS} tags, or more than {MOST_TAG_CHARACTERS:,} characters in them"
            )

    def _take_moves(self, line: str) -> Iterator[PgnGame]:
        place = 0
        while place < len(line):
            if self._comment:
                end = line.find("}", place)
                if end < 0:
                    return
                self._comment, place = 0, end + 1
                continue
            token = TOKEN.search(line, place)
            if token is None or token[0] == ";":
                return
            word, place = token[0], token.end()
            if word == "{":
                self._comment = self._number
            elif word in ("(", ")"):
                self._variation = self._variation if self._variations else self._number
                self._variations += 1 if word == "(" else -1
                if self._variations < 0:
                    raise _BadPgnGame("a variation ends that has not begun")
            elif self._variations == 0 and word in READ_AS:
                if self._draft.line:
                    yield self._finish_game(READ_AS[word])
                self._begin_draft()
            elif self._variations == 0:
                self._take_word(word)

    def _take_word(self, word: str) -> None:
        """Play a move; skip move numbers and annotations."""
        if word[0] in "0123456789.":
            number = NUMBER.match(word)
            word = word[number.end() :] if number else word
        if not word or word[0] in "$<" or REMARK.fullmatch(word):
            return
        draft = self._draft
        draft.line = draft.line or self._number
        state = self._start_position()
        if len(draft.actions) == LONGEST:
            raise _BadPgnGame(f"the game has more than {LONGEST:,} moves of both sides")
        try:
            action = action_of_san(state, word)
        except ValueError as error:
            raise _BadPgnGame(str(error)) from error
        play_action(state, action)
        draft.actions.append(action)

    def _start_position(self) -> States:
        """Set up the position of the current game from its tags."""
        draft = self._draft
        if draft.state is not None:
            return draft.state
        variant, fen = draft.tags.get("Variant", ""), draft.tags.get("FEN", START_FEN)
        if variant.strip().lower() not in STANDARD:
            raise _BadPgnGame(f"it is a game of {variant[:40]}, not of chess as usual")
        try:
            draft.state = position_from_fen(self._game, fen)
        except ValueError as error:
            raise _BadPgnGame(str(error)) from error
        draft.start_fen = None if fen_of(draft.state) == START_FEN else fen
        return draft.state

    def _finish_game(self, mark: str) -> PgnGame:
        """Finish the current game, with the result ``mark`` at its end, and return it."""
        self._start_position()
        draft = self._draft
        tag = READ_AS.get(draft.tags.get("Result", "*").strip(), "*")
        if "*" not in (tag, mark) and tag != mark:
            raise _BadPgnGame(f"its tag says {tag}, and its end says {mark}")
        return PgnGame(
            tags=draft.tags,
            actions=np.array(draft.actions, np.int32),
            result=tag if mark == "*" else mark,
            start_fen=draft.start_fen,
            line=draft.line,
        )


def _parse_tags(line: str) -> list[tuple[str, str]]:
    """Return the names and texts of the tags in a line of tags; else empty."""
    if line[0] != "[" and line.lstrip()[0] != "[":
        return []
    tags, place = [], 0
    while found := TAG.match(line, place):
        tags.append((found[1], ESCAPED.sub(r"\1", found[2])))
        place = found.end()
    if place == len(line):
        return tags
    careless = CARELESS_TAG.fullmatch(line)
    return [(careless[1], careless[2])] if careless else []
