"""Measure how much a fleet of many workers slows down the learner of its Coach.

    python benchmarks/cluster/learner_beside_fleet.py [--machines 25] [--seats 16] [--round-trip 0.02] [--rounds 10]
        [--seconds 8] [--games-per-second 20] [--blocks 4] [--channels 64]

The Coach trains a network on one thread, and polls its workers between steps as it always does. Fleet and machines are
those of ``coach_load.py``: the fleet in its own process, simulated machines in another, which a second core can run. In
one half of each round both processes are stopped and the Coach does not poll, so the learner is alone on this machine.
Which half comes first alternates. The columns:

    alone, beside    samples per second by the wall's clock; the first two seconds of a half do not count
    ratio            of the two. It means something only if the fleet and the machines have a core of their own, and
                     nothing else runs here
    per processor    the same ratio of samples per second of the process's processor time: other work on this machine
                     disturbs it less, but it does not show time in which the learner has to wait
    polls            the part of the processor time of the Coach's process, beside the fleet, that goes to polls:
                     grants, the fleet's messages and reports, without receiving games, which few workers deliver too

The last lines are geometric means of the ratios with their 95 % intervals.
"""

import argparse
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.cluster.coach_load import (
    READY_SECONDS,
    MeasuringCoach,
    measuring_coach,
    settings_for,
)
from keima.base.intervals import mean_margin
from keima.cluster.fleet.process.client import FleetClient
from keima.coach.loop import SECONDS_BETWEEN_POLLS, STEPS_BETWEEN_POLLS, Coach
from keima.config.flags import number, whole
from keima.config.schema import Settings

WARM_UP_SECONDS = 2.0  # of each round
FIRST_GAMES = 200  # before the first round


def learning_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings of a run that trains a network of some size."""
    values = settings_for(arguments, arguments.machines * arguments.seats).model_dump()
    values["network"] |= {"blocks": arguments.blocks, "channels": arguments.channels}
    values["training"] |= {"batch_size": 128, "device": "cpu"}
    return Settings.model_validate(values)


def prepare(coach: Coach, count: int) -> None:
    """Wait until all workers are Active and the window has games.

    Raises:
        SystemExit: that takes too long.
    """
    deadline = time.monotonic() + READY_SECONDS
    coach.start()
    while (report := coach.backend.cluster()) is None or report.active < count or coach.window.num_games < FIRST_GAMES:
        if time.monotonic() > deadline:
            raise SystemExit(f"after {READY_SECONDS:.0f} s, {report.active if report else 0} of {count} are Active")
        if not coach.poll_workers(ingest=True):
            time.sleep(0.1)


@dataclass(frozen=True)
class Half:
    """Half of a round."""

    rate: float  # samples per second
    processor_rate: float  # samples per second of processor time
    polls: float  # their share of the processor time


def train_for(coach: MeasuringCoach, seconds: float, *, polls: bool) -> Half:
    """Train for a while, and measure after the first seconds."""
    samples, begun, cpu, polling, until = 0, 0.0, 0.0, 0.0, time.monotonic() + seconds
    warm = time.monotonic() + WARM_UP_SECONDS
    while time.monotonic() < until:
        if not begun and time.monotonic() >= warm:
            samples, begun, cpu, polling = 0, time.monotonic(), time.process_time(), 0.0
        report = coach.learner.train(
            coach.window, STEPS_BETWEEN_POLLS, coach.settings.run.seed, progress=0.0, seconds=SECONDS_BETWEEN_POLLS
        )
        samples += report.samples
        if polls:
            before, received = time.process_time(), coach.receiving
            coach.poll()
            polling += time.process_time() - before - (coach.receiving - received)
    used = time.process_time() - cpu
    return Half(samples / (time.monotonic() - begun), samples / used, polling / used)


@contextmanager
def stopped(*processes: int) -> Iterator[None]:
    """Within the block, these processes stand still."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def measure(arguments: argparse.Namespace, run_dir: Path) -> None:
    """Measure and print."""
    settings, count = learning_settings(arguments), arguments.machines * arguments.seats
    with measuring_coach(arguments, settings, count, run_dir) as (coach, simulator):
        prepare(coach, count)
        assert isinstance(coach.backend, FleetClient) and coach.backend.process_id
        fleet, rounds = coach.backend.process_id, list[tuple[Half, Half]]()

        def alone() -> Half:
            with stopped(fleet, simulator.pid):
                return train_for(coach, arguments.seconds, polls=False)

        def beside() -> Half:
            return train_for(coach, arguments.seconds, polls=True)

        for round_number in range(1, arguments.rounds + 1):
            if round_number % 2:
                first, second = alone(), beside()
            else:
                second, first = beside(), alone()
            rounds.append((first, second))
            print(
                f"{round_number:5d} {first.rate:8.0f} {second.rate:8.0f} {second.rate / first.rate:7.3f}"
                f" {second.processor_rate / first.processor_rate:14.3f} {second.polls:7.2%}",
                flush=True,
            )
    print(f"ratio {with_interval([second.rate / first.rate for first, second in rounds])}")
    print(f"per processor {with_interval([second.processor_rate / first.processor_rate for first, second in rounds])}")
    print(f"polls {statistics.median(second.polls for _, second in rounds):.2%} (median)")


def with_interval(ratios: Sequence[float]) -> str:
    """Return the geometric mean of two or more ratios with its 95 % interval."""
    logs = np.log(ratios)
    mean, half = float(logs.mean()), mean_margin(logs)
    assert half is not None
    return f"{math.exp(mean):.4f} ({math.exp(mean - half):.4f} to {math.exp(mean + half):.4f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=whole(), default=25)
    parser.add_argument("--seats", type=whole(), default=16, help="workers on each machine")
    parser.add_argument(
        "--round-trip", type=number(least=0), default=0.02, help="seconds that each call to a machine takes"
    )
    parser.add_argument("--rounds", type=whole(least=2), default=10)
    parser.add_argument("--seconds", type=number(above=WARM_UP_SECONDS), default=8.0, help="of each half of a round")
    parser.add_argument("--games-per-second", type=number(above=0), default=20.0, help="of all workers together")
    parser.add_argument("--blocks", type=whole(), default=4, help="of the network")
    parser.add_argument("--channels", type=whole(), default=64, help="of the network")
    arguments = parser.parse_args()
    arguments.batch, arguments.flush, arguments.game = 100, 30.0, "go"
    print(f"{arguments.machines} x {arguments.seats} workers, {len(os.sched_getaffinity(0))} cores; samples/s")
    print("round    alone   beside   ratio  per processor   polls")
    with tempfile.TemporaryDirectory() as run_dir:
        measure(arguments, Path(run_dir))


if __name__ == "__main__":
    main()
