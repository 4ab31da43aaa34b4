"""Measure the search of one position against the bare network: evaluations per second on one core.

    python benchmarks/speed/analysis.py [--sizes 9 19] [--blocks 6] [--channels 64] [--batches 1 4 16 64]
                                        [--simulations 3200] [--seconds 1] [--rounds 5]

There is one root, and one call of the network per step. Virtual losses drive the simulations of a step apart, so a
batch of 16 is what 16 threads would request at once. The same evaluator is also called in a bare loop with full
batches. The tree grows to ``--simulations`` and starts again. "a call" is the number of positions that a step really
evaluates: simulations that meet, or that end where nothing needs evaluation, request none. "outside" is the share of
the search's time that is not spent in the evaluator.

Search and bare loop alternate. Times are processor times, so other programs matter less; figures are medians over the
rounds. The network has learned some arbitrary moves, so it has preferences. Whether batched search chooses as well as
sequential search is another question.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.speed.evaluator import learned_network
from benchmarks.speed.self_play import TimedEvaluator, per_second, random_positions
from keima.config.flags import number, whole
from keima.config.sections.search import SearchSettings
from keima.games import Game, load_game
from keima.games.game import Planes
from keima.networks.files.model_file import canary_positions
from keima.networks.inference.evaluator import Evaluator
from keima.search.analysis import Analysis

LEARNED = 16  # positions that the network has memorized
WARM_UP_STEPS = 20


class OneRoot:
    """A search of one position that never ends."""

    def __init__(self, game: Game, evaluate: TimedEvaluator, *, batch: int, simulations: int) -> None:
        settings = SearchSettings(forced_playouts=False, leaves_per_tree=batch)
        self._analysis = Analysis(game, evaluate, settings, max_simulations=simulations)
        self._evaluate, self._batch = evaluate, batch
        self._root = random_positions(game, 1)[0]
        self._analysis.begin(self._root)

    def step(self) -> int:
        """Take one step, and return its number of evaluations."""
        if self._analysis.finished:
            self._analysis.begin(self._root)
        before = self._evaluate.positions
        self._analysis.think(self._batch)
        return self._evaluate.positions - before


def print_table(
    game: Game, evaluator: Evaluator, batches: list[int], *, simulations: int, seconds: float, rounds: int
) -> None:
    """Print the figures of one board."""
    print(f"{'batch':>6} {'bare':>10} {'search':>10} {'ratio':>7} {'outside':>8} {'a call':>7}")
    for batch in batches:
        timed = TimedEvaluator(evaluator)
        search, observations = OneRoot(game, timed, batch=batch, simulations=simulations), canary_positions(game, batch)

        def bare(observations: Planes = observations) -> int:
            evaluator(observations)
            return len(observations)

        for _ in range(WARM_UP_STEPS):
            search.step()
        bare()
        measured = []
        for _ in range(rounds):
            ceiling = per_second(bare, seconds)
            before, positions, calls, started = timed.seconds, timed.positions, timed.calls, time.process_time()
            rate = per_second(search.step, seconds)
            inside = (timed.seconds - before) / (time.process_time() - started)
            measured.append(
                (ceiling, rate, rate / ceiling, 1 - inside, (timed.positions - positions) / (timed.calls - calls))
            )
        ceiling, rate, ratio, outside, call = (statistics.median(column) for column in zip(*measured, strict=True))
        print(f"{batch:6} {ceiling:10,.0f} {rate:10,.0f} {ratio:7.3f} {outside:8.1%} {call:7.1f}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=whole(), nargs="+", default=[9, 19], help="of the board (default: 9 19)")
    parser.add_argument("--blocks", type=whole(), default=6, help="of the network (default: 6)")
    parser.add_argument("--channels", type=whole(), default=64, help="of the network (default: 64)")
    parser.add_argument(
        "--batches", type=whole(), nargs="+", default=[1, 4, 16, 64], help="leaves at once (default: 1 4 16 64)"
    )
    parser.add_argument("--simulations", type=whole(), default=3200, help="to which the tree grows (default: 3200)")
    parser.add_argument("--seconds", type=number(above=0), default=1.0, help="for each way in each round (default: 1)")
    parser.add_argument("--rounds", type=whole(), default=5, help="(default: 5)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    for size in arguments.sizes:
        game, shape = load_game("go", size=size), {"blocks": arguments.blocks, "channels": arguments.channels}
        network = learned_network(game, canary_positions(game, LEARNED), shape)
        evaluator = Evaluator(network, game, device="cpu", max_batch=max(arguments.batches))
        print(
            f"\nGo {size}x{size}, {arguments.blocks} blocks x {arguments.channels} channels, "
            f"{evaluator.describe()}, evaluations a second"
        )
        pace = {"seconds": arguments.seconds, "rounds": arguments.rounds}
        print_table(game, evaluator, arguments.batches, simulations=arguments.simulations, **pace)


if __name__ == "__main__":
    main()
