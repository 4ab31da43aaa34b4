"""A small backgammon: two players race their stones along one line, with one die, and may hit each other.

The first player's stones begin in hand, enter at the low end and leave at the high end; the second player's go the
other way. In turn, a player rolls the die and moves one stone, from hand or from a point, by exactly as many points as
it shows; a stone that would go beyond the last point is home. A single stone of the opponent on the point where it
arrives goes back to that player's hand; two or more are a block, on which no stone may arrive. Who can move nothing
loses the turn. Who first has all stones home has won. (After Nannon, by Jordan Pollack, the shortest such game.)
"""

import numpy as np

from keima.games.authoring.plain import plain_game

HAND, HOME, DIE = (1, 0), (1, 2), (1, 4)  # on the board: the first player's numbers, and the second's one column later


def game(points=6, stones=3, sides=6, max_plies=400):
    """The race on a line of 5 or more points; move ``p`` moves a stone on point ``p``, the last one enters a stone."""
    enter = points

    def start():
        board = np.zeros((2, points), np.int8)
        board[HAND] = board[HAND[0], HAND[1] + 1] = stones
        return board

    def column(player):
        return 0 if player == 1 else 1

    def target(player, move, die):
        if move == enter:
            return die - 1 if player == 1 else points - die
        return move + player * die

    def is_legal(board, player, move):
        if move == enter:
            if board[HAND[0], HAND[1] + column(player)] == 0:
                return False
        elif board[0, move] * player <= 0:
            return False
        to = target(player, move, board[DIE])
        return to < 0 or to >= points or board[0, to] * player > -2

    def can_move(board, player):
        for move in range(points + 1):
            if is_legal(board, player, move):
                return True
        return False

    def play(board, player, move):
        to = target(player, move, board[DIE])
        if move == enter:
            board[HAND[0], HAND[1] + column(player)] -= 1
        else:
            board[0, move] -= player
        board[DIE] = 0
        if to < 0 or to >= points:
            board[HOME[0], HOME[1] + column(player)] += 1
            return -player
        if board[0, to] == -player:
            board[0, to] = 0
            board[HAND[0], HAND[1] + column(-player)] += 1
        board[0, to] += player
        return -player

    def chance(board):
        return np.full(sides, (board[DIE] == 0) / sides)

    def happen(board, player, outcome):
        board[DIE] = outcome + 1
        if can_move(board, player):
            return player
        board[DIE] = 0  # the other player rolls
        return -player

    def result(board, player):
        if board[HOME] == stones:
            return 1
        if board[HOME[0], HOME[1] + 1] == stones:
            return -1
        return None

    def planes(board, player):
        seen = np.zeros((8, 1, points), np.float32)
        for point in range(points):
            seen[0, 0, point] = max(0, board[0, point] * player) / stones
            seen[1, 0, point] = max(0, -board[0, point] * player) / stones
        mine, theirs = column(player), column(-player)
        seen[2] = board[HAND[0], HAND[1] + mine] / stones
        seen[3] = board[HAND[0], HAND[1] + theirs] / stones
        seen[4] = board[HOME[0], HOME[1] + mine] / stones
        seen[5] = board[HOME[0], HOME[1] + theirs] / stones
        seen[6] = board[DIE] / sides
        seen[7] = player == 1
        return seen

    def render(board):
        line = "  ".join(f"{'.XO'[np.sign(count)]}{abs(count) or ' '}" for count in board[0].tolist())
        hands, homes = board[1, 0:2].tolist(), board[1, 2:4].tolist()
        rest = "   ".join(f"{side} in hand {hands[i]}, home {homes[i]}" for i, side in enumerate("XO"))
        return f"{line}\n{rest}\ndie: {board[DIE] or '-'}"

    return plain_game(
        start=start,
        is_legal=is_legal,
        play=play,
        chance=chance,
        happen=happen,
        outcomes=sides,
        outcome_names=[str(side) for side in range(1, sides + 1)],
        result=result,
        planes=planes,
        moves=points + 1,
        move_names=[*(str(point + 1) for point in range(points)), "enter"],
        max_plies=max_plies,
        render=render,
    )
