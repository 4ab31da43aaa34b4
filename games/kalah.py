"""Kalah: sow the seeds of a pit; more seeds in the store win.

A last seed in the own store moves again; one in an empty own pit takes it and the seeds opposite, if there are any.
Sowing skips the other's store. When a side is empty, the other player stores what is left.

A row of the board is a player's pits, in the order of sowing, and the store. A move is a pit of the player to move.
"""

import numpy as np

from keima import plain_game


def is_legal(board, player, move):
    """Whether the pit holds seeds."""
    return board[0 if player == 1 else 1, move] > 0


def play(board, player, move):
    """Sow, capture, and store the rest when a side is empty."""
    pits = board.shape[1] - 1
    own = 0 if player == 1 else 1
    side, pit = own, move
    seeds = board[own, move]
    board[own, move] = 0
    while seeds > 0:
        pit += 1
        if pit > pits or (pit == pits and side != own):
            side, pit = 1 - side, 0
        board[side, pit] += 1
        seeds -= 1
    if side == own and pit < pits and board[own, pit] == 1:
        opposite = pits - 1 - pit
        if board[1 - own, opposite] > 0:
            board[own, pits] += 1 + board[1 - own, opposite]
            board[own, pit] = board[1 - own, opposite] = 0
    if not board[0, :pits].any() or not board[1, :pits].any():
        for row in range(2):
            board[row, pits] += board[row, :pits].sum()
            board[row, :pits] = 0
    return player if side == own and pit == pits else -player


def result(board, player):
    """More seeds win, once all are in the stores."""
    pits = board.shape[1] - 1
    return None if board[:, :pits].any() else np.sign(board[0, pits] - board[1, pits])


def planes(board, player):
    """The seeds of the own pits and store, and the other's."""
    own = 0 if player == 1 else 1
    seen = np.zeros((2, 1, board.shape[1]), np.float32)
    seen[0, 0] = board[own] / 8
    seen[1, 0] = board[1 - own] / 8
    return seen


def render(board):
    """The second player's pits from right to left, the stores, and the first player's pits."""
    pits = board.shape[1] - 1
    upper = " ".join(f"{seeds:2}" for seeds in board[1, pits - 1 :: -1])
    lower = " ".join(f"{seeds:2}" for seeds in board[0, :pits])
    return f"   {upper}\n{board[1, pits]:2}{'':{3 * pits + 1}}{board[0, pits]:2}\n   {lower}"


def game(pits=6, seeds=4):
    """Kalah(pits, seeds)."""

    def start():
        board = np.full((2, pits + 1), seeds, np.int16)
        board[:, pits] = 0
        return board

    return plain_game(
        start=start,
        is_legal=is_legal,
        play=play,
        result=result,
        planes=planes,
        render=render,
        moves=pits,
        max_plies=8 * pits * seeds,  # never reached in practice
    )
