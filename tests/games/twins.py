"""Playing a game in parallel with another implementation of its rules, and comparing every position."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from keima.games import Game
from keima.games.game import States


class Twin(Protocol):
    """Another implementation; OpenSpiel's states have these methods."""

    def legal_actions(self) -> list[int]: ...

    def current_player(self) -> int: ...

    def is_terminal(self) -> bool: ...

    def returns(self) -> list[float]: ...

    def apply_action(self, action: int) -> None: ...

    def __str__(self) -> str:
        """Return the board from the top, one line per row: x the first player's stones, o the second's, . for an empty
        cell.
        """


def board(game: Game, state: States) -> str:
    """Return the board in the format of ``Twin.__str__``, read from the observation: planes of the mover's stones and
    the opponent's.
    """
    marks = ".xo" if game.current_player(state) == 0 else ".ox"
    mine, theirs = game.observe(state)[:2]
    return "\n".join("".join(marks[int(cell)] for cell in row) for row in (mine + 2 * theirs).tolist())


def look_the_same(game: Game, state: States, twin: Twin) -> None:
    assert game.terminal(state) == twin.is_terminal()
    assert game.legal_actions(state).tolist() == twin.legal_actions()
    assert game.returns(state).tolist() == twin.returns()
    if not twin.is_terminal():
        assert game.current_player(state) == twin.current_player()
        assert board(game, state) == str(twin).strip()


def play_beside(game: Game, new_twin: Callable[[], Any], *, positions: int, seed: int) -> None:
    """Compare at least ``positions`` positions of random games."""
    random = np.random.default_rng(seed)
    compared = 0
    while compared < positions:
        state, twin = game.initial_state(), new_twin()
        while not twin.is_terminal():
            look_the_same(game, state, twin)
            legal = game.legal_actions(state)
            action = int(legal[random.integers(len(legal))])
            game.play(state, action)
            twin.apply_action(action)
            compared += 1
        look_the_same(game, state, twin)
