#!/usr/bin/env python3
"""Measure the matches of an evaluation: one after the other, side by side, and with remembered evaluations.

    python benchmarks/speed/matches.py [--pairs 8] [--simulations 64]

An untrained 4x64 network plays Connect Four against a random player and against two others of its kind, with the
quickstart's search on one core. Network calls, positions per call, and processor seconds; "of first" compares these
with the first row. The games are the same in every row.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
from keima.base.steps import complete
from keima.config.flags import whole
from keima.config.load import load_settings
from keima.config.schema import Settings
from keima.evaluation.match import Fixture, MatchResult, Player, RandomPlayer, SearchPlayer, openings
from keima.evaluation.match_worker import TREES, cache_positions, fixture_steps, match_search_settings
from keima.games import Game, load_game
from keima.games.game import Planes
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from keima.search.move_search import Search

OPENING_PLIES, SEED, OPPONENTS = 4, 1, 2


class CountedEvaluator:
    """An evaluator that counts calls and positions."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self.calls = self.positions = 0

    def __call__(self, observations: Planes) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate."""
        self.calls += 1
        self.positions += len(observations)
        return self._evaluator(observations)


@dataclass(frozen=True)
class Matches:
    """The fixtures of an evaluation, and the evaluators of its networks."""

    fixtures: list[Fixture]
    evaluators: list[CountedEvaluator]


def make_matches(game: Game, settings: Settings, *, pairs: int, simulations: int, cached: bool) -> Matches:
    """Fixtures of a network with a random player and with other networks."""
    evaluators, players = list[CountedEvaluator](), list[Player]()
    for number in range(1 + OPPONENTS):
        torch.manual_seed(number)
        network = build_network(game, **settings.network.arguments())
        evaluators.append(CountedEvaluator(Evaluator(network, game, device="cpu", max_batch=TREES)))
        search = Search(
            game,
            evaluators[-1],
            match_search_settings(settings.search),
            num_simulations=simulations,
            num_trees=TREES,
            cache_positions=cache_positions(game) if cached else 0,
        )
        players.append(SearchPlayer(search))
    starts = openings(game, 2 * pairs, OPENING_PLIES, SEED)
    fixtures = [Fixture(first=players[0], second=RandomPlayer(game, SEED), starts=starts)]
    fixtures += [Fixture(first=players[0], second=player, starts=starts[:pairs]) for player in players[1:]]
    return Matches(fixtures, evaluators)


def played(game: Game, parts: Sequence[Sequence[Fixture]]) -> list[MatchResult]:
    """The results of fixtures, of which those of a part are played side by side."""
    return [result for part in parts for result in complete(fixture_steps(game, part))]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=whole(), default=8, help="against each network; twice as many against random")
    parser.add_argument("--simulations", type=whole(2), default=64, help="per move (default: 64)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    game, settings = load_game("connect_four"), load_settings(ROOT / "configs" / "quickstart.yaml")
    shape = {"pairs": arguments.pairs, "simulations": arguments.simulations}
    played(game, [make_matches(game, settings, pairs=1, simulations=2, cached=True).fixtures])  # compiles
    print(f"{'matches':34} {'calls':>7} {'positions/call':>14} {'processor s':>12} {'of first':>9}")
    first = 0.0
    for name, together, cached in (
        ("one after the other", False, False),
        ("side by side", True, False),
        ("side by side, remembering", True, True),
    ):
        matches = make_matches(game, settings, **shape, cached=cached)
        began = time.process_time()
        played(game, [matches.fixtures] if together else [[fixture] for fixture in matches.fixtures])
        seconds = time.process_time() - began
        first = first or seconds
        calls = sum(evaluator.calls for evaluator in matches.evaluators)
        positions = sum(evaluator.positions for evaluator in matches.evaluators)
        print(f"{name:34} {calls:7,} {positions / calls:14.1f} {seconds:12.2f} {seconds / first:9.2f}", flush=True)


if __name__ == "__main__":
    main()
