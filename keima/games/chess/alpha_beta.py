"""A reference player for chess: alpha-beta search to a fixed depth, without learning.

Alpha-beta (D. Knuth and R. Moore, "An analysis of alpha-beta pruning", 1975) over all moves to the depth, then a
quiescence search over captures and promotions (over all moves in check). Positions are evaluated by material; a mate is
worth more the sooner it comes, and every draw 0, including repetitions of the game's own positions. All moves of the
best value are found.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled, compiled_part, inlined_by_llvm
from keima.games.chess.board import (
    CLOCK,
    DRAWN,
    EN_PASSANT,
    KEYS,
    NOT_DRAWN,
    PLY,
    Bitboards,
    Squares,
    board_at,
    square_bit,
)
from keima.games.chess.material import material_balance, material_gain, material_of
from keima.games.chess.moves import MOST_MOVES, is_in_check, write_legal_moves
from keima.games.game import Actions, Game, States
from keima.games.move_ordering import bring_best_forward

MATE = 1_000_000  # minus one per ply until the mate
DEEPEST = 8  # deeper searches take hours per move
LEVELS = DEEPEST + 48  # the longest path; no exchange is as long
ORDER = 16  # the weight of the captured piece relative to the capturing one


# The state of the search at a level: the window, the best value so far, the remaining depth, the number of moves and of
# those tried, and whether only moves that gain material count.
LOW, HIGH, BEST, DEPTH, COUNT, TRIED, QUIET, WORDS = range(8)


class AlphaBetaStack(NamedTuple):
    """The search stack, a row per position on the path."""

    states: States  # [LEVELS, S]
    notes: States  # [LEVELS, WORDS]
    moves: Actions  # [LEVELS, MOST_MOVES]
    sort_keys: Actions  # [LEVELS, MOST_MOVES] sort keys of the moves
    nodes: NDArray[np.int64]  # [1] positions visited


@inlined_by_llvm
def capture_sort_key(board: Bitboards, action: Any, passing: Squares) -> int:
    """Return the sort key of a move: the largest gain first, by the least valuable piece; 0 for a move that gains
    nothing.
    """
    gain = material_gain(board, action, passing)
    return ORDER * gain - material_of(board, square_bit(action & 63)) if gain > 0 else 0


@compiled_part
def enter_level(scratch: AlphaBetaStack, level: int) -> bool:
    """Start on the position at this level; return whether its value, in ``BEST``, is already known."""
    state, notes = scratch.states[level], scratch.notes[level]
    moves, promise = scratch.moves[level], scratch.sort_keys[level]
    scratch.nodes[0] += 1
    board, checked = board_at(state, state[PLY]), is_in_check(state)
    count, quiet = write_legal_moves(state, moves), notes[DEPTH] <= 0 and not checked
    notes[COUNT], notes[TRIED], notes[QUIET], notes[BEST] = count, 0, quiet, -MATE
    if count == 0:
        notes[BEST] = level + 1 - MATE if checked else 0
        return True
    if state[DRAWN] != NOT_DRAWN:
        notes[BEST] = 0
        return True
    if quiet or level == LEVELS - 1:
        notes[BEST] = material_balance(board)
        if notes[BEST] >= notes[HIGH] or level == LEVELS - 1:
            return True
    for k in range(count):
        promise[k] = capture_sort_key(board, np.int64(moves[k]), state[EN_PASSANT])
    return False


@compiled_part
def make_next_move(step: Any, scratch: AlphaBetaStack, level: int) -> bool:
    """Make the most promising untried move at the next level; return False if there is none."""
    state, notes = scratch.states[level], scratch.notes[level]
    moves, promise = scratch.moves[level], scratch.sort_keys[level]
    k, count = notes[TRIED], notes[COUNT]
    if k == count:
        return False
    bring_best_forward(moves, promise, k, count)
    if notes[QUIET] and promise[k] <= 0:
        return False
    notes[TRIED] = k + 1
    after, below = scratch.states[level + 1], scratch.notes[level + 1]
    for word in range(KEYS + state[CLOCK] + 1):  # the rest is of positions before the last capture
        after[word] = state[word]
    step(after, np.int64(moves[k]))
    below[LOW], below[HIGH], below[DEPTH] = -notes[HIGH], -max(notes[LOW], notes[BEST]), notes[DEPTH] - 1
    return True


@compiled_part
def search_value(step: Any, scratch: AlphaBetaStack, depth: int, low: int, high: int) -> int:
    """Return the value of the position at level 0 for the player to move, exact between ``low`` and ``high``.

    This is a loop instead of a recursion, which numba cannot load from its cache.
    """
    notes, level, arrived = scratch.notes, 0, True
    notes[0, LOW], notes[0, HIGH], notes[0, DEPTH] = low, high, depth
    while level >= 0:
        if arrived:
            decided = enter_level(scratch, level)
        else:
            notes[level, BEST] = max(notes[level, BEST], -notes[level + 1, BEST])
            decided = notes[level, BEST] >= notes[level, HIGH]
        arrived = not decided and make_next_move(step, scratch, level)
        level += 1 if arrived else -1
    return notes[0, BEST]


class AlphaBetaResult(NamedTuple):
    """The results of searching states ``[N, S]``."""

    actions: Actions  # [N, MOST_MOVES] the best actions, ascending at the start of each row
    counts: NDArray[np.int64]  # [N] their numbers
    values: NDArray[
        np.int64
    ]  # [N] in hundredths of a pawn for the player to move; ``MATE`` minus the plies to the mate
    nodes: NDArray[np.int64]  # [1] positions visited in all


@compiled
def _search_states(step: Any, states: States, depth: int, scratch: AlphaBetaStack, found: AlphaBetaResult) -> None:
    legal = np.empty(MOST_MOVES, np.int32)
    for i in range(len(states)):
        best, count = -MATE, 0
        for k in range(write_legal_moves(states[i], legal)):
            scratch.states[0] = states[i]
            step(scratch.states[0], np.int64(legal[k]))
            # The window includes the best value, so that moves of equal value are recognized.
            value = -search_value(step, scratch, depth - 1, -MATE, 1 - best)
            if value > best:
                best, count = value, 0
            if value == best:
                found.actions[i, count] = legal[k]
                count += 1
        found.counts[i], found.values[i] = count, best


def find_best_chess_moves(game: Game, states: States, *, depth: int) -> AlphaBetaResult:
    """Search each of ``states`` ``[N, S]``, in none of which the game is over.

    Raises:
        ValueError: the depth is out of range.
    """
    if not 1 <= depth <= DEEPEST:
        raise ValueError(f"the depth must be from 1 to {DEEPEST}, not {depth}")
    count, width = states.shape
    nodes = np.zeros(1, np.int64)
    scratch = AlphaBetaStack(
        states=np.zeros((LEVELS, width), np.int64),
        notes=np.zeros((LEVELS, WORDS), np.int64),
        moves=np.zeros((LEVELS, MOST_MOVES), np.int32),
        sort_keys=np.zeros((LEVELS, MOST_MOVES), np.int32),
        nodes=nodes,
    )
    found = AlphaBetaResult(
        actions=np.zeros((count, MOST_MOVES), np.int32),
        counts=np.zeros(count, np.int64),
        values=np.zeros(count, np.int64),
        nodes=nodes,
    )
    _search_states(game.rules.step, states, depth, scratch, found)
    return found
