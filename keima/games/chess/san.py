"""Standard Algebraic Notation of chess moves, such as Nbd7, exd5, O-O or e8=Q+.

Written by chapter 8.2.3 of the PGN standard (S. J. Edwards, 1994). Read leniently, as files require: zeros for
castling, long moves such as e2-e4 or Ng1xf3, P for pawns, e8Q and e8(Q), and any check marks or annotations, even wrong
ones.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from keima.compilation.decorators import compile_for_types, compiled, inlined_by_llvm
from keima.games.chess.board import (
    BISHOP,
    CLOCK,
    HISTORY,
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
    Bitboards,
    board_at,
    square_bit,
    step,
)
from keima.games.chess.moves import MOST_MOVES, has_legal_move, is_in_check, write_legal_moves
from keima.games.chess.notation import FILES, UPSIDE_DOWN, fen_of, make_empty_row, parse_square, square_name
from keima.games.game import Actions, IllegalAction, States, call_step

PAWN, KING = 1, 5  # kinds of pieces, as ``piece_kind_at`` returns them
SAN_LETTERS = {PAWN: "", 2: "R", 3: "N", 4: "B", KING: "K", 6: "Q"}
KINDS = {letter: kind for kind, letter in SAN_LETTERS.items()} | {"P": PAWN}
PROMOTION_LETTERS = {KNIGHT: "N", BISHOP: "B", ROOK: "R", QUEEN: "Q"}
PROMOTIONS = {letter: piece for piece, letter in PROMOTION_LETTERS.items()}
ANY = -1  # any column or row; as a promotion: none
NO_MOVE, SEVERAL_MOVES, ILLEGAL_KIND = -1, -2, 0

PIECE_MOVE = r"([KQRBNP]?)([a-h]?)([1-8]?)[x:-]?([a-h][1-8])(?:[=/(]?([QRBNqrbn])\)?)?"
CASTLING = r"([O0o]-?[O0o])(-?[O0o])?"
SAN = re.compile(rf"(?:{PIECE_MOVE}|{CASTLING})(?: ?e\.?p\.?)?[+#]*[!?]*")


@inlined_by_llvm
def piece_kind_at(board: Bitboards, square: int) -> Any:
    """Return the kind of piece on a square; its bits are short, straight, diagonal."""
    return board.short >> square & 1 | (board.straight >> square & 1) << 1 | (board.diagonal >> square & 1) << 2


@inlined_by_llvm
def write_playable_moves(state: States, legal: Actions) -> int:
    """Write the moves that can be made, also after a draw that nobody claimed; return their number.

    The limit is the clock, because a row has no space for more positions.
    """
    return write_legal_moves(state, legal) if state[CLOCK] < state[LAST_CLOCK] else 0


@compiled  # a record of the six numbers would cost 4 us of numba's type dispatch per call, ten times the work
def find_move(state: States, kind: int, target: int, column: int, row: int, promotion: int) -> int:
    """Return the move of this kind of piece to ``target``, from ``column`` and ``row`` unless they are ``ANY``; all
    seen by the player to move.

    Returns ``NOWHERE`` or ``SEVERAL`` if there is not one such move.
    """
    board, legal, found = board_at(state, state[PLY]), np.empty(MOST_MOVES, np.int32), NO_MOVE
    for action in legal[: write_playable_moves(state, legal)]:
        plane, origin = action >> 6, action & 63
        if origin + OFFSETS[plane] != target or piece_kind_at(board, origin) != kind:
            continue
        if (column != ANY and origin & 7 != column) or (row != ANY and origin >> 3 != row):
            continue
        if kind == KING and column == ANY and (plane == SHORT_PLANE or plane == LONG_PLANE):
            continue  # castling has its own notation
        becomes = ANY
        if kind == PAWN and target < 8:
            becomes = QUEEN if plane < UNDERPROMOTIONS else (plane - UNDERPROMOTIONS) // 3
        if becomes == promotion:
            found = action if found == NO_MOVE else SEVERAL_MOVES
    return found


@compiled
def describe_move(state: States, action: int) -> tuple[int, bool, bool, bool, bool]:
    """Return the facts that the notation of a move depends on.

    Returns:
        The kind of the piece, ``ILLEGAL_KIND`` if the move is illegal; whether it captures; and whether other pieces of
        its kind may go there, from its column, and from its row.
    """
    board, legal = board_at(state, state[PLY]), np.empty(MOST_MOVES, np.int32)
    origin, kind, target = action & 63, ILLEGAL_KIND, (action & 63) + OFFSETS[action >> 6]
    others, in_column, in_row = False, False, False
    for other in legal[: write_playable_moves(state, legal)]:
        square = other & 63
        if other == action:
            kind = piece_kind_at(board, origin)
        elif (
            square + OFFSETS[other >> 6] == target
            and square != origin
            and piece_kind_at(board, square) == piece_kind_at(board, origin)
        ):
            others = True
            in_column = in_column or square & 7 == origin & 7
            in_row = in_row or square >> 3 == origin >> 3
    if kind == ILLEGAL_KIND:
        return ILLEGAL_KIND, False, False, False, False
    takes = (board.short | board.straight | board.diagonal) & square_bit(target) != 0 or (
        kind == PAWN and (origin - target) & 7 != 0
    )
    return kind, takes, others, in_column, in_row


@functools.cache
def _step_without_dispatch() -> Callable[[Any, States, int], None]:
    """Return ``call_step`` without type dispatch, which would dominate the time."""
    return compile_for_types(call_step, step, make_empty_row(max_plies=1, claim_draws=True, history=HISTORY), 0)


def play_action(state: States, action: int) -> None:
    """Play an action of ``find_move`` or ``action_of_san`` in place, also after a draw that nobody claimed."""
    _step_without_dispatch()(step, state, action)


def play_and_name(state: States, action: int) -> str:
    """Return the action in SAN and play it on ``state``.

    Raises:
        IllegalAction: it is not legal here; nothing is played.
    """
    kind, takes, *others = describe_move(state, action)
    if kind == ILLEGAL_KIND:
        raise IllegalAction(f"action {action} is not legal in {fen_of(state)}")
    name = _san_without_check(state, action, kind, takes, others)
    play_action(state, action)
    if not is_in_check(state):
        return name
    return name + ("+" if has_legal_move(state) else "#")


def _san_without_check(state: States, action: int, kind: int, takes: bool, others: list[bool]) -> str:
    """Return the move without a check mark."""
    plane, origin = divmod(action, 64)
    if kind == KING and plane in (SHORT_PLANE, LONG_PLANE):
        return "O-O" if plane == SHORT_PLANE else "O-O-O"
    black, target = state[PLY] % 2 == 1, origin + int(OFFSETS[plane])
    home, promotion = square_name(origin, black=black), ""
    several, in_column, in_row = others
    if kind == PAWN:
        hint = home[0] if takes else ""
        if target < 8:
            promotion = f"={PROMOTION_LETTERS[QUEEN if plane < UNDERPROMOTIONS else (plane - UNDERPROMOTIONS) // 3]}"
    elif in_column:
        hint = home if in_row else home[1]
    else:
        hint = home[0] if several else ""
    return f"{SAN_LETTERS[kind]}{hint}{'x' if takes else ''}{square_name(target, black=black)}{promotion}"


def action_of_san(state: States, text: str) -> int:
    """Parse a move in SAN, leniently.

    Moves after a draw that nobody claimed are accepted, because people play on, but not once the clock has run out.

    Raises:
        ValueError: the text is no move.
        IllegalAction: the move is not legal here, or ambiguous.
    """
    match = SAN.fullmatch(text)
    if not match:
        raise ValueError(f"{text[:20]!r} is not a move in SAN, such as Nf3, exd5, O-O or e8=Q")
    letter, column, row, square, piece, castling, long = match.groups()
    if castling:
        shift = -2 if long else 2
        found = find_move(state, KING, KING_HOME + shift, KING_HOME & 7, KING_HOME >> 3, ANY)
    else:
        black = state[PLY] & 1
        if not letter and not column:
            column = square[0]  # a pawn capture must name the column of origin
        found = find_move(
            state,
            KINDS[letter],
            parse_square(square) ^ (UPSIDE_DOWN if black else 0),
            FILES.index(column) if column else ANY,
            (int(row) - 1 if black else 8 - int(row)) if row else ANY,
            PROMOTIONS[piece.upper()] if piece else ANY,
        )
    if found < 0:
        why = "is not legal" if found == NO_MOVE else "could be several moves"
        raise IllegalAction(f"{text} {why} in {fen_of(state)}")
    return int(found)
