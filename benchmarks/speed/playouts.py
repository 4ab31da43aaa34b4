"""How fast Monte-Carlo tree search with random playouts is, against OpenSpiel's.

    python benchmarks/speed/playouts.py [--games go9 connect_four] [--playouts 1000] [--seconds 1] [--rounds 5]

The opponent ``mcts:PLAYOUTS`` of scripts/benchmark.py chooses a move in positions of random games, always the same
ones. OpenSpiel's MCTSBot in C++, with one random rollout per simulation and without proofs, chooses one in the same
positions. Both are UCT with the same constant, which is twice as large for OpenSpiel's values from -1 to 1, and build a
new tree for each move. They take turns, times are of the processor, and figures are medians over the rounds.

The rules of the games differ in one point, see rules.py.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.speed.rules import CONTESTS, Contest, pyspiel_if_installed
from keima.config.flags import number, whole
from keima.games import Game, load_game
from keima.search.baselines.uct import EXPLORATION, UctPlayer

GAMES = ("tic_tac_toe", "connect_four", "go9")
POSITIONS = 16
MEMORY_MIB = 1000  # that OpenSpiel's tree may take: it is never full

Choose = Callable[[list[int]], None]  # a move after these moves


def games_so_far(game: Game) -> list[list[int]]:
    """The moves of random games up to a random position that is not the end."""
    random, found = np.random.default_rng(1), list[list[int]]()
    while len(found) < POSITIONS:
        state, moves = game.initial_state(), list[int]()
        while not game.terminal(state):
            moves.append(int(random.choice(game.legal_actions(state))))
            game.play(state, moves[-1])
        found.append(moves[: int(random.integers(len(moves)))])
    return found


def ours(game: Game, playouts: int) -> Choose:
    """Our player."""
    player = UctPlayer(game, playouts=playouts, seed=1)

    def choose(moves: list[int]) -> None:
        state = game.initial_state()
        for move in moves:
            game.play(state, move)
        player.choose(state[None])

    return choose


def openspiel(pyspiel: Any, name: str, playouts: int) -> Choose:
    """OpenSpiel's player."""
    game = pyspiel.load_game(name)
    bot = pyspiel.MCTSBot(
        game, pyspiel.RandomRolloutEvaluator(1, 1), 2 * EXPLORATION, playouts, MEMORY_MIB, False, 1, False
    )

    def choose(moves: list[int]) -> None:
        state = game.new_initial_state()
        for move in moves:
            state.apply_action(move)
        bot.step(state)

    return choose


def playouts_per_second(choose: Choose, positions: list[list[int]], playouts: int, seconds: float) -> float:
    """Playouts in a second of the processor, over all positions as often as fit."""
    moves, started = 0, time.process_time()
    while time.process_time() - started < seconds:
        for position in positions:
            choose(position)
        moves += len(positions)
    return moves * playouts / (time.process_time() - started)


def compare(contest: Contest, pyspiel: Any, *, playouts: int, seconds: float, rounds: int) -> str:
    """One line of the table."""
    game = load_game(contest.name, **contest.options)
    positions, mine = games_so_far(game), ours(game, playouts)
    theirs = None if pyspiel is None else openspiel(pyspiel, contest.openspiel, playouts)
    mine(positions[0])
    own, other = list[float](), list[float]()
    for _ in range(rounds):
        own.append(playouts_per_second(mine, positions, playouts, seconds))
        if theirs is not None:
            other.append(playouts_per_second(theirs, positions, playouts, seconds))
    if not other:
        return f"{statistics.median(own):11,.0f}"
    ratio = statistics.median(first / second for first, second in zip(own, other, strict=True))
    return f"{statistics.median(own):11,.0f} {statistics.median(other):13,.0f} {ratio:7.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--games", nargs="+", choices=GAMES, default=list(GAMES), metavar="GAME", help=f"of {', '.join(GAMES)}"
    )
    parser.add_argument("--playouts", type=whole(), default=1000, help="for a move (default: 1000)")
    parser.add_argument(
        "--seconds", type=number(above=0), default=1.0, help="for each player in each round (default: 1)"
    )
    parser.add_argument("--rounds", type=whole(), default=5, help="(default: 5)")
    arguments = parser.parse_args()
    pyspiel = pyspiel_if_installed()
    print("\nPlayouts a second, on one core")
    print(f"{'game':13} {'ours':>11} {'OpenSpiel C++':>13} {'ratio':>7}")
    for name in arguments.games:
        line = compare(
            CONTESTS[name],
            pyspiel,
            playouts=arguments.playouts,
            seconds=arguments.seconds,
            rounds=arguments.rounds,
        )
        print(f"{name:13} {line}", flush=True)


if __name__ == "__main__":
    main()
