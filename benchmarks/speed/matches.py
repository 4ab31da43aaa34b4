"""Measure the matches of an evaluation: one after the other, side by side, and with remembered evaluations.

    python benchmarks/speed/matches.py [--pairs 8] [--simulations 64]

An untrained network of the quickstart plays Connect Four against a random player and against two others of its kind,
with the quickstart's search on one core. The games are the same in every row.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import Parser, Report, divide_rounds, take_turns, time_call
from benchmarks.speed.self_play import TimedEvaluator
from keima.base.steps import run_steps
from keima.config.flags import whole
from keima.config.load import load_settings
from keima.config.schema import Settings
from keima.evaluation.match import Fixture, Player, RandomPlayer, SearchPlayer, make_opening_states
from keima.evaluation.match_worker import NUM_TREES, count_cache_positions, make_match_search_settings, play_fixtures
from keima.games import Game, load_game
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from keima.search.move_search import Search

OPENING_PLIES, SEED, NETWORKS = 4, 1, 3


WAYS = {  # name -> whether all play together, and whether evaluations are remembered
    "one after the other": (False, False),
    "side by side": (True, False),
    "side by side, remembering": (True, True),
}


def make_fixtures(
    game: Game, settings: Settings, *, pairs: int, simulations: int, cached: bool
) -> tuple[list[Fixture], list[TimedEvaluator]]:
    """Return fixtures of a network with a random player and with other networks, and their evaluators."""
    evaluators, players = list[TimedEvaluator](), list[Player]()
    for number in range(NETWORKS):
        torch.manual_seed(number)
        network = build_network(game, **settings.network.arguments())
        evaluators.append(TimedEvaluator(Evaluator(network, game, device="cpu", max_batch=NUM_TREES)))
        search = Search(
            game,
            evaluators[-1],
            make_match_search_settings(settings.search),
            num_simulations=simulations,
            num_trees=NUM_TREES,
            cache_positions=count_cache_positions(game) if cached else 0,
        )
        players.append(SearchPlayer(search))
    starts = make_opening_states(game, 2 * pairs, OPENING_PLIES, SEED)
    fixtures = [Fixture(first=players[0], second=RandomPlayer(game, SEED), starts=starts)]
    fixtures += [Fixture(first=players[0], second=player, starts=starts[:pairs]) for player in players[1:]]
    return fixtures, evaluators


def play_matches(
    game: Game, way: str, make: Callable[..., tuple[list[Fixture], list[TimedEvaluator]]]
) -> tuple[float, ...]:
    """Play all matches, and return the seconds, the network's calls, and the positions in a call."""
    together, cached = WAYS[way]
    fixtures, evaluators = make(cached=cached)

    def play_all() -> None:
        for part in [fixtures] if together else [[fixture] for fixture in fixtures]:
            run_steps(play_fixtures(game, part))

    seconds = time_call(play_all)
    calls = sum(evaluator.calls for evaluator in evaluators)
    return seconds, calls, sum(evaluator.positions for evaluator in evaluators) / calls


def main() -> None:
    """Measure and print."""
    parser = Parser(__doc__, rounds=3)
    parser.option("--pairs", whole(), 8, quick=2, help="against each network; twice as many against random")
    parser.option("--simulations", whole(2), 64, quick=8, help="of a move")
    arguments = parser.parse()
    torch.set_num_threads(1)
    game, settings = load_game("connect_four"), load_settings(ROOT / "configs" / "quickstart.yaml")
    make = partial(make_fixtures, game, settings, simulations=arguments.simulations)
    with Report(arguments) as report:
        play_matches(game, "side by side, remembering", partial(make, pairs=1))  # compiles
        turns = [partial(play_matches, game, way, partial(make, pairs=arguments.pairs)) for way in WAYS]
        found = take_turns(turns, arguments.rounds)
        seconds = [[each[0] for each in rounds] for rounds in found]
        title = "Matches of an evaluation, on one core"
        table = report.table(title, "matches", "calls", "positions/call", "processor s", "of the first")
        for way, rounds, taken in zip(WAYS, found, seconds, strict=True):
            table.add(way, *rounds[0][1:], median(taken), divide_rounds(taken, seconds[0]))


if __name__ == "__main__":
    main()
