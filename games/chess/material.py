"""What pieces are worth, and a player of chess who knows nothing else: it mates if it can in one move, and else takes
the most it can.

Pieces are counted in hundredths of a pawn, by T. Kaufman's usual rounding of what chess programs have long used: a
bishop is a little more than a knight.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from games.chess.board import EN_PASSANT, OFFSETS, PLY, PROMOTING_ROW, UNDERPROMOTIONS, Board, Squares, at, board_at
from games.chess.moves import MOST_MOVES, generate, has_move, in_check
from games.compiled import compiled, inlined
from games.game import Actions, Game, States
from games.intrinsics import bit_count

PAWN_WORTH, KNIGHT_WORTH, BISHOP_WORTH, ROOK_WORTH, QUEEN_WORTH = 100, 320, 330, 500, 900
PROMOTED_WORTH = (KNIGHT_WORTH, BISHOP_WORTH, ROOK_WORTH)  # in the order of the underpromotions
MATING = 1_000_000  # more than all pieces


@inlined
def worth_of(board: Board, side: Squares) -> int:
    """What the pieces among ``side`` are worth; kings count nothing."""
    short, straight, diagonal = board.short & side, board.straight & side, board.diagonal & side
    worth = PAWN_WORTH * bit_count(short & ~straight & ~diagonal) + KNIGHT_WORTH * bit_count(short & straight)
    worth += BISHOP_WORTH * bit_count(diagonal & ~short & ~straight) + ROOK_WORTH * bit_count(
        straight & ~short & ~diagonal
    )
    return worth + QUEEN_WORTH * bit_count(straight & diagonal)


@inlined
def balance(board: Board) -> int:
    """What the pieces of the player to move are worth, less those of the opponent."""
    return worth_of(board, board.own) - worth_of(board, ~board.own)


@inlined
def gain(board: Board, action: Any, passing: Squares) -> int:
    """What a move takes at once, and what a pawn becomes by it, less the pawn."""
    plane, origin = action >> 6, action & 63
    target = at(origin + OFFSETS[plane])
    worth = worth_of(board, target)
    if at(origin) & board.short & ~board.straight & ~board.diagonal != 0:
        if target & passing != 0:
            worth += PAWN_WORTH
        if at(origin) & PROMOTING_ROW != 0:
            piece = QUEEN_WORTH if plane < UNDERPROMOTIONS else PROMOTED_WORTH[(plane - UNDERPROMOTIONS) // 3]
            worth += piece - PAWN_WORTH
    return worth


@compiled
def _greedy(step: Any, states: States, chosen: Actions, counts: NDArray[np.int64]) -> None:
    legal, after = np.empty(MOST_MOVES, np.int32), np.empty_like(states[0])
    for i in range(len(states)):
        state = states[i]
        board, best = board_at(state, state[PLY]), -1
        for k in range(generate(state, legal)):
            action = np.int64(legal[k])
            after[:] = state
            step(after, action)
            mates = in_check(after) and not has_move(after)
            worth = MATING if mates else gain(board, action, state[EN_PASSANT])
            if worth > best:
                best, counts[i] = worth, 0
            if worth == best:
                chosen[i, counts[i]] = action
                counts[i] += 1


def greedy_actions(game: Game, states: States) -> tuple[Actions, NDArray[np.int64]]:
    """The actions that mate at once, or else take the most and promote to the most, in each of ``states`` ``[N, S]`` of
    chess.

    Returns:
        They stand first in each row of ``[N, MOST_MOVES]``, in ascending order; ``[N]`` says how many they are.
    """
    chosen, counts = np.zeros((len(states), MOST_MOVES), np.int32), np.zeros(len(states), np.int64)
    _greedy(game.rules.step, states, chosen, counts)
    return chosen, counts
