"""Value targets: lambda-returns from a game's outcome and the root values of its searches.

R. S. Sutton, "Learning to predict by the methods of temporal differences" (1988): going back from the outcome, each
position's target is ``td_lambda`` times the next target, from its own player's view and with the reward in between,
plus the rest of the weight times its root value. Where nature moves there is no root value, and the position belongs to
the player who moved last.

With three and more players each position has a target for every player, which is the outcome: one root value tells of
the player to move alone.

A random move may be a mistake. Its result then says nothing about the position before, whose target is its root value
alone. Other random moves count like chosen ones. In one-player games mistakes cannot be detected, so all random moves
count as mistakes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.games.game import CHANCE, Actions, Rules, States

BLUNDER_LOSS = 0.3  # the loss of root value, in [-1, 1], that makes a random move a mistake


class SearchedGames(NamedTuple):
    """The columns of G games of M positions from which value targets are made."""

    lengths: NDArray[np.int32]  # [G]
    returns: NDArray[np.float32]  # [G, players]
    actions: Actions  # [M]
    root_values: NDArray[np.float32]  # [M]
    random: NDArray[np.bool_]  # [M] whether the move was drawn at random


class ReturnParams(NamedTuple):
    """The numbers by which lambda-returns are made."""

    td_lambda: float
    discount: float  # of points


@compiled
def list_players(rules: Rules, start: States, actions: Actions, players: NDArray[np.int64]) -> None:
    """Write to ``players`` ``[M]`` who is to move at each ply of the game ``actions`` ``[M]``."""
    state = start.copy()
    for ply, action in enumerate(actions):
        players[ply] = rules.current_player(state)
        rules.step(state, np.int64(action))


@compiled
def write_value_targets(
    rules: Rules, start: States, games: SearchedGames, params: ReturnParams, targets: NDArray[np.float32]
) -> None:
    """Write the values to learn in each position to ``targets`` ``[M, V]``."""
    step, current_player, returns_of = rules.step, rules.current_player, rules.returns
    returns, actions, root_values, random = games.returns, games.actions, games.root_values, games.random
    points, longest = returns.shape[1] == 1, games.lengths.max()
    state, scores = start.copy(), np.zeros(longest + 1, np.float32)
    players, chances = np.empty(longest, np.int64), np.empty(longest, np.bool_)
    last = 0
    for game in range(games.lengths.size):
        first, last = last, last + games.lengths[game]
        state[:] = start
        for ply in range(last - first):
            player = current_player(state)
            chances[ply] = player == CHANCE
            players[ply] = player if player != CHANCE else (players[ply - 1] if ply > 0 else 0)
            step(state, np.int64(actions[first + ply]))
            if points:
                returns_of(state, scores[ply + 1 : ply + 2])
        if returns.shape[1] > 2:
            for ply in range(last - first):
                for seat in range(returns.shape[1]):
                    targets[first + ply, seat] = returns[game, (players[ply] + seat) % returns.shape[1]]
            continue
        searched = last - first  # the next ply that was searched, and no chance event; here: none
        for ply in range(last - first - 1, -1, -1):
            player, position = players[ply], first + ply
            next_target = next_value = np.float32(0.0) if points else returns[game, player]
            if position + 1 < last:
                next_target = np.float32(1 if players[ply + 1] == player else -1) * targets[position + 1, 0]
            if searched < last - first:
                next_value = np.float32(1 if players[searched] == player else -1) * root_values[first + searched]
            if not chances[ply]:
                searched = ply
            is_blunder = random[position] and (points or next_value < root_values[position] - BLUNDER_LOSS)
            trace = 1.0 if chances[ply] else 0.0 if is_blunder else params.td_lambda
            next_target = scores[ply + 1] - scores[ply] + (1.0 if chances[ply] else params.discount) * next_target
            # TD(lambda) on the values v of the searches (Sutton 1988), where lambda is ``trace``:
            # target(t) = (1 - lambda) * v(t) + lambda * (r(t) + discount * target(t + 1))
            targets[position, 0] = (1 - trace) * root_values[position] + trace * next_target
