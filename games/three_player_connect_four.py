"""Connect Four for three players: each drops stones of its own colour, and the first row of four wins.

The winner's return is 1 and the others' -0.5. Two players who are about to lose may gain by helping each other, so
values are a vector, and search lets each player maximize its own (max^n). Nobody has solved this game.
"""

import numpy as np

from keima import has_line, mirror_symmetries, plain_game

PLAYERS = 3


def game(rows=6, columns=7, winning=4):
    """The game on a board of this size; a move is a column."""

    def start():
        return np.zeros((rows, columns), np.int8)

    def legal_moves(board, player):
        return board[0] == 0

    def play(board, player, move):
        row = rows - 1
        while board[row, move] != 0:
            row -= 1
        board[row, move] = player

    def result(board, player):
        """The player who has just moved wins by a row; row 0 is the top."""
        last = (player + 1) % PLAYERS + 1
        if has_line(board, last, winning):
            return outcome(last)
        return None if (board[0] == 0).any() else outcome(0)

    return plain_game(
        start=start,
        legal_moves=legal_moves,
        play=play,
        result=result,
        players=PLAYERS,
        moves=columns,
        move_names=[str(column + 1) for column in range(columns)],
        symmetries=mirror_symmetries(rows, columns),
        max_plies=rows * columns,
    )


def outcome(winner):
    """Everyone's return; nobody's where the winner is 0."""
    returns = np.zeros(PLAYERS)
    if winner > 0:
        returns[:] = -0.5
        returns[winner - 1] = 1
    return returns
