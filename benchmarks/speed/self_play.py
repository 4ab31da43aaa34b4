"""Measure search and self-play, each against the nearest comparable program or loop.

    python benchmarks/speed/self_play.py [--game go] [--seconds 1] [--rounds 5] [--blocks 6] [--channels 64]
                                         [--simulations 64] [--parallel-games 16 64 128]

Three tables, on one core:

1. Search alone, with an evaluator that costs nothing: 64 trees of random positions. A simulation is a visit of the
   root: it requested an evaluation, or ended in a finished game or a proven position. OpenSpiel's Python search with
   such an evaluator is measured too, if it is installed.
2. Self-play with a network, against the same evaluator called in a bare loop with batches of the same size, without a
   cache. Evaluations are counted. "outside" is the share of self-play's time that is not spent in the evaluator.
3. With --by-openspiel: self-play of the same game by our rules, and by rules that ask OpenSpiel (docs/openspiel.md).
"""

import argparse
import importlib
import itertools
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import Parser, Report, Way, divide_rounds, measure_rate, measure_rates, take_turns
from benchmarks.speed.evaluator import make_call
from keima.config.flags import whole
from keima.config.sections.search import SearchSettings
from keima.games import Game, load_game
from keima.games.game import Planes, States
from keima.networks.files.model import canary_positions
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from keima.search.move_search import Search
from keima.search.puct import Evaluate
from keima.self_play.groups import make_parallel_games

Floats = NDArray[np.float32]

OPTIONS: dict[str, dict[str, Any]] = {"go": {"size": 9}, "connect_four": {}, "tic_tac_toe": {}}
OPENSPIEL = {"go": "go(board_size=9)", "connect_four": "connect_four", "tic_tac_toe": "tic_tac_toe"}
TREES = 64
RANDOM_PLIES = 20  # the most before a position that is searched
WARM_UP = 20  # evaluations of each game before the first turn
ANSWERS, LARGEST = 4096, 1024  # of the evaluator that costs nothing, and in one call


def load_measured_game(name: str) -> Game:
    """Return a game with the options of this benchmark."""
    return load_game(name, **OPTIONS[name])


class FreeEvaluator:
    """An evaluator with precomputed answers."""

    def __init__(self, game: Game) -> None:
        random = np.random.default_rng(0)
        self._logits = random.normal(size=(ANSWERS, game.num_actions)).astype(np.float32)
        self._values = np.tanh(0.3 * random.normal(size=ANSWERS)).astype(np.float32)
        self._next = 0

    def __call__(self, observations: Planes) -> tuple[Floats, Floats]:
        """The next answers."""
        count = len(observations)
        self._next = (self._next + count) % (ANSWERS - LARGEST)
        return self._logits[self._next : self._next + count], self._values[self._next : self._next + count]


class TimedEvaluator:
    """An evaluator that counts its calls, positions and processor seconds."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.seconds, self.calls, self.positions = 0.0, 0, 0

    def __call__(self, observations: Planes) -> tuple[Floats, Floats]:
        """Evaluate."""
        started = time.process_time()
        answers = self._evaluate(observations)
        self.seconds += time.process_time() - started
        self.calls += 1
        self.positions += len(observations)
        return answers


def draw_positions(game: Game, count: int) -> States:
    """Return positions after up to ``RANDOM_PLIES`` random moves."""
    random, states = np.random.default_rng(1), game.initial_states(count)
    for state in states:
        for _ in range(random.integers(RANDOM_PLIES)):
            after = state.copy()
            game.play(after, int(random.choice(game.legal_actions(state))))
            if game.terminal(after):
                break
            state[:] = after
    return states


def make_our_search(game: Game, algorithm: Any, simulations: int) -> Way:
    """Return a function that searches all trees once and returns the number of simulations."""
    settings = SearchSettings(algorithm=algorithm)
    search = Search(game, FreeEvaluator(game), settings, num_simulations=simulations, num_trees=TREES)
    states = draw_positions(game, TREES)
    return lambda: int(search.find(states).visits.sum())


def make_openspiel_search(name: str, simulations: int) -> Way | None:
    """Return a function that searches one tree with OpenSpiel's Python bot; None if it is not installed."""
    try:
        pyspiel, mcts = importlib.import_module("pyspiel"), importlib.import_module("open_spiel.python.algorithms.mcts")
    except ImportError:
        return None

    class Free(mcts.Evaluator):  # type: ignore[name-defined, misc]
        def evaluate(self, state: Any) -> Floats:
            return np.zeros(2, np.float32)

        def prior(self, state: Any) -> list[tuple[int, float]]:
            legal = state.legal_actions()
            return [(action, 1 / len(legal)) for action in legal]

    game = pyspiel.load_game(OPENSPIEL[name])
    choose = mcts.SearchNode.puct_value
    bot = mcts.MCTSBot(game, 1.1, simulations, Free(), random_state=np.random.RandomState(1), child_selection_fn=choose)
    state = game.new_initial_state()

    def search() -> int:
        bot.mcts_search(state)
        return simulations

    return search


class Session:
    """Self-play without end, one step at a time; games take the seeds 0, 1, 2 ...

    With several ``threads`` a step is that of the first group of games that has its evaluations.
    """

    def __init__(
        self, game: Game, evaluate: Evaluate, settings: SearchSettings, parallel_games: int, *, threads: int = 1
    ) -> None:
        self.self_play = make_parallel_games(
            game, evaluate, settings, parallel_games=parallel_games, threads=threads, cache_positions=0
        )
        self._seeds = itertools.count()

    def step(self) -> int:
        """Take one step with all slots in use, and return its number of evaluations."""
        before = self.self_play.evaluations
        if idle := self.self_play.num_idle():
            self.self_play.begin(list(itertools.islice(self._seeds, idle)))
        self.self_play.advance()
        return self.self_play.evaluations - before

    def warm(self, evaluations: int) -> None:
        """Play until there were so many evaluations."""
        while self.self_play.evaluations < evaluations:
            self.step()


def measure_search(report: Report, arguments: argparse.Namespace) -> None:
    """Measure the first table."""
    title = f"1. Search alone, {TREES} trees of {arguments.simulations} simulations: simulations/s"
    table = report.table(title, "game", "PUCT", "Gumbel", "OpenSpiel", "PUCT / OpenSpiel")
    for name in ("go", "connect_four"):
        ways = [
            make_our_search(load_measured_game(name), algorithm, arguments.simulations)
            for algorithm in ("puct", "gumbel")
        ]
        if theirs := make_openspiel_search(name, arguments.simulations):
            ways.append(theirs)
        found = measure_rates(ways, rounds=arguments.rounds, seconds=arguments.seconds)
        other = (median(found[2]), divide_rounds(found[0], found[2])) if theirs else (None, None)
        table.add(name, median(found[0]), median(found[1]), *other)


def make_settings(simulations: int) -> SearchSettings:
    """Return the search of measured self-play."""
    return SearchSettings(num_simulations=simulations, cheap_simulations=min(16, simulations), opening_random_moves=4.0)


def measure_self_play(report: Report, arguments: argparse.Namespace) -> None:
    """Measure the second table."""
    game, sizes, seconds = load_measured_game(arguments.game), arguments.parallel_games, arguments.seconds
    network = build_network(game, blocks=arguments.blocks, channels=arguments.channels)
    evaluator = Evaluator(network, game, device="cpu", max_batch=max(sizes))
    name = f"{game.name} {arguments.blocks}x{arguments.channels}, {evaluator.describe()}"
    title = f"2. Self-play, {name}, {arguments.simulations} simulations: evaluations/s"
    table = report.table(title, "games side by side", "self-play", "bare loop", "ratio", "outside")
    for size in sizes:
        timed = TimedEvaluator(evaluator)
        session = Session(game, timed, make_settings(arguments.simulations), size)
        bare = make_call(evaluator, canary_positions(game, size))
        session.warm(WARM_UP * size)
        bare()

        def play(timed: TimedEvaluator = timed, session: Session = session) -> tuple[float, float]:
            before, began = timed.seconds, time.process_time()
            rate = measure_rate(session.step, seconds)
            return rate, 1 - (timed.seconds - before) / (time.process_time() - began)

        played, ceilings = take_turns([play, partial(measure_rate, bare, seconds)], arguments.rounds)
        rates, outside = ([each[i] for each in played] for i in range(2))
        table.add(str(size), median(rates), median(ceilings), divide_rounds(rates, ceilings), median(outside))


def measure_by_openspiel(report: Report, arguments: argparse.Namespace) -> None:
    """Measure the third table."""
    title = f"3. Self-play by our rules and by OpenSpiel's, {arguments.simulations} simulations: evaluations/s"
    table, size = report.table(title, "game", "ours", "by OpenSpiel", "ratio"), max(arguments.parallel_games)
    for name, theirs in OPENSPIEL.items():
        ways = []
        for game in (load_measured_game(name), load_game("openspiel", game=theirs)):
            network = build_network(game, blocks=arguments.blocks, channels=arguments.channels)
            evaluator = Evaluator(network, game, device="cpu", max_batch=size)
            session = Session(game, evaluator, make_settings(arguments.simulations), size)
            session.warm(WARM_UP * size)
            ways.append(session.step)
        found = measure_rates(ways, rounds=arguments.rounds, seconds=arguments.seconds)
        table.add(name, *map(median, found), divide_rounds(*found))


def main() -> None:
    """Measure and print."""
    parser = Parser(__doc__, rounds=5, seconds=1.0)
    parser.option("--game", OPTIONS, "go", help="of table 2; Go is 9x9")
    parser.option("--blocks", whole(), 6, quick=1, help="of the network")
    parser.option("--channels", whole(), 64, quick=16, help="of the network")
    parser.option("--simulations", whole(), 64, quick=16, help="of a full search")
    parser.option("--parallel-games", whole(), (16, 64, 128), quick=(16,), help="side by side")
    parser.add_argument("--by-openspiel", action="store_true", help="table 3; needs open_spiel")
    arguments = parser.parse()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with Report(arguments) as report:
        measure_search(report, arguments)
        measure_self_play(report, arguments)
        if arguments.by_openspiel:
            measure_by_openspiel(report, arguments)


if __name__ == "__main__":
    main()
