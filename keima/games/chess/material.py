"""Piece values, and a greedy player: it mates in one move if it can, else wins the most material.

Values are in hundredths of a pawn, after T. Kaufman, as programs round them: a bishop is slightly more than a knight.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled, inlined_by_llvm
from keima.compilation.intrinsics import bit_count
from keima.games.chess.board import (
    EN_PASSANT,
    OFFSETS,
    PLY,
    PROMOTING_ROW,
    UNDERPROMOTIONS,
    Bitboards,
    Squares,
    board_at,
    square_bit,
)
from keima.games.chess.moves import MOST_MOVES, has_legal_move, is_in_check, write_legal_moves
from keima.games.game import Actions, Game, States

PAWN_VALUE, KNIGHT_VALUE, BISHOP_VALUE, ROOK_VALUE, QUEEN_VALUE = 100, 320, 330, 500, 900
PROMOTED_VALUE = (KNIGHT_VALUE, BISHOP_VALUE, ROOK_VALUE)  # in the order of the underpromotions
MATING = 1_000_000  # more than all pieces


@inlined_by_llvm
def material_of(board: Bitboards, side: Squares) -> int:
    """Return the value of the pieces among ``side``; kings count 0."""
    short, straight, diagonal = board.short & side, board.straight & side, board.diagonal & side
    value = PAWN_VALUE * bit_count(short & ~straight & ~diagonal) + KNIGHT_VALUE * bit_count(short & straight)
    value += BISHOP_VALUE * bit_count(diagonal & ~short & ~straight)
    value += ROOK_VALUE * bit_count(straight & ~short & ~diagonal)
    return value + QUEEN_VALUE * bit_count(straight & diagonal)


@inlined_by_llvm
def material_balance(board: Bitboards) -> int:
    """Return the material of the player to move minus the opponent's."""
    return material_of(board, board.own) - material_of(board, ~board.own)


@inlined_by_llvm
def material_gain(board: Bitboards, action: Any, passing: Squares) -> int:
    """Return the material that a move captures, plus what a promotion gains."""
    plane, origin = action >> 6, action & 63
    target = square_bit(origin + OFFSETS[plane])
    value = material_of(board, target)
    if square_bit(origin) & board.short & ~board.straight & ~board.diagonal != 0:
        if target & passing != 0:
            value += PAWN_VALUE
        if square_bit(origin) & PROMOTING_ROW != 0:
            piece = QUEEN_VALUE if plane < UNDERPROMOTIONS else PROMOTED_VALUE[(plane - UNDERPROMOTIONS) // 3]
            value += piece - PAWN_VALUE
    return value


@compiled
def _write_greedy_actions(step: Any, states: States, chosen: Actions, counts: NDArray[np.int64]) -> None:
    legal, after = np.empty(MOST_MOVES, np.int32), np.empty_like(states[0])
    for i in range(len(states)):
        state = states[i]
        board, best = board_at(state, state[PLY]), -1
        for k in range(write_legal_moves(state, legal)):
            action = np.int64(legal[k])
            after[:] = state
            step(after, action)
            mates = is_in_check(after) and not has_legal_move(after)
            value = MATING if mates else material_gain(board, action, state[EN_PASSANT])
            if value > best:
                best, counts[i] = value, 0
            if value == best:
                chosen[i, counts[i]] = action
                counts[i] += 1


def choose_greedy_actions(game: Game, states: States) -> tuple[Actions, NDArray[np.int64]]:
    """Return the actions that mate at once, or else gain the most material, in each of ``states`` ``[N, S]``.

    Returns:
        The actions, ascending at the start of each row of ``[N, MOST_MOVES]``, and their numbers ``[N]``.
    """
    chosen, counts = np.zeros((len(states), MOST_MOVES), np.int32), np.zeros(len(states), np.int64)
    _write_greedy_actions(game.rules.step, states, chosen, counts)
    return chosen, counts
