"""Positions of Go that are not played from the empty board: handicaps, setups, turns out of order."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from keima.compilation.intrinsics import view_as
from keima.games.game import Game, States, call_step
from keima.games.go.board import (
    ACTION_BITS,
    BOARD,
    CELLS,
    HALF_KOMI,
    HASH,
    LAST,
    LAST_MASK,
    PASSES,
    PLY,
    SIZE,
    TABLE,
)


def stones_on_board(state: States) -> NDArray[np.int16]:
    """Return the board ``[size, size]``: 0 an empty point, 1 a black stone, 2 a white stone."""
    size = int(state[SIZE])
    cells = view_as(state, int(state[BOARD]), int(state[CELLS]), np.int16)
    return cells[size + 1 : (size + 1) ** 2].reshape(size, size + 1)[:, 1:]


def with_komi(state: States, komi: float) -> States:
    """Return the position with another komi, a multiple of 0.5.

    Raises:
        ValueError: it is not a multiple of 0.5, or more than the number of points.
    """
    if not float(2 * komi).is_integer() or abs(komi) > state[SIZE] ** 2:
        raise ValueError(f"komi must be a multiple of 0.5, and not more than the board has points, not {komi:g}")
    state = state.copy()
    state[HALF_KOMI] = int(2 * komi)
    return state


def with_player(state: States, player: int) -> States:
    """Return the position with this player to move, in a game that is not over.

    If it is the other player's turn, that player passes; but neither this pass nor two that ended the game count.
    """
    state = state.copy()
    if state[PLY] % 2 != player:
        state[PLY] += 1
        state[LAST] = (state[LAST] << ACTION_BITS | int(state[SIZE]) ** 2 + 1) & LAST_MASK
        state[PASSES] = 0
    elif state[PASSES] == 2:
        state[PASSES] = 0
    return state


def make_position(game: Game, black: Iterable[int], white: Iterable[int], *, player: int) -> States:
    """Return a position with stones on these points, without earlier positions, and with ``player`` to move.

    Raises:
        ValueError: a point has two stones, or a chain has no liberties.
    """
    state, wanted = game.initial_state(), np.zeros(game.num_actions - 1, np.int16)
    table = state[int(state[TABLE]) :]
    for owner, points in enumerate((black, white)):
        for point in points:
            if wanted[point]:
                raise ValueError(f"there are two stones on {game.action_name(int(point))}")
            wanted[point] = owner + 1
            state[PLY] = owner
            call_step(game.rules.step, state, point)
            table[:] = 0
    if (stones_on_board(state).ravel() != wanted).any():
        raise ValueError("there are stones without liberties")
    table[state[HASH] & (len(table) - 1)] = state[HASH]
    state[PLY], state[LAST], state[PASSES] = player, 0, 0
    return state
