"""Lets atheris (libFuzzer) choose the inputs of readers, and prints the results. ``tools/fuzz.py --guided`` starts it.

    python tools/fuzz_guided.py INPUTS SECONDS SEED READER...

Some of the inputs that have reached a new line or comparison are changed further: by libFuzzer, which knows bytes and
lengths, or by the mutations of the reader's format, which get past checksums. libFuzzer sees our own code and the
library that reads SGF; compiled code is not instrumented. libFuzzer ends its process, and crashes of compiled code do
too, so each reader has its own process, forked after everything is loaded.
"""

import functools
import gc
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import FunctionType, ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import atheris
import numpy as np

from tests.fuzzed import DECODERS, PLACE
from tools.fuzz import KEPT, Tally, judge, warm

WATCHED = ("keima", "sgfmill")
OURS = 0.3  # share of the mutations that follow the format
LEAST_LENGTH = 1024  # bytes up to which inputs may grow, or to twice the largest real one
RESIDENT_MIB = 4096  # of the whole process, most of it torch
TALLY, LOG = PLACE / "tally", PLACE / "log"
STUCK = 300  # seconds of wall time after which libFuzzer ends the process; it may get little of the processor


def functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """Return the functions and methods of a module that run as Python."""
    waiting = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
    while waiting:
        each = waiting.pop()
        if isinstance(each, type):
            waiting += [value for value in vars(each).values() if not isinstance(value, type)]
        elif isinstance(each, staticmethod | classmethod):
            waiting.append(each.__func__)
        elif isinstance(each, property):
            waiting.append(each.fget)
        elif isinstance(each, functools.cached_property):
            waiting.append(each.func)
        elif isinstance(each, functools._lru_cache_wrapper):
            waiting.append(each.__wrapped__)
        elif isinstance(each, FunctionType):
            yield inspect.unwrap(each)


def watch() -> None:
    """Let libFuzzer see what the loaded modules do."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in WATCHED]
    for function in [function for module in modules for function in functions_of(module)]:
        atheris.instrument_func(function)


def changed(name: str, data: bytes, most: int, seed: int) -> bytes:
    """Return another input, of at most this many bytes, made of one that libFuzzer has chosen."""
    random, decoder = np.random.default_rng(seed), DECODERS[name]
    if random.random() >= OURS:
        return atheris.Mutate(data, most)
    try:
        return decoder.change(random, data)[:most]
    except Exception:  # it is too broken for any sensible mutation
        return decoder.change(random, decoder.bases[random.integers(len(decoder.bases))])[:most]


def fuzz(name: str, *, inputs: int, seconds: float, seed: int) -> None:
    """Judge this many inputs, or as many as possible in this time, leave the tally in a file and end the process."""
    decoder, tally, corpus = DECODERS[name], Tally(), Path(tempfile.mkdtemp(dir=PLACE))
    for number, base in enumerate(decoder.bases):
        (corpus / str(number)).write_bytes(base)
    begun = time.monotonic()

    def one(data: bytes) -> None:
        judge(name, data, tally)
        tally.seconds = time.monotonic() - begun
        if tally.inputs >= inputs or tally.seconds >= seconds:
            tally.led_on = sum(1 for _ in corpus.iterdir()) - len(decoder.bases)
            TALLY.write_text(json.dumps(asdict(tally)))
            os._exit(0)

    KEPT.mkdir(parents=True, exist_ok=True)
    longest = max(LEAST_LENGTH, 2 * max(map(len, decoder.bases)))
    limits = [f"-max_len={longest}", "-len_control=0", f"-timeout={STUCK}", f"-rss_limit_mb={RESIDENT_MIB}"]
    atheris.Setup(
        [sys.argv[0], f"-seed={seed}", f"-artifact_prefix={KEPT}/{name}-", *limits, str(corpus)],
        one,
        custom_mutator=lambda data, most, number: changed(name, data, most, number),
    )
    atheris.Fuzz()


def fuzz_apart(name: str, *, inputs: int, seconds: float, seed: int) -> Tally:
    """Do the same in a separate process."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        fuzz(name, inputs=inputs, seconds=seconds, seed=seed)
    _, status = os.waitpid(child, 0)
    if status:
        return Tally(
            broken=1,
            reasons=[
                f"its process ended with {os.waitstatus_to_exitcode(status)}: {LOG.read_text(errors='replace')[-2000:]}"
            ],
        )
    return Tally(**json.loads(TALLY.read_text()))


def main() -> None:
    """Fuzz as the command line says."""
    inputs, seconds, seed, names = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    for name in names:
        warm(name)
    watch()
    gc.freeze()
    tallies = {name: fuzz_apart(name, inputs=inputs, seconds=seconds / len(names), seed=seed) for name in names}
    sys.stdout.write(json.dumps({name: asdict(tally) for name, tally in tallies.items()}))


if __name__ == "__main__":
    main()
