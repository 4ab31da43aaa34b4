"""Throws damaged and forged files and messages at everything that reads what another machine, a disk or a user may have spoilt.

    python tests/fuzz.py --inputs 100000 --seed 1
    python tests/fuzz.py --minutes 5 --only model checkpoint

Every input is a real file, changed: bits and lengths as a broken disk or line would change them, or what it says, with right checksums,
as a forger would. Nothing but the error that its reader documents may come out, no input may take a second, and none may make memory
grow beyond what a real one needs. Batches of games have ``tests/training/fuzz_records.py`` for themselves.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from tests.fuzzed import DECODERS, Decoder
from tests.training.fuzz_records import SECONDS_BOUND, peak_memory

MEMORY_BOUND = 256 * 2**20
TOGETHER = 200  # inputs of one decoder, one after the other
FOREVER = 10**12


@dataclass(kw_only=True)
class Tally:
    """What became of a decoder's inputs."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)  # refused, let in
    slowest: float = 0.0  # seconds of processor time
    grown: int = 0  # bytes of memory, at most
    crashes: list[str] = field(default_factory=list)


def judge(decoder: Decoder, random: np.random.Generator, tally: Tally) -> None:
    """Give one input to a decoder."""
    data = decoder.change(random, decoder.bases[random.integers(len(decoder.bases))])
    before, start = peak_memory(), time.thread_time()
    try:
        decoder.read(data)
        tally.outcomes["let in"] += 1
    except decoder.errors:
        tally.outcomes["refused"] += 1
    except Exception as error:
        tally.crashes.append(f"{type(error).__name__}: {error} for {data[:200]!r}")
    tally.slowest = max(tally.slowest, time.thread_time() - start)
    tally.grown = max(tally.grown, peak_memory() - before)
    tally.inputs += 1


def fuzz(names: Sequence[str], *, inputs: int, seconds: float, seed: int) -> dict[str, Tally]:
    """Judge inputs of each of these decoders in turn, so many each or for so long in all."""
    random, tallies = np.random.default_rng(seed), {name: Tally() for name in names}
    for name in names:
        DECODERS[name].read(DECODERS[name].bases[0])  # compiles and imports what it needs
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(tally.inputs < inputs for tally in tallies.values()):
        for name, tally in tallies.items():
            for _ in range(min(TOGETHER, inputs - tally.inputs)):
                judge(DECODERS[name], random, tally)
    return tallies


def main() -> int:
    """Fuzz as the command line says and print the totals; exit code 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=None, help="for each decoder (default: 10,000, or as many as --minutes allows)")
    parser.add_argument("--minutes", type=float, default=None, help="end after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", nargs="+", choices=sorted(DECODERS), default=sorted(DECODERS), metavar="DECODER", help=", ".join(DECODERS)
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    inputs = arguments.inputs or (FOREVER if arguments.minutes else 10_000)
    began = time.monotonic()
    tallies = fuzz(arguments.only, inputs=inputs, seconds=60 * (arguments.minutes or FOREVER), seed=arguments.seed)
    bad = {name: tally for name, tally in tallies.items() if tally.crashes or tally.slowest >= SECONDS_BOUND or tally.grown >= MEMORY_BOUND}
    say = sys.stdout.write
    if arguments.json:
        say(json.dumps({name: vars(tally) | {"crashes": tally.crashes[:5]} for name, tally in tallies.items()}, indent=1) + "\n")
    else:
        say(f"{'decoder':14}{'inputs':>12}{'refused':>12}{'let in':>10}{'crashes':>9}{'slowest ms':>12}{'grown MiB':>11}\n")
        for name, tally in tallies.items():
            counts = f"{tally.inputs:12,}{tally.outcomes['refused']:12,}{tally.outcomes['let in']:10,}{len(tally.crashes):9,}"
            say(f"{name:14}{counts}{1000 * tally.slowest:12.0f}{tally.grown / 2**20:11.0f}\n")
        total = sum(tally.inputs for tally in tallies.values())
        say(f"{total:,} inputs in {time.monotonic() - began:.0f} s\n")
        for name, tally in bad.items():
            say("".join(f"{name}: {crash}\n" for crash in Counter(tally.crashes)))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
