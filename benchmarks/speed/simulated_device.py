#!/usr/bin/env python3
"""Measure self-play with a simulated device: one that works on its own, and answers after a latency at a rate.

    python benchmarks/speed/simulated_device.py [--seconds 5] [--games 128]

Real search of 9x9 Go; the network's answers are random numbers, and come when a device of this latency (the way there
and back) and rate (evaluations/s) would have them. The figures are shares of the device's rate: with one thread, in
which search and device wait for each other, and with several. Where the search is slower than the device, as on a
machine that is busy with other things, it is the search that is measured.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu_figures import rate
from benchmarks.speed.self_play import Session
from keima.base.system.threads import guard
from keima.config.flags import number, whole
from keima.config.sections.search import SearchSettings
from keima.games import Game, load_game
from keima.games.game import Planes

DEVICES = ((0.0002, 20_000.0), (0.0005, 50_000.0), (0.0005, 100_000.0), (0.002, 50_000.0))  # seconds, evaluations/s
THREADS = (1, 2, 3, 4)
Answers = tuple[NDArray[np.float32], NDArray[np.float32]]


class SimulatedDevice:
    """A network on a device; the answers are the same in each call.

    Args:
        game: what is evaluated.
        latency: seconds from the question to the device and back.
        rate: evaluations per second.
        most: positions in a call.
    """

    def __init__(self, game: Game, *, latency: float, rate: float, most: int) -> None:
        random = np.random.default_rng(1)
        self._logits = random.normal(size=(most, game.num_actions)).astype(np.float32)
        self._values = np.tanh(random.normal(size=most) / 4).astype(np.float32)
        self._latency, self._rate = latency, rate
        self._guard, self._free = guard(), 0.0  # when the device will have nothing to do

    def __call__(self, observations: Planes) -> Answers:
        """Evaluate, after what was asked before."""
        count = len(observations)
        with self._guard:
            self._free = max(time.perf_counter() + self._latency / 2, self._free) + count / self._rate
            ready = self._free + self._latency / 2
        time.sleep(max(0.0, ready - time.perf_counter()))
        return self._logits[:count], self._values[:count]


def share(session: Session, device_rate: float, seconds: float) -> float:
    """The share of a device's rate that self-play reaches."""
    rate(session.step, seconds / 2)  # trees grow
    return rate(session.step, seconds) / device_rate


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=number(above=0), default=5.0, help="of each figure (default: %(default)s)")
    parser.add_argument("--games", type=whole(1), default=128, help="of each thread (default: %(default)s)")
    arguments = parser.parse_args()
    game, settings = load_game("go", size=9), SearchSettings(num_simulations=64, full_search_probability=1.0)
    print(f"share of the device's rate, 9x9 Go, each thread with {arguments.games} games, 64 simulations")
    print(f"{'latency':>8} {'rate':>8} " + " ".join(f"{count} thread{'s' * (count > 1)}" for count in THREADS))
    for latency, device_rate in DEVICES:
        found = []
        for threads in THREADS:
            device = SimulatedDevice(game, latency=latency, rate=device_rate, most=arguments.games)
            session = Session(game, device, settings, arguments.games * threads, threads=threads)
            found.append(share(session, device_rate, arguments.seconds))
        print(
            f"{1000 * latency:5.1f} ms {device_rate:8,.0f} " + " ".join(f"{each:8.3f} " for each in found), flush=True
        )


if __name__ == "__main__":
    main()
