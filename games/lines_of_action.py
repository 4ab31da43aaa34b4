"""Lines of Action on a small board: who connects all own pieces, also diagonally, wins.

A piece moves exactly as many squares as there are pieces in its line, over own pieces but not over the other's, onto an
empty square or a piece that it captures. If a move connects both sides, the player who moved wins. A player without a
move has lost. Long games are drawn.

A move is a direction and the point of the piece, such as c1s: its length follows from the board. Row 1 is at the top.
"""

import numpy as np

from keima import board_symmetries, plain_game

DIRECTIONS = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))
COMPASS = ("nw", "n", "ne", "w", "e", "sw", "s", "se")


def inside(board, row, column):
    """Whether the point is on the board."""
    return 0 <= row < len(board) and 0 <= column < len(board)


def pieces_in_line(board, row, column, down, right):
    """How many pieces of both players are in the line through a point."""
    while inside(board, row - down, column - right):
        row, column = row - down, column - right
    count = 0
    while inside(board, row, column):
        count += board[row, column] != 0
        row, column = row + down, column + right
    return count


def is_legal(board, player, move):
    """Whether the piece can move exactly as far as its line says."""
    direction, point = divmod(move, board.size)
    row, column = divmod(point, len(board))
    if board[row, column] != player:
        return False
    down, right = DIRECTIONS[direction]
    steps = pieces_in_line(board, row, column, down, right)
    if not inside(board, row + steps * down, column + steps * right):
        return False
    for step in range(1, steps):
        if board[row + step * down, column + step * right] == -player:
            return False
    return board[row + steps * down, column + steps * right] != player


def play(board, player, move):
    """Move the piece."""
    direction, point = divmod(move, board.size)
    row, column = divmod(point, len(board))
    down, right = DIRECTIONS[direction]
    steps = pieces_in_line(board, row, column, down, right)
    board[row, column] = 0
    board[row + steps * down, column + steps * right] = player


def is_connected(board, player):
    """Whether the player's pieces are one group."""
    size = len(board)
    found = np.zeros((size, size), np.bool_)
    waiting = np.zeros(board.size, np.int64)
    reached = 0
    for point in range(board.size):
        if board[divmod(point, size)] == player:
            waiting[0], reached = point, 1
            found[divmod(point, size)] = True
            break
    done = 0
    while done < reached:
        row, column = divmod(waiting[done], size)
        done += 1
        for down, right in DIRECTIONS:
            near, beside = row + down, column + right
            if inside(board, near, beside) and board[near, beside] == player and not found[near, beside]:
                found[near, beside] = True
                waiting[reached] = near * size + beside
                reached += 1
    return reached == (board == player).sum()


def result(board, player):
    """Who has connected all pieces wins, first the player who moved; who cannot move has lost."""
    if is_connected(board, -player):
        return -player
    if is_connected(board, player):
        return player
    for move in range(8 * board.size):
        if is_legal(board, player, move):
            return None
    return -player


def symmetries_of(size):
    """Turned and mirrored boards: a table of points, and one of moves, which change their directions, too."""
    points = board_symmetries(size)
    moves = np.zeros((len(points), 8 * size * size), np.int64)
    for symmetry, shown in enumerate(points):
        goes_to = np.argsort(shown)  # where each point goes; `shown` is the point that each shows
        origin = np.array(divmod(goes_to[size + 1], size))
        for direction, (down, right) in enumerate(DIRECTIONS):
            neighbour = np.array(divmod(goes_to[(1 + down) * size + 1 + right], size))
            turned = DIRECTIONS.index(tuple(neighbour - origin))
            moves[symmetry, direction * size * size :][: size * size] = turned * size * size + goes_to
    return points, moves


def game(size=6):
    """Lines of Action on a square board."""
    if not 4 <= size <= 8:
        raise ValueError(f"size is {size}: it should be from 4 to 8")

    def start():
        board = np.zeros((size, size), np.int8)
        board[0, 1:-1] = board[-1, 1:-1] = 1
        board[1:-1, 0] = board[1:-1, -1] = -1
        return board

    def name(move):
        direction, point = divmod(move, size * size)
        return f"{'abcdefgh'[point % size]}{point // size + 1}{COMPASS[direction]}"

    return plain_game(
        start=start,
        is_legal=is_legal,
        play=play,
        result=result,
        symmetries=symmetries_of(size),
        moves=8 * size * size,
        move_names=name,
        max_plies=5 * size * size,
    )
