"""Compare the speed of rules, search, self-play and learner in two checkouts, such as two commits.

    git worktree add --detach ../before v1.2
    python benchmarks/speed/two_checkouts.py ../before .

One process per checkout runs the same work: the functions are those of this checkout's benchmarks, the code that they
call is the other's. They take turns of a tenth of a second of processor time, so that both see the same disturbances.
Two processes of the same code differ by up to 3 %, which the interval over the turns does not show.
"""

import itertools
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
SIDE = "--side"  # begins the arguments of a process that measures one checkout by the code of that checkout
sys.path.insert(0, str(ROOT))
if sys.argv[1:2] == [SIDE]:
    import benchmarks

    benchmarks.__path__ = [str(ROOT / "benchmarks")]
    sys.path.insert(0, sys.argv[2])

from benchmarks.harness import Parser, Report, Way, divide_rounds, measure_rate, take_turns

RULES = ("go9", "go19", "connect_four", "tic_tac_toe", "2048", "chess")
SEARCHES = [(game, algorithm) for game in ("go", "connect_four") for algorithm in ("puct", "gumbel")]
SIMULATIONS, GAMES = 64, 64
BLOCKS, CHANNELS = 2, 32  # of the network: small, so that what is not the network counts
LEARNED_GAMES, BATCH = 100, 256


def make_ways() -> dict[str, Way]:
    """Return what is measured, by name."""
    import torch

    from benchmarks.speed import rules, self_play
    from keima.networks.inference.evaluator import Evaluator
    from keima.networks.network import build_network

    torch.set_num_threads(1)
    torch.manual_seed(1)
    found: dict[str, Way] = {}
    for name in RULES:
        play = rules.make_our_loop(rules.CONTESTS[name].load())
        found[f"rules {name}"] = rules.cut_in_chunks(play, 10 * play(1))  # a tenth of what is usual
    for name, algorithm in SEARCHES:
        found[f"search {name} {algorithm}"] = self_play.make_our_search(
            self_play.load_measured_game(name), algorithm, SIMULATIONS
        )
    game = self_play.load_measured_game("connect_four")
    evaluator = Evaluator(build_network(game, blocks=BLOCKS, channels=CHANNELS), game, device="cpu", max_batch=GAMES)
    session = self_play.Session(game, evaluator, self_play.make_settings(SIMULATIONS), GAMES)
    return found | {"self-play connect_four": session.step} | make_learner_ways()


def make_learner_ways() -> dict[str, Way]:
    """Return the learner's steps, and the drawing of its batches with the targets of all auxiliary heads, by name."""
    from benchmarks.speed.self_play import load_measured_game
    from keima.config.sections.network import NetworkSettings
    from keima.learning.learner import Learner
    from keima.networks.network import build_network
    from keima.replay.window import ReplayWindow
    from tests.synthetic import synthetic_batch

    game, seeds = load_measured_game("go"), itertools.count()
    heads = NetworkSettings(predict_reply=True, predict_ownership=True, predict_score=True, predict_future=True)
    plain, rich = (ReplayWindow(game, capacity_positions=10**6, network=each) for each in (NetworkSettings(), heads))
    for window in (plain, rich):
        window.add(synthetic_batch(game, games=LEARNED_GAMES))
    learner = Learner(build_network(game, blocks=BLOCKS, channels=CHANNELS), device="cpu", batch_size=BATCH)

    def learn() -> int:
        learner.train(plain, 1, 0)
        return BATCH

    def draw() -> int:
        return len(rich.sample(BATCH, next(seeds)).values)

    return {"learner go": learn, "window go": draw}


def measure_on_request() -> None:
    """Print the names of the ways, then for each name and number of seconds on standard input the rate of one turn."""
    ways = make_ways()
    for way in ways.values():
        way()
    print(json.dumps(list(ways)), flush=True)
    for line in sys.stdin:
        name, seconds = json.loads(line)
        print(measure_rate(ways[name], seconds), flush=True)


class Checkout:
    """A process that measures one checkout."""

    def __init__(self, root: Path) -> None:
        line = [sys.executable, __file__, SIDE, str(root.resolve())]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(line, cwd=root, stdin=pipe, stdout=pipe, text=True)

    def ways(self) -> list[str]:
        """Return the names of what it measures, once everything is compiled."""
        line = self._read()
        if not line:
            raise SystemExit("two_checkouts.py: one of the checkouts cannot be measured; its error is above")
        names: list[str] = json.loads(line)
        return names

    def rate(self, way: str, seconds: float) -> float:
        """Return the rate of a way in one turn."""
        assert self._process.stdin
        print(json.dumps([way, seconds]), file=self._process.stdin, flush=True)
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline()

    def __enter__(self) -> Self:
        """Return the process, which ends with the block."""
        return self

    def __exit__(self, *what: object) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Measure and print."""
    parser = Parser(__doc__, rounds=60, seconds=0.1)
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument("--only", default="", metavar="TEXT", help='ways whose name contains this, such as "go9"')
    arguments = parser.parse()
    with Report(arguments) as report, Checkout(arguments.before) as before, Checkout(arguments.after) as after:
        names = [name for name in before.ways() if arguments.only in name]
        after.ways()
        table = report.table("Rates of the second checkout by those of the first", "what", "after / before")
        for name in names:
            turns = [partial(side.rate, name, arguments.seconds) for side in (after, before)]
            table.add(name, divide_rounds(*take_turns(turns, arguments.rounds)))


if __name__ == "__main__":
    measure_on_request() if sys.argv[1:2] == [SIDE] else main()
