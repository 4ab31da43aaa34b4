"""Tic-tac-toe as a plain game: ordinary functions over a numpy board (``keima.games.authoring.plain`` says what each
does).
"""

import numpy as np

from keima import board_symmetries, has_line, is_full, plain_game


def start():
    """The empty board."""
    return np.zeros((3, 3), np.int8)


def is_legal(board, player, move):
    """Whether the cell is empty; move 0 is the upper left corner."""
    return board[move // 3, move % 3] == 0


def play(board, player, move):
    """Put a stone: 1 or -1."""
    board[move // 3, move % 3] = player


def result(board, player):
    """The winner, 0 for a draw, or None while the game goes on."""
    if has_line(board, -player, 3):
        return -player
    if is_full(board):
        return 0
    return None


def game():
    """The game, whose eight symmetries multiply what is learned from each position."""
    rules = dict(start=start, is_legal=is_legal, play=play, result=result)
    return plain_game(**rules, max_plies=9, symmetries=board_symmetries(3))
