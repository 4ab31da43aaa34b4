"""What it costs to write a game as plain functions: moves a second against the same game in kernels.

    python benchmarks/speed/plain_games.py [--seconds 1] [--rounds 7]

Random games on one core, of which both ways play turns. A plain game is compiled from ordinary functions over a numpy
board (keima/games/authoring/plain.py), the other is written by hand with bitboards. The last columns measure all that
search asks of a
position: legal moves, the observation, and the hash. Times are processor times, so other programs matter less; figures
are medians over the rounds, and the ratio is the median of the rounds' ratios.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.speed.rules import measure_speed, nanoseconds, ours
from games.tic_tac_toe import game as tic_tac_toe
from keima.config.flags import number, whole
from keima.games import Game, load_game
from keima.games.authoring.plain import mirror_symmetries, plain_game
from keima.games.boards import has_line, is_full

Board = Any


def start() -> Board:
    """The empty board of Connect Four."""
    return np.zeros((6, 7), np.int8)


def is_legal(board: Board, player: int, column: int) -> bool:
    """Whether the column is not full."""
    return bool(board[0, column] == 0)


def play(board: Board, player: int, column: int) -> None:
    """Drop a stone."""
    row = 5
    while board[row, column] != 0:
        row -= 1
    board[row, column] = player


def result(board: Board, player: int) -> int | None:
    """The winner, 0 for a draw, or None."""
    if has_line(board, -player, 4):
        return -player
    if is_full(board[:1]):
        return 0
    return None


def connect_four() -> Game:
    """Connect Four as a plain game."""
    return plain_game(
        start=start,
        is_legal=is_legal,
        play=play,
        result=result,
        moves=7,
        max_plies=42,
        symmetries=mirror_symmetries(6, 7),
    )


PAIRS: dict[str, Callable[[], Game]] = {"tic_tac_toe": tic_tac_toe, "connect_four": connect_four}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=number(above=0), default=1.0, help="for each way in each round (default: 1)")
    parser.add_argument("--rounds", type=whole(), default=7, help="(default: 7)")
    arguments = parser.parse_args()
    print(f"{'game':13} {'plain':>13} {'kernels':>13} {'times':>6}   ns: step, legal moves, observe, hash")
    for name, build in PAIRS.items():
        games = build(), load_game(name)
        plays = [ours(game) for game in games]
        for play in plays:
            play(1)
        rates = [
            [measure_speed(play, arguments.seconds).moves_per_second for play in plays] for _ in range(arguments.rounds)
        ]
        plain, kernels = (statistics.median(column) for column in zip(*rates, strict=True))
        ratio = statistics.median(hand / easy for easy, hand in rates)
        times = [" ".join(f"{ns:5.0f}" for ns in nanoseconds(game, arguments.rounds)) for game in games]
        print(f"{name:13} {plain:13,.0f} {kernels:13,.0f} {ratio:6.2f}   {times[0]} | {times[1]}", flush=True)


if __name__ == "__main__":
    main()
