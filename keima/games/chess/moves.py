"""Legal moves of chess, generated for all pieces of a kind at once.

For each direction and distance a word holds the squares *from which* such a move is legal. In the order of the action
numbers the moves come out sorted, and no move has to be undone: pinned pieces move along their pins only, and moves
that leave the king in check are never generated.
"""

from typing import NamedTuple

import numpy as np

from keima.compilation.decorators import compiled, compiled_part, inlined_by_llvm
from keima.compilation.intrinsics import lowest_bit
from keima.games.chess.board import (
    ALL,
    BETWEEN,
    CASTLING,
    CROSSED_ROW,
    DIAGONAL,
    DRAWN,
    EDGES,
    EN_PASSANT,
    KING_STEPS,
    KNIGHT_EDGES,
    KNIGHT_PLANES,
    KNIGHT_SHIFTS,
    KNIGHT_STEPS,
    LONG_ROOK,
    NONE,
    NOT_DRAWN,
    PASSING_ROW,
    PAWN_STEPS,
    PLANES,
    PLY,
    PROMOTING_ROW,
    SHIFTS,
    SHORT_ROOK,
    STRAIGHT,
    TAKING_ROW,
    UNDERPROMOTIONS,
    Bitboards,
    Squares,
    board_at,
    rotate_bits,
    square_bit,
)
from keima.games.game import Actions, States, legal_actions_kernel, query_kernel

MOST_MOVES = 15 * 27 + 8  # an upper bound: fifteen queens in mid-board and a king; at most 218 are known


class Threats(NamedTuple):
    """Checks and pins by the opponent's pieces."""

    checkers: Squares
    goals: Squares  # targets of other pieces that leave no check: all, or those that take or block the only checker
    pinned: Squares
    columns: Squares  # the pieces pinned along a column
    rows: Squares
    rising: Squares  # ... along a diagonal from southwest to northeast


class DirectionMoves(NamedTuple):
    """The constraints on moves in one direction."""

    own: Squares
    empty: Squares
    goals: Squares  # targets of sliding pieces
    steps: Squares  # origins from which kings and pawns may go one square
    leaps: Squares  # ... two squares


@inlined_by_llvm
def find_threats(board: Bitboards) -> Threats:
    """Find checks and pins."""
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
            checkers |= square_bit(square)
            goals &= between | square_bit(square)
        elif blockers & (blockers - 1) == 0 and blockers & board.own != 0:
            pinned |= blockers
            if (king ^ square) & 7 == 0:
                columns |= blockers
            elif (king ^ square) & 56 == 0:
                rows |= blockers
            elif (king < square) != (king & 7 < square & 7):
                rising |= blockers
    return Threats(checkers, goals, pinned, columns, rows, rising)


@inlined_by_llvm
def slide_attacks(pieces: Squares, through: Squares, shift: int, edge: Squares) -> Squares:
    """Return the squares that sliding ``pieces`` attack in a direction ``through`` empty squares (Kogge-Stone fill)."""
    free = through & edge
    pieces |= free & rotate_bits(pieces, shift)
    free &= rotate_bits(free, shift)
    pieces |= free & rotate_bits(pieces, 2 * shift)
    free &= rotate_bits(free, 2 * shift)
    pieces |= free & rotate_bits(pieces, 4 * shift)
    return rotate_bits(pieces, shift) & edge


@inlined_by_llvm
def attacked_squares(board: Bitboards) -> Squares:
    """Return the squares that the opponent attacks, with the mover's king removed."""
    theirs = ~board.own & (board.short | board.straight | board.diagonal)
    through = ~(board.short | board.straight | board.diagonal) | board.short & board.diagonal & board.own
    pawns = theirs & board.short & ~board.straight & ~board.diagonal
    attacked = rotate_bits(pawns, 7) & EDGES[5] | rotate_bits(pawns, 9) & EDGES[3]
    attacked |= KING_STEPS[lowest_bit(theirs & board.short & board.diagonal)]
    knights = theirs & board.short & board.straight
    while knights != 0:
        attacked |= KNIGHT_STEPS[lowest_bit(knights)]
        knights &= knights - 1
    straight, diagonal = theirs & board.straight & ~board.short, theirs & board.diagonal & ~board.short
    for d in range(8):
        attacked |= slide_attacks(diagonal if d & 1 else straight, through, SHIFTS[d], EDGES[d])
    return attacked


@inlined_by_llvm
def king_if_castling_allowed(king: Squares, castling: Squares, d: int, occupied: Squares, attacked: Squares) -> Squares:
    """Return the king's square if it may castle to the east, direction 2, or to the west; else empty.

    The king must not be in check.
    """
    rook = SHORT_ROOK if d == 2 else LONG_ROOK
    crossed = rotate_bits(king, 1) | rotate_bits(king, 2) if d == 2 else rotate_bits(king, -1) | rotate_bits(king, -2)
    may = castling & square_bit(rook) != 0 and attacked & crossed == 0
    return king if may and BETWEEN[lowest_bit(king), rook] & occupied == 0 else NONE


@inlined_by_llvm
def write_plane_moves(out: Actions, count: int, plane: int, squares: Squares) -> int:
    """Write the actions of a plane from these squares; return the new count."""
    while squares != 0:
        out[count] = plane * 64 + lowest_bit(squares)
        count += 1
        squares &= squares - 1
    return count


@inlined_by_llvm
def find_unpinned_squares(threats: Threats, d: int) -> Squares:
    """Return the squares whose pieces may move in direction ``d`` despite pins."""
    along = threats.columns
    if d & 3 == 1:
        along = threats.rising
    elif d & 3 == 2:
        along = threats.rows
    elif d & 3 == 3:
        along = threats.pinned & ~(threats.columns | threats.rows | threats.rising)
    return ~threats.pinned | along


@inlined_by_llvm
def pawn_pushes(pawns: Squares, occupied: Squares, goals: Squares) -> tuple[Squares, Squares]:
    """Return the squares from which a pawn may advance by one square, and by two."""
    once = rotate_bits(pawns, -8) & ~occupied
    twice = rotate_bits(once & CROSSED_ROW, -8) & ~occupied
    return rotate_bits(once & goals, 8), rotate_bits(twice & goals, 16)


@inlined_by_llvm
def write_slides(out: Actions, count: int, d: int, sliders: Squares, ways: DirectionMoves) -> int:
    """Write the moves of sliding pieces in a direction, and the steps and leaps of other pieces."""
    shift, edge, plane = SHIFTS[d], EDGES[d] & ~ways.own, 7 * d
    reached = rotate_bits(sliders, shift) & edge
    count = write_plane_moves(out, count, plane, ways.steps | rotate_bits(reached & ways.goals, -shift))
    reached = rotate_bits(reached & ways.empty, shift) & edge
    count = write_plane_moves(out, count, plane + 1, ways.leaps | rotate_bits(reached & ways.goals, -2 * shift))
    distance = 3
    while reached != 0:
        reached = rotate_bits(reached & ways.empty, shift) & edge
        count = write_plane_moves(
            out, count, plane + distance - 1, rotate_bits(reached & ways.goals, -distance * shift)
        )
        distance += 1
    return count


@inlined_by_llvm
def write_knight_moves(out: Actions, count: int, knights: Squares, goals: Squares) -> int:
    """Write the moves of knights."""
    for d in range(8 if knights != 0 else 0):
        shift = KNIGHT_SHIFTS[d]
        count = write_plane_moves(
            out, count, KNIGHT_PLANES + d, rotate_bits(rotate_bits(knights, shift) & KNIGHT_EDGES[d] & goals, -shift)
        )
    return count


@compiled_part
def write_legal_moves(state: States, out: Actions) -> int:
    """Write all legal moves in ascending order; return their number."""
    board, passing = board_at(state, state[PLY]), state[EN_PASSANT]
    own, occupied = board.own, board.short | board.straight | board.diagonal
    threats, attacked = find_threats(board), attacked_squares(board)
    goals = threats.goals & ~own
    king, knights = own & board.short & board.diagonal, own & board.short & board.straight & ~threats.pinned
    pawns = own & board.short & ~board.straight & ~board.diagonal
    straight, diagonal = own & board.straight & ~board.short, own & board.diagonal & ~board.short
    castling = state[CASTLING] if threats.checkers == 0 else NONE
    count, pushed, taking_east, taking_west = 0, NONE, NONE, NONE
    for d in range(8):
        free, shift, edge = find_unpinned_squares(threats, d), SHIFTS[d], EDGES[d]
        steps, leaps = rotate_bits(rotate_bits(king, shift) & edge & ~own & ~attacked, -shift), NONE
        if d == 0:
            pushed, leaps = pawn_pushes(pawns & free, occupied, goals)
            steps |= pushed
        elif d == 1 or d == 7:
            taking = rotate_bits(rotate_bits(pawns & free, shift) & edge & occupied & goals, -shift)
            taking_east, taking_west = (taking if d == 1 else taking_east), (taking if d == 7 else taking_west)
            steps |= taking | rotate_bits(passing & PASSING_ROW, -shift) & passing & TAKING_ROW
        elif d == 2 or d == 6:
            leaps = king_if_castling_allowed(king, castling, d, occupied, attacked)
        ways = DirectionMoves(own, ~occupied, goals, steps, leaps)
        count = write_slides(out, count, d, (diagonal if d & 1 else straight) & free, ways)
    count = write_knight_moves(out, count, knights, goals)
    for plane in range(UNDERPROMOTIONS, PLANES if pawns & PROMOTING_ROW != 0 else 0, 3):
        count = write_plane_moves(out, count, plane, pushed & PROMOTING_ROW)
        count = write_plane_moves(out, count, plane + 1, taking_east & PROMOTING_ROW)
        count = write_plane_moves(out, count, plane + 2, taking_west & PROMOTING_ROW)
    return count


@compiled
def is_king_attacked(board: Bitboards) -> bool:
    """Return whether the king of the player to move is in check."""
    return find_threats(board).checkers != 0


@compiled
def is_in_check(state: States) -> bool:
    """Return whether the player to move is in check."""
    return find_threats(board_at(state, state[PLY])).checkers != 0


@compiled
def count_moves(state: States) -> int:
    """Return the number of legal moves."""
    return write_legal_moves(state, np.empty(MOST_MOVES, np.int32))


@compiled
def has_legal_move(state: States) -> bool:
    """Return whether there is a legal move. Cheap tests suffice in most positions."""
    board = board_at(state, state[PLY])
    threats = find_threats(board)
    occupied = board.short | board.straight | board.diagonal
    pawns = board.own & board.short & ~board.straight & ~board.diagonal & ~threats.pinned
    if threats.checkers == 0 and rotate_bits(pawns, -8) & ~occupied != 0:
        return True
    king = lowest_bit(board.own & board.short & board.diagonal)
    if KING_STEPS[king] & ~board.own & ~attacked_squares(board) != 0:
        return True
    return count_moves(state) > 0


@query_kernel
def terminal(state: States) -> int:
    return int(state[DRAWN] != NOT_DRAWN or not has_legal_move(state))


@legal_actions_kernel
def legal_actions(state: States, out: Actions) -> int:
    return write_legal_moves(state, out) if state[DRAWN] == NOT_DRAWN else 0
