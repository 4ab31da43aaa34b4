"""Connect Four as ordinary Python functions, to be compared with the one in kernels."""

from typing import Any

import numpy as np

from keima.games import Game
from keima.games.authoring.plain import mirror_symmetries, plain_game
from keima.games.boards import has_line, is_full

Board = Any


def start() -> Board:
    """The empty board."""
    return np.zeros((6, 7), np.int8)


def is_legal(board: Board, player: int, column: int) -> bool:
    """Whether the column is not full."""
    return bool(board[0, column] == 0)


def play(board: Board, player: int, column: int) -> None:
    """Drop a stone."""
    row = 5
    while board[row, column] != 0:
        row -= 1
    board[row, column] = player


def result(board: Board, player: int) -> int | None:
    """The winner, 0 for a draw, or None."""
    if has_line(board, -player, 4):
        return -player
    if is_full(board[:1]):
        return 0
    return None


def connect_four() -> Game:
    """Connect Four as a plain game."""
    return plain_game(
        start=start,
        is_legal=is_legal,
        play=play,
        result=result,
        moves=7,
        max_plies=42,
        symmetries=mirror_symmetries(6, 7),
    )
