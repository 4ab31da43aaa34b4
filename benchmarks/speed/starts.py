#!/usr/bin/env python3
"""Measure the time until programs answer: until the first line, help, the first game, and an engine's first answers.

    python benchmarks/speed/starts.py               with the compile cache as it is; the first round fills it
    python benchmarks/speed/starts.py --cold        each call with an empty compile cache: minutes
    python benchmarks/speed/starts.py --before DIR  alternates with another checkout: on a busy machine, compare the
                                                    ratios

Seconds are medians over --rounds. A call that takes longer than --patience is killed and shown as a dash.
"""

import argparse
import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
from keima.config.flags import number, whole

GO = ("gtp", "go7", "--simulations", "16")
UNREACHED = float("inf")


class Call:
    """A running program, and when it was started."""

    def __init__(self, process: subprocess.Popen[bytes], began: float, patience: float) -> None:
        self.process, self._began, self._end = process, began, began + patience

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def says(self, text: bytes = b"\n") -> float:
        """Seconds until a text has come on either stream."""
        output = b""
        with selectors.DefaultSelector() as selector:
            for stream in (self.process.stdout, self.process.stderr):
                assert stream
                selector.register(stream, selectors.EVENT_READ)
            while text not in output:
                ready = selector.select(max(0.0, self._end - time.monotonic()))
                if not ready:
                    return UNREACHED
                for key, _ in ready:
                    data = os.read(key.fd, 2**16)
                    if not data:
                        selector.unregister(key.fileobj)
                    output += data
        return self.seconds()

    def ends(self) -> float:
        """Seconds until it has ended."""
        try:
            self.process.wait(max(0.0, self._end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return UNREACHED
        return self.seconds()

    def asked(self, *lines: str) -> None:
        """Write lines to its input."""
        assert self.process.stdin
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self.process.stdin.flush()

    def until(self, done: Callable[[], bool]) -> float:
        """Seconds until ``done`` returns True."""
        while not done():
            if time.monotonic() > self._end or self.process.poll() is not None:
                return UNREACHED
            time.sleep(0.02)
        return self.seconds()


@contextmanager
def called(checkout: Path, cache: Path | None, patience: float, *words: str) -> Iterator[Call]:
    """A program of a checkout, which is killed at the end of the block."""
    env = {**os.environ, **({"KEIMA_CACHE": str(cache)} if cache else {})}
    began = time.monotonic()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", "keima", *words], cwd=checkout, env=env, stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        try:
            yield Call(process, began, patience)
        finally:
            process.kill()


def measure_starts(checkout: Path, cache: Path | None, patience: float, folder: Path) -> dict[str, float]:
    """The measured seconds by name."""
    found: dict[str, float] = {}

    def call(*words: str) -> AbstractContextManager[Call]:
        return called(checkout, cache, patience, *words)

    with call("train", "--help") as program:
        found["keima train --help"] = program.ends()
    with call("play", "nowhere.safetensors") as program:
        found["keima play, a model that is not there"] = program.ends()
    with call(*GO) as program:
        program.asked("name")
        found["keima gtp: its name"] = program.says(b"Keima")
        program.asked("genmove b")
        found["keima gtp: its first move"] = program.says(b"= ")
    run = folder / "run"
    with call("train", "quickstart", "--run-dir", str(run)) as program:
        found["keima train: its first line"] = program.says()
        found["keima train: the first game begun"] = program.until(lambda: games_begun(run) > 0)
        program.process.terminate()
        program.ends()
    return found


def games_begun(run: Path) -> int:
    """The games begun by all workers of a run."""
    heartbeats = []
    for path in run.glob("workers/*/worker.json"):
        try:
            heartbeats.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # it is being replaced
            continue
    return sum(int(heartbeat.get("begun", 0)) for heartbeat in heartbeats)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cold", action="store_true", help="empty the compile cache before each round")
    parser.add_argument("--before", type=Path, metavar="DIR", help="another checkout, measured alternately")
    parser.add_argument("--rounds", type=whole(), default=3, help="default: %(default)s")
    parser.add_argument(
        "--patience", type=number(above=0), default=600.0, metavar="SECONDS", help="default: %(default)g"
    )
    arguments = parser.parse_args()
    checkouts = [*([arguments.before.resolve()] if arguments.before else []), ROOT]
    seconds: dict[str, list[list[float]]] = {}
    for number_of_round in range(arguments.rounds):
        for place, checkout in enumerate(checkouts):
            with tempfile.TemporaryDirectory() as folder:
                cache = Path(folder) / "cache" if arguments.cold else None
                for name, value in measure_starts(checkout, cache, arguments.patience, Path(folder)).items():
                    seconds.setdefault(name, [[] for _ in checkouts])[place].append(value)
        print(f"round {number_of_round + 1} of {arguments.rounds}", file=sys.stderr)
    print(
        f"{'cold' if arguments.cold else 'warm'}, "
        f"seconds{'':25}{'before     after     ratio' if arguments.before else ''}"
    )
    for name, columns in seconds.items():
        medians = [statistics.median(column) for column in columns]
        shown = "".join(f"{'-' if value == UNREACHED else f'{value:.2f}':>10}" for value in medians)
        ratio = f"{medians[0] / medians[1]:10.1f}" if len(medians) == 2 and UNREACHED not in medians else ""
        print(f"{name:40}{shown}{ratio}")


if __name__ == "__main__":
    main()
