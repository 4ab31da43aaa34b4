"""Feeds damaged and forged files and messages to every reader of input that another machine, a disk or a user may have
damaged.

    python tools/fuzz.py --inputs 100000 --seed 1
    python tools/fuzz.py --minutes 30 --only model checkpoint
    python tools/fuzz.py --guided --minutes 30
    python tools/fuzz.py --again runs/fuzz/sgf-1f0c2a9b8e7d

Every input is a modified real one: with bits and lengths changed as by a broken disk or line, or with other content and
valid checksums, as by a forger. With --guided, atheris chooses the inputs to modify further by the code that they have
reached; it needs ``pip install atheris`` on Linux, and each reader has its own process. A reader may raise only its
documented error, no input may take a second of processor time, and none may make memory grow beyond what a real one
needs. Inputs that break a promise are kept in runs/fuzz. Without --only, --inputs is for each reader, and --minutes for
all of them in equal shares. The exit code is 1 if a promise was broken.
"""

import argparse
import gc
import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from keima.base.files import sha256_hex
from tests.fuzzed import DECODERS
from tests.sources import ROOT

SECONDS_BOUND = 1.0
MEMORY_BOUND = 256 * 2**20
HANGS = 20.0  # seconds of processor time after which an input is given up
KEPT = ROOT / "runs" / "fuzz"
MOST_KEPT = 20  # of a reader
TOGETHER = 50  # consecutive inputs of one reader
FOREVER = 10**12
HEADINGS = ("reader", "inputs", "refused", "let in", "led on", "broken", "slowest ms", "grown MiB", "seconds")


class Hangs(BaseException):
    """An input takes too long. No reader may mistake this for one of its own errors."""


@dataclass(kw_only=True)
class Tally:
    """The results of a reader's inputs."""

    inputs: int = 0
    refused: int = 0
    let_in: int = 0
    led_on: int = 0  # reached code that no input had reached before; known where atheris is the guide
    broken: int = 0  # promises
    slowest: float = 0.0  # seconds of processor time
    grown: int = 0  # bytes by which the peak memory has grown while these were read
    seconds: float = 0.0  # in all; of processor time without a guide
    reasons: list[str] = field(default_factory=list)  # of the first few broken promises


def judge(name: str, data: bytes, tally: Tally) -> None:
    """Give one input to a reader."""
    decoder, reason = DECODERS[name], ""
    before, start = peak_memory(), time.thread_time()
    try:
        with given_up_after(HANGS):
            decoder.read(data)
        tally.let_in += 1
    except decoder.errors:
        tally.refused += 1
    except (Exception, Hangs) as error:
        reason = f"{type(error).__name__}: {error}"
    taken, grown = time.thread_time() - start, peak_memory() - before
    tally.inputs += 1
    tally.slowest, tally.grown = max(tally.slowest, taken), tally.grown + grown
    if taken >= SECONDS_BOUND:
        reason = f"{reason} after {taken:.1f} s of processor time"
    if tally.grown >= MEMORY_BOUND and grown:
        reason = f"{reason}, memory has grown by {grown / 2**20:.0f} MiB"
    if reason:
        tally.broken += 1
        if len(tally.reasons) < MOST_KEPT:
            tally.reasons.append(f"{keep(name, data)}: {reason[:500]}")


@contextmanager
def given_up_after(seconds: float) -> Iterator[None]:
    """Raise Hangs in the block once this process has computed for this long."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def give_up(number: int, frame: object) -> None:
    """Handle the timer's signal."""
    raise Hangs(f"not read within {HANGS:.0f} s")


def peak_memory() -> int:
    """Return the most memory that this process has ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def keep(name: str, data: bytes) -> Path:
    """Put an input where ``--again`` finds it."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{name}-{sha256_hex(data)[:12]}"
    path.write_bytes(data)
    return path


def warm(name: str) -> None:
    """Read real inputs and a few others, so that nothing is left to be compiled or imported."""
    decoder, random = DECODERS[name], np.random.default_rng(0)
    for base in decoder.bases:
        decoder.read(base)
    for _ in range(TOGETHER):
        judge(name, decoder.change(random, decoder.bases[random.integers(len(decoder.bases))]), Tally())


def fuzz(names: Sequence[str], *, inputs: int, seconds: float, seed: int) -> dict[str, Tally]:
    """Judge this many inputs of each of these readers, or as many as possible in this time, with an equal share for
    each.
    """
    tallies = {name: Tally() for name in names}
    randoms = {name: np.random.default_rng([seed, *name.encode()]) for name in names}
    for name in names:
        warm(name)
    gc.freeze()  # otherwise a collection, which visits all modules, is taken for a slow input now and then
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(tally.inputs < inputs for tally in tallies.values()):
        name = min((name for name in names if tallies[name].inputs < inputs), key=lambda name: tallies[name].seconds)
        decoder, random, tally, start = DECODERS[name], randoms[name], tallies[name], time.thread_time()
        for _ in range(min(TOGETHER, inputs - tally.inputs)):
            judge(name, decoder.change(random, decoder.bases[random.integers(len(decoder.bases))]), tally)
        tally.seconds += time.thread_time() - start
    return tallies


def guided(names: Sequence[str], *, inputs: int, seconds: float, seed: int) -> dict[str, Tally]:
    """Do the same by ``fuzz_guided.py``, one reader after the other."""
    command = [sys.executable, str(ROOT / "tools" / "fuzz_guided.py"), str(inputs), str(seconds), str(seed), *names]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {name: Tally(**found) for name, found in json.loads(ended.stdout).items()}


def table(tallies: dict[str, Tally]) -> str:
    """Return the figures and the problems."""
    widths = (14, *(12 for _ in HEADINGS[1:]))
    rows: list[tuple[str, ...]] = [HEADINGS]
    for name, tally in tallies.items():
        counts = (tally.inputs, tally.refused, tally.let_in, tally.led_on, tally.broken)
        figures = (1000 * tally.slowest, tally.grown / 2**20, tally.seconds)
        rows.append((name, *(f"{count:,}" for count in counts), *(f"{figure:.0f}" for figure in figures)))
    lines = [
        "".join(f"{cell:{'>' if i else '<'}{width}}" for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    reasons = [f"{name}: {reason}" for name, tally in tallies.items() for reason in tally.reasons]
    return "\n".join([*lines, *reasons])


def main() -> int:
    """Fuzz as the command line says and print the totals; exit code 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--inputs", type=int, default=None, help="for each reader (default: 10,000, or as many as --minutes allows)"
    )
    parser.add_argument("--minutes", type=float, default=None, help="end after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", nargs="+", choices=list(DECODERS), default=list(DECODERS), metavar="READER", help=", ".join(DECODERS)
    )
    parser.add_argument("--guided", action="store_true", help="by what inputs lead to, with atheris")
    parser.add_argument(
        "--again", nargs="+", type=Path, metavar="FILE", help="give inputs that were kept to their readers once more"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    if arguments.again:
        tallies: dict[str, Tally] = {}
        for path in arguments.again:
            name = path.name.partition("-")[0]
            judge(name, path.read_bytes(), tallies.setdefault(name, Tally()))
    else:
        inputs = arguments.inputs or (FOREVER if arguments.minutes else 10_000)
        seconds = 60 * (arguments.minutes or FOREVER)
        tallies = (guided if arguments.guided else fuzz)(
            arguments.only, inputs=inputs, seconds=seconds, seed=arguments.seed
        )
    if arguments.json:
        sys.stdout.write(json.dumps({name: asdict(tally) for name, tally in tallies.items()}, indent=1) + "\n")
    else:
        sys.stdout.write(f"{table(tallies)}\n{sum(tally.inputs for tally in tallies.values()):,} inputs\n")
    return 1 if any(tally.broken for tally in tallies.values()) else 0


signal.signal(signal.SIGVTALRM, give_up)

if __name__ == "__main__":
    sys.exit(main())
