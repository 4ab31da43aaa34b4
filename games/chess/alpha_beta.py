"""A player of chess that searches to a fixed depth and learns nothing, to measure others by.

Alpha-beta (D. Knuth and R. Moore, "An analysis of alpha-beta pruning", 1975) over all moves to the depth, then over
captures and promotions until there are none that pay (quiescence; in check over all moves). A position is worth its
pieces, a mate the more the sooner it comes, and every draw 0, repetitions of the game's own positions included. Of
several moves that are worth the same, all are found.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from games.chess.board import CLOCK, DRAWN, EN_PASSANT, KEYS, NOT_DRAWN, PLY, Board, Squares, at, board_at
from games.chess.material import balance, gain, worth_of
from games.chess.moves import MOST_MOVES, generate, in_check
from games.compiled import compiled, inlined, lean
from games.game import Actions, Game, States

MATE = 1_000_000  # less a point for every ply until then
DEEPEST = 8  # beyond this a move takes hours
LEVELS = DEEPEST + 48  # of positions on the way; no exchange is as long
ORDER = 16  # by how much what is taken counts more than who takes


# What is known of the position at a level: the bounds between which its worth matters, the best so far, how deep to
# look, how many moves there are and have been tried, and whether only those count that gain something.
LOW, HIGH, BEST, DEPTH, COUNT, TRIED, QUIET, WORDS = range(8)


class Scratch(NamedTuple):
    """What the search writes on, a row for each position on the way."""

    states: States  # [LEVELS, S]
    notes: States  # [LEVELS, WORDS]
    moves: Actions  # [LEVELS, MOST_MOVES]
    promise: Actions  # [LEVELS, MOST_MOVES] how soon to try each of them
    nodes: NDArray[np.int64]  # [1] positions looked at


@inlined
def promising(board: Board, action: Any, passing: Squares) -> int:
    """How soon to try a move: what gains most goes first, by the least piece; 0 for what gains nothing."""
    worth = gain(board, action, passing)
    return ORDER * worth - worth_of(board, at(action & 63)) if worth > 0 else 0


@lean
def look_at(scratch: Scratch, level: int) -> bool:
    """Begin with the position at this level; whether its worth, then in ``BEST``, is known at once."""
    state, notes, moves, promise = (
        scratch.states[level],
        scratch.notes[level],
        scratch.moves[level],
        scratch.promise[level],
    )
    scratch.nodes[0] += 1
    board, checked = board_at(state, state[PLY]), in_check(state)
    count, quiet = generate(state, moves), notes[DEPTH] <= 0 and not checked
    notes[COUNT], notes[TRIED], notes[QUIET], notes[BEST] = count, 0, quiet, -MATE
    if count == 0:
        notes[BEST] = level + 1 - MATE if checked else 0
        return True
    if state[DRAWN] != NOT_DRAWN:
        notes[BEST] = 0
        return True
    if quiet or level == LEVELS - 1:
        notes[BEST] = balance(board)
        if notes[BEST] >= notes[HIGH] or level == LEVELS - 1:
            return True
    for k in range(count):
        promise[k] = promising(board, np.int64(moves[k]), state[EN_PASSANT])
    return False


@lean
def try_next(step: Any, scratch: Scratch, level: int) -> bool:
    """Make the most promising move that has not been tried, at the next level; False if there is none."""
    state, notes, moves, promise = (
        scratch.states[level],
        scratch.notes[level],
        scratch.moves[level],
        scratch.promise[level],
    )
    k, count = notes[TRIED], notes[COUNT]
    if k == count:
        return False
    first = k
    for other in range(k + 1, count):
        if promise[other] > promise[first]:
            first = other
    if notes[QUIET] and promise[first] <= 0:
        return False
    moves[k], moves[first] = moves[first], moves[k]
    promise[k], promise[first] = promise[first], promise[k]
    notes[TRIED] = k + 1
    after, below = scratch.states[level + 1], scratch.notes[level + 1]
    for word in range(KEYS + state[CLOCK] + 1):  # what lies behind is of positions before the last capture
        after[word] = state[word]
    step(after, np.int64(moves[k]))
    below[LOW], below[HIGH], below[DEPTH] = -notes[HIGH], -max(notes[LOW], notes[BEST]), notes[DEPTH] - 1
    return True


@lean
def value(step: Any, scratch: Scratch, depth: int, low: int, high: int) -> int:
    """What the position at level 0 is worth to the player to move, exactly if that is between ``low`` and ``high``.

    A loop over levels and not a recursion, which numba does not load from its cache.
    """
    notes, level, arrived = scratch.notes, 0, True
    notes[0, LOW], notes[0, HIGH], notes[0, DEPTH] = low, high, depth
    while level >= 0:
        if arrived:
            decided = look_at(scratch, level)
        else:
            notes[level, BEST] = max(notes[level, BEST], -notes[level + 1, BEST])
            decided = notes[level, BEST] >= notes[level, HIGH]
        arrived = not decided and try_next(step, scratch, level)
        level += 1 if arrived else -1
    return notes[0, BEST]


class Searched(NamedTuple):
    """What the search has found of states ``[N, S]``."""

    actions: Actions  # [N, MOST_MOVES] the best ones stand first in each row, in ascending order
    counts: NDArray[np.int64]  # [N] how many they are
    values: NDArray[np.int64]  # [N] in hundredths of a pawn for the player to move; ``MATE`` less the plies until then
    nodes: NDArray[np.int64]  # [1] positions looked at, in all


@compiled
def _search(step: Any, states: States, depth: int, scratch: Scratch, found: Searched) -> None:
    legal = np.empty(MOST_MOVES, np.int32)
    for i in range(len(states)):
        best, count = -MATE, 0
        for k in range(generate(states[i], legal)):
            scratch.states[0] = states[i]
            step(scratch.states[0], np.int64(legal[k]))
            # The window lets a move that is as good as the best show that it is just as good.
            worth = -value(step, scratch, depth - 1, -MATE, 1 - best)
            if worth > best:
                best, count = worth, 0
            if worth == best:
                found.actions[i, count] = legal[k]
                count += 1
        found.counts[i], found.values[i] = count, best


def search(game: Game, states: States, *, depth: int) -> Searched:
    """Search each of ``states`` ``[N, S]`` of chess, in none of which the game is over.

    Raises:
        ValueError: the depth is out of range.
    """
    if not 1 <= depth <= DEEPEST:
        raise ValueError(f"the depth must be from 1 to {DEEPEST}, not {depth}")
    count, width = states.shape
    nodes = np.zeros(1, np.int64)
    scratch = Scratch(
        states=np.zeros((LEVELS, width), np.int64),
        notes=np.zeros((LEVELS, WORDS), np.int64),
        moves=np.zeros((LEVELS, MOST_MOVES), np.int32),
        promise=np.zeros((LEVELS, MOST_MOVES), np.int32),
        nodes=nodes,
    )
    found = Searched(
        actions=np.zeros((count, MOST_MOVES), np.int32),
        counts=np.zeros(count, np.int64),
        values=np.zeros(count, np.int64),
        nodes=nodes,
    )
    _search(game.rules.step, states, depth, scratch, found)
    return found
