"""Pig: two players race to a score by rolling a die as often as they dare.

In a turn a player rolls the die again and again, and adds what it shows to the turn's total. With a 1 the total is lost
and the turn over; by holding, the player adds the total to the score, and must do so once that is enough. Who reaches
``goal`` first has won (Scarne, 1945; solved by Neller and Presser, "Optimal Play of the Dice Game Pig", 2004).
"""

import numpy as np

from keima.games.authoring.plain import plain_game

ROLL, HOLD = 0, 1
FIRST, SECOND, TOTAL, ROLLING = range(4)  # on the board: both scores, the turn's total, and whether the die is rolling


def game(goal=100, sides=6, max_plies=1000):
    """Pig to ``goal`` points with a die of ``sides`` sides; after ``max_plies`` moves and rolls it is a draw."""

    def start():
        return np.zeros((1, 4), np.int16)

    def legal_moves(board, player):
        if board[0, FIRST if player == 1 else SECOND] + board[0, TOTAL] < goal:
            yield ROLL
        yield HOLD

    def play(board, player, move):
        if move == ROLL:
            board[0, ROLLING] = 1
            return player
        board[0, FIRST if player == 1 else SECOND] += board[0, TOTAL]
        board[0, TOTAL] = 0
        return -player

    def chance(board):
        return np.full(sides, board[0, ROLLING] / sides)

    def happen(board, player, outcome):
        board[0, ROLLING] = 0
        if outcome == 0:
            board[0, TOTAL] = 0
            return -player
        board[0, TOTAL] += outcome + 1
        return player

    def result(board, player):
        if board[0, FIRST] >= goal:
            return 1
        if board[0, SECOND] >= goal:
            return -1
        return None

    def planes(board, player):
        mine, others = (FIRST, SECOND) if player == 1 else (SECOND, FIRST)
        share = np.zeros((1, 1)) + board[0, mine] / goal
        return share, board[0, others] / goal, board[0, TOTAL] / goal, board[0, ROLLING]

    return plain_game(
        start=start,
        legal_moves=legal_moves,
        play=play,
        chance=chance,
        happen=happen,
        outcomes=sides,
        outcome_names=[str(side) for side in range(1, sides + 1)],
        result=result,
        planes=planes,
        moves=2,
        move_names=["roll", "hold"],
        max_plies=max_plies,
    )
