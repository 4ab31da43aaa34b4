"""2048 as plain functions: one player, a score, and tiles that come by chance.

The rules are those of Keima's own 2048 (``keima train twenty48``), which is written as kernels and faster.
"""

import numpy as np

from keima.games.authoring.plain import board_symmetries, plain_game
from keima.games.twenty48.rules import ACTIONS, make_direction_table, make_outcome_table, outcome_name


def game(size=4):
    """2048 on a board of ``size`` by ``size`` cells."""
    score, due = size, size + 1  # rows below the board; their first numbers: the score, and how many tiles are to come

    def start():
        """The empty board, to which two tiles are to come."""
        board = np.zeros((size + 2, size), np.int64)
        board[due, 0] = 2
        return board

    def cell(move, line, step):
        """A cell of a line along which tiles slide, counted from where they go: up, right, down or left."""
        last = size - 1
        if move == 0:
            return step, line
        if move == 1:
            return line, last - step
        if move == 2:
            return last - step, line
        return line, step

    def slid(board, move):
        """The board after the tiles slid."""
        after = board.copy()
        for line in range(size):
            at, merged = 0, True  # where the next tile goes, and whether the last one was merged
            for step in range(size):
                tile = after[cell(move, line, step)]
                if tile == 0:
                    continue
                after[cell(move, line, step)] = 0
                if not merged and after[cell(move, line, at - 1)] == tile:
                    after[cell(move, line, at - 1)] = tile + 1
                    after[score, 0] += 2 ** (tile + 1)
                    merged = True
                else:
                    after[cell(move, line, at)] = tile
                    at, merged = at + 1, False
        return after

    def is_legal(board, player, move):
        """Whether a tile moves."""
        after = slid(board, move)
        for row in range(size):
            for column in range(size):
                if after[row, column] != board[row, column]:
                    return True
        return False

    def play(board, player, move):
        """Slide, and let a tile come."""
        board[:] = slid(board, move)
        board[due, 0] = 1

    def chance(board):
        """A 2 with nine tenths or a 4 with one on each empty cell, where a tile is to come."""
        likely = np.zeros(2 * size * size)
        if board[due, 0] == 0:
            return likely
        empty = 0
        for row in range(size):
            for column in range(size):
                empty += board[row, column] == 0
        for row in range(size):
            for column in range(size):
                if board[row, column] == 0:
                    likely[2 * (row * size + column)] = 0.9 / empty
                    likely[2 * (row * size + column) + 1] = 0.1 / empty
        return likely

    def happen(board, player, outcome):
        """The tile comes."""
        cell, four = divmod(outcome, 2)
        board[cell // size, cell % size] = 1 + four
        board[due, 0] -= 1

    def result(board, player):
        """The score, once no tile can move."""
        if board[due, 0] > 0:
            return None
        for move in range(4):
            if is_legal(board, player, move):
                return None
        return float(board[score, 0])

    def planes(board, player):
        """The exponents."""
        return (board[:size],)

    points = board_symmetries(size)
    return plain_game(
        start=start,
        is_legal=is_legal,
        play=play,
        chance=chance,
        happen=happen,
        outcomes=2 * size * size,
        outcome_names=lambda outcome: outcome_name(size, size, outcome),
        result=result,
        planes=planes,
        moves=4,
        move_names=ACTIONS,
        players=1,
        max_return=(size**2 - 1) * 2.0 ** (size**2 + 2) + 4,
        max_plies=2 ** (size**2 + 2) - 4,
        symmetries=(points, make_direction_table(points, width=size), make_outcome_table(points)),
    )
