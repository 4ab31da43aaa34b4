"""A game for three players that is solved by hand: in turn each takes one or two stones from a heap.

Who takes the last stone has a return of 1, the player after that one 0, and the other one -1. So every player prefers
one end to another, and the values of each heap follow from those of smaller ones.
"""

from functools import cache
from typing import Any

import numpy as np

from keima.games.authoring.plain import PlainGame, plain_game

PLAYERS, MOST = 3, 2


def game(stones: int = 12) -> PlainGame:
    """The game with so many stones; move m takes m + 1 of them."""

    def start() -> Any:
        return np.full((1, 1), stones, np.int8)

    def legal_moves(board: Any, player: int) -> Any:
        return np.arange(min(MOST, board[0, 0]))

    def play(board: Any, player: int, move: int) -> None:
        board[0, 0] -= move + 1

    def result(board: Any, player: int) -> Any:
        return returns_where(player) if board[0, 0] == 0 else None

    def planes(board: Any, player: int) -> Any:
        seen = np.zeros((stones, 1, 1), np.float32)
        seen[: board[0, 0]] = 1
        return seen

    return plain_game(
        start=start,
        legal_moves=legal_moves,
        play=play,
        result=result,
        planes=planes,
        players=PLAYERS,
        moves=MOST,
        max_plies=stones,
    )


def returns_where(player: int) -> Any:
    """Return everyone's return where ``player``, from 1, would be to move after the last stone."""
    returns = np.zeros(PLAYERS)
    returns[(player + 1) % PLAYERS] = 1
    returns[player % PLAYERS] = -1
    return returns


@cache
def solved(stones: int) -> tuple[float, ...]:
    """Return the values of a heap for the player to move, the next and the one after that, if all play best."""
    if stones == 0:
        return (0.0, -1.0, 1.0)
    return max(
        (after[-1], *after[:-1]) for after in (solved(stones - taken) for taken in range(1, min(MOST, stones) + 1))
    )
