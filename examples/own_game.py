"""A game of one's own: a file with ``game()``. It is checked here; ``keima train own_game.py`` trains it.

Nim with one heap: take one to three of twelve matches; who takes the last one wins.
"""

import numpy as np

import keima

MATCHES, MOST = 12, 3


def start():
    """A cell for each match: 1 if it is there."""
    return np.ones((1, MATCHES), np.int8)


def is_legal(board, player, move):
    """Move 0 takes one match."""
    return board.sum() > move


def play(board, player, move):
    """Take matches from the right."""
    board[0, board.sum() - move - 1 :] = 0


def result(board, player):
    """Who finds no match has lost."""
    return None if board.any() else -player


def game():
    """The game, as Keima wants it."""
    return keima.plain_game(start=start, is_legal=is_legal, play=play, result=result, moves=MOST, max_plies=MATCHES)


if __name__ == "__main__":
    keima.check_game(keima.load_game(__file__))
    print("It keeps the contract of games.")
