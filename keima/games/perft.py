"""Perft: exact counts over a game's tree, which test the rules and measure their speed."""

from typing import Any

import numpy as np

from keima.compilation.decorators import compiled
from keima.games.game import Actions, Game, States


@compiled
def _count_plies(legal_actions: Any, step: Any, states: States, legal: Actions, depth: int) -> int:
    """Count from ``states[0]``; the other rows of ``states`` ``[D, S]`` and ``legal`` ``[D, A]`` are scratch space."""
    last, level, total = depth - 1, 0, 0
    counts, nexts = np.zeros(depth, np.int64), np.zeros(depth, np.int64)
    counts[0] = legal_actions(states[0], legal[0])
    if last == 0:
        return counts[0]
    while level >= 0:
        if nexts[level] == counts[level]:
            level -= 1
            continue
        states[level + 1] = states[level]
        step(states[level + 1], np.int64(legal[level, nexts[level]]))
        nexts[level] += 1
        count = legal_actions(states[level + 1], legal[level + 1])
        if level + 1 == last:
            total += count
        else:
            level += 1
            counts[level], nexts[level] = count, 0
    return total


def count_perft(game: Game, depth: int, state: States | None = None) -> int:
    """Return the number of ways to play exactly ``depth`` plies from ``state``, or from the start, in a game without
    chance.

    The last ply is not played: its legal actions are counted.
    """
    states = np.empty((max(1, depth), len(game.start)), np.int64)
    legal = np.empty((max(1, depth), game.num_actions), np.int32)
    states[0] = game.start if state is None else state
    return 1 if depth == 0 else int(_count_plies(game.rules.legal_actions, game.rules.step, states, legal, depth))
