"""The truth about games small enough to be searched exhaustively; for tests and for measuring play."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from games.game import Game, States, call_step

ILLEGAL = -2  # among action values: below every value, so that the greatest of a row is the value of the position

ActionValues = NDArray[np.int8]  # [A] 1 won, 0 drawn, -1 lost for the player to move, or ILLEGAL


class TooLarge(ValueError):
    """A game has more positions than it was to be searched for."""


def solve_all(game: Game, *, max_positions: int = 50_000) -> Iterator[tuple[States, ActionValues]]:
    """Every position that can arise and in which there is a move, once, with the value of each action.

    Args:
        game: of two players, one of whom wins 1 or 0 and the other loses it; no position may recur in it.
        max_positions: give up beyond so many.

    Raises:
        TooLarge: there are more.
    """
    solved: dict[bytes, ActionValues] = {}
    _visit(game, game.initial_state(), solved, max_positions)
    for row, values in solved.items():
        yield np.frombuffer(row, np.int64).copy(), values


def _visit(game: Game, state: States, solved: dict[bytes, ActionValues], max_positions: int) -> int:
    """Solve ``state`` and all that can follow; returns its value for the player to move."""
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
            value = _visit(game, after, solved, max_positions)
            solved[key][action] = value if game.current_player(after) == player else -value
    return int(solved[key].max())
