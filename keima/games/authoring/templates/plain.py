"""NAME: four in a row on a board of 5 x 5. Change it into your game.

The rules are the five functions below. They are ordinary Python over a small numpy board. Keima compiles them with
numba, so use numbers, tuples, arrays, ifs and loops in them, but no dicts, no text and no classes.

The first player is 1 and the second is -1. Moves are numbers from 0: here move 0 is the upper left corner, and the last
one the lower right. `keima check-game NAME.py` says in which line something is wrong, and how to fix it.
"""

import numpy as np

from keima import board_symmetries, plain_game

SIZE = 5
LENGTH = 4  # stones in a row that win
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))  # right, down, and both diagonals


def start():
    """The board at the start: whole numbers, here 0 for an empty cell. Put there whatever your rules must remember."""
    return np.zeros((SIZE, SIZE), np.int8)


def is_legal(board, player, move):
    """Whether `player` may make this move. There must be one as long as the game goes on."""
    return board[move // SIZE, move % SIZE] == 0


def play(board, player, move):
    """Change the board. Return nothing, and it is the other player's turn; or return the player who moves next."""
    board[move // SIZE, move % SIZE] = player


def is_on_board(row, column):
    """A function of your own; the five may use as many as you like."""
    return 0 <= row < SIZE and 0 <= column < SIZE


def has_line(board, stone):
    """Whether four of these stones are in a row."""
    for row in range(SIZE):
        for column in range(SIZE):
            for down, right in DIRECTIONS:
                count = 0
                while (
                    count < LENGTH
                    and is_on_board(row + down * count, column + right * count)
                    and board[row + down * count, column + right * count] == stone
                ):
                    count += 1
                if count == LENGTH:
                    return True
    return False


def result(board, player):
    """None while the game goes on; then 1 if the first player has won, -1 if the second has, 0 for a draw.

    `player` is the one who would move next, so only the other can have completed a line.
    """
    if has_line(board, -player):
        return -player
    if board.all():  # no empty cell is left
        return 0
    return None


def planes(board, player):
    """What the network sees, a plane of the board's size for each kind of stone, from the view of `player`."""
    return board == player, board == -player


def game():
    """Your game. Options of your own become arguments here, such as `def game(size=5)`."""
    return plain_game(
        start=start,
        is_legal=is_legal,  # or legal_moves(board, player), which yields the legal moves
        play=play,
        result=result,
        planes=planes,
        moves=SIZE * SIZE,  # there are so many moves, legal or not
        max_plies=SIZE * SIZE,  # no game is longer; one that gets there is drawn
        symmetries=board_symmetries(SIZE),  # leave this out if the board may not be turned and mirrored
    )
