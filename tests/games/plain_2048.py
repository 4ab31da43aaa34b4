"""2048 as ordinary Python functions with chance, to be compared with the one in kernels."""

from typing import Any

import numpy as np

from keima.games import Game
from keima.games.authoring.plain import board_symmetries, plain_game
from keima.games.twenty48.rules import ACTIONS, make_direction_table, make_outcome_table, outcome_name

Board = Any
SIDE = 3
SCORE, DUE = SIDE, SIDE + 1  # rows below the board, whose first numbers are the score and how many tiles are to come


def start() -> Board:
    """The empty board, to which two tiles are to come."""
    board = np.zeros((SIDE + 2, SIDE), np.int64)
    board[DUE, 0] = 2
    return board


def slid(board: Board, move: int) -> Board:
    """The board after the tiles slid up, right, down or left."""
    after, last = board.copy(), SIDE - 1
    for line in range(SIDE):
        at, merged = 0, True  # where the next tile goes, and whether the last one was merged
        for step in range(SIDE):
            if move == 0 or move == 2:
                row, column = step if move == 0 else last - step, line
            else:
                row, column = line, step if move == 3 else last - step
            tile = after[row, column]
            if tile == 0:
                continue
            after[row, column] = 0
            back = at - 1
            if move == 0 or move == 2:
                to_row, to_column = back if move == 0 else last - back, line
            else:
                to_row, to_column = line, back if move == 3 else last - back
            if not merged and after[to_row, to_column] == tile:
                after[to_row, to_column] = tile + 1
                after[SCORE, 0] += 2 ** (tile + 1)
                merged = True
                continue
            if move == 0 or move == 2:
                after[at if move == 0 else last - at, line] = tile
            else:
                after[line, at if move == 3 else last - at] = tile
            at, merged = at + 1, False
    return after


def is_legal(board: Board, player: int, move: int) -> bool:
    """Whether a tile moves."""
    after = slid(board, move)
    for row in range(SIDE):
        for column in range(SIDE):
            if after[row, column] != board[row, column]:
                return True
    return False


def play(board: Board, player: int, move: int) -> None:
    """Slide, and let a tile come."""
    board[:] = slid(board, move)
    board[DUE, 0] = 1


def chance(board: Board) -> Any:
    """A 2 with nine tenths or a 4 with one on each empty cell, where a tile is to come."""
    likely = np.zeros(2 * SIDE * SIDE)
    if board[DUE, 0] == 0:
        return likely
    empty = 0
    for row in range(SIDE):
        for column in range(SIDE):
            empty += board[row, column] == 0
    for row in range(SIDE):
        for column in range(SIDE):
            if board[row, column] == 0:
                likely[2 * (row * SIDE + column)] = 0.9 / empty
                likely[2 * (row * SIDE + column) + 1] = 0.1 / empty
    return likely


def happen(board: Board, player: int, outcome: int) -> None:
    """The tile comes."""
    cell, four = divmod(outcome, 2)
    board[cell // SIDE, cell % SIDE] = 1 + four
    board[DUE, 0] -= 1


def result(board: Board, player: int) -> Any:
    """The score, once no tile can move."""
    if board[DUE, 0] > 0:
        return None
    for move in range(4):
        if is_legal(board, player, move):
            return None
    return float(board[SCORE, 0])


def planes(board: Board, player: int) -> Any:
    """The exponents."""
    return (board[:SIDE],)


def game() -> Game:
    """The game."""
    points = board_symmetries(SIDE)
    return plain_game(
        start=start,
        is_legal=is_legal,
        play=play,
        chance=chance,
        happen=happen,
        outcomes=2 * SIDE * SIDE,
        outcome_names=lambda outcome: outcome_name(SIDE, SIDE, outcome),
        result=result,
        planes=planes,
        moves=4,
        move_names=ACTIONS,
        players=1,
        max_return=1e6,
        max_plies=4000,
        symmetries=(points, make_direction_table(points, width=SIDE), make_outcome_table(points)),
    )
