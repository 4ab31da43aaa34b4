#!/usr/bin/env python3
"""Run the quickstart for some minutes and print what its time and its cores went to.

    python benchmarks/speed/who_waits.py                               this checkout, seed 1
    python benchmarks/speed/who_waits.py ../before . --seeds 1 2 3     two checkouts, in turn for each seed

A table of runs: games and training positions of the run, its share of the machine's cores, games per second of
processor time, and the errors of the last model by search and by the policy alone. Then the share of the time that the
Coach spent in each phase, with the games that arrived per second meanwhile, as progress.json tells them. A busy machine
gives a run less of its cores; games per processor second bear that, games do not. Two checkouts are compared by the
ratios of their runs of the same seed, of which the median is printed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
from keima.config.flags import number, whole

SAMPLE_SECONDS = 0.5
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")  # a second


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run; times in seconds."""

    seconds: float
    processor_seconds: float  # of all its processes
    games: int
    samples: int  # that the learner has drawn
    search_error: float
    policy_error: float
    elo: float
    phases: dict[str, float]  # time in each
    games_in: dict[str, int]  # received in each

    @property
    def cores(self) -> float:
        """The share of the machine's cores."""
        return self.processor_seconds / self.seconds / len(os.sched_getaffinity(0))

    @property
    def games_per_processor_second(self) -> float:
        """Games for what the run got of the processor, whatever else the machine does."""
        return self.games / self.processor_seconds


def measured(checkout: Path, config: str, minutes: float, seed: int) -> Measured:
    """Run the quickstart of a checkout.

    Raises:
        SystemExit: it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        flags = ["--config", config, "--minutes", str(minutes), "--seed", str(seed), "--run-dir", str(run_dir)]
        began = time.monotonic()
        with (Path(folder) / "errors").open("w+") as errors:
            process = subprocess.Popen(
                [sys.executable, "start_main.py", *flags],
                cwd=checkout,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            watched = Watched(process, run_dir / "progress.json", minutes * 60)
            seconds = time.monotonic() - began
            errors.seek(0)
            if process.returncode:
                raise SystemExit(f"who_waits.py: the run of {checkout} has failed: {errors.read().strip()}")
        rows = json.loads((run_dir / "training_stats.json").read_text())
    last: dict[str, Any] = next(row["evaluation"] for row in reversed(rows) if row["evaluation"])
    return Measured(
        seconds=seconds,
        processor_seconds=watched.processor_seconds(),
        games=watched.games,
        samples=sum(row["learner"]["samples"] for row in rows if row["learner"]),
        search_error=last["search_error"],
        policy_error=last["policy_error"],
        elo=last["elo"],
        phases=watched.phases,
        games_in=watched.games_in,
    )


class Watched:
    """A run that is watched from its start to its end.

    Args:
        process: the leader of a session of its own.
        progress: the file.
        limit: games that arrive later than this many seconds after the run's start do not count: the learner never
            sees them.
    """

    def __init__(self, process: subprocess.Popen[bytes], progress: Path, limit: float) -> None:
        self.phases: dict[str, float] = defaultdict(float)
        self.games_in: dict[str, int] = defaultdict(int)
        self.games = 0
        self._processor_seconds: dict[str, float] = {}  # by process
        phase, then = "starting", time.monotonic()
        while process.poll() is None:
            time.sleep(SAMPLE_SECONDS)
            self._sample_processes(process.pid)
            with suppress(OSError, ValueError):
                report = json.loads(progress.read_text())["report"]
                if report["seconds"] <= limit:
                    self.games_in[phase] += report["total_games"] - self.games
                    self.games = report["total_games"]
                phase = report["phase"]
            now = time.monotonic()
            self.phases[phase] += now - then
            then = now

    def processor_seconds(self) -> float:
        """Of all processes of the run."""
        return sum(self._processor_seconds.values())

    def _sample_processes(self, session: int) -> None:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    self._processor_seconds[stat.parent.name] = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def print_run(name: str, seed: int, run: Measured) -> None:
    """Print the row of a run."""
    print(
        f"{name:20} {seed:4} {run.seconds:7.0f} {run.games:8,} {run.samples:9,} {run.cores:6.0%}"
        f" {run.games_per_processor_second:11.2f} {run.search_error:8.2%} {run.policy_error:8.2%} {run.elo:6.0f}",
        flush=True,
    )


def print_phases(name: str, runs: list[Measured]) -> None:
    """Print what a checkout's time went to, all runs together."""
    seconds = sum(run.seconds for run in runs)
    print(f"\n{name}: share of the time, games/s")
    for phase in sorted({phase for run in runs for phase in run.phases}):
        spent = sum(run.phases.get(phase, 0.0) for run in runs)
        games = sum(run.games_in.get(phase, 0) for run in runs)
        print(f"  {phase:42} {spent / seconds:6.1%} {games / max(spent, 1e-9):7.1f}")


def print_ratios(before: list[Measured], after: list[Measured]) -> None:
    """Print the medians of the ratios of runs with the same seed."""
    print("\nsecond checkout / first, median over the seeds (and all ratios)")
    for figure in ("games", "samples", "cores", "games_per_processor_second"):
        pairs = [(getattr(old, figure), getattr(new, figure)) for old, new in zip(before, after, strict=True)]
        ratios = [new / max(old, 1e-9) for old, new in pairs]
        every = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"  {figure:28} {statistics.median(ratios):5.2f} ({every})")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="*", default=[ROOT], help="at most two (default: this one)")
    parser.add_argument("--minutes", type=number(above=0), default=4.0, help="of each run (default: 4)")
    parser.add_argument("--seeds", type=whole(0), nargs="+", default=[1], help="of the runs (default: 1)")
    parser.add_argument("--config", default="configs/quickstart.yaml", help="in the checkout (default: the quickstart)")
    arguments = parser.parse_args()
    if len(arguments.checkouts) > 2:
        parser.error("two checkouts can be compared, not more")
    print(
        f"{'':20} {'seed':>4} {'seconds':>7} {'games':>8} {'samples':>9} {'cores':>6} {'games/cpu s':>11}"
        f" {'search':>8} {'policy':>8} {'Elo':>6}",
        flush=True,
    )
    runs: dict[Path, list[Measured]] = {checkout: [] for checkout in arguments.checkouts}
    for turn, seed in enumerate(arguments.seeds):
        for checkout in arguments.checkouts if turn % 2 == 0 else reversed(arguments.checkouts):
            run = measured(checkout, arguments.config, arguments.minutes, seed)
            runs[checkout].append(run)
            print_run(checkout.resolve().name, seed, run)
    for checkout, found in runs.items():
        print_phases(checkout.resolve().name, found)
    if len(runs) == 2:
        print_ratios(*runs.values())


if __name__ == "__main__":
    main()
