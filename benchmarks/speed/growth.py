#!/usr/bin/env python3
"""Measure how speed grows or falls with size: parallel games, simulations, board, network, workers, window, versions.

    python benchmarks/speed/growth.py            minutes
    python benchmarks/speed/growth.py --quick    the first and the last size of each, in a third of the time
    python benchmarks/speed/growth.py --only simulations board

One table. A rate is the median of five turns on one core, by processor time, so it bears other programs; the rows of a
group take turns. "of first" compares a row with the first one of its group. Workers are processes of this program that
play at the same time, by the clock on the wall, so they need as many free cores.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.speed.learner_feed import played
from benchmarks.speed.self_play import FreeEvaluator, Session, per_second, warm
from keima.config.sections.search import SearchSettings
from keima.data.ledger import open_ledger
from keima.data.ledger_rows import model_row
from keima.evaluation.elo import PairResult, rate_players
from keima.evaluation.strength import player_name
from keima.games import Game, load_game
from keima.networks.files.model_file import canary_positions
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from keima.replay.window import Batch, ReplayWindow

Work = Callable[[], int]  # returns how much it did
TURNS, SECONDS = 5, 0.4
GAMES, SAMPLES = 64, 256
FILLED = 0.75  # of its simulations, that the mean tree has had before a turn: then trees are as large as they get
WORKER = "--as-worker"  # this process is one of several


def go(size: int = 9) -> Game:
    """Go on a board of this size."""
    return load_game("go", size=size)


def searching(game: Game, simulations: int, parallel_games: int = GAMES) -> Work:
    """Self-play with full searches and a network that costs nothing: simulations that asked for an evaluation."""
    settings = SearchSettings(num_simulations=simulations, full_search_probability=1.0, opening_random_moves=4.0)
    session = Session(game, FreeEvaluator(game), settings, parallel_games)
    warm(session, int(FILLED * simulations * parallel_games))
    return session.step


def playing(blocks: int, channels: int, parallel_games: int) -> Work:
    """Self-play on 9x9 with a network: evaluations."""
    game, settings = go(), SearchSettings(num_simulations=64, cheap_simulations=16, opening_random_moves=4.0)
    evaluator = Evaluator(
        build_network(game, blocks=blocks, channels=channels), game, device="cpu", max_batch=parallel_games
    )
    session = Session(game, evaluator, settings, parallel_games)
    warm(session, 4 * parallel_games)
    return session.step


def evaluating(blocks: int, channels: int) -> Work:
    """A network on 9x9, in batches of 64: evaluations."""
    game = go()
    evaluator = Evaluator(build_network(game, blocks=blocks, channels=channels), game, device="cpu", max_batch=GAMES)
    observations = canary_positions(game, GAMES)

    def evaluate() -> int:
        evaluator(observations)
        return len(observations)

    evaluate()
    return evaluate


def sampling(positions: int) -> Work:
    """A learner's batches from a window of at least so many positions: samples."""
    game = load_game("connect_four")
    batch, window, space = (
        played(game),
        ReplayWindow(game, capacity_positions=2 * positions),
        Batch.empty(game, SAMPLES),
    )
    while window.num_positions < positions:
        window.add(batch)

    def sample() -> int:
        window.sample(SAMPLES, 1, out=space)
        return SAMPLES

    sample()
    return sample


def matches_of(versions: int) -> list[PairResult]:
    """The rating games of a run: each version against a random player, the one before, and one half as old."""
    found = []
    for version in range(1, versions + 1):
        for opponent in {version - 1, version // 2} - {0}:
            found.append(_pairing(player_name(version), player_name(opponent)))
        found.append(_pairing(player_name(version), "random"))
    return found


def _pairing(first: str, second: str) -> PairResult:
    return PairResult(first=first, second=second, wins=24, draws=2, losses=14)


def rating(versions: int) -> Work:
    """Elo of all versions of a run: versions rated."""
    results = matches_of(versions)
    return lambda: len(rate_players(results, "random"))


def listing(versions: int, folder: Path) -> Work:
    """What an evaluation reads of all versions: the ledger's models and matches, and which files exist."""
    run = folder / f"run-{versions}"
    (run / "models").mkdir(parents=True)
    ledger = open_ledger(run, load_game("connect_four"))
    for version in range(1, versions + 1):
        row = model_row(run, version, iteration=version, data=b"", accepted=True)
        (run / row.path).touch()
        ledger.add_model(row)
        ledger.add_match(player_name(version), "random", wins=24, draws=2, losses=14, num_simulations=128)

    def read() -> int:
        present = [row for row in ledger.models() if (run / row.path).is_file()]
        return len(present) + 0 * len(ledger.matches())

    return read


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows that differ in one size."""

    unit: str  # of what is counted
    rows: dict[str, Callable[[], Work]]  # how to prepare each, by size


def groups(folder: Path) -> dict[str, Group]:
    """What is measured."""
    sizes, steps = (16, 64, 256), (64, 200, 400, 800, 1600)
    shapes, versions = ((2, 32), (4, 64), (6, 64), (6, 96)), (100, 400, 1600)
    return {
        "parallel games": Group(unit="evaluations", rows={f"{n}": partial(playing, 2, 32, n) for n in sizes}),
        "simulations": Group(unit="simulations", rows={f"{n}": partial(searching, go(), n) for n in steps}),
        "1600 simulations": Group(
            unit="simulations", rows={f"{n} games": partial(searching, go(), 1600, n) for n in sizes}
        ),
        "board": Group(unit="simulations", rows={f"{n}x{n}": partial(searching, go(n), 64) for n in (7, 9, 13, 19)}),
        "network": Group(unit="evaluations", rows={f"{b}x{c}": partial(evaluating, b, c) for b, c in shapes}),
        "window": Group(unit="samples", rows={f"{n:,}": partial(sampling, n) for n in (10_000, 100_000, 1_000_000)}),
        "versions rated": Group(unit="versions", rows={f"{n:,}": partial(rating, n) for n in versions}),
        "versions read": Group(unit="versions", rows={f"{n:,}": partial(listing, n, folder) for n in versions}),
    }


def rates(works: Sequence[Work]) -> list[float]:
    """The rate of each, all in turn."""
    turns = [[per_second(work, SECONDS) for work in works] for _ in range(TURNS)]
    return [statistics.median(column) for column in zip(*turns, strict=True)]


def rate_of_workers(count: int) -> float:
    """Evaluations per second of so many processes at the same time."""
    command = [sys.executable, __file__, WORKER]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    for worker in workers:
        assert worker.stdout
        worker.stdout.readline()  # it is ready
    for worker in workers:
        assert worker.stdin
        worker.stdin.close()
    total = 0.0
    for worker in workers:
        assert worker.stdout
        total += float(worker.stdout.readline())
        worker.wait()
    return total


def be_worker() -> None:
    """Play from the end of standard input on, and print evaluations per second by the clock on the wall."""
    step = playing(2, 32, GAMES)
    print("ready", flush=True)
    sys.stdin.read()
    done, began = 0, time.monotonic()
    while time.monotonic() - began < TURNS * SECONDS:
        done += step()
    print(done / (time.monotonic() - began), flush=True)


def print_group(name: str, unit: str, sizes: Sequence[str], found: Sequence[float]) -> None:
    """Print the rows of a group."""
    for size, rate in zip(sizes, found, strict=True):
        print(f"{name:18} {size:>12} {rate:14,.0f} {unit + '/s':14} {rate / found[0]:8.2f}", flush=True)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        known = groups(Path(folder))
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--quick", action="store_true", help="the first and the last size of each group")
        parser.add_argument("--only", nargs="+", choices=[*known, "workers"], help="groups (default: all)")
        arguments = parser.parse_args()
        print(f"{'group':18} {'size':>12} {'rate':>14} {'':14} {'of first':>8}")
        for name, group in known.items():
            if arguments.only and name not in arguments.only:
                continue
            rows = list(group.rows.items())
            rows = [rows[0], rows[-1]] if arguments.quick else rows
            print_group(name, group.unit, [size for size, _ in rows], rates([make() for _, make in rows]))
        if not arguments.only or "workers" in arguments.only:
            counts = (1, 2) if arguments.quick else (1, 2, 4)
            print_group("workers", "evaluations", [str(n) for n in counts], [rate_of_workers(n) for n in counts])


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1)
    np.random.seed(1)
    be_worker() if sys.argv[1:] == [WORKER] else main()
