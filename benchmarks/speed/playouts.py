"""Measure how fast Monte-Carlo tree search with random playouts is, against OpenSpiel's in C++.

    python benchmarks/speed/playouts.py [--games go9 connect_four] [--playouts 1000] [--seconds 1] [--rounds 5]

The player ``mcts:PLAYOUTS`` of ``keima match`` chooses a move in positions of random games, always the same ones.
OpenSpiel's MCTSBot, with one random rollout per simulation and without proofs, chooses one in the same positions. Both
are UCT with the same constant, which is twice as large for OpenSpiel's values from -1 to 1, and build a new tree for
each move. The rules of the games differ in one point, see rules.py.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import Parser, Report, Way, divide_rounds, import_if_installed, measure_rates
from benchmarks.speed.rules import CONTESTS
from keima.config.flags import whole
from keima.games import Game
from keima.search.baselines.uct import EXPLORATION, UctPlayer

GAMES = ("tic_tac_toe", "connect_four", "go9")
POSITIONS = 16
MEMORY_MIB = 1000  # that OpenSpiel's tree may take: it is never full


def draw_positions(game: Game) -> list[list[int]]:
    """Return the moves of random games up to a random position that is not the end."""
    random, found = np.random.default_rng(1), list[list[int]]()
    while len(found) < POSITIONS:
        state, moves = game.initial_state(), list[int]()
        while not game.terminal(state):
            moves.append(int(random.choice(game.legal_actions(state))))
            game.play(state, moves[-1])
        found.append(moves[: int(random.integers(len(moves)))])
    return found


def make_our_player(game: Game, playouts: int) -> Callable[[list[int]], None]:
    """Return our player: it chooses a move after these moves."""
    player = UctPlayer(game, playouts=playouts, seed=1)

    def choose(moves: list[int]) -> None:
        state = game.initial_state()
        for move in moves:
            game.play(state, move)
        player.choose(state[None])

    return choose


def make_their_player(pyspiel: Any, name: str, playouts: int) -> Callable[[list[int]], None]:
    """Return OpenSpiel's player."""
    game = pyspiel.load_game(name)
    rollout = pyspiel.RandomRolloutEvaluator(1, 1)
    bot = pyspiel.MCTSBot(game, rollout, 2 * EXPLORATION, playouts, MEMORY_MIB, False, 1, False)

    def choose(moves: list[int]) -> None:
        state = game.new_initial_state()
        for move in moves:
            state.apply_action(move)
        bot.step(state)

    return choose


def choose_in_all(positions: list[list[int]], choose: Callable[[list[int]], None], playouts: int) -> Way:
    """Return a function that has a move chosen in all positions, and returns the number of playouts."""

    def choose_all() -> float:
        for position in positions:
            choose(position)
        return len(positions) * playouts

    return choose_all


def main() -> None:
    """Measure and print."""
    parser = Parser(__doc__, rounds=5, seconds=1.0)
    parser.option("--games", GAMES, GAMES, help="which of them")
    parser.option("--playouts", whole(), 1000, quick=50, help="for a move")
    arguments = parser.parse()
    pyspiel = import_if_installed("pyspiel", "open_spiel")
    with Report(arguments) as report:
        table = report.table("Playouts/s, on one core", "game", "ours", "OpenSpiel C++", "ratio")
        for name in arguments.games:
            game = CONTESTS[name].load()
            positions, players = draw_positions(game), [make_our_player(game, arguments.playouts)]
            if pyspiel is not None:
                players.append(make_their_player(pyspiel, CONTESTS[name].openspiel, arguments.playouts))
            ways = [choose_in_all(positions, player, arguments.playouts) for player in players]
            mine, *theirs = measure_rates(ways, rounds=arguments.rounds, seconds=arguments.seconds)
            other = (median(theirs[0]), divide_rounds(mine, theirs[0])) if theirs else (None, None)
            table.add(name, median(mine), *other)


if __name__ == "__main__":
    main()
