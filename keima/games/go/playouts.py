"""Estimates of ownership by random playouts, to find dead stones.

Players never fill a point whose neighbors all have their color, so chains with two eyes live and others are captured.
The estimate can be wrong in a seki, and where life depends on finding a move.
"""

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.compilation.random import Streams, random_below
from keima.games.game import Game, Rules, States
from keima.games.go.board import BLACK, WHITE, view_board

PLIES_PER_POINT = 3  # of a board, at most in a random game


@compiled
def play_random_game(rules: Rules, state: States, legal: NDArray[np.int32], streams: Streams, most: int) -> None:
    """Play at random in place, without filling own eyes, until both players pass or for ``most`` plies."""
    legal_actions, step, current_player = rules.legal_actions, rules.step, rules.current_player
    passes = 0
    for _ in range(most):
        board = view_board(state)
        mine, count = current_player(state) + 1, legal_actions(state, legal)
        if count == 0 or passes == 2:
            break
        kept = 0
        for i in range(count - 1):
            row = legal[i] // board.size
            cell = (row + 1) * board.stride + legal[i] - row * board.size + 1
            others = 0
            for neighbor in (cell - board.stride, cell - 1, cell + 1, cell + board.stride):
                color = board.color[neighbor]
                others += color != mine and (color == BLACK or color == WHITE or color == 0)
            if others > 0:
                legal[kept] = legal[i]
                kept += 1
        if kept == 0:
            step(state, np.int64(legal[count - 1]))
            passes += 1
            continue
        passes = 0
        step(state, np.int64(legal[random_below(streams, 0, kept)]))


@compiled
def add_random_game_ownership(
    rules: Rules, start: States, count: int, streams: Streams, owned: NDArray[np.int64]
) -> None:
    """Play ``count`` games; add 1 to ``owned`` ``[size, size]`` where a point ends as Black's, -1 where as White's."""
    legal = np.empty(owned.size + 1, np.int32)  # all points and the pass
    for _ in range(count):
        state = start.copy()
        play_random_game(rules, state, legal, streams, PLIES_PER_POINT * owned.size)
        board = view_board(state)
        for row in range(board.size):
            for column in range(board.size):
                cell = (row + 1) * board.stride + column + 1
                color = board.color[cell]
                for neighbor in (cell - board.stride, cell - 1, cell + 1, cell + board.stride):
                    if color != BLACK and color != WHITE:  # an empty point belongs to its neighbors
                        color = board.color[neighbor]
                owned[row, column] += np.int64(color == BLACK) - np.int64(color == WHITE)


def estimate_ownership(game: Game, state: States, *, playouts: int = 200, seed: int = 1) -> NDArray[np.float64]:
    """Estimate the ownership ``[size, size]``, from 1, Black's, to -1, White's. The game must not be over."""
    size = game.options["size"]
    owned = np.zeros((size, size), np.int64)
    add_random_game_ownership(game.rules, state, playouts, np.array([seed], np.uint64), owned)
    return owned / playouts
