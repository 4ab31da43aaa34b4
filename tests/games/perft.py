"""Exact counts over the tree of a game."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from games import Game
from games.compiled import compiled
from games.game import States


@compiled
def _perft(legal_actions: Any, step: Any, state: States, num_actions: int, depth: int) -> int:
    if depth == 0:
        return 1
    legal = np.empty(num_actions, np.int32)
    count = legal_actions(state, legal)
    total = 0
    for i in range(count):
        child = state.copy()
        step(child, np.int64(legal[i]))
        total += _perft(legal_actions, step, child, num_actions, depth - 1)
    return total


@compiled
def _endings(legal_actions: Any, step: Any, returns: Any, state: States, num_actions: int, counts: NDArray[np.int64]) -> None:
    legal = np.empty(num_actions, np.int32)
    count = legal_actions(state, legal)
    if count == 0:
        won = np.zeros(2, np.float32)
        returns(state, won)
        counts[int(won[0]) + 1] += 1
    for i in range(count):
        child = state.copy()
        step(child, np.int64(legal[i]))
        _endings(legal_actions, step, returns, child, num_actions, counts)


def perft(game: Game, depth: int, state: States | None = None) -> int:
    """The number of ways to play exactly ``depth`` plies from ``state``, or from the start."""
    state = game.initial_state() if state is None else state
    return _perft(game.rules.legal_actions, game.rules.step, state, game.num_actions, depth)


def endings(game: Game) -> tuple[int, int, int]:
    """In how many of all possible games the first player loses, nobody wins, and the first player wins."""
    counts = np.zeros(3, np.int64)
    _endings(game.rules.legal_actions, game.rules.step, game.rules.returns, game.initial_state(), game.num_actions, counts)
    return int(counts[0]), int(counts[1]), int(counts[2])
