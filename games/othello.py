"""Othello (Reversi): stones enclosed between the one just placed and another of the same player are flipped.

Rules: World Othello Federation. A player without a legal move passes; the game ends when neither player has one, and
more stones win. Passes need no moves of their own here: the other player simply moves again.
"""

import numpy as np

from keima import board_symmetries, plain_game

DIRECTIONS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))


def flipped(board, player, row, column, down, right):
    """How many stones a move flips in one direction."""
    size = len(board)
    count = 0
    row, column = row + down, column + right
    while 0 <= row < size and 0 <= column < size and board[row, column] == -player:
        count += 1
        row, column = row + down, column + right
    inside = 0 <= row < size and 0 <= column < size
    return count if inside and board[row, column] == player else 0


def is_legal(board, player, move):
    """Whether the point is empty and a stone there flips any."""
    row, column = divmod(move, len(board))
    if board[row, column] != 0:
        return False
    for down, right in DIRECTIONS:
        if flipped(board, player, row, column, down, right) > 0:
            return True
    return False


def has_move(board, player):
    """Whether the player has a legal move."""
    for move in range(board.size):
        if is_legal(board, player, move):
            return True
    return False


def legal_moves(board, player):
    """Every point at which a stone flips another."""
    for move in range(board.size):
        if is_legal(board, player, move):
            yield move


def play(board, player, move):
    """Place a stone, flip, and say who moves next: the other player, unless that one must pass."""
    row, column = divmod(move, len(board))
    for down, right in DIRECTIONS:
        for step in range(1, flipped(board, player, row, column, down, right) + 1):
            board[row + step * down, column + step * right] = player
    board[row, column] = player
    return -player if has_move(board, -player) else player


def result(board, player):
    """The player with more stones wins, once nobody can move."""
    if has_move(board, player):  # the player to move has a move as long as anybody has
        return None
    return np.sign(board.sum())


def game(size=8):
    """Othello on a square board with an even side."""
    if size < 4 or size % 2 or size > 16:
        raise ValueError(f"size is {size}: Othello is played on even boards from 4 to 16")

    def start():
        board = np.zeros((size, size), np.int8)
        low, high = size // 2 - 1, size // 2
        board[low, high] = board[high, low] = 1
        board[low, low] = board[high, high] = -1
        return board

    return plain_game(
        start=start,
        legal_moves=legal_moves,
        play=play,
        result=result,
        symmetries=board_symmetries(size),
        max_plies=size * size - 4,
    )
