"""Gomoku: five stones in a row win, also six and more (freestyle Gomoku). A full board is a draw."""

import numpy as np

from keima import board_symmetries, has_line_through, plain_game

WINNING = 5


def legal_moves(board, player):
    """Every empty point."""
    return np.flatnonzero(board == 0)


def play(board, player, move):
    """Place a stone."""
    board[move // len(board), move % len(board)] = player


def result(board, player, move):
    """The player who has just moved wins by a row of five through the new stone."""
    if has_line_through(board, move // len(board), move % len(board), WINNING):
        return -player
    return None if (board == 0).any() else 0


def game(size=9):
    """Gomoku on a square board."""
    if not WINNING <= size <= 19:
        raise ValueError(f"size is {size}: Gomoku is played on boards from {WINNING} to 19")
    return plain_game(
        start=lambda: np.zeros((size, size), np.int8),
        legal_moves=legal_moves,
        play=play,
        result=result,
        symmetries=board_symmetries(size),
        max_plies=size * size,
    )
