"""Notation of chess positions and moves: FEN, UCI, names of actions, and the board as text."""

import re

import numpy as np
from numpy.typing import NDArray

from keima.compilation.intrinsics import byte_swap, lowest_bit
from keima.games.chess.board import (
    BY_CLOCK,
    BY_LENGTH,
    BY_MATERIAL,
    BY_REPETITION,
    CASTLING,
    CLOCK,
    DRAWN,
    EN_PASSANT,
    KEYS,
    LAST_CLOCK,
    LAST_PLY,
    MAX_PLIES,
    MOST_REPEATED,
    NONE,
    NOT_DRAWN,
    OFFSETS,
    PASSING_ROW,
    PLANES,
    PLY,
    SEEN,
    STEPS,
    UNDERPROMOTIONS,
    Bitboards,
    Squares,
    begin_position,
    current_board,
    swap_sides,
)
from keima.games.chess.moves import has_legal_move, is_in_check, is_king_attacked, legal_actions
from keima.games.game import Game, IllegalAction, States, call_legal_actions

START_FEN = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
FILES = "abcdefgh"
# Membership in short, straight, diagonal.
PIECES = {"p": (1, 0, 0), "n": (1, 1, 0), "b": (0, 0, 1), "r": (0, 1, 0), "q": (0, 1, 1), "k": (1, 0, 1)}
PIECE_LETTERS = {sets: letter for letter, sets in PIECES.items()}
CASTLERS = {"K": (60, 63), "Q": (60, 56), "k": (4, 7), "q": (4, 0)}  # squares of king and rook, seen by White
PROMOTED = "nbr"
UCI = re.compile(r"[a-h][1-8][a-h][1-8][nbrq]?")
MOST_PIECES, MOST_PAWNS = 16, 8  # per player
UPSIDE_DOWN = 56  # square ^ UPSIDE_DOWN is the square as the other player sees it


def make_empty_row(*, max_plies: int, claim_draws: bool, history: int) -> States:
    """Return a row without a position."""
    last_clock = 100 if claim_draws else 150
    row = np.zeros(KEYS + last_clock + 1, np.int64)
    row[MAX_PLIES], row[MOST_REPEATED], row[LAST_CLOCK] = max_plies, 3 if claim_draws else 5, last_clock
    row[SEEN] = history
    return row


def set_up_from_fen(row: States, fen: str, *, unclaimed: bool = False) -> None:
    """Set up an empty row from a position in FEN; ``unclaimed``: see ``position_from_fen``.

    Raises:
        ValueError: the position is not valid; the text says why.
    """
    fields = fen.split()
    if not 4 <= len(fields) <= 6:
        raise _fen_error(fen, f"it has {len(fields)} fields and not six (the last two may be left out)")
    placed, mover, castling, passing, *counters = fields
    squares = _parse_placement(fen, placed)
    _require_pieces(fen, squares)
    if mover not in ("w", "b"):
        raise _fen_error(fen, f"the player to move is w or b, not {mover!r}")
    clock, move = _parse_counters(fen, counters, int(row[LAST_CLOCK]), unclaimed=unclaimed)
    black = mover == "b"
    rooks = _parse_castling_rooks(fen, squares, castling)
    board, pushed = _make_board(squares), _parse_en_passant_pawn(fen, squares, passing, black)
    if is_king_attacked(swap_sides(board) if not black else board):
        raise _fen_error(fen, "the player who is not to move is in check")
    row[PLY], row[CLOCK] = 2 * (move - 1) + black, clock
    row[CASTLING] = byte_swap(rooks) if black else rooks
    begin_position(row, swap_sides(board) if black else board, byte_swap(pushed) if black else pushed)


def _fen_error(fen: str, why: str) -> ValueError:
    return ValueError(f"{fen!r} is not a chess position in FEN: {why}")


def _make_square_set(squares: list[int]) -> Squares:
    """Return a set of squares."""
    return np.uint64(sum(1 << square for square in squares)).astype(np.int64)


def _parse_placement(fen: str, placed: str) -> dict[int, str]:
    """Return the piece on each occupied square."""
    rows, found = placed.split("/"), {}
    if len(rows) != 8:
        raise _fen_error(fen, f"the board has {len(rows)} rows and not eight")
    for number, row in enumerate(rows):
        column = 0
        for mark in row:
            if mark in "12345678":
                column += int(mark)
            elif mark.lower() in PIECES:
                found[8 * number + column] = mark
                column += 1
            else:
                raise _fen_error(fen, f"there is no piece {mark!r}")
            if column > 8:
                break
        if column != 8:
            raise _fen_error(fen, f"row {8 - number} ({row}) does not have eight squares")
    return found


def _require_pieces(fen: str, squares: dict[int, str]) -> None:
    for name, player in (("White", "PNBRQK"), ("Black", "pnbrqk")):
        pieces = [piece for piece in squares.values() if piece in player]
        if pieces.count(player[5]) != 1:
            raise _fen_error(fen, f"{name} has {pieces.count(player[5])} kings")
        if len(pieces) > MOST_PIECES or pieces.count(player[0]) > MOST_PAWNS:
            raise _fen_error(fen, f"{name} has {len(pieces)} pieces, {pieces.count(player[0])} of them pawns")
    if any(piece in "Pp" and (square < 8 or square >= 56) for square, piece in squares.items()):
        raise _fen_error(fen, "there is a pawn on the first or the last row")


def _parse_counters(fen: str, counters: list[str], last_clock: int, *, unclaimed: bool) -> tuple[int, int]:
    """Return the plies since a capture or a pawn move, ``last_clock`` at most, and the move number."""
    texts = [*counters, *["0", "1"][len(counters) :]]
    if not all(re.fullmatch("[0-9]{1,6}", text) for text in texts):
        raise _fen_error(
            fen, f"{' '.join(counters)!r} are not the plies since a capture or pawn's move and the number of the move"
        )
    clock, move = map(int, texts)
    if clock > last_clock and not unclaimed:
        raise _fen_error(
            fen, f"there have been {clock} plies without a capture or a pawn's move, and {last_clock} end the game"
        )
    if move < 1:
        raise _fen_error(fen, "moves are numbered from 1")
    return min(clock, last_clock), move


def _parse_castling_rooks(fen: str, squares: dict[int, str], castling: str) -> Squares:
    """Return the squares of the rooks that may still castle."""
    rights = "" if castling == "-" else castling
    if len(set(rights)) != len(castling.strip("-")) or not set(rights) <= set(CASTLERS):
        raise _fen_error(fen, f"castling is some of KQkq or -, not {castling!r}")
    for letter in rights:
        king, rook = ("K", "R") if letter.isupper() else ("k", "r")
        if (squares.get(CASTLERS[letter][0]), squares.get(CASTLERS[letter][1])) != (king, rook):
            raise _fen_error(fen, f"{letter} may not castle: king and rook are not both at home")
    return _make_square_set([CASTLERS[letter][1] for letter in rights])


def _parse_en_passant_pawn(fen: str, squares: dict[int, str], passing: str, black: bool) -> Squares:
    """Return the pawn that has just advanced two squares, if any."""
    if passing == "-":
        return NONE
    if not re.fullmatch("[a-h][1-8]", passing):
        raise _fen_error(
            fen, f"the square behind a pawn that may be taken in passing is a square or -, not {passing!r}"
        )
    square, ahead = parse_square(passing), -8 if black else 8  # the square behind the pawn, and the way to the pawn
    right_row = square // 8 == (5 if black else 2)
    if (
        not right_row
        or squares.get(square + ahead) != ("P" if black else "p")
        or square in squares
        or square - ahead in squares
    ):
        raise _fen_error(fen, f"no pawn has just passed over {passing}")
    return _make_square_set([square + ahead])


def _make_board(squares: dict[int, str]) -> Bitboards:
    """Return the board with White as the player to move."""
    sets = [
        _make_square_set([square for square, piece in squares.items() if PIECES[piece.lower()][i]]) for i in range(3)
    ]
    return Bitboards(_make_square_set([square for square, piece in squares.items() if piece.isupper()]), *sets)


def position_from_fen(game: Game, fen: str, *, unclaimed: bool = False) -> States:
    """Return the state of a game of chess that begins at a position in FEN, with up to ``max_plies`` plies from there.

    The en passant square counts only if a pawn may capture there. Earlier positions are unknown.

    Args:
        game: of chess.
        fen: the position.
        unclaimed: whether a draw by the clock may have passed that nobody claimed; else it is an error.

    Raises:
        ValueError: the FEN is not valid (the text says why), or the game is not chess.
    """
    if game.name != "chess":
        raise ValueError(f"FEN is for chess, not for {game.name}")
    row = make_empty_row(**game.options)
    set_up_from_fen(row, fen, unclaimed=unclaimed)
    return row


def pieces_of(state: States) -> dict[int, str]:
    """Return the piece on each occupied square, seen by White, as a letter of FEN."""
    board = current_board(state)
    if state[PLY] % 2 == 1:
        board = swap_sides(board)  # so that ``own`` are White's pieces
    own, *sets = (int(word) & (1 << 64) - 1 for word in board)
    found = {}
    for square in range(64):
        letter = PIECE_LETTERS.get((sets[0] >> square & 1, sets[1] >> square & 1, sets[2] >> square & 1))
        if letter is not None:
            found[square] = letter.upper() if own >> square & 1 else letter
    return found


def fen_of(state: States) -> str:
    """Return a position in FEN, with the en passant square only if a pawn may capture there."""
    black = state[PLY] % 2 == 1
    pieces, rooks = pieces_of(state), int(byte_swap(state[CASTLING]) if black else state[CASTLING])
    rows = ["".join(pieces.get(8 * row + column, " ") for column in range(8)) for row in range(8)]
    placed = "/".join(re.sub(" +", lambda blank: str(len(blank[0])), row) for row in rows)
    castling = "".join(letter for letter, (_, rook) in CASTLERS.items() if rooks >> rook & 1) or "-"
    passing = int(state[EN_PASSANT] & PASSING_ROW)
    behind = square_name(lowest_bit(passing), black=black) if passing else "-"
    return f"{placed} {'b' if black else 'w'} {castling} {behind} {state[CLOCK]} {state[PLY] // 2 + 1}"


def square_name(square: int, *, black: bool = False) -> str:
    """Return the name of a square, such as e4; with ``black``, the square is seen by Black."""
    row, column = divmod(square ^ UPSIDE_DOWN if black else square, 8)
    return f"{FILES[column]}{8 - row}"


def cells(state: States) -> NDArray[np.int64]:
    """Return the pieces ``[8, 8]``, Black's home row first: 1 to 6 are White's pawn, knight, bishop, rook, queen and
    king, negative numbers Black's.
    """
    found = np.zeros(64, np.int64)
    for square, letter in pieces_of(state).items():
        found[square] = (1 + list(PIECES).index(letter.lower())) * (1 if letter.isupper() else -1)
    return found.reshape(8, 8)


def parse_square(name: str) -> int:
    """Return the square of a name, seen by White."""
    return 8 * (8 - int(name[1])) + FILES.index(name[0])


def uci_of(state: States, action: int) -> str:
    """Return a legal action in UCI notation, such as e2e4, e1g1 (castling) or e7e8q."""
    plane, origin = divmod(action, 64)
    target, black = origin + int(OFFSETS[plane]), state[PLY] % 2 == 1
    piece = PROMOTED[(plane - UNDERPROMOTIONS) // 3] if plane >= UNDERPROMOTIONS else ""
    if not piece and target < 8 and pieces_of(state)[origin ^ UPSIDE_DOWN if black else origin] in "Pp":
        piece = "q"
    return square_name(origin, black=black) + square_name(target, black=black) + piece


def action_of_uci(state: States, text: str) -> int:
    """Parse a move in UCI notation.

    Raises:
        ValueError: the text is no move.
        IllegalAction: the move is not legal here.
    """
    if not UCI.fullmatch(text):
        raise ValueError(f"{text!r} is not a move as UCI writes it, such as e2e4 or e7e8q")
    legal = np.empty(PLANES * 64, np.int32)
    for action in legal[: call_legal_actions(legal_actions, state, legal)].tolist():
        if uci_of(state, action) == text:
            return action
    raise IllegalAction(f"{text} is not legal in {fen_of(state)}")


def action_name(action: int) -> str:
    """Return origin and target as if the mover were White, such as e2e4 or e7e8, and e7e8n for an underpromotion.

    An action that leads off the board is named by its square and plane, such as a8#0.
    """
    plane, origin = divmod(action, 64)
    rows, columns = STEPS[plane]
    row, column = origin // 8 + rows, origin % 8 + columns
    if not (0 <= row < 8 and 0 <= column < 8) or (plane >= UNDERPROMOTIONS and row != 0):
        return f"{square_name(origin)}#{plane}"
    piece = PROMOTED[(plane - UNDERPROMOTIONS) // 3] if plane >= UNDERPROMOTIONS else ""
    return square_name(origin) + square_name(8 * row + column) + piece


def parse_action(text: str) -> int:
    """Return the action with this ``action_name``.

    Raises:
        ValueError: no action has this name.
    """
    action = ACTIONS.get(text.strip().lower())
    if action is None:
        raise ValueError(
            f"{text.strip()!r} is not a move: type two squares as the mover sees them with White's pieces, "
            f"such as e2e4 or e7e8n"
        )
    return action


ACTIONS = {action_name(action): action for action in range(64 * PLANES)}


def describe_ending(state: States) -> str:
    """Return how the game ended, such as checkmate; empty if it is not over."""
    if not has_legal_move(state):
        return "checkmate" if is_in_check(state) else "stalemate"
    claimed = state[MOST_REPEATED] == 3
    return {
        BY_REPETITION: "threefold repetition" if claimed else "fivefold repetition",
        BY_CLOCK: "fifty moves" if claimed else "75 moves",
        BY_MATERIAL: "insufficient material",
        BY_LENGTH: "length",
    }.get(int(state[DRAWN]), "")


def continue_after_draw(state: States) -> States:
    """Return the position without its draw, for players who do not claim it: the clock, or the count of plies,
    restarts.

    Earlier repetitions still count. Checkmate and stalemate stay.
    """
    state = state.copy()
    if state[CLOCK] >= state[LAST_CLOCK]:
        state[KEYS] = state[KEYS + state[CLOCK]]
        state[CLOCK] = 0
    if state[PLY] >= state[LAST_PLY]:
        state[LAST_PLY] = state[PLY] + state[MAX_PLIES]
    state[DRAWN] = NOT_DRAWN
    return state


def render(state: States) -> str:
    """Return the board with coordinates, White below and in capitals, and the player to move or how the game ended."""
    pieces = pieces_of(state)
    rows = [" ".join(pieces.get(8 * row + column, ".") for column in range(8)) for row in range(8)]
    letters = "  " + " ".join(FILES)
    ending, mover = describe_ending(state), "Black" if state[PLY] % 2 else "White"
    said = ending if ending else f"{mover} to move{', in check' if is_in_check(state) else ''}"
    return "\n".join([letters, *(f"{8 - row} {rows[row]} {8 - row}" for row in range(8)), letters, f"{said}"])
