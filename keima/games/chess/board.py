"""The rules of chess as compiled kernels over one row of 64-bit words: the board, attacks, and making a move.

The board is always seen by the player to move, as White sees it: square ``8 * row + column``, row 0 is the far rank,
column 0 the a-file. For Black the board is flipped vertically, not rotated (kings stay on the e-file). So own pawns
always move to lower rows, and all code is written for one side. A set of squares is a word with a bit per square
(``Bitboards``).

The code also plays the mirror image of the game, in which kings begin on the d-file: castling moves the king two
squares towards a rook in a corner, whichever file the king is on.

Which moves are legal is in ``keima.games.chess.moves``.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled, inlined_by_llvm
from keima.compilation.intrinsics import byte_swap, lowest_bit
from keima.games.game import States, step_kernel

Squares = Any  # a set of squares: a 64-bit word, for which numba and numpy have different type names

# The words at the start of a row: plies since White's move 1; the ply at which the game is drawn; plies since a capture
# or a pawn move; the squares of rooks that may still castle; the en passant square and the pawns that may use it;
# the kind of draw; for each of the last eight positions, the newest lowest, the number of its earlier occurrences, four
# bits each.
PLY, LAST_PLY, CLOCK, CASTLING, EN_PASSANT, DRAWN, REPEATED = range(7)
# The constants: the number of plies, of occurrences of a position, and of plies on the clock that make a draw; the
# positions that a network sees.
MAX_PLIES, MOST_REPEATED, LAST_CLOCK, SEEN = range(7, 11)
# Then the last eight positions, position p at ``p % 8``, each as its mover saw it: ``Bitboards`` and their hash; 0
# before the game. Then a key of each position since the last capture or pawn move, indexed by its clock, to find
# repetitions.
POSITIONS, HISTORY, POSITION_WORDS = 11, 8, 5
KEYS = POSITIONS + HISTORY * POSITION_WORDS

NOT_DRAWN, BY_REPETITION, BY_CLOCK, BY_MATERIAL, BY_LENGTH = range(5)

# Actions: 64 * plane + origin. Planes: 7 * direction + distance - 1, then knight moves, then underpromotions.
PLANES, KNIGHT_PLANES, UNDERPROMOTIONS = 73, 56, 64
# (rows, columns): N, NE, E, SE, S, SW, W, NW
DIRECTIONS = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
KNIGHT_MOVES = ((-2, 1), (-1, 2), (1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1))
PAWN_COLUMNS = (0, 1, -1)  # underpromotions: 3 * piece + which of these
KNIGHT, BISHOP, ROOK, QUEEN = range(4)  # promotions; to a queen in the planes where other pieces move


def _square_set(squares: list[tuple[int, int]]) -> int:
    """Return the squares (row, column) as a word, without those off the board."""
    bits = sum(1 << 8 * row + column for row, column in squares if 0 <= row < 8 and 0 <= column < 8)
    return bits - (1 << 64) if bits >> 63 else bits


def _step_targets(square: int, steps: tuple[tuple[int, int], ...]) -> int:
    return _square_set([(square // 8 + rows, square % 8 + columns) for rows, columns in steps])


def _squares_in_line(square: int, direction: tuple[int, int], length: int) -> int:
    return _square_set([(square // 8 + n * direction[0], square % 8 + n * direction[1]) for n in range(1, length + 1)])


def _make_between_table() -> NDArray[np.int64]:
    table = np.zeros((64, 64), np.int64)  # [square, other]: the squares between two squares on a line
    for square in range(64):
        for rows, columns in DIRECTIONS:
            for distance in range(1, 8):
                row, column = square // 8 + distance * rows, square % 8 + distance * columns
                if 0 <= row < 8 and 0 <= column < 8:
                    table[square, 8 * row + column] = _squares_in_line(square, (rows, columns), distance - 1)
    return table


BETWEEN = _make_between_table()
KING_STEPS = np.array([_step_targets(square, DIRECTIONS) for square in range(64)], np.int64)
KNIGHT_STEPS = np.array([_step_targets(square, KNIGHT_MOVES) for square in range(64)], np.int64)
PAWN_STEPS = np.array(
    [_step_targets(square, ((-1, -1), (-1, 1))) for square in range(64)], np.int64
)  # own pawns' captures
STRAIGHT, DIAGONAL = (
    np.array(
        [sum(_squares_in_line(square, DIRECTIONS[d], 7) for d in range(first, 8, 2)) for square in range(64)], np.int64
    )
    for first in (0, 1)
)
# The squares that a step can reach without leaving the board, and the difference of square numbers.
EDGES = np.array(
    [_square_set([(r + rows, c + cols) for r in range(8) for c in range(8)]) for rows, cols in DIRECTIONS], np.int64
)
SHIFTS = np.array([8 * rows + columns for rows, columns in DIRECTIONS], np.int64)
KNIGHT_EDGES = np.array(
    [_square_set([(r + rows, c + cols) for r in range(8) for c in range(8)]) for rows, cols in KNIGHT_MOVES], np.int64
)
KNIGHT_SHIFTS = np.array([8 * rows + columns for rows, columns in KNIGHT_MOVES], np.int64)
STEPS = (  # [PLANES]: rows and columns from origin to target
    *((distance * rows, distance * columns) for rows, columns in DIRECTIONS for distance in range(1, 8)),
    *KNIGHT_MOVES,
    *((-1, columns) for _ in (KNIGHT, BISHOP, ROOK) for columns in PAWN_COLUMNS),
)
OFFSETS = np.array([8 * rows + columns for rows, columns in STEPS], np.int64)

ONE: Squares = np.int64(1)
ALL: Squares = np.int64(-1)
NONE: Squares = np.int64(0)
ROWS = tuple(np.int64(_square_set([(row, column) for column in range(8)])) for row in range(8))
_, PROMOTING_ROW, PASSING_ROW, TAKING_ROW, PUSHED_ROW, CROSSED_ROW, PAWN_ROW, HOME_ROW = ROWS
LIGHT = np.int64(_square_set([(row, column) for row in range(8) for column in range(8) if (row + column) % 2 == 0]))
KING_HOME, LONG_ROOK, SHORT_ROOK = 60, 56, 63
LONG_PLANE, SHORT_PLANE = 7 * 6 + 1, 7 * 2 + 1  # two squares to the west, and to the east


class Bitboards(NamedTuple):
    """The pieces as four sets.

    Pawns are in ``short`` only, rooks in ``straight``, bishops in ``diagonal``; queens are in the last two, knights in
    the first two, and kings in ``short`` and ``diagonal``.
    """

    own: Squares  # the pieces of the player to move
    short: Squares
    straight: Squares
    diagonal: Squares


@inlined_by_llvm
def square_bit(square: int) -> Squares:
    """Return the set of one square."""
    return ONE << square


@inlined_by_llvm
def rotate_bits(squares: Squares, shift: int) -> Squares:
    """Return the word rotated left by ``shift`` bits, right if negative."""
    word = np.uint64(squares)
    return np.int64(word << np.uint64(shift & 63) | word >> np.uint64(-shift & 63))


@inlined_by_llvm
def board_at(state: States, ply: int) -> Bitboards:
    """Return one of the last eight positions, as its mover saw it."""
    first = POSITIONS + POSITION_WORDS * (ply & (HISTORY - 1))
    return Bitboards(state[first], state[first + 1], state[first + 2], state[first + 3])


@inlined_by_llvm
def find_attackers(king: int, occupied: Squares, theirs: Squares, board: Bitboards) -> Squares:
    """Return the pieces among ``theirs`` that attack the square ``king``, blocked by the ``occupied`` squares only."""
    pawns = board.short & ~board.straight & ~board.diagonal
    found = theirs & (PAWN_STEPS[king] & pawns | KNIGHT_STEPS[king] & board.short & board.straight)
    lines = STRAIGHT[king] & board.straight & ~board.short | DIAGONAL[king] & board.diagonal & ~board.short
    lines &= theirs
    while lines != 0:
        square = lowest_bit(lines)
        lines &= lines - 1
        if BETWEEN[king, square] & occupied == 0:
            found |= square_bit(square)
    return found


@inlined_by_llvm
def move_bit(pieces: Squares, gone: Squares, origin: int, target: int) -> Squares:
    """Return a set of pieces after a move: ``gone`` is cleared, and ``target`` set if ``origin`` was."""
    return pieces & ~gone | (pieces >> origin & 1) << target


@inlined_by_llvm
def board_after(board: Bitboards, action: int, passing: Squares) -> Bitboards:
    """Return the board after a move, still seen by the player who made it."""
    plane, origin = action >> 6, action & 63
    target = origin + OFFSETS[plane]
    gone = square_bit(origin) | square_bit(target)
    pawn = square_bit(origin) & board.short & ~board.straight & ~board.diagonal != 0
    if pawn and square_bit(target) & passing != 0:
        gone |= square_bit(target + 8)
    own = board.own & ~gone | square_bit(target)
    short = move_bit(board.short, gone, origin, target)
    straight = move_bit(board.straight, gone, origin, target)
    diagonal = move_bit(board.diagonal, gone, origin, target)
    if pawn and target < 8:
        piece = QUEEN if plane < UNDERPROMOTIONS else (plane - UNDERPROMOTIONS) // 3
        short ^= square_bit(target) if piece != KNIGHT else NONE
        straight |= square_bit(target) if piece != BISHOP else NONE
        diagonal |= square_bit(target) if piece == BISHOP or piece == QUEEN else NONE
    elif (plane == SHORT_PLANE or plane == LONG_PLANE) and square_bit(origin) & board.short & board.diagonal != 0:
        rook = square_bit(SHORT_ROOK) | square_bit(origin + 1)
        if plane == LONG_PLANE:
            rook = square_bit(LONG_ROOK) | square_bit(origin - 1)
        own, straight = own ^ rook, straight ^ rook
    return Bitboards(own, short, straight, diagonal)


@compiled
def swap_sides(board: Bitboards) -> Bitboards:
    """Return the board seen by the other player."""
    occupied = board.short | board.straight | board.diagonal
    return Bitboards(
        byte_swap(occupied & ~board.own), byte_swap(board.short), byte_swap(board.straight), byte_swap(board.diagonal)
    )


@inlined_by_llvm
def passing_pawns(board: Bitboards, pushed: Squares) -> Squares:
    """Return the en passant square behind their pawn ``pushed``, which has just advanced two squares, and the pawns
    that may capture there.

    Empty if no pawn may, because there is none or its king would be in check.
    """
    pawns = board.own & board.short & ~board.straight & ~board.diagonal
    square, takers = NONE, pawns & (rotate_bits(pushed, -1) & EDGES[6] | rotate_bits(pushed, 1) & EDGES[2])
    king, occupied = lowest_bit(board.own & board.short & board.diagonal), board.short | board.straight | board.diagonal
    found = NONE
    while takers != 0:
        taker = takers & -takers
        takers ^= taker
        square = rotate_bits(pushed, -8)
        if find_attackers(king, occupied ^ taker ^ pushed | square, occupied & ~board.own & ~pushed, board) == 0:
            found |= taker | square
    return found


@inlined_by_llvm
def mix_hash(key: Any, word: Any) -> Any:
    """Mix one more word into a hash."""
    mixed = (np.uint64(key) ^ np.uint64(word)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(32)) * np.uint64(0x94D049BB133111EB)
    return np.int64(mixed ^ mixed >> np.uint64(29))


@inlined_by_llvm
def board_hash(board: Bitboards) -> Any:
    """Return a hash of the pieces, never 0."""
    key = mix_hash(mix_hash(mix_hash(mix_hash(ONE, board.own), board.short), board.straight), board.diagonal)
    return key if key != 0 else ONE


@inlined_by_llvm
def is_mate_possible(board: Bitboards) -> bool:
    """Return whether mate is possible: not with a single knight or bishop, nor with bishops on squares of one color
    only.
    """
    pieces = board.short | board.straight | board.diagonal
    if board.straight & ~board.short != 0 or board.short & ~board.straight & ~board.diagonal != 0:
        return True  # a rook, a queen or a pawn
    others = pieces & ~(board.short & board.diagonal)
    if board.short & board.straight != 0:
        return others & (others - 1) != 0
    return others & LIGHT != 0 and others & ~LIGHT != 0


@inlined_by_llvm
def store_history(state: States, ply: int, board: Bitboards) -> Any:
    """Store a position among the last eight; return the hash of its board."""
    first, key = POSITIONS + POSITION_WORDS * (ply & (HISTORY - 1)), board_hash(board)
    state[first], state[first + 1] = board.own, board.short
    state[first + 2], state[first + 3] = board.straight, board.diagonal
    state[first + 4] = key
    return key


@inlined_by_llvm
def record_position(state: States, board: Bitboards) -> None:
    """Record a new position and whether it is drawn; PLY, CLOCK, CASTLING and EN_PASSANT are already set."""
    ply, clock = state[PLY], state[CLOCK]
    key = mix_hash(mix_hash(store_history(state, ply, board), state[CASTLING]), state[EN_PASSANT])
    repeated = 0
    for earlier in range(clock - 4, -1, -2):
        repeated += state[KEYS + earlier] == key
    state[KEYS + clock] = key
    state[REPEATED] = (state[REPEATED] << 4 | min(repeated, 15)) & 0xFFFFFFFF
    if repeated + 1 >= state[MOST_REPEATED]:
        state[DRAWN] = BY_REPETITION
    elif clock >= state[LAST_CLOCK]:
        state[DRAWN] = BY_CLOCK
    elif not is_mate_possible(board):
        state[DRAWN] = BY_MATERIAL
    elif ply >= state[LAST_PLY]:
        state[DRAWN] = BY_LENGTH


@compiled
def begin_position(state: States, board: Bitboards, pushed: Squares) -> None:
    """Begin a game at a position whose PLY, CLOCK and CASTLING are already set.

    ``pushed`` is their pawn that has just advanced two squares. The network sees en passant from the previous position,
    which is reconstructed where it matters.
    """
    state[LAST_PLY] = state[PLY] + state[MAX_PLIES]
    if pushed != 0:
        state[EN_PASSANT] = passing_pawns(board, pushed)
        if state[EN_PASSANT] != 0:
            moved_pawn = pushed | rotate_bits(pushed, -16)
            before = Bitboards(board.own, board.short ^ moved_pawn, board.straight, board.diagonal)
            store_history(state, state[PLY] - 1, swap_sides(before))
    record_position(state, board)


@compiled
def current_board(state: States) -> Bitboards:
    """Return the position, seen by the player to move."""
    return board_at(state, state[PLY])


@step_kernel
def step(state: States, action: int) -> None:
    before = board_at(state, state[PLY])
    origin, pawns = action & 63, before.short & ~before.straight & ~before.diagonal
    there = square_bit(origin + OFFSETS[action >> 6])
    changed = board_after(before, action, state[EN_PASSANT])
    castling = state[CASTLING] & ~(square_bit(origin) | there)
    if square_bit(origin) & before.short & before.diagonal != 0:
        castling &= ~HOME_ROW
    board = swap_sides(changed)
    state[PLY] += 1
    state[CASTLING], state[EN_PASSANT] = byte_swap(castling), NONE
    if square_bit(origin) & pawns != 0 or there & (before.short | before.straight | before.diagonal) != 0:
        state[CLOCK] = 0
        if square_bit(origin) & pawns & PAWN_ROW != 0 and there & PUSHED_ROW != 0:
            state[EN_PASSANT] = passing_pawns(board, byte_swap(there))
    else:
        state[CLOCK] += 1
    record_position(state, board)
