"""Measure the time until programs answer: until the first line, help, the first game, and an engine's first answers.

    python benchmarks/speed/starts.py               with the compile cache as it is; the first round fills it
    python benchmarks/speed/starts.py --cold        each call with an empty compile cache: minutes
    python benchmarks/speed/starts.py --before DIR  takes turns with another checkout: on a busy machine, compare the
                                                    ratios

Times are wall times. A call that takes longer than ten minutes is killed, and its figure is infinite.
"""

import json
import math
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.harness import Parser, Report, divide_rounds, take_turns

SEARCH = ("--simulations", "16")
TRAINED = {"quickstart": "train", "games/hex7.yaml": "train, a plain game"}  # experiments
PATIENCE = 600.0  # seconds for each answer


class Call:
    """A running program, and when it was started."""

    def __init__(self, process: subprocess.Popen[bytes], began: float) -> None:
        self.process, self._began, self._end = process, began, began + PATIENCE

    def says(self, text: bytes = b"\n") -> float:
        """Return the seconds until a text has come on either stream."""
        output = b""
        with selectors.DefaultSelector() as selector:
            for stream in (self.process.stdout, self.process.stderr):
                assert stream
                selector.register(stream, selectors.EVENT_READ)
            while text not in output:
                ready = selector.select(max(0.0, self._end - time.monotonic()))
                if not ready:
                    return math.inf
                for key, _ in ready:
                    data = os.read(key.fd, 2**16)
                    if not data:
                        selector.unregister(key.fileobj)
                    output += data
        return time.monotonic() - self._began

    def ends(self) -> float:
        """Return the seconds until it has ended."""
        try:
            self.process.wait(max(0.0, self._end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return math.inf
        return time.monotonic() - self._began

    def ask(self, line: str) -> None:
        """Write a line to its input."""
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def waits_for(self, done: Callable[[], bool]) -> float:
        """Return the seconds until ``done`` returns True."""
        while not done():
            if time.monotonic() > self._end or self.process.poll() is not None:
                return math.inf
            time.sleep(0.02)
        return time.monotonic() - self._began


@contextmanager
def start_program(checkout: Path, cache: Path | None, *words: str) -> Iterator[Call]:
    """Yield a program of a checkout, which is killed at the end of the block."""
    env = {**os.environ, **({"KEIMA_CACHE": str(cache)} if cache else {})}
    env.pop("PYTHONPATH", None)  # it might lead to another checkout
    line, pipe, began = [sys.executable, "-m", "keima", *words], subprocess.PIPE, time.monotonic()
    with subprocess.Popen(line, cwd=checkout, env=env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield Call(process, began)
        finally:
            process.kill()


def measure_starts(checkout: Path, *, chess: Path, cold: bool) -> dict[str, float]:
    """Return the measured seconds by name; ``chess`` is a network's file."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:

        def call(*words: str) -> AbstractContextManager[Call]:
            return start_program(checkout, Path(tempfile.mkdtemp(dir=folder)) if cold else None, *words)

        with call("train", "--help") as program:
            found["keima train --help"] = program.ends()
        with call("play", "nowhere.safetensors") as program:
            found["keima play, a model that is not there"] = program.ends()
        with call("gtp", "go7", *SEARCH) as program:
            program.ask("name")
            found["keima gtp: its name"] = program.says(b"Keima")
            program.ask("genmove b")
            found["keima gtp: its first move"] = program.says(b"= ")
        with call("uci", str(chess), *SEARCH) as program:
            program.ask("go nodes 16")
            found["keima uci: its first move"] = program.says(b"bestmove")
        with call("play", "go7", "--second", *SEARCH) as program:
            found["keima play: its first move"] = program.says(b"It plays")
        for number, (experiment, name) in enumerate(TRAINED.items()):
            run = Path(folder) / f"run{number}"
            with call("train", "--config", experiment, "--run-dir", str(run)) as program:
                found[f"keima {name}: its first line"] = program.says()
                found[f"keima {name}: the first game begun"] = program.waits_for(partial(has_begun, run))
                program.process.terminate()
                program.ends()
    return found


def make_chess_network(path: Path) -> Path:
    """Save an untrained network for chess, and return its path."""
    from keima.games import load_game  # only now: --help needs no PyTorch
    from keima.networks.files.model import Model, describe_model, save_safetensors
    from keima.networks.network import build_network
    from keima.networks.policy_value import as_policy_value_network

    game = load_game("chess")
    network = build_network(game, blocks=2, channels=32)
    description = describe_model(game, as_policy_value_network(network).settings(), 1)
    save_safetensors(path, Model(description=description, weights=network.state_dict()))
    return path


def has_begun(run: Path) -> bool:
    """Return whether a worker of the run has begun a game."""
    for path in run.glob("workers/*/worker.json"):
        with suppress(OSError, ValueError):  # it is being replaced
            if json.loads(path.read_text(encoding="utf-8")).get("begun", 0) > 0:
                return True
    return False


def main() -> None:
    """Measure, and print the table."""
    parser = Parser(__doc__, rounds=3)
    parser.add_argument("--cold", action="store_true", help="empty the compile cache before each round")
    parser.add_argument("--before", type=Path, metavar="DIR", help="another checkout, measured in turns")
    arguments = parser.parse()
    rounds = 1 if arguments.quick else arguments.rounds
    checkouts = [ROOT, *([arguments.before.resolve()] if arguments.before else [])]
    with Report(arguments) as report, tempfile.TemporaryDirectory() as folder:
        chess = make_chess_network(Path(folder) / "chess.safetensors")
        turns = [partial(measure_starts, each, chess=chess, cold=arguments.cold) for each in checkouts]
        now, *before = take_turns(turns, rounds)
        title = f"Seconds until an answer, {'an empty' if arguments.cold else 'a filled'} compile cache"
        table = report.table(title, "answer", "now", "before", "before / now")
        for name in now[0]:
            mine = [found[name] for found in now]
            theirs = [found[name] for found in before[0]] if before else []
            table.add(name, median(mine), *((median(theirs), divide_rounds(theirs, mine)) if theirs else (None, None)))


if __name__ == "__main__":
    main()
