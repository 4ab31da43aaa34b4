"""Connect Four on a board without its lower left corner: a stone in the first column comes to rest one row higher.

Nobody has solved this game. The corner is a block that counts as nobody's stone; the board is not its own mirror image.
"""

import numpy as np

from keima import has_line, plain_game

ROWS, COLUMNS, WINNING = 6, 7, 4  # row 0 is the top
BLOCK = 2


def start():
    """The empty board with its block."""
    board = np.zeros((ROWS, COLUMNS), np.int8)
    board[ROWS - 1, 0] = BLOCK
    return board


def legal_moves(board, player):
    """The columns that are not full."""
    return np.flatnonzero(board[0] == 0)


def play(board, player, move):
    """Drop a stone into a column."""
    row = ROWS - 1
    while board[row, move] != 0:
        row -= 1
    board[row, move] = player


def result(board, player):
    """The player who has just moved wins by a row of four."""
    if has_line(board, -player, WINNING):
        return -player
    return None if (board[0] == 0).any() else 0


def planes(board, player):
    """The player's stones, the other's, and the block."""
    return board == player, board == -player, board == BLOCK


def game():
    """The game; a move is a column."""
    return plain_game(
        start=start,
        legal_moves=legal_moves,
        play=play,
        result=result,
        planes=planes,
        moves=COLUMNS,
        move_names=[str(column + 1) for column in range(COLUMNS)],
        max_plies=ROWS * COLUMNS - 1,
    )
