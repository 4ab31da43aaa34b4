"""Exact values of games small enough for exhaustive search, for tests and for measuring strength."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from keima.games.game import Game, States, call_step

ILLEGAL = -2  # in action values: less than any value, so that the maximum of a row is the position's value

ActionValues = NDArray[np.int8]  # [A] 1 won, 0 drawn, -1 lost for the player to move, or ILLEGAL


class TooLarge(ValueError):
    """The game has more positions than allowed."""


def solve_all_positions(game: Game, *, max_positions: int = 50_000) -> Iterator[tuple[States, ActionValues]]:
    """Yield every reachable position with a legal move, once, with the value of each action.

    Args:
        game: a zero-sum game of two players with returns of 1, 0 and -1, in which no position recurs.
        max_positions: the most positions to search.

    Raises:
        TooLarge: the game has more positions.
    """
    solved: dict[bytes, ActionValues] = {}
    _solve_position(game, game.initial_state(), solved, max_positions)
    for row, values in solved.items():
        yield np.frombuffer(row, np.int64).copy(), values


def _solve_position(game: Game, state: States, solved: dict[bytes, ActionValues], max_positions: int) -> int:
    """Solve ``state`` and all positions after it; return its value for the player to move."""
    player = game.current_player(state)
    if game.terminal(state):
        return round(float(game.returns(state)[player]))
    key = state.tobytes()
    if key not in solved:
        if len(solved) == max_positions:
            raise TooLarge(f"{game.name} has more than {max_positions} positions: too many to be searched exhaustively")
        solved[key] = np.full(game.num_actions, ILLEGAL, np.int8)
        for action in game.legal_actions(state).tolist():
            after = state.copy()
            call_step(game.rules.step, after, action)
            value = _solve_position(game, after, solved, max_positions)
            solved[key][action] = value if game.current_player(after) == player else -value
    return int(solved[key].max())
