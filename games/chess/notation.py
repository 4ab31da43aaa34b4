"""How chess positions and moves are written: FEN, UCI, names of actions, and the board as text."""

import re

import numpy as np

from games.chess.board import (
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
    STEPS,
    UNDERPROMOTIONS,
    Board,
    Squares,
    begin,
    board_now,
    turned_round,
)
from games.chess.moves import has_move, in_check, king_attacked, legal_actions
from games.game import Game, IllegalAction, States, call_legal_actions
from games.intrinsics import byte_swap, lowest_bit

START_FEN = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
FILES = "abcdefgh"
PIECES = {
    "p": (1, 0, 0),
    "n": (1, 1, 0),
    "b": (0, 0, 1),
    "r": (0, 1, 0),
    "q": (0, 1, 1),
    "k": (1, 0, 1),
}  # in short, straight, diagonal
LETTERS = {sets: letter for letter, sets in PIECES.items()}
CASTLERS = {"K": (60, 63), "Q": (60, 56), "k": (4, 7), "q": (4, 0)}  # squares of king and rook, as White sees them
PROMOTED = "nbr"
UCI = re.compile(r"[a-h][1-8][a-h][1-8][nbrq]?")
MOST_PIECES, MOST_PAWNS = 16, 8  # of one player
UPSIDE_DOWN = 56  # a square ^ this is where the other player sees it


def empty_row(*, max_plies: int, claim_draws: bool) -> States:
    """A row without a position."""
    last_clock = 100 if claim_draws else 150
    row = np.zeros(KEYS + last_clock + 1, np.int64)
    row[MAX_PLIES], row[MOST_REPEATED], row[LAST_CLOCK] = max_plies, 3 if claim_draws else 5, last_clock
    return row


def set_up(row: States, fen: str) -> None:
    """Make an empty row the beginning of a game from a position in FEN.

    Raises:
        ValueError: it is no such position; the text says why.
    """
    fields = fen.split()
    if not 4 <= len(fields) <= 6:
        raise _refused(fen, f"it has {len(fields)} fields and not six (the last two may be left out)")
    placed, mover, castling, passing, *counters = fields
    squares = _squares(fen, placed)
    _require_pieces(fen, squares)
    if mover not in ("w", "b"):
        raise _refused(fen, f"the player to move is w or b, not {mover!r}")
    clock, move = _counters(fen, counters, int(row[LAST_CLOCK]))
    black = mover == "b"
    rooks = _castling_rooks(fen, squares, castling)
    board, pushed = _board(squares), _pushed(fen, squares, passing, black)
    if king_attacked(turned_round(board) if not black else board):
        raise _refused(fen, "the player who is not to move is in check")
    row[PLY], row[CLOCK] = 2 * (move - 1) + black, clock
    row[CASTLING] = byte_swap(rooks) if black else rooks
    begin(row, turned_round(board) if black else board, byte_swap(pushed) if black else pushed)


def _refused(fen: str, why: str) -> ValueError:
    return ValueError(f"{fen!r} is not a chess position in FEN: {why}")


def _word(squares: list[int]) -> Squares:
    """A set of squares."""
    return np.uint64(sum(1 << square for square in squares)).astype(np.int64)


def _squares(fen: str, placed: str) -> dict[int, str]:
    """The piece on each square that has one."""
    rows, found = placed.split("/"), {}
    if len(rows) != 8:
        raise _refused(fen, f"the board has {len(rows)} rows and not eight")
    for number, row in enumerate(rows):
        column = 0
        for mark in row:
            if mark in "12345678":
                column += int(mark)
            elif mark.lower() in PIECES:
                found[8 * number + column] = mark
                column += 1
            else:
                raise _refused(fen, f"there is no piece {mark!r}")
            if column > 8:
                break
        if column != 8:
            raise _refused(fen, f"row {8 - number} ({row}) does not have eight squares")
    return found


def _require_pieces(fen: str, squares: dict[int, str]) -> None:
    for name, player in (("White", "PNBRQK"), ("Black", "pnbrqk")):
        pieces = [piece for piece in squares.values() if piece in player]
        if pieces.count(player[5]) != 1:
            raise _refused(fen, f"{name} has {pieces.count(player[5])} kings")
        if len(pieces) > MOST_PIECES or pieces.count(player[0]) > MOST_PAWNS:
            raise _refused(fen, f"{name} has {len(pieces)} pieces, {pieces.count(player[0])} of them pawns")
    if any(piece in "Pp" and (square < 8 or square >= 56) for square, piece in squares.items()):
        raise _refused(fen, "there is a pawn on the first or the last row")


def _counters(fen: str, counters: list[str], last_clock: int) -> tuple[int, int]:
    """The plies since a capture or a pawn's move, and the number of the move."""
    texts = [*counters, *["0", "1"][len(counters) :]]
    if not all(re.fullmatch("[0-9]{1,6}", text) for text in texts):
        raise _refused(
            fen, f"{' '.join(counters)!r} are not the plies since a capture or pawn's move and the number of the move"
        )
    clock, move = map(int, texts)
    if clock > last_clock:
        raise _refused(
            fen, f"there have been {clock} plies without a capture or a pawn's move, and {last_clock} end the game"
        )
    if move < 1:
        raise _refused(fen, "moves are numbered from 1")
    return clock, move


def _castling_rooks(fen: str, squares: dict[int, str], castling: str) -> Squares:
    """The squares of rooks that may still castle."""
    rights = "" if castling == "-" else castling
    if len(set(rights)) != len(castling.strip("-")) or not set(rights) <= set(CASTLERS):
        raise _refused(fen, f"castling is some of KQkq or -, not {castling!r}")
    for letter in rights:
        king, rook = ("K", "R") if letter.isupper() else ("k", "r")
        if (squares.get(CASTLERS[letter][0]), squares.get(CASTLERS[letter][1])) != (king, rook):
            raise _refused(fen, f"{letter} may not castle: king and rook are not both at home")
    return _word([CASTLERS[letter][1] for letter in rights])


def _pushed(fen: str, squares: dict[int, str], passing: str, black: bool) -> Squares:
    """The pawn that has just gone two squares, if any."""
    if passing == "-":
        return NONE
    if not re.fullmatch("[a-h][1-8]", passing):
        raise _refused(fen, f"the square behind a pawn that may be taken in passing is a square or -, not {passing!r}")
    square, ahead = parse_square(passing), -8 if black else 8  # from which row the pawn has come to which
    right_row = square // 8 == (5 if black else 2)
    if (
        not right_row
        or squares.get(square + ahead) != ("P" if black else "p")
        or square in squares
        or square - ahead in squares
    ):
        raise _refused(fen, f"no pawn has just passed over {passing}")
    return _word([square + ahead])


def _board(squares: dict[int, str]) -> Board:
    """The board as White sees it, who is taken for the player to move."""
    sets = [_word([square for square, piece in squares.items() if PIECES[piece.lower()][i]]) for i in range(3)]
    return Board(_word([square for square, piece in squares.items() if piece.isupper()]), *sets)


def position_from_fen(game: Game, fen: str) -> States:
    """A state of a game of chess, which begins with a position in FEN and may have ``max_plies`` plies from there.

    The square of a pawn that may be taken in passing counts only if a pawn may indeed take it. Positions before this
    one are unknown.

    Raises:
        ValueError: it is no position in FEN; the text says why. Or the game is not chess.
    """
    if game.name != "chess":
        raise ValueError(f"FEN is for chess, not for {game.name}")
    row = empty_row(max_plies=game.options["max_plies"], claim_draws=game.options["claim_draws"])
    set_up(row, fen)
    return row


def pieces_of(state: States) -> dict[int, str]:
    """The piece on each square that has one, as White sees them: letters as in FEN."""
    board = board_now(state)
    if state[PLY] % 2 == 1:
        board = turned_round(board)  # and so White's pieces are its own
    own, *sets = (int(word) & (1 << 64) - 1 for word in board)
    found = {}
    for square in range(64):
        letter = LETTERS.get((sets[0] >> square & 1, sets[1] >> square & 1, sets[2] >> square & 1))
        if letter is not None:
            found[square] = letter.upper() if own >> square & 1 else letter
    return found


def fen_of(state: States) -> str:
    """A position in FEN.

    The square of a pawn that may be taken in passing is there only if a pawn may indeed take it.
    """
    black = state[PLY] % 2 == 1
    pieces, rooks = pieces_of(state), int(byte_swap(state[CASTLING]) if black else state[CASTLING])
    rows = ["".join(pieces.get(8 * row + column, " ") for column in range(8)) for row in range(8)]
    placed = "/".join(re.sub(" +", lambda blank: str(len(blank[0])), row) for row in rows)
    castling = "".join(letter for letter, (_, rook) in CASTLERS.items() if rooks >> rook & 1) or "-"
    passing = int(state[EN_PASSANT] & PASSING_ROW)
    behind = square_name(lowest_bit(passing), black=black) if passing else "-"
    return f"{placed} {'b' if black else 'w'} {castling} {behind} {state[CLOCK]} {state[PLY] // 2 + 1}"


def square_name(square: int, *, black: bool = False) -> str:
    """A square, such as e4, from where the player to move sees it."""
    row, column = divmod(square ^ UPSIDE_DOWN if black else square, 8)
    return f"{FILES[column]}{8 - row}"


def parse_square(name: str) -> int:
    """The square as White sees it."""
    return 8 * (8 - int(name[1])) + FILES.index(name[0])


def uci_of(state: States, action: int) -> str:
    """A legal action as the Universal Chess Interface writes it, such as e2e4, e1g1 (castling) or e7e8q."""
    plane, origin = divmod(action, 64)
    target, black = origin + int(OFFSETS[plane]), state[PLY] % 2 == 1
    piece = PROMOTED[(plane - UNDERPROMOTIONS) // 3] if plane >= UNDERPROMOTIONS else ""
    if not piece and target < 8 and pieces_of(state)[origin ^ UPSIDE_DOWN if black else origin] in "Pp":
        piece = "q"
    return square_name(origin, black=black) + square_name(target, black=black) + piece


def action_of_uci(state: States, text: str) -> int:
    """The action that ``uci_of`` writes so.

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
    """From where to where, as the mover would write it with White's pieces, such as e2e4 or e7e8, and e7e8n for
    underpromotion.

    An action that leads off the board is its square and plane, such as a8#0.
    """
    plane, origin = divmod(action, 64)
    rows, columns = STEPS[plane]
    row, column = origin // 8 + rows, origin % 8 + columns
    if not (0 <= row < 8 and 0 <= column < 8) or (plane >= UNDERPROMOTIONS and row != 0):
        return f"{square_name(origin)}#{plane}"
    piece = PROMOTED[(plane - UNDERPROMOTIONS) // 3] if plane >= UNDERPROMOTIONS else ""
    return square_name(origin) + square_name(8 * row + column) + piece


def parse_action(text: str) -> int:
    """The action that ``action_name`` writes so.

    Raises:
        ValueError: no action is called that.
    """
    action = ACTIONS.get(text.strip().lower())
    if action is None:
        raise ValueError(
            f"{text.strip()!r} is not a move: type two squares as the mover sees them with White's pieces, such as e2e4 or e7e8n"
        )
    return action


ACTIONS = {action_name(action): action for action in range(64 * PLANES)}


def ending_of(state: States) -> str:
    """How the game has ended, such as checkmate; nothing while it goes on."""
    if not has_move(state):
        return "checkmate" if in_check(state) else "stalemate"
    claimed = state[MOST_REPEATED] == 3
    return {
        BY_REPETITION: "threefold repetition" if claimed else "fivefold repetition",
        BY_CLOCK: "fifty moves" if claimed else "75 moves",
        BY_MATERIAL: "insufficient material",
        BY_LENGTH: "length",
    }.get(int(state[DRAWN]), "")


def play_on(state: States) -> States:
    """The position with no draw, for players who do not claim it: as if its clock, or the count of its plies, began
    here.

    A repetition that has been is still known. Checkmate and stalemate stay what they are.
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
    """The board with coordinates, White below; capitals are White's pieces.

    Then who is to move, or how the game has ended.
    """
    pieces = pieces_of(state)
    rows = [" ".join(pieces.get(8 * row + column, ".") for column in range(8)) for row in range(8)]
    letters = "  " + " ".join(FILES)
    ending, mover = ending_of(state), "Black" if state[PLY] % 2 else "White"
    said = ending if ending else f"{mover} to move{', in check' if in_check(state) else ''}"
    return "\n".join([letters, *(f"{8 - row} {rows[row]} {8 - row}" for row in range(8)), letters, f"{said}"])
