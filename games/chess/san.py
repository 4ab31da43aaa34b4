"""Moves of chess as people write them: Standard Algebraic Notation, such as Nbd7, exd5, O-O or e8=Q+.

Written as chapter 8.2.3 of the PGN standard (S. J. Edwards, 1994) has it. Read in more ways than that, since files have
more: zeros for castling, long moves such as e2-e4 or Ng1xf3, P for pawns, e8Q and e8(Q), and with check marks or
annotations, right or wrong, or none.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from games.chess.board import (
    BISHOP,
    CLOCK,
    KING_HOME,
    KNIGHT,
    LAST_CLOCK,
    LONG_PLANE,
    OFFSETS,
    PLY,
    QUEEN,
    ROOK,
    SHORT_PLANE,
    UNDERPROMOTIONS,
    Board,
    at,
    board_at,
    step,
)
from games.chess.moves import MOST_MOVES, generate, has_move, in_check
from games.chess.notation import FILES, UPSIDE_DOWN, empty_row, fen_of, parse_square, square_name
from games.compiled import compiled, inlined, specialized
from games.game import Actions, IllegalAction, States, call_step

PAWN, KING = 1, 5  # kinds of pieces, as ``kind_at`` has them
LETTERS = {PAWN: "", 2: "R", 3: "N", 4: "B", KING: "K", 6: "Q"}
KINDS = {letter: kind for kind, letter in LETTERS.items()} | {"P": PAWN}
PROMOTED = {KNIGHT: "N", BISHOP: "B", ROOK: "R", QUEEN: "Q"}
PROMOTIONS = {letter: piece for piece, letter in PROMOTED.items()}
ANY = -1  # a column, or a row; as a promotion: none
NOWHERE, SEVERAL, ILLEGAL = -1, -2, 0

PIECE_MOVE = r"([KQRBNP]?)([a-h]?)([1-8]?)[x:-]?([a-h][1-8])(?:[=/(]?([QRBNqrbn])\)?)?"
CASTLING = r"([O0o]-?[O0o])(-?[O0o])?"
SAN = re.compile(rf"(?:{PIECE_MOVE}|{CASTLING})(?: ?e\.?p\.?)?[+#]*[!?]*")


@inlined
def kind_at(board: Board, square: int) -> Any:
    """What kind of piece stands there: the bits are short, straight, diagonal."""
    return board.short >> square & 1 | (board.straight >> square & 1) << 1 | (board.diagonal >> square & 1) << 2


@inlined
def moves(state: States, legal: Actions) -> int:
    """Write the moves that people may make here; returns their number.

    They may go on after a draw, but a row has no room for all time.
    """
    return generate(state, legal) if state[CLOCK] < state[LAST_CLOCK] else 0


@compiled
def find(state: States, kind: int, target: int, column: int, row: int, promotion: int) -> int:
    """The move of such a piece to ``target``, from ``column`` and ``row`` unless they are ``ANY``; all as the player to
    move sees it.

    Returns ``NOWHERE`` or ``SEVERAL`` if there is not one such move.
    """
    board, legal, found = board_at(state, state[PLY]), np.empty(MOST_MOVES, np.int32), NOWHERE
    for action in legal[: moves(state, legal)]:
        plane, origin = action >> 6, action & 63
        if origin + OFFSETS[plane] != target or kind_at(board, origin) != kind:
            continue
        if (column != ANY and origin & 7 != column) or (row != ANY and origin >> 3 != row):
            continue
        if kind == KING and column == ANY and (plane == SHORT_PLANE or plane == LONG_PLANE):
            continue  # castling has a name of its own
        becomes = ANY
        if kind == PAWN and target < 8:
            becomes = QUEEN if plane < UNDERPROMOTIONS else (plane - UNDERPROMOTIONS) // 3
        if becomes == promotion:
            found = action if found == NOWHERE else SEVERAL
    return found


@compiled
def described(state: States, action: int) -> tuple[int, bool, bool, bool, bool]:
    """What the name of a move depends on.

    Returns:
        The kind of the piece, ``ILLEGAL`` if it may not go there; whether it takes something; and whether others of its
        kind may go there too, from its column, and from its row.
    """
    board, legal = board_at(state, state[PLY]), np.empty(MOST_MOVES, np.int32)
    origin, kind, target = action & 63, ILLEGAL, (action & 63) + OFFSETS[action >> 6]
    others, in_column, in_row = False, False, False
    for other in legal[: moves(state, legal)]:
        square = other & 63
        if other == action:
            kind = kind_at(board, origin)
        elif (
            square + OFFSETS[other >> 6] == target
            and square != origin
            and kind_at(board, square) == kind_at(board, origin)
        ):
            others = True
            in_column = in_column or square & 7 == origin & 7
            in_row = in_row or square >> 3 == origin >> 3
    if kind == ILLEGAL:
        return ILLEGAL, False, False, False, False
    takes = (board.short | board.straight | board.diagonal) & at(target) != 0 or (
        kind == PAWN and (origin - target) & 7 != 0
    )
    return kind, takes, others, in_column, in_row


@functools.cache
def _step() -> Callable[[Any, States, int], None]:
    """``call_step`` without its look at the types, which would take longer than all the rest."""
    return specialized(call_step, step, empty_row(max_plies=1, claim_draws=True), 0)


def play_on(state: States, action: int) -> None:
    """Play an action in place that ``find`` or ``action_of_san`` has found, also after a draw that nobody claimed."""
    _step()(step, state, action)


def san_of(state: States, action: int) -> str:
    """A legal action in SAN.

    Raises:
        IllegalAction: it is not legal here.
    """
    return play_named(state.copy(), action)


def play_named(state: States, action: int) -> str:
    """The action in SAN, which is then played on ``state``.

    Raises:
        IllegalAction: it is not legal here; nothing is played.
    """
    kind, takes, *others = described(state, action)
    if kind == ILLEGAL:
        raise IllegalAction(f"action {action} is not legal in {fen_of(state)}")
    name = _named(state, action, kind, takes, others)
    play_on(state, action)
    if not in_check(state):
        return name
    return name + ("+" if has_move(state) else "#")


def _named(state: States, action: int, kind: int, takes: bool, others: list[bool]) -> str:
    """The move without its check mark."""
    plane, origin = divmod(action, 64)
    if kind == KING and plane in (SHORT_PLANE, LONG_PLANE):
        return "O-O" if plane == SHORT_PLANE else "O-O-O"
    black, target = state[PLY] % 2 == 1, origin + int(OFFSETS[plane])
    home, promotion = square_name(origin, black=black), ""
    several, in_column, in_row = others
    if kind == PAWN:
        hint = home[0] if takes else ""
        if target < 8:
            promotion = f"={PROMOTED[QUEEN if plane < UNDERPROMOTIONS else (plane - UNDERPROMOTIONS) // 3]}"
    elif in_column:
        hint = home if in_row else home[1]
    else:
        hint = home[0] if several else ""
    return f"{LETTERS[kind]}{hint}{'x' if takes else ''}{square_name(target, black=black)}{promotion}"


def action_of_san(state: States, text: str) -> int:
    """The action that ``text`` means, as SAN or as lenient readers take it.

    A draw that the rules have claimed does not matter here, since people play on; but by the clock it is the end for
    them too.

    Raises:
        ValueError: the text is no move.
        IllegalAction: the move is not legal here, or there are several that are written so.
    """
    match = SAN.fullmatch(text)
    if not match:
        raise ValueError(f"{text[:20]!r} is not a move in SAN, such as Nf3, exd5, O-O or e8=Q")
    letter, column, row, square, piece, castling, long = match.groups()
    if castling:
        shift = -2 if long else 2
        found = find(state, KING, KING_HOME + shift, KING_HOME & 7, KING_HOME >> 3, ANY)
    else:
        black = state[PLY] & 1
        if not letter and not column:
            column = square[0]  # a pawn that takes must say where it comes from
        found = find(
            state,
            KINDS[letter],
            parse_square(square) ^ (UPSIDE_DOWN if black else 0),
            FILES.index(column) if column else ANY,
            (int(row) - 1 if black else 8 - int(row)) if row else ANY,
            PROMOTIONS[piece.upper()] if piece else ANY,
        )
    if found < 0:
        why = "is not legal" if found == NOWHERE else "could be several moves"
        raise IllegalAction(f"{text} {why} in {fen_of(state)}")
    return int(found)
