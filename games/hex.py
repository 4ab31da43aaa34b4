"""Hex: the first player connects top and bottom, the second left and right.

Rules: Piet Hein 1942. No game is drawn. With ``swap`` the second player may take over the first stone in place of a
first move, which evens out the advantage of moving first (the pie rule): the stone is mirrored at the long diagonal and
becomes the second player's.
"""

import numpy as np

from keima import plain_game

NEIGHBOURS = ((-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0))


def connects(board, player):
    """Whether the player's stones connect the player's two sides: a flood fill from the first of them."""
    size = len(board)
    seen = np.zeros((size, size), np.bool_)
    rows, columns = np.empty(size * size, np.int64), np.empty(size * size, np.int64)
    waiting = 0
    for index in range(size):
        row, column = (0, index) if player == 1 else (index, 0)
        if board[row, column] == player:
            seen[row, column] = True
            rows[waiting], columns[waiting] = row, column
            waiting += 1
    while waiting > 0:
        waiting -= 1
        row, column = rows[waiting], columns[waiting]
        if (row if player == 1 else column) == size - 1:
            return True
        for down, right in NEIGHBOURS:
            y, x = row + down, column + right
            if 0 <= y < size and 0 <= x < size and board[y, x] == player and not seen[y, x]:
                seen[y, x] = True
                rows[waiting], columns[waiting] = y, x
                waiting += 1
    return False


def result(board, player):
    """The player who has just moved wins by a connection."""
    return -player if connects(board, -player) else None


def planes(board, player):
    """The player's stones, the other's, and which sides the player connects."""
    return board == player, board == -player, player == 1


COLOURS = {0: "#e9edf2", 1: "#c0392b", -1: "#2456a6"}


def svg(board):
    """The rhombus of hexagons; the first player is red, and connects the red sides."""
    size, cells = len(board), []
    for row in range(size):
        for column in range(size):
            x, y = 20 * column + 10 * row + 24, 17.3 * row + 24
            corners = ((0, -11.5), (10, -5.8), (10, 5.8), (0, 11.5), (-10, 5.8), (-10, -5.8))
            points = " ".join(f"{x + right:g},{y + down:.1f}" for right, down in corners)
            fill, name = COLOURS[int(board[row, column])], f"{chr(97 + column)}{row + 1}"
            cells.append(f'<polygon points="{points}" fill="{fill}" stroke="#555" data-move="{name}"/>')
    wide, last = 30 * size + 30, 17.3 * size + 17
    sides = {
        1: f"M14 9H{20 * size + 14}M{10 * size + 14} {last + 8:.1f}H{wide - 16}",
        -1: f"M4 16L{10 * size} {last:.1f}M{20 * size + 16} 16L{30 * size + 16} {last:.1f}",
    }
    lines = "".join(f'<path d="{way}" stroke="{COLOURS[who]}" stroke-width="4"/>' for who, way in sides.items())
    return f'<svg viewBox="0 0 {wide} {last + 15:.0f}">{"".join(cells)}{lines}</svg>'


def game(size=7, swap=False):
    """Hex on a rhombus; with ``swap``, the last move takes over the first stone."""
    if not 3 <= size <= 19:
        raise ValueError(f"size is {size}: Hex is played on boards from 3 to 19")
    points = size * size

    def start():
        return np.zeros((size, size), np.int8)

    def legal_moves(board, player):
        for move in range(points):
            if board[move // size, move % size] == 0:
                yield move
        if swap and player == -1 and np.abs(board).sum() == 1:
            yield points

    def play(board, player, move):
        if move < points:
            board[move // size, move % size] = player
            return
        for row in range(size):
            for column in range(size):
                if board[row, column] == 1:
                    board[row, column] = 0
                    board[column, row] = -1
                    return

    turned = np.stack([np.arange(points), np.arange(points)[::-1]])
    return plain_game(
        start=start,
        legal_moves=legal_moves,
        play=play,
        result=result,
        planes=planes,
        moves=points + swap,
        symmetries=turned,
        max_plies=points + swap,
        svg=svg,
    )
