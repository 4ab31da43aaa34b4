"""Chess by the laws of FIDE, with the moves and planes of AlphaZero (https://arxiv.org/abs/1712.01815, tables S1 and
S2).

**End of the game.** Checkmate wins. Stalemate is a draw, and so are the following. With ``claim_draws``, the default
and best for self-play, every draw that a player may claim is claimed: the third occurrence of a position, and fifty
moves of both sides without a capture or a pawn move. Without it, the fifth occurrence and 75 moves end the game, as the
laws demand. A position recurs if the same player is to move and has the same moves. Insufficient material ends the
game: two kings, with one knight or bishop, or with bishops on squares of one color only. So do ``max_plies`` plies.
Checkmate takes precedence over all of these. The state holds the positions since the last capture or pawn move, so that
a search sees repetitions.

**Squares** are always seen by the player to move: row 0 is the farthest, column 0 the a-file; for Black the board is
flipped vertically.

**Actions** are 73 planes of 8 x 8 squares, ``64 * plane + 8 * row + column`` of the square that the piece leaves:

- 0 to 55: queen moves, ``7 * direction + distance - 1``. The directions are north (ahead), northeast, east, southeast,
  south, southwest, west, northwest. Rooks, bishops, kings and pawns use them too. A pawn that reaches the last row
  becomes a queen, and a king castles by moving two squares.
- 56 to 63: knight moves, clockwise from the one two squares ahead and one to the east.
- 64 to 72: underpromotions, ``64 + 3 * piece + way``; the pieces are knight, bishop, rook; the ways are straight ahead,
  capturing to the east, capturing to the west.

**Observation**, ``[14 * history + 7, 8, 8]``; AlphaZero has a history of eight positions. A group of 14 planes for each
of the last ``history`` positions, the newest first, all seen by the player to move now, and 0 before the start of the
game. In a group:

- 0 to 5: its own pawns, knights, bishops, rooks, queens, king; 6 to 11: its opponent's.
- 12: all ones if that position had occurred before; 13: if twice or more.

Then planes that are the same at every square:

- 0: 1 if White is to move.
- 1: the plies played, as a share of ``max_plies``.
- 2, 3: 1 if it may still castle to the kingside, to the queenside; 4, 5: if its opponent may.
- 6: the plies since a capture or a pawn move, as a share of those that make a draw.

The position before shows whether a pawn may capture en passant, so the history has at least two.

**Symmetry.** The mirror image, in which the a-file becomes the h-file, is a game by the same rules in which kings begin
on the d-file. Learners show half of the positions mirrored.

The kernels that play are in ``keima.games.chess.board`` and ``keima.games.chess.moves``; ``keima.games.chess.notation``
reads and writes positions and moves.
"""

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import inlined_by_llvm
from keima.compilation.intrinsics import byte_swap, lowest_bit
from keima.games.chess.board import (
    CASTLING,
    CLOCK,
    HISTORY,
    KING_HOME,
    LAST_CLOCK,
    LAST_PLY,
    LONG_ROOK,
    MAX_PLIES,
    NONE,
    PAWN_COLUMNS,
    PLANES,
    PLY,
    POSITION_WORDS,
    POSITIONS,
    REPEATED,
    SEEN,
    SHORT_ROOK,
    STEPS,
    UNDERPROMOTIONS,
    Bitboards,
    Squares,
    begin_position,
    board_at,
    mix_hash,
    square_bit,
    step,
    swap_sides,
)
from keima.games.chess.moves import MOST_MOVES, has_legal_move, is_in_check, legal_actions, terminal
from keima.games.chess.notation import (
    START_FEN,
    action_name,
    cells,
    make_empty_row,
    parse_action,
    render,
    set_up_from_fen,
)
from keima.games.game import (
    Game,
    Planes,
    Returns,
    Rules,
    States,
    no_chance,
    observe_kernel,
    query_kernel,
    returns_kernel,
)

GROUP = 14  # planes per position
WHITE_MOVES, PROGRESS, OWN_CASTLING, THEIR_CASTLING, STANDSTILL, CONSTANT_PLANES = 0, 1, 2, 4, 6, 7
SQUARES, MIRRORED = np.arange(64, dtype=np.int32), np.int32(7)  # square ^ MIRRORED is the square as a mirror shows it
LONGEST = 17_697  # an upper bound of the plies of a game that 75 moves without progress end


@query_kernel
def current_player(state: States) -> int:
    return state[PLY] & 1


@returns_kernel
def returns(state: States, out: Returns) -> None:
    mated = is_in_check(state) and not has_legal_move(state)
    mover = state[PLY] & 1
    out[mover] = np.float32(-1.0 if mated else 0.0)
    out[1 - mover] = np.float32(1.0 if mated else 0.0)


@inlined_by_llvm
def mark_squares(planes: Planes, plane: int, squares: Squares) -> None:
    """Write a 1 on each of the squares."""
    while squares != 0:
        square = lowest_bit(squares)
        planes[plane, square >> 3, square & 7] = np.float32(1.0)
        squares &= squares - 1


@inlined_by_llvm
def castling_rook(king: Squares, side: int) -> Squares:
    """Return the corner of the rook with which a king at home castles to the kingside, 0, or to the queenside, 1."""
    kingside_is_east = lowest_bit(king) & 7 == KING_HOME & 7  # else the game is mirrored
    return square_bit(SHORT_ROOK if kingside_is_east == (side == 0) else LONG_ROOK)


@observe_kernel
def observe(state: States, planes: Planes) -> None:
    planes[:] = np.float32(0.0)
    history = planes.shape[0] // GROUP
    for age in range(history):
        board = board_at(state, state[PLY] - age)
        if age & 1:
            board = swap_sides(board)
        short, straight, diagonal = board.short, board.straight, board.diagonal
        for side in range(2):
            first = GROUP * age + 6 * side
            pieces = ~board.own if side else board.own
            mark_squares(planes, first, pieces & short & ~straight & ~diagonal)
            mark_squares(planes, first + 1, pieces & short & straight)
            mark_squares(planes, first + 2, pieces & diagonal & ~short & ~straight)
            mark_squares(planes, first + 3, pieces & straight & ~short & ~diagonal)
            mark_squares(planes, first + 4, pieces & straight & diagonal)
            mark_squares(planes, first + 5, pieces & short & diagonal)
        repeated = state[REPEATED] >> 4 * age & 15
        for times in range(2):
            if repeated > times:
                planes[GROUP * age + 12 + times] = np.float32(1.0)
    castling, theirs = state[CASTLING], byte_swap(state[CASTLING])
    whole = planes[GROUP * history :]
    whole[WHITE_MOVES] = np.float32(1 - (state[PLY] & 1))
    whole[PROGRESS] = np.float32(1.0) - np.float32(state[LAST_PLY] - state[PLY]) / np.float32(state[MAX_PLIES])
    now = board_at(state, state[PLY])
    kings = now.short & now.diagonal
    for side in range(2):
        whole[OWN_CASTLING + side] = np.float32(castling & castling_rook(kings & now.own, side) != 0)
        whole[THEIR_CASTLING + side] = np.float32(theirs & castling_rook(kings & ~now.own, side) != 0)
    whole[STANDSTILL] = np.float32(state[CLOCK]) / np.float32(state[LAST_CLOCK])


@query_kernel
def position_hash(state: States) -> int:
    key = mix_hash(mix_hash(state[PLY] & 1, state[LAST_PLY] - state[PLY]), state[CLOCK] << 32 | state[REPEATED])
    key = mix_hash(key, state[CASTLING])
    for age in range(state[SEEN]):
        key = mix_hash(key, state[POSITIONS + POSITION_WORDS * (state[PLY] - age & HISTORY - 1) + POSITION_WORDS - 1])
    return key


def mirrored_actions() -> NDArray[np.int32]:
    """Return each action as the mirror image has it, ``[A]``."""
    planes = {step: plane for plane, step in enumerate(STEPS[:UNDERPROMOTIONS])}
    mirrored = [planes[rows, -columns] for rows, columns in STEPS[:UNDERPROMOTIONS]]
    for first in range(UNDERPROMOTIONS, PLANES, len(PAWN_COLUMNS)):
        mirrored += [first + PAWN_COLUMNS.index(-columns) for columns in PAWN_COLUMNS]
    return np.concatenate([64 * plane + (SQUARES ^ MIRRORED) for plane in mirrored]).astype(np.int32)


def mirrored_start(start: States) -> States:
    """Return the mirror image of a position at the start of a game."""
    row, ply = start.copy(), int(start[PLY])
    row[POSITIONS:], board = 0, board_at(start, ply)
    begin_position(row, Bitboards(*(mirrored_squares(squares) for squares in board)), NONE)
    return row


def mirrored_squares(squares: Squares) -> Squares:
    """Return the mirror image of a set of squares."""
    bits = np.array([squares], np.int64).view(np.uint8)  # a row of the board each, whatever the order of bytes
    mirrored = np.unpackbits(bits).reshape(8, 8)[:, ::-1]
    return np.packbits(mirrored).view(np.int64)[0]


def chess(*, max_plies: int = 512, claim_draws: bool = True, history: int = HISTORY) -> Game:
    """Build chess from the usual position.

    Args:
        max_plies: plies after which the game is drawn. With ``claim_draws`` fifty moves without progress end it anyway,
            but in the worst case only after some 11,800 plies; games of random moves have 340 on average.
        claim_draws: whether threefold repetition and fifty moves end the game; else fivefold repetition and 75 moves.
        history: positions that a network sees, from 2 to 8. Each takes 14 planes, and with them time.

    Raises:
        ValueError, TypeError: an option is out of range, or of the wrong type.
    """
    for name, number, least, most in (("max_plies", max_plies, 1, LONGEST), ("history", history, 2, HISTORY)):
        if not isinstance(number, int) or isinstance(number, bool):
            raise TypeError(f"{name} must be a whole number, not {number!r}")
        if not least <= number <= most:
            raise ValueError(f"{name} must be from {least} to {most}, not {number}")
    if not isinstance(claim_draws, bool):
        raise TypeError(f"claim_draws must be true or false, not {claim_draws!r}")
    start = make_empty_row(max_plies=max_plies, claim_draws=claim_draws, history=history)
    set_up_from_fen(start, START_FEN)
    return Game(
        name="chess",
        options={"max_plies": max_plies, "claim_draws": claim_draws, "history": history},
        rules_version=1,
        rules=Rules(legal_actions, step, current_player, terminal, returns, observe, position_hash, no_chance),
        start=start,
        num_players=2,
        num_actions=PLANES * 64,
        observation_shape=(GROUP * history + CONSTANT_PLANES, 8, 8),
        policy_planes=PLANES,
        piece_planes=6,
        max_plies=max_plies,
        most_legal_actions=MOST_MOVES,
        point_symmetries=np.stack([SQUARES, SQUARES ^ MIRRORED]),
        action_symmetries=np.stack([np.arange(PLANES * 64, dtype=np.int32), mirrored_actions()]),
        symmetric_starts=np.stack([start, mirrored_start(start)]),
        action_name=action_name,
        parse_action=parse_action,
        render=render,
        cells=cells,
    )
