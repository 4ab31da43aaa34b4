"""EinStein wuerfelt nicht: a race of six numbered stones a side, in which a die says which stone may move.

The stones begin in opposite corners. A player moves the stone with the number that the die shows, or, if that is gone,
the nearest one with a lower or a higher number, by one step towards the opposite corner: sideways, ahead, or both. It
captures what stands there, of either side. Who reaches the opposite corner or captures all stones of the other side has
won (Ingo Althoefer, 2004). Players choose the order of their stones; here it is always 1 2 3, 4 5, 6.
"""

import numpy as np

from keima.games.authoring.plain import plain_game

SIZE, STONES = 5, 6
DIE = (SIZE, 0)  # where the board has the number on the die; 0: it is to be rolled
STEPS = ((0, 1), (1, 0), (1, 1))  # of the first player; the second player's lead back
NAMES = ("across", "ahead", "slant")


def game():
    """EinStein wuerfelt nicht on 5 x 5 points; move ``step * 25 + point`` moves the stone on that point."""
    return plain_game(
        start=start,
        is_legal=is_legal,
        play=play,
        chance=chance,
        happen=happen,
        outcomes=STONES,
        outcome_names=[str(number) for number in range(1, STONES + 1)],
        result=result,
        planes=planes,
        moves=len(STEPS) * SIZE * SIZE,
        move_names=lambda move: f"{'abcde'[move % SIZE]}{move // SIZE % SIZE + 1} {NAMES[move // SIZE**2]}",
        most_legal_moves=2 * len(STEPS),
        max_plies=100,
        render=render,
    )


def start():
    """The stones in their corners; the first player's numbers are above 0."""
    board = np.zeros((SIZE + 1, SIZE), np.int8)
    number = 0
    for row in range(3):
        for column in range(3 - row):
            number += 1
            board[row, column] = number
            board[SIZE - 1 - row, SIZE - 1 - column] = -number
    return board


def may_move(board, player, number):
    """Whether the die lets the player's stone with this number move: no other of the side is nearer on this side."""
    die = board[DIE]
    low, high = min(die, number), max(die, number)
    for row in range(SIZE):
        for column in range(SIZE):
            other = board[row, column] * player
            if other > 0 and other != number and low <= other <= high:
                return False
    return True


def is_legal(board, player, move):
    """A stone of the player that the die lets move, and a step on the board."""
    step, point = divmod(move, SIZE * SIZE)
    row, column = divmod(point, SIZE)
    number = board[row, column] * player
    if number <= 0:
        return False
    to_row, to_column = row + player * STEPS[step][0], column + player * STEPS[step][1]
    if to_row < 0 or to_row >= SIZE or to_column < 0 or to_column >= SIZE:
        return False
    return may_move(board, player, number)


def play(board, player, move):
    """Move the stone, and leave the die to be rolled."""
    step, point = divmod(move, SIZE * SIZE)
    row, column = divmod(point, SIZE)
    stone = board[row, column]
    board[row, column] = 0
    board[row + player * STEPS[step][0], column + player * STEPS[step][1]] = stone
    board[DIE] = 0


def chance(board):
    """Each number with the same probability, where the die is to be rolled."""
    return np.full(STONES, (board[DIE] == 0) / STONES)


def happen(board, player, outcome):
    """The die shows a number."""
    board[DIE] = outcome + 1


def result(board, player):
    """Who has reached the corner, or has all the stones."""
    if board[SIZE - 1, SIZE - 1] > 0 or board[:SIZE].min() >= 0:
        return 1
    if board[0, 0] < 0 or board[:SIZE].max() <= 0:
        return -1
    return None


def planes(board, player):
    """For each number the stones of both sides and whether the die shows it, and whose move it is."""
    seen = np.zeros((3 * STONES + 1, SIZE, SIZE), np.float32)
    for row in range(SIZE):
        for column in range(SIZE):
            stone = board[row, column] * player
            if stone > 0:
                seen[stone - 1, row, column] = 1
            if stone < 0:
                seen[STONES - stone - 1, row, column] = 1
    if board[DIE] > 0:
        seen[2 * STONES + board[DIE] - 1] = 1
    seen[3 * STONES] = player == 1
    return seen


def render(board):
    """The numbers of the first player plain, those of the second with a minus, and the die."""
    rows = [
        f"{row + 1} " + " ".join(f"{stone if stone else '.':>2}" for stone in board[row].tolist())
        for row in range(SIZE)
    ]
    return "\n".join([*rows, "   " + "  ".join("abcde"), f"die: {board[DIE] or '-'}"])
