"""Random games in compiled code, which measure the speed of rules."""

import numpy as np

from keima.compilation.decorators import compiled
from keima.compilation.random import Streams, random_below, uniform
from keima.games.game import Rules, States


@compiled
def play_random_games(
    rules: Rules, start: States, num_actions: int, num_outcomes: int, streams: Streams, games: int
) -> int:
    """Play so many games of random moves and return the number of moves; chance events are not counted.

    The arguments are numbers and arrays alone, so that benchmarks can call it in any version (``two_checkouts.py``).
    """
    legal_actions, step, chance_outcomes = rules.legal_actions, rules.step, rules.chance_outcomes
    legal, state, moves = np.empty(num_actions, np.int32), np.empty_like(start), 0
    outcomes, probabilities = np.empty(num_outcomes, np.int32), np.empty(num_outcomes, np.float32)
    for _ in range(games):
        state[:] = start
        while True:
            count = legal_actions(state, legal)
            if count > 0:
                step(state, np.int64(legal[random_below(streams, 0, count)]))
                moves += 1
                continue
            count = chance_outcomes(state, outcomes, probabilities)
            if count == 0:
                break
            drawn, rest = 0, uniform(streams, 0) - probabilities[0]
            while rest >= 0 and drawn < count - 1:
                drawn += 1
                rest -= probabilities[drawn]
            step(state, np.int64(outcomes[drawn]))
    return moves
