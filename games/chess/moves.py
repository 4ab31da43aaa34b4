"""Legal moves of chess, for all pieces of a kind at once.

A direction and a distance lead to legal moves *from a set of squares*. Going through directions and distances in the
order of the actions' numbers, the moves come out sorted, and none is ever taken back: pinned pieces move along their
pins only, and what does not end a check is left out.
"""

from typing import NamedTuple

import numpy as np

from games.chess.board import (
    ALL,
    BETWEEN,
    CASTLING,
    CROSSED_ROW,
    DIAGONAL,
    DRAWN,
    EDGES,
    EN_PASSANT,
    KING_HOME,
    KING_STEPS,
    KNIGHT_EDGES,
    KNIGHT_PLANES,
    KNIGHT_SHIFTS,
    KNIGHT_STEPS,
    LONG_CROSSED,
    LONG_EMPTY,
    LONG_ROOK,
    NONE,
    NOT_DRAWN,
    PASSING_ROW,
    PAWN_STEPS,
    PLANES,
    PLY,
    PROMOTING_ROW,
    SHIFTS,
    SHORT_CROSSED,
    SHORT_EMPTY,
    SHORT_ROOK,
    STRAIGHT,
    TAKING_ROW,
    UNDERPROMOTIONS,
    Board,
    Squares,
    at,
    board_at,
    turned,
)
from games.compiled import compiled, inlined, lean
from games.game import Actions, States, legal_actions_kernel, query_kernel
from games.intrinsics import lowest_bit

MOST_MOVES = (
    15 * 27 + 8
)  # of fifteen queens in the middle of an empty board and a king: no position has so many (218 are known)


class Threats(NamedTuple):
    """What the opponent's pieces do to the king."""

    checkers: Squares
    goals: Squares  # where a move of another piece leaves no check: everywhere, or where it takes or blocks the only checker
    pinned: Squares
    columns: Squares  # of the pinned pieces, those that are pinned along a column
    rows: Squares
    rising: Squares  # ... along a diagonal from southwest to northeast


class Ways(NamedTuple):
    """What moves in one direction may and may not do."""

    own: Squares
    empty: Squares
    goals: Squares  # of sliding pieces
    steps: Squares  # from where kings and pawns may go one square
    leaps: Squares  # ... and two


@inlined
def threats_of(board: Board) -> Threats:
    """Checks and pins."""
    occupied = board.short | board.straight | board.diagonal
    king = lowest_bit(board.short & board.diagonal & board.own)
    pawns = board.short & ~board.straight & ~board.diagonal
    checkers = (PAWN_STEPS[king] & pawns | KNIGHT_STEPS[king] & board.short & board.straight) & ~board.own
    goals = ALL
    if checkers != 0:
        goals = checkers if checkers & (checkers - 1) == 0 else NONE
    pinned = columns = rows = rising = NONE
    lines = (STRAIGHT[king] & board.straight | DIAGONAL[king] & board.diagonal) & ~board.short & ~board.own
    while lines != 0:
        square = lowest_bit(lines)
        lines &= lines - 1
        between = BETWEEN[king, square]
        blockers = between & occupied
        if blockers == 0:
            checkers |= at(square)
            goals &= between | at(square)
        elif blockers & (blockers - 1) == 0 and blockers & board.own != 0:
            pinned |= blockers
            if (king ^ square) & 7 == 0:
                columns |= blockers
            elif (king ^ square) & 56 == 0:
                rows |= blockers
            elif (king < square) != (king & 7 < square & 7):
                rising |= blockers
    return Threats(checkers, goals, pinned, columns, rows, rising)


@inlined
def swept(pieces: Squares, through: Squares, shift: int, edge: Squares) -> Squares:
    """What sliding ``pieces`` attack in one direction, as far as the squares are free to go ``through`` (P.

    Kogge and H. Stone's fill).
    """
    free = through & edge
    pieces |= free & turned(pieces, shift)
    free &= turned(free, shift)
    pieces |= free & turned(pieces, 2 * shift)
    free &= turned(free, 2 * shift)
    pieces |= free & turned(pieces, 4 * shift)
    return turned(pieces, shift) & edge


@inlined
def attacked_squares(board: Board) -> Squares:
    """The squares that the opponent attacks, as if the own king were not in the way."""
    theirs = ~board.own & (board.short | board.straight | board.diagonal)
    through = ~(board.short | board.straight | board.diagonal) | board.short & board.diagonal & board.own
    pawns = theirs & board.short & ~board.straight & ~board.diagonal
    attacked = turned(pawns, 7) & EDGES[5] | turned(pawns, 9) & EDGES[3]
    attacked |= KING_STEPS[lowest_bit(theirs & board.short & board.diagonal)]
    knights = theirs & board.short & board.straight
    while knights != 0:
        attacked |= KNIGHT_STEPS[lowest_bit(knights)]
        knights &= knights - 1
    straight, diagonal = theirs & board.straight & ~board.short, theirs & board.diagonal & ~board.short
    for d in range(8):
        attacked |= swept(diagonal if d & 1 else straight, through, SHIFTS[d], EDGES[d])
    return attacked


@inlined
def castler(castling: Squares, d: int, occupied: Squares, attacked: Squares) -> Squares:
    """The king's square if it may castle to the east, direction 2, or to the west, and else nothing.

    It is not in check.
    """
    if d == 2:
        may = castling & at(SHORT_ROOK) != 0 and occupied & SHORT_EMPTY == 0 and attacked & SHORT_CROSSED == 0
    else:
        may = castling & at(LONG_ROOK) != 0 and occupied & LONG_EMPTY == 0 and attacked & LONG_CROSSED == 0
    return at(KING_HOME) if may else NONE


@inlined
def listed(out: Actions, count: int, plane: int, squares: Squares) -> int:
    """Write the actions of a plane from these squares."""
    while squares != 0:
        out[count] = plane * 64 + lowest_bit(squares)
        count += 1
        squares &= squares - 1
    return count


@inlined
def free_to_move(threats: Threats, d: int) -> Squares:
    """The squares on which no pin keeps a piece from moving in a direction."""
    along = threats.columns
    if d & 3 == 1:
        along = threats.rising
    elif d & 3 == 2:
        along = threats.rows
    elif d & 3 == 3:
        along = threats.pinned & ~(threats.columns | threats.rows | threats.rising)
    return ~threats.pinned | along


@inlined
def pushes(pawns: Squares, occupied: Squares, goals: Squares) -> tuple[Squares, Squares]:
    """From where a pawn may go one square ahead, and two."""
    once = turned(pawns, -8) & ~occupied
    twice = turned(once & CROSSED_ROW, -8) & ~occupied
    return turned(once & goals, 8), turned(twice & goals, 16)


@inlined
def slides(out: Actions, count: int, d: int, sliders: Squares, ways: Ways) -> int:
    """List the moves of pieces that slide in a direction, and of what else goes one square or two there."""
    shift, edge, plane = SHIFTS[d], EDGES[d] & ~ways.own, 7 * d
    reached = turned(sliders, shift) & edge
    count = listed(out, count, plane, ways.steps | turned(reached & ways.goals, -shift))
    reached = turned(reached & ways.empty, shift) & edge
    count = listed(out, count, plane + 1, ways.leaps | turned(reached & ways.goals, -2 * shift))
    distance = 3
    while reached != 0:
        reached = turned(reached & ways.empty, shift) & edge
        count = listed(out, count, plane + distance - 1, turned(reached & ways.goals, -distance * shift))
        distance += 1
    return count


@inlined
def knight_moves(out: Actions, count: int, knights: Squares, goals: Squares) -> int:
    """List the moves of knights."""
    for d in range(8 if knights != 0 else 0):
        shift = KNIGHT_SHIFTS[d]
        count = listed(out, count, KNIGHT_PLANES + d, turned(turned(knights, shift) & KNIGHT_EDGES[d] & goals, -shift))
    return count


@lean
def generate(state: States, out: Actions) -> int:
    """Write all legal moves in ascending order; returns their number."""
    board, passing = board_at(state, state[PLY]), state[EN_PASSANT]
    own, occupied = board.own, board.short | board.straight | board.diagonal
    threats, attacked = threats_of(board), attacked_squares(board)
    goals = threats.goals & ~own
    king, knights = own & board.short & board.diagonal, own & board.short & board.straight & ~threats.pinned
    pawns = own & board.short & ~board.straight & ~board.diagonal
    straight, diagonal = own & board.straight & ~board.short, own & board.diagonal & ~board.short
    castling = state[CASTLING] if threats.checkers == 0 else NONE
    count, pushed, taking_east, taking_west = 0, NONE, NONE, NONE
    for d in range(8):
        free, shift, edge = free_to_move(threats, d), SHIFTS[d], EDGES[d]
        steps, leaps = turned(turned(king, shift) & edge & ~own & ~attacked, -shift), NONE
        if d == 0:
            pushed, leaps = pushes(pawns & free, occupied, goals)
            steps |= pushed
        elif d == 1 or d == 7:
            taking = turned(turned(pawns & free, shift) & edge & occupied & goals, -shift)
            taking_east, taking_west = (taking if d == 1 else taking_east), (taking if d == 7 else taking_west)
            steps |= taking | turned(passing & PASSING_ROW, -shift) & passing & TAKING_ROW
        elif d == 2 or d == 6:
            leaps = castler(castling, d, occupied, attacked)
        ways = Ways(own, ~occupied, goals, steps, leaps)
        count = slides(out, count, d, (diagonal if d & 1 else straight) & free, ways)
    count = knight_moves(out, count, knights, goals)
    for plane in range(UNDERPROMOTIONS, PLANES if pawns & PROMOTING_ROW != 0 else 0, 3):
        count = listed(out, count, plane, pushed & PROMOTING_ROW)
        count = listed(out, count, plane + 1, taking_east & PROMOTING_ROW)
        count = listed(out, count, plane + 2, taking_west & PROMOTING_ROW)
    return count


@compiled
def king_attacked(board: Board) -> bool:
    """Whether the king of the player to move is in check."""
    return threats_of(board).checkers != 0


@compiled
def in_check(state: States) -> bool:
    """Whether the player to move is in check."""
    return threats_of(board_at(state, state[PLY])).checkers != 0


@compiled
def count_moves(state: States) -> int:
    """The number of legal moves."""
    return generate(state, np.empty(MOST_MOVES, np.int32))


@compiled
def has_move(state: States) -> bool:
    """Whether there is a legal move. Most positions tell at a glance."""
    board = board_at(state, state[PLY])
    threats = threats_of(board)
    occupied = board.short | board.straight | board.diagonal
    pawns = board.own & board.short & ~board.straight & ~board.diagonal & ~threats.pinned
    if threats.checkers == 0 and turned(pawns, -8) & ~occupied != 0:
        return True
    king = lowest_bit(board.own & board.short & board.diagonal)
    if KING_STEPS[king] & ~board.own & ~attacked_squares(board) != 0:
        return True
    return count_moves(state) > 0


@query_kernel
def terminal(state: States) -> int:
    return int(state[DRAWN] != NOT_DRAWN or not has_move(state))


@legal_actions_kernel
def legal_actions(state: States, out: Actions) -> int:
    return generate(state, out) if state[DRAWN] == NOT_DRAWN else 0
