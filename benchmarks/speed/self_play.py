"""Measure search and self-play, each against the nearest comparable program or loop.

    python benchmarks/speed/self_play.py [--game go] [--seconds 1] [--rounds 5] [--blocks 6] [--channels 64]
                                         [--simulations 64] [--parallel-games 16 64 128]

Four tables, on one core:

1. Search alone, with an evaluator that costs nothing: 64 trees of random positions. A simulation is a visit of the
   root: it requested an evaluation, or ended in a finished game or a proven position. OpenSpiel's Python search with
   such an evaluator is measured too, if it is installed.
2. Self-play with a network, against the same evaluator called in a bare loop with batches of the same size, without a
   cache. Evaluations are counted. "outside" is the share of self-play's time that is not spent in the evaluator.
3. The evaluator against a plain loop of float32 torch calls, as in benchmarks/speed/evaluator.py, each at its best
   batch size, and the share of positions in which both prefer the same move.
4. The bytes per game in a file of 100 games, with an untrained network.

The rows of a table alternate. Times are processor times, so other programs matter less; figures are medians over the
rounds.
"""

import argparse
import importlib
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.speed.evaluator import BATCH_SIZES, evaluation_rates, learned_network, plain
from keima import batch_of
from keima.config.flags import number, whole
from keima.config.sections.search import SearchSettings
from keima.data.records import GameRecord, encode
from keima.games import Game, load_game
from keima.games.game import Planes, States
from keima.networks.files.model_file import canary_positions
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from keima.search.move_search import Search
from keima.search.puct import Evaluate
from keima.self_play.groups import play_side_by_side

Floats = NDArray[np.float32]

OPTIONS: dict[str, dict[str, Any]] = {"go": {"size": 9}, "connect_four": {}, "tic_tac_toe": {}}
OPENSPIEL = {"go": "go(board_size=9)", "connect_four": "connect_four", "tic_tac_toe": "tic_tac_toe"}
TREES = 64
RANDOM_PLIES = 20  # the most before a position that is searched
FILE_GAMES = 100


def load(name: str) -> Game:
    """A game with the options of this benchmark."""
    return load_game(name, **OPTIONS[name])


class FreeEvaluator:
    """An evaluator with precomputed answers."""

    def __init__(self, game: Game, *, policy_scale: float = 1.0) -> None:
        random = np.random.default_rng(0)
        self._logits = (policy_scale * random.normal(size=(4096, game.num_actions))).astype(np.float32)
        self._values = np.tanh(0.3 * random.normal(size=4096)).astype(np.float32)
        self._next = 0

    def __call__(self, observations: Planes) -> tuple[Floats, Floats]:
        """The next answers."""
        count = len(observations)
        self._next = (self._next + count) % (4096 - 1024)
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


def per_second(work: Callable[[], int], seconds: float) -> float:
    """The amount of work, which ``work`` returns, per processor second."""
    done, started = 0, time.process_time()
    while time.process_time() - started < seconds:
        done += work()
    return done / (time.process_time() - started)


# 1. Search alone.


def random_positions(game: Game, count: int) -> States:
    """Positions after up to ``RANDOM_PLIES`` random moves."""
    random, states = np.random.default_rng(1), game.initial_states(count)
    for state in states:
        for _ in range(random.integers(RANDOM_PLIES)):
            after = state.copy()
            game.play(after, int(random.choice(game.legal_actions(state))))
            if game.terminal(after):
                break
            state[:] = after
    return states


def our_search(game: Game, algorithm: Any, simulations: int) -> Callable[[], int]:
    """A function that searches all trees once and returns the number of simulations."""
    settings = SearchSettings(algorithm=algorithm)
    search = Search(game, FreeEvaluator(game), settings, num_simulations=simulations, num_trees=TREES)
    states = random_positions(game, TREES)
    return lambda: int(search.find(states).visits.sum())


def openspiel_search(name: str, simulations: int) -> Callable[[], int] | None:
    """A function that searches one tree with OpenSpiel's Python bot; None if it is not installed."""
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


def table_of_search(names: list[str], *, simulations: int, seconds: float, rounds: int) -> None:
    """Print the first table."""
    print(f"\n1. Search alone, {TREES} trees x {simulations} simulations, simulations a second")
    print(f"{'game':13} {'PUCT':>12} {'Gumbel':>12} {'OpenSpiel':>12} {'PUCT/OpenSpiel':>15}")
    for name in names:
        game = load(name)
        theirs = openspiel_search(name, simulations)
        ways = [
            our_search(game, "puct", simulations),
            our_search(game, "gumbel", simulations),
            *([theirs] if theirs else []),
        ]
        for way in ways:
            way()
        measured = [[per_second(way, seconds) for way in ways] for _ in range(rounds)]
        figures = [statistics.median(column) for column in zip(*measured, strict=True)]
        line = f"{name:13} {figures[0]:12,.0f} {figures[1]:12,.0f}"
        print(
            line
            + (f" {figures[2]:12,.0f} {figures[0] / figures[2]:15.1f}" if theirs else "            -               -"),
            flush=True,
        )


# 2. Self-play.


class Session:
    """Self-play without end, one step at a time; games take the ``seeds`` in order, by default 0, 1, 2 ...

    With several ``threads`` a step is that of the first group of games that has its evaluations.
    """

    def __init__(
        self,
        game: Game,
        evaluate: Evaluate,
        settings: SearchSettings,
        parallel_games: int,
        *,
        cache_positions: int = 0,
        seeds: Iterator[int] | None = None,
        threads: int = 1,
    ) -> None:
        self.self_play = play_side_by_side(
            game,
            evaluate,
            settings,
            parallel_games=parallel_games,
            threads=threads,
            cache_positions=cache_positions,
        )
        self._seeds = seeds or itertools.count()

    def step(self) -> int:
        """Take one step, and return its number of evaluations."""
        before = self.self_play.evaluations
        self.advance()
        return self.self_play.evaluations - before

    def advance(self) -> list[GameRecord]:
        """Take one step with all slots in use, and return the games that it finished."""
        if idle := self.self_play.num_idle():
            self.self_play.begin(list(itertools.islice(self._seeds, idle)))
        return self.self_play.advance()


def table_of_self_play(
    game: Game, network: torch.nn.Module, sizes: list[int], *, simulations: int, seconds: float, rounds: int
) -> None:
    """Print the second table."""
    settings = SearchSettings(
        num_simulations=simulations, cheap_simulations=min(16, simulations), opening_random_moves=4.0
    )
    evaluator = Evaluator(network, game, device="cpu", max_batch=max(sizes))
    print(f"\n2. Self-play, {evaluator.describe()}, {simulations} simulations, evaluations a second")
    print(f"{'games':>6} {'bare':>10} {'self-play':>10} {'ratio':>7} {'outside':>8}")
    for size in sizes:
        timed = TimedEvaluator(evaluator)
        session = Session(game, timed, settings, size)
        observations = canary_positions(game, size)

        def bare(observations: Planes = observations) -> int:
            evaluator(observations)
            return len(observations)

        warm(session, 20 * size)
        bare()
        measured = []
        for _ in range(rounds):
            ceiling, before, started = per_second(bare, seconds), timed.seconds, time.process_time()
            rate = per_second(session.step, seconds)
            measured.append(
                (ceiling, rate, rate / ceiling, 1 - (timed.seconds - before) / (time.process_time() - started))
            )
        ceiling, rate, ratio, outside = (statistics.median(column) for column in zip(*measured, strict=True))
        print(f"{size:6} {ceiling:10,.0f} {rate:10,.0f} {ratio:7.3f} {outside:8.1%}", flush=True)


def warm(session: Session, evaluations: int) -> None:
    """Play until there were so many evaluations."""
    while session.self_play.evaluations < evaluations:
        session.advance()


# 3. The evaluator.


def table_of_evaluators(game: Game, shape: dict[str, Any], rounds: int) -> None:
    """Print the third table."""
    observations = canary_positions(game, max(BATCH_SIZES))
    network = learned_network(game, observations, shape)
    ours, theirs = Evaluator(network, game, device="cpu"), plain(network)
    found = [evaluation_rates([theirs, ours], observations[:size], rounds) for size in BATCH_SIZES]
    slow, fast = (max(column) for column in zip(*found, strict=True))
    same = (ours(observations)[0].argmax(1) == theirs(observations)[0].argmax(1)).mean()
    print("\n3. The evaluator against plain torch in float32, each at its best batch size, evaluations a second")
    print(f"{'plain':>10} {'ours':>10} {'ratio':>7} {'same first choice':>18}")
    print(f"{slow:10,.0f} {fast:10,.0f} {fast / slow:7.2f} {same:18.1%}", flush=True)


# 4. Records.


def table_of_records(game: Game, simulations: int) -> None:
    """Print the fourth table."""
    print(f"\n4. Files of {FILE_GAMES} games, {simulations} simulations in a full search")
    print(f"{'full searches':>13} {'plies':>7} {'bytes a game':>13} {'a ply':>7}")
    for share in (1.0, 0.25):
        settings = SearchSettings(
            num_simulations=simulations, cheap_simulations=min(16, simulations), full_search_probability=share
        )
        session = Session(game, FreeEvaluator(game, policy_scale=2.0), settings, FILE_GAMES)
        records: list[GameRecord] = []
        while len(records) < FILE_GAMES:
            records += session.advance()
        size = len(encode(batch_of(game, records[:FILE_GAMES])))
        plies = sum(record.actions.size for record in records[:FILE_GAMES])
        print(f"{share:13.0%} {plies / FILE_GAMES:7.1f} {size / FILE_GAMES:13,.0f} {size / plies:7.1f}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--game", choices=sorted(OPTIONS), default="go", help="of tables 2 to 4 (default: go, on 9 x 9)"
    )
    parser.add_argument("--seconds", type=number(above=0), default=1.0, help="for each way in each round (default: 1)")
    parser.add_argument("--rounds", type=whole(), default=5, help="(default: 5)")
    parser.add_argument("--blocks", type=whole(), default=6, help="of the network (default: 6)")
    parser.add_argument("--channels", type=whole(), default=64, help="of the network (default: 64)")
    parser.add_argument("--simulations", type=whole(), default=64, help="of a full search (default: 64)")
    parser.add_argument(
        "--parallel-games", type=whole(), nargs="+", default=[16, 64, 128], help="side by side (default: 16 64 128)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    game, shape = load(arguments.game), {"blocks": arguments.blocks, "channels": arguments.channels}
    pace = {"seconds": arguments.seconds, "rounds": arguments.rounds}
    print(f"{game.name} {game.options}, {arguments.blocks} blocks x {arguments.channels} channels, 1 thread")
    table_of_search(["go", "connect_four"], simulations=arguments.simulations, **pace)
    table_of_self_play(
        game, build_network(game, **shape), arguments.parallel_games, simulations=arguments.simulations, **pace
    )
    table_of_evaluators(game, shape, arguments.rounds)
    table_of_records(game, arguments.simulations)


if __name__ == "__main__":
    main()
