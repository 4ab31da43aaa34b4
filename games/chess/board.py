"""The rules of chess as compiled kernels over one row of 64-bit words: where pieces stand, where they may go, and
playing a move.

The board is always seen by the player to move, as White sees it: square ``8 * row + column``, row 0 is the far rank,
column 0 the a-file, and Black's view is turned upside down, not around (kings stay on the e-file). So own pawns always
move to lower rows, and all code is written for one side. A set of squares is a word, bit by square. Three sets say what
stands where (``Board``).

Which moves are legal is in ``games.chess.moves``.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from games.compiled import compiled, inlined
from games.game import States, step_kernel
from games.intrinsics import byte_swap, lowest_bit

Squares = Any  # a set of squares: a 64-bit word, whose types numba and numpy name differently

# The words at the start of a row: plies since move 1 of White; at how many the game is drawn; plies since a capture or
# a pawn's move; rooks' squares that may still castle; a pawn's square behind it that may be taken in passing, and those
# of the pawns that may take it; by what the game is drawn; for each of the last eight positions, the latest lowest, how
# often it was there before, four bits each.
PLY, LAST_PLY, CLOCK, CASTLING, EN_PASSANT, DRAWN, REPEATED = range(7)
# And what never changes: the plies that a game may have, how often a position may recur, and what the clock may show,
# until a draw.
MAX_PLIES, MOST_REPEATED, LAST_CLOCK = range(7, 10)
# Then the last eight positions, position p at ``p % 8``, each as its mover saw it: ``Board``, and a hash of it; 0
# before the game. Then a key of each position since the last capture or pawn's move, in the place of its clock, to find
# repetitions by.
POSITIONS, HISTORY, POSITION_WORDS = 10, 8, 5
KEYS = POSITIONS + HISTORY * POSITION_WORDS

NOT_DRAWN, BY_REPETITION, BY_CLOCK, BY_MATERIAL, BY_LENGTH = range(5)

# Actions: a plane of ``PLANES``, then the square moved from. 7 * direction + distance - 1, then knights' moves, then
# underpromotions.
PLANES, KNIGHT_PLANES, UNDERPROMOTIONS = 73, 56, 64
DIRECTIONS = (
    (-1, 0),
    (-1, 1),
    (0, 1),
    (1, 1),
    (1, 0),
    (1, -1),
    (0, -1),
    (-1, -1),
)  # (rows, columns): N, NE, E, SE, S, SW, W, NW
KNIGHT_MOVES = ((-2, 1), (-1, 2), (1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1))
PAWN_COLUMNS = (0, 1, -1)  # underpromotions: 3 * piece + which of these
KNIGHT, BISHOP, ROOK, QUEEN = range(4)  # what pawns become; a queen in the planes where other pieces move


def _set_of(squares: list[tuple[int, int]]) -> int:
    """The squares (row, column) that are on the board, as a word."""
    bits = sum(1 << 8 * row + column for row, column in squares if 0 <= row < 8 and 0 <= column < 8)
    return bits - (1 << 64) if bits >> 63 else bits


def _steps(square: int, steps: tuple[tuple[int, int], ...]) -> int:
    return _set_of([(square // 8 + rows, square % 8 + columns) for rows, columns in steps])


def _line(square: int, direction: tuple[int, int], length: int) -> int:
    return _set_of([(square // 8 + n * direction[0], square % 8 + n * direction[1]) for n in range(1, length + 1)])


def _between() -> NDArray[np.int64]:
    table = np.zeros((64, 64), np.int64)  # [square, other]: the squares between two that are on a line
    for square in range(64):
        for rows, columns in DIRECTIONS:
            for distance in range(1, 8):
                row, column = square // 8 + distance * rows, square % 8 + distance * columns
                if 0 <= row < 8 and 0 <= column < 8:
                    table[square, 8 * row + column] = _line(square, (rows, columns), distance - 1)
    return table


BETWEEN = _between()
KING_STEPS = np.array([_steps(square, DIRECTIONS) for square in range(64)], np.int64)
KNIGHT_STEPS = np.array([_steps(square, KNIGHT_MOVES) for square in range(64)], np.int64)
PAWN_STEPS = np.array(
    [_steps(square, ((-1, -1), (-1, 1))) for square in range(64)], np.int64
)  # where an own pawn takes
STRAIGHT, DIAGONAL = (
    np.array([sum(_line(square, DIRECTIONS[d], 7) for d in range(first, 8, 2)) for square in range(64)], np.int64)
    for first in (0, 1)
)
# What a step can reach without leaving the board, and by how much it changes the number of a square.
EDGES = np.array(
    [_set_of([(r + rows, c + cols) for r in range(8) for c in range(8)]) for rows, cols in DIRECTIONS], np.int64
)
SHIFTS = np.array([8 * rows + columns for rows, columns in DIRECTIONS], np.int64)
KNIGHT_EDGES = np.array(
    [_set_of([(r + rows, c + cols) for r in range(8) for c in range(8)]) for rows, cols in KNIGHT_MOVES], np.int64
)
KNIGHT_SHIFTS = np.array([8 * rows + columns for rows, columns in KNIGHT_MOVES], np.int64)
STEPS = (  # [PLANES]: rows and columns from where an action comes from to where it leads
    *((distance * rows, distance * columns) for rows, columns in DIRECTIONS for distance in range(1, 8)),
    *KNIGHT_MOVES,
    *((-1, columns) for _ in (KNIGHT, BISHOP, ROOK) for columns in PAWN_COLUMNS),
)
OFFSETS = np.array([8 * rows + columns for rows, columns in STEPS], np.int64)

ONE: Squares = np.int64(1)
ALL: Squares = np.int64(-1)
NONE: Squares = np.int64(0)
ROWS = tuple(np.int64(_set_of([(row, column) for column in range(8)])) for row in range(8))
_, PROMOTING_ROW, PASSING_ROW, TAKING_ROW, PUSHED_ROW, CROSSED_ROW, PAWN_ROW, HOME_ROW = ROWS
LIGHT = np.int64(_set_of([(row, column) for row in range(8) for column in range(8) if (row + column) % 2 == 0]))
KING_HOME, LONG_ROOK, SHORT_ROOK = 60, 56, 63
LONG_EMPTY, SHORT_EMPTY = np.int64(_set_of([(7, 1), (7, 2), (7, 3)])), np.int64(_set_of([(7, 5), (7, 6)]))
LONG_CROSSED, SHORT_CROSSED = np.int64(_set_of([(7, 2), (7, 3)])), SHORT_EMPTY
LONG_ROOK_MOVE, SHORT_ROOK_MOVE = np.int64(_set_of([(7, 0), (7, 3)])), np.int64(_set_of([(7, 7), (7, 5)]))
LONG_PLANE, SHORT_PLANE = 7 * 6 + 1, 7 * 2 + 1  # two squares to the west, and to the east


class Board(NamedTuple):
    """What stands where.

    Pawns are in ``short`` alone, rooks in ``straight``, bishops in ``diagonal``; queens in the last two, knights in the
    first two, and kings in ``short`` and ``diagonal``.
    """

    own: Squares  # the pieces of the player to move
    short: Squares
    straight: Squares
    diagonal: Squares


@inlined
def at(square: int) -> Squares:
    """The set of one square."""
    return ONE << square


@inlined
def turned(squares: Squares, shift: int) -> Squares:
    """The squares moved by so many numbers, either way, and from the end of the board to its beginning."""
    word = np.uint64(squares)
    return np.int64(word << np.uint64(shift & 63) | word >> np.uint64(-shift & 63))


@inlined
def board_at(state: States, ply: int) -> Board:
    """A position of the last eight, as its mover saw it."""
    first = POSITIONS + POSITION_WORDS * (ply & (HISTORY - 1))
    return Board(state[first], state[first + 1], state[first + 2], state[first + 3])


@inlined
def attackers(king: int, occupied: Squares, theirs: Squares, board: Board) -> Squares:
    """The pieces among ``theirs`` that attack a square, where no others than the ``occupied`` squares are in their way."""
    pawns = board.short & ~board.straight & ~board.diagonal
    found = theirs & (PAWN_STEPS[king] & pawns | KNIGHT_STEPS[king] & board.short & board.straight)
    lines = STRAIGHT[king] & board.straight & ~board.short | DIAGONAL[king] & board.diagonal & ~board.short
    lines &= theirs
    while lines != 0:
        square = lowest_bit(lines)
        lines &= lines - 1
        if BETWEEN[king, square] & occupied == 0:
            found |= at(square)
    return found


@inlined
def moved(pieces: Squares, gone: Squares, origin: int, target: int) -> Squares:
    """A set of pieces after a move."""
    return pieces & ~gone | (pieces >> origin & 1) << target


@inlined
def after(board: Board, action: int, passing: Squares) -> Board:
    """The board after a move, still as the player saw it who made it."""
    plane, origin = action >> 6, action & 63
    target = origin + OFFSETS[plane]
    gone = at(origin) | at(target)
    pawn = at(origin) & board.short & ~board.straight & ~board.diagonal != 0
    if pawn and at(target) & passing != 0:
        gone |= at(target + 8)
    own = board.own & ~gone | at(target)
    short = moved(board.short, gone, origin, target)
    straight = moved(board.straight, gone, origin, target)
    diagonal = moved(board.diagonal, gone, origin, target)
    if pawn and target < 8:
        piece = QUEEN if plane < UNDERPROMOTIONS else (plane - UNDERPROMOTIONS) // 3
        short ^= at(target) if piece != KNIGHT else NONE
        straight |= at(target) if piece != BISHOP else NONE
        diagonal |= at(target) if piece == BISHOP or piece == QUEEN else NONE
    elif (plane == SHORT_PLANE or plane == LONG_PLANE) and at(origin) & board.short & board.diagonal != 0:
        rook = SHORT_ROOK_MOVE if plane == SHORT_PLANE else LONG_ROOK_MOVE
        own, straight = own ^ rook, straight ^ rook
    return Board(own, short, straight, diagonal)


@compiled
def turned_round(board: Board) -> Board:
    """The board as the other player sees it."""
    occupied = board.short | board.straight | board.diagonal
    return Board(
        byte_swap(occupied & ~board.own), byte_swap(board.short), byte_swap(board.straight), byte_swap(board.diagonal)
    )


@inlined
def passing_pawns(board: Board, pushed: Squares) -> Squares:
    """The square behind their pawn ``pushed``, which has just gone two squares, and those of the pawns that may take it
    in passing.

    Nothing if none may, because there is none or its king would be in check.
    """
    pawns = board.own & board.short & ~board.straight & ~board.diagonal
    square, takers = NONE, pawns & (turned(pushed, -1) & EDGES[6] | turned(pushed, 1) & EDGES[2])
    king, occupied = lowest_bit(board.own & board.short & board.diagonal), board.short | board.straight | board.diagonal
    found = NONE
    while takers != 0:
        taker = takers & -takers
        takers ^= taker
        square = turned(pushed, -8)
        if attackers(king, occupied ^ taker ^ pushed | square, occupied & ~board.own & ~pushed, board) == 0:
            found |= taker | square
    return found


@inlined
def stirred(key: Any, word: Any) -> Any:
    """A hash of a hash and one more word."""
    mixed = (np.uint64(key) ^ np.uint64(word)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(32)) * np.uint64(0x94D049BB133111EB)
    return np.int64(mixed ^ mixed >> np.uint64(29))


@inlined
def hash_of(board: Board) -> Any:
    """Of what stands where, and never 0."""
    key = stirred(stirred(stirred(stirred(ONE, board.own), board.short), board.straight), board.diagonal)
    return key if key != 0 else ONE


@inlined
def enough_material(board: Board) -> bool:
    """Whether there is any way to mate: not by a single knight or bishop, nor by bishops that all stand on squares of
    one color.
    """
    pieces = board.short | board.straight | board.diagonal
    if board.straight & ~board.short != 0 or board.short & ~board.straight & ~board.diagonal != 0:
        return True  # a rook, a queen or a pawn
    others = pieces & ~(board.short & board.diagonal)
    if board.short & board.straight != 0:
        return others & (others - 1) != 0
    return others & LIGHT != 0 and others & ~LIGHT != 0


@inlined
def keep(state: States, ply: int, board: Board) -> Any:
    """Make a position one of the last eight; returns the hash of its board."""
    first, key = POSITIONS + POSITION_WORDS * (ply & (HISTORY - 1)), hash_of(board)
    state[first], state[first + 1], state[first + 2], state[first + 3] = (
        board.own,
        board.short,
        board.straight,
        board.diagonal,
    )
    state[first + 4] = key
    return key


@inlined
def enter(state: States, board: Board) -> None:
    """Note a new position in the row, of which all other words are those of this position already, and by what it is
    drawn.
    """
    ply, clock = state[PLY], state[CLOCK]
    key = stirred(stirred(keep(state, ply, board), state[CASTLING]), state[EN_PASSANT])
    repeated = 0
    for earlier in range(clock - 4, -1, -2):
        repeated += state[KEYS + earlier] == key
    state[KEYS + clock] = key
    state[REPEATED] = (state[REPEATED] << 4 | repeated) & 0xFFFFFFFF
    if repeated + 1 >= state[MOST_REPEATED]:
        state[DRAWN] = BY_REPETITION
    elif clock >= state[LAST_CLOCK]:
        state[DRAWN] = BY_CLOCK
    elif not enough_material(board):
        state[DRAWN] = BY_MATERIAL
    elif ply >= state[LAST_PLY]:
        state[DRAWN] = BY_LENGTH


@compiled
def begin(state: States, board: Board, pushed: Squares) -> None:
    """Begin a game with a position whose plies, clock and castling are in the row; ``pushed`` is their pawn that has
    just gone two squares.

    The network knows what may be taken in passing by the position before, which is made up if it matters.
    """
    state[LAST_PLY] = state[PLY] + state[MAX_PLIES]
    if pushed != 0:
        state[EN_PASSANT] = passing_pawns(board, pushed)
        if state[EN_PASSANT] != 0:
            moved_pawn = pushed | turned(pushed, -16)
            before = Board(board.own, board.short ^ moved_pawn, board.straight, board.diagonal)
            keep(state, state[PLY] - 1, turned_round(before))
    enter(state, board)


@compiled
def board_now(state: States) -> Board:
    """The position, as the player to move sees it."""
    return board_at(state, state[PLY])


@step_kernel
def step(state: States, action: int) -> None:
    before = board_at(state, state[PLY])
    origin, pawns = action & 63, before.short & ~before.straight & ~before.diagonal
    there = at(origin + OFFSETS[action >> 6])
    changed = after(before, action, state[EN_PASSANT])
    castling = state[CASTLING] & ~(at(origin) | there)
    if at(origin) & before.short & before.diagonal != 0:
        castling &= ~HOME_ROW
    board = turned_round(changed)
    state[PLY] += 1
    state[CASTLING], state[EN_PASSANT] = byte_swap(castling), NONE
    if at(origin) & pawns != 0 or there & (before.short | before.straight | before.diagonal) != 0:
        state[CLOCK] = 0
        if at(origin) & pawns & PAWN_ROW != 0 and there & PUSHED_ROW != 0:
            state[EN_PASSANT] = passing_pawns(board, byte_swap(there))
    else:
        state[CLOCK] += 1
    enter(state, board)
