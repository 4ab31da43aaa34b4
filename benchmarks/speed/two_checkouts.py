"""Compare the speed of rules, search and self-play in two checkouts, such as two commits.

    git worktree add --detach ../before v1.2
    python benchmarks/speed/two_checkouts.py ../before .

One process per checkout runs the same work by its own code. They take turns of a tenth of a second of processor time,
so that both see the same disturbances; the figure is the median of the ratios of neighboring turns, with its quartiles.
On a machine that is busy with other things, sixty turns tell differences of about 3 %.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

SIDE = "--side"  # begins the arguments of a process that measures one checkout by the code of that checkout
sys.path.insert(0, sys.argv[2] if sys.argv[1:2] == [SIDE] else str(Path(__file__).resolve().parents[2]))

from keima.config.flags import whole

TURN_SECONDS = 0.1
RULES = ("go9", "go19", "connect_four", "tic_tac_toe", "2048", "chess")
SEARCHES = [(game, algorithm) for game in ("go", "connect_four") for algorithm in ("puct", "gumbel")]
SIMULATIONS, CHUNK_MOVES, GAMES = 64, 2000, 64
BLOCKS, CHANNELS = 2, 32  # of the network in self-play: small, so that what is not the network counts

Work = Callable[[], int]  # returns how much it did


def works() -> dict[str, Work]:
    """What is measured, by name."""
    import torch

    from benchmarks.speed import rules, self_play
    from keima.config.sections.search import SearchSettings
    from keima.games import load_game
    from keima.networks.inference.evaluator import Evaluator
    from keima.networks.network import build_network

    torch.set_num_threads(1)
    torch.manual_seed(1)
    found: dict[str, Work] = {}
    for name in RULES:
        contest = rules.CONTESTS[name]
        play = rules.ours(load_game(contest.name, **contest.options))
        found[f"rules {name}"] = partial(play, max(1, round(CHUNK_MOVES / play(1))))
    for name, algorithm in SEARCHES:
        found[f"search {name} {algorithm}"] = self_play.our_search(self_play.load(name), algorithm, SIMULATIONS)
    game = self_play.load("connect_four")
    evaluator = Evaluator(build_network(game, blocks=BLOCKS, channels=CHANNELS), game, device="cpu", max_batch=GAMES)
    settings = SearchSettings(num_simulations=SIMULATIONS)
    found["self-play connect_four"] = self_play.Session(game, evaluator, settings, GAMES).step
    return found


def measure_on_request() -> None:
    """Print the names of the works, then for each name on standard input the rate of one turn."""
    ready = works()
    for work in ready.values():
        work()
    print(json.dumps(list(ready)), flush=True)
    for line in sys.stdin:
        work, done, began = ready[line.strip()], 0, time.process_time()
        while time.process_time() - began < TURN_SECONDS:
            done += work()
        print(done / (time.process_time() - began), flush=True)


class Checkout:
    """A process that measures one checkout."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, SIDE, str(root.resolve())],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def works(self) -> list[str]:
        """The names of what it measures, once everything is compiled."""
        line = self._read()
        if not line:
            raise SystemExit("two_checkouts.py: one of the checkouts cannot be measured; its error is above")
        names: list[str] = json.loads(line)
        return names

    def rate(self, work: str) -> float:
        """The rate of a work in one turn."""
        assert self._process.stdin
        self._process.stdin.write(f"{work}\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()

    def __enter__(self) -> Self:
        """The process, which ends with the block."""
        return self

    def __exit__(self, *what: object) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def ratios(before: Checkout, after: Checkout, work: str, turns: int) -> list[float]:
    """The rates of ``after`` by those of ``before``; they take turns in being first."""
    found = []
    for turn in range(turns):
        sides = (before, after) if turn % 2 else (after, before)
        rates = {side: side.rate(work) for side in sides}
        found.append(rates[after] / rates[before])
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument("--turns", type=whole(4), default=60, help="of each work and checkout (default: 60)")
    parser.add_argument("--only", default="", metavar="TEXT", help='works whose name contains this, such as "go9"')
    arguments = parser.parse_args()
    with Checkout(arguments.before) as before, Checkout(arguments.after) as after:
        names = [name for name in before.works() if arguments.only in name]
        after.works()
        print(f"{'':24} {'after/before':>12} {'quartiles':>15}")
        for name in names:
            found = ratios(before, after, name, arguments.turns)
            low, middle, high = statistics.quantiles(found, n=4)
            print(f"{name:24} {middle:12.3f} {low:7.3f} {high:7.3f}", flush=True)


if __name__ == "__main__":
    measure_on_request() if sys.argv[1:2] == [SIDE] else main()
