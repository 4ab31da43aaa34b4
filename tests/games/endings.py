"""The ends of all possible games of a small game."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.games import Game
from keima.games.game import States


@compiled
def _endings(
    legal_actions: Any, step: Any, returns: Any, state: States, num_actions: int, counts: NDArray[np.int64]
) -> None:
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


def endings(game: Game) -> tuple[int, int, int]:
    """Return in how many of all possible games the first player loses, neither side wins, and the first player wins."""
    counts = np.zeros(3, np.int64)
    _endings(
        game.rules.legal_actions, game.rules.step, game.rules.returns, game.initial_state(), game.num_actions, counts
    )
    return int(counts[0]), int(counts[1]), int(counts[2])
