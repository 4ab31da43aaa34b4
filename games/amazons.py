"""Game of the Amazons on a small board, four amazons a side, set up as in OpenSpiel. Who cannot move loses.

A move has three parts, each a point of the board: pick an amazon, put it down a queen's move away, and shoot an arrow a
queen's move further. The board remembers the part: an amazon that is picked up counts double, one that must shoot
triple.
"""

import numpy as np

from keima import board_symmetries, plain_game

ARROW = 9
PICKED, SHOOTS = 2, 3
DIRECTIONS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))


def is_free(board, row, column):
    """Whether the point is on the board and empty."""
    return 0 <= row < len(board) and 0 <= column < len(board) and board[row, column] == 0


def can_move(board, row, column):
    """Whether a neighbour of the point is free."""
    for down, right in DIRECTIONS:
        if is_free(board, row + down, column + right):
            return True
    return False


def active(board, player):
    """The point of the amazon that is picked up or must shoot; -1 if the player is to pick one."""
    for point in range(board.size):
        stone = board[divmod(point, len(board))] * player
        if stone == PICKED or stone == SHOOTS:
            return point
    return -1


def legal_moves(board, player):
    """The amazons that can move, or the points that a queen reaches from the active one."""
    size = len(board)
    point = active(board, player)
    if point < 0:
        for choice in range(board.size):
            row, column = divmod(choice, size)
            if board[row, column] == player and can_move(board, row, column):
                yield choice
    else:
        for down, right in DIRECTIONS:
            row, column = point // size + down, point % size + right
            while is_free(board, row, column):
                yield row * size + column
                row, column = row + down, column + right


def play(board, player, move):
    """Pick, put down or shoot; only the arrow ends the turn."""
    size = len(board)
    row, column = divmod(move, size)
    point = active(board, player)
    if point < 0:
        board[row, column] = PICKED * player
        return player
    from_row, from_column = divmod(point, size)
    if board[from_row, from_column] == PICKED * player:
        board[from_row, from_column] = 0
        board[row, column] = SHOOTS * player
        return player
    board[from_row, from_column] = player
    board[row, column] = ARROW
    return -player


def result(board, player):
    """A player who begins a turn and cannot move has lost."""
    for _ in legal_moves(board, player):
        return None
    return -player


def planes(board, player):
    """Own and other amazons, arrows, the amazon that is picked up, the one that must shoot."""
    seen = np.zeros((5, len(board), len(board)), np.float32)
    stones = board * player
    seen[0] = (stones >= 1) & (stones <= SHOOTS)
    seen[1] = (stones <= -1) & (stones >= -SHOOTS)
    seen[2] = board == ARROW
    seen[3] = stones == PICKED
    seen[4] = stones == SHOOTS
    return seen


def render(board):
    """Amazons as X and O, arrows as *; an amazon in its turn is doubled, then followed by a mark."""
    names = {0: ". ", 1: "X ", 2: "X?", 3: "X!", -1: "O ", -2: "O?", -3: "O!", ARROW: "* "}
    return "\n".join(" ".join(names[int(stone)] for stone in row).rstrip() for row in board)


def game(size=6):
    """Amazons with four amazons a side on a square board."""
    if not 4 <= size <= 10:
        raise ValueError(f"size is {size}: it should be from 4 to 10")

    def start():
        board = np.zeros((size, size), np.int8)
        near, far = (size - 1) // 3, size - 1 - (size - 1) // 3
        board[size - 1 - near, [0, -1]] = board[size - 1, [near, far]] = 1
        board[near, [0, -1]] = board[0, [near, far]] = -1
        return board

    return plain_game(
        start=start,
        legal_moves=legal_moves,
        play=play,
        result=result,
        planes=planes,
        render=render,
        symmetries=board_symmetries(size),
        max_plies=3 * (size * size - 8),
    )
