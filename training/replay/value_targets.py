"""What the value head learns: lambda-returns, from a game's outcome and from the values that search found on the way.

R. S. Sutton, "Learning to predict by the methods of temporal differences" (1988): going back from the outcome, each
position's target is ``td_lambda`` of the next one's, seen from its own side and with the points made in between, and
the rest its root value. Where nature moves there is no root value, and the position belongs to whoever moved last.

A move that was drawn at random may be a mistake, and then what came of it says nothing of the position before, which
has its root value alone. Other random moves are as good as chosen ones. In points nobody knows what counts as a
mistake, so there all random moves do.
"""

import numpy as np
from numpy.typing import NDArray

from games.compiled import compiled
from games.game import CHANCE, Actions, Rules, States

BLUNDER = 0.3  # by so much search has to find the position worse after a random move, of values from -1 to 1


@compiled
def value_targets(
    rules: Rules,
    state: States,
    start: States,
    players: NDArray[np.int64],
    chances: NDArray[np.bool_],
    scores: NDArray[np.float32],
    game_starts: NDArray[np.int64],
    actions: Actions,
    returns: NDArray[np.float32],
    root_values: NDArray[np.float32],
    random: NDArray[np.bool_],
    td_lambda: float,
    discount: float,
    targets: NDArray[np.float32],
) -> None:
    """Write the value to learn in each position ``[M]``, for the player to move.

    Args:
        state, players, chances, scores: scratch space.
        random: ``[M]`` whether the move that was played was drawn at random.
    """
    step, current_player, returns_of = rules.step, rules.current_player, rules.returns
    points = returns.shape[1] == 1
    for game in range(game_starts.size):
        first = game_starts[game]
        last = game_starts[game + 1] if game + 1 < game_starts.size else actions.size
        state[:] = start
        for ply in range(last - first):
            player = current_player(state)
            chances[ply] = player == CHANCE
            players[ply] = player if player != CHANCE else (players[ply - 1] if ply > 0 else 0)
            step(state, np.int64(actions[first + ply]))
            if points:
                returns_of(state, scores[ply + 1 : ply + 2])
        for ply in range(last - first - 1, -1, -1):
            player, position = players[ply], first + ply
            if position + 1 == last:
                then = left = np.float32(0.0) if points else returns[game, player]
            else:
                side = np.float32(1 if players[ply + 1] == player else -1)
                then, left = side * targets[position + 1], side * root_values[position + 1]
            mistaken = random[position] and (points or left < root_values[position] - BLUNDER)
            kept = 1.0 if chances[ply] else 0.0 if mistaken else td_lambda
            then = scores[ply + 1] - scores[ply] + (1.0 if chances[ply] else discount) * then
            targets[position] = (1 - kept) * root_values[position] + kept * then
