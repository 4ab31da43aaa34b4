"""Dots and Boxes: who draws the fourth side of a box owns it and moves again; more boxes win.

The board has a cell for each dot, line and box: with 4x4 boxes 9x9 cells. Boxes are at odd rows and odd columns, dots
at even ones, and lines at an even and an odd one. A move is the cell of a line.
"""

import numpy as np

from keima import board_symmetries, plain_game

LINE = 2
SIDES = ((-1, 0), (1, 0), (0, -1), (0, 1))


def legal_moves(board, player):
    """Every line that is not drawn."""
    for move in range(board.size):
        row, column = divmod(move, len(board))
        if (row + column) % 2 == 1 and board[row, column] == 0:
            yield move


def closes(board, row, column):
    """Whether all four sides of the box at a cell are drawn."""
    for down, right in SIDES:
        if board[row + down, column + right] == 0:
            return False
    return True


def play(board, player, move):
    """Draw a line and take the boxes that it closes."""
    size = len(board)
    line_row, line_column = divmod(move, size)
    board[line_row, line_column] = LINE
    again = False
    for down, right in SIDES:
        row, column = line_row + down, line_column + right
        if row % 2 == 1 and column % 2 == 1 and 0 <= row < size and 0 <= column < size and closes(board, row, column):
            board[row, column] = player
            again = True
    return player if again else -player


def result(board, player):
    """More boxes win, once all have an owner."""
    boxes = board[1::2, 1::2]
    return None if (boxes == 0).any() else np.sign(boxes.sum())


def planes(board, player):
    """Lines, own boxes, the other's boxes."""
    seen = np.zeros((3, len(board), len(board)), np.float32)
    seen[0] = board == LINE
    seen[1] = board == player
    seen[2] = board == -player
    return seen


def render(board):
    """Dots and lines, with the owner in each box."""
    lines = []
    for row, cells in enumerate(board):
        if row % 2 == 0:
            lines.append(
                "".join(("---" if cell else "   ") if column % 2 else "+" for column, cell in enumerate(cells))
            )
        else:
            owners = {0: "   ", 1: " X ", -1: " O "}
            lines.append("".join(owners[int(c)] if k % 2 else ("|" if c else " ") for k, c in enumerate(cells)))
    return "\n".join(lines)


def openspiel_action(move):
    """OpenSpiel's number of a line of 4x4 boxes: the 20 horizontal ones, then the vertical ones."""
    row, column = divmod(move, 9)
    return row // 2 * 4 + column // 2 if row % 2 == 0 else 20 + row // 2 * 5 + column // 2


def game(boxes=4):
    """Dots and Boxes on a square of boxes."""
    if not 1 <= boxes <= 8:
        raise ValueError(f"boxes is {boxes}: it should be from 1 to 8")
    size = 2 * boxes + 1

    def start():
        return np.zeros((size, size), np.int8)

    return plain_game(
        start=start,
        legal_moves=legal_moves,
        play=play,
        result=result,
        planes=planes,
        render=render,
        symmetries=board_symmetries(size),
        max_plies=2 * boxes * (boxes + 1),
    )
