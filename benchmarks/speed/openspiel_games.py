"""Measure what it costs to play through OpenSpiel instead of by our own rules.

    python benchmarks/speed/openspiel_games.py [--games connect_four tic_tac_toe go9] [--seconds 2] [--rounds 3]

Two tables, on one core, of games that exist twice: by our kernels, and as ``openspiel``, whose kernels ask OpenSpiel's
Python package. First random games through ``legal_actions`` and ``step``, moves a second. Then self-play with a network
of 4 blocks and 32 channels, evaluations a second, to which games a second are proportional. Both ways take turns, times
are of the processor, and figures are medians over the rounds; the ratios are medians of each round's.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.speed.rules import CONTESTS, measure_speed, ours
from benchmarks.speed.self_play import Session, per_second, warm
from keima.config.flags import number, whole
from keima.config.sections.search import SearchSettings
from keima.games import Game, load_game
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network

BLOCKS, CHANNELS = 4, 32
WARM_STEPS = 200


def both(name: str) -> tuple[Game, Game]:
    """A game by our rules, and through OpenSpiel."""
    contest = CONTESTS[name]
    return load_game(contest.name, **contest.options), load_game("openspiel", game=contest.openspiel)


def random_games(game: Game, seconds: float) -> Callable[[], float]:
    """Measure the moves a second of random games."""
    play = ours(game)
    play(1)
    return lambda: measure_speed(play, seconds).moves_per_second


def self_play(game: Game, *, simulations: int, parallel_games: int, seconds: float) -> Callable[[], float]:
    """Measure the evaluations a second of self-play."""
    torch.manual_seed(1)
    network = build_network(game, type="resnet", blocks=BLOCKS, channels=CHANNELS, global_pooling=True).eval()
    settings = SearchSettings(num_simulations=simulations, full_search_probability=1.0)
    evaluate = Evaluator(network, game, device="cpu", max_batch=parallel_games)
    session = Session(game, evaluate, settings, parallel_games)
    warm(session, WARM_STEPS * parallel_games)
    return lambda: per_second(session.step, seconds)


def line(name: str, ways: tuple[Callable[[], float], Callable[[], float]], rounds: int) -> str:
    """One line of a table."""
    measured = [(ways[0](), ways[1]()) for _ in range(rounds)]
    mine, theirs = (statistics.median(column) for column in zip(*measured, strict=True))
    ratio = statistics.median(own / other for own, other in measured)
    return f"{name:13} {mine:14,.0f} {theirs:14,.0f} {ratio:8.1f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("connect_four", "tic_tac_toe", "go9")
    parser.add_argument("--games", nargs="+", choices=CONTESTS, default=names, metavar="GAME")
    parser.add_argument("--seconds", type=number(above=0), default=2.0, help="for each way in each round (default: 2)")
    parser.add_argument("--rounds", type=whole(), default=3, help="(default: 3)")
    parser.add_argument("--simulations", type=whole(), default=32, help="of a move in self-play (default: 32)")
    parser.add_argument("--parallel-games", type=whole(), default=64, help="side by side (default: 64)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    heads = f"{'game':13} {'ours':>14} {'by OpenSpiel':>14} {'ratio':>8}"
    print(f"Random games, moves a second\n{heads}")
    for name in arguments.games:
        mine, theirs = both(name)
        ways = random_games(mine, arguments.seconds), random_games(theirs, arguments.seconds)
        print(line(name, ways, arguments.rounds), flush=True)
    print(f"\nSelf-play, {arguments.simulations} simulations, {BLOCKS}x{CHANNELS}, evaluations a second\n{heads}")
    options = {
        "simulations": arguments.simulations,
        "parallel_games": arguments.parallel_games,
        "seconds": arguments.seconds,
    }
    for name in arguments.games:
        mine, theirs = both(name)
        print(line(name, (self_play(mine, **options), self_play(theirs, **options)), arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
