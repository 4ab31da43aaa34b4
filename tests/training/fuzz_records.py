"""Throws damaged and forged game batches at the doors through which workers' games come in.

    python tests/training/fuzz_records.py --inputs 100000 --seed 1

Every input is a real batch, changed: bits and lengths as a broken disk or line would change them, or the header, the zstd frame, the
columns or the games as a forger would, with a valid checksum so that what lies behind it is tested too. It goes through ``decode``
and ``verify``, and what they let in goes on into a replay window and out as samples. Nothing but ``CorruptBatch`` may come out of
the doors, no input may take a second, and memory must stay within what ``BatchLimits`` promises.
"""

# ruff: noqa: T201 - this is a program

import argparse
import json
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from games import load_game
from games.game import Game
from tests.training.forging import Wire, column_bytes, dump, pack, put_together, seal, take_apart, unpack
from tests.training.synthetic import synthetic_batch
from training.records import DIGEST_BYTES, CorruptBatch, decode, encode
from training.replay import ReplayWindow
from training.verify import verify

Random = np.random.Generator
MEMORY_BOUND = 256 * 2**20  # bytes; what training.records.BatchLimits promises
SECONDS_BOUND = 1.0
ODD_NUMBERS = (0, -1, 1, 2, 255, 256, 65535, 65536, 10**6, 8 * 10**6, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30)
ODD_VALUES: tuple[Any, ...] = (
    *ODD_NUMBERS,
    None,
    True,
    0.5,
    1e300,
    "",
    "a",
    "../../etc",
    "x" * 5000,
    [],
    [1] * 300,
    {},
    {"a": {}},
    "\ud800",
)


@dataclass(kw_only=True)
class Tally:
    """What became of the inputs."""

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0  # seconds of processor time that one input took


def flip_bits(random: Random, data: bytes) -> bytes:
    """Some bits the other way round."""
    changed = bytearray(data)
    for place in random.integers(0, len(changed), random.integers(1, 9)):
        changed[place] ^= 1 << random.integers(8)
    return bytes(changed)


def truncate(random: Random, data: bytes) -> bytes:
    """The end, or the beginning, missing."""
    place = int(random.integers(0, len(data)))
    return data[:place] if random.random() < 0.8 else data[place:]


def insert(random: Random, data: bytes) -> bytes:
    """Bytes in between."""
    place = int(random.integers(0, len(data) + 1))
    return data[:place] + random.bytes(int(random.integers(1, 100))) + data[place:]


def cut_out(random: Random, data: bytes) -> bytes:
    """Bytes missing in between."""
    place = int(random.integers(0, len(data)))
    return data[:place] + data[place + int(random.integers(1, 100)) :]


def damage(random: Random, data: bytes) -> bytes:
    """One of the accidents above."""
    accident: Callable[[Random, bytes], bytes] = random.choice([flip_bits, truncate, insert, cut_out])  # type: ignore[arg-type]
    return accident(random, data) if data else data


def damage_under_checksum(random: Random, data: bytes) -> bytes:
    """An accident before the checksum was taken."""
    return seal(damage(random, data[:-DIGEST_BYTES]))


def damage_frame(random: Random, data: bytes) -> bytes:
    """An accident to the zstd frame alone."""
    header, frame = take_apart(data)
    return put_together(header, damage(random, frame))


def damage_columns(random: Random, data: bytes) -> bytes:
    """An accident to the columns before they were packed."""
    header, frame = take_apart(data)
    return put_together(header, zstandard.compress(flip_bits(random, zstandard.decompress(frame)), 1))


def forge_header(random: Random, data: bytes) -> bytes:
    """Odd values in the header, keys missing or added."""
    header, frame = take_apart(data)
    for _ in range(random.integers(1, 4)):
        key = str(random.choice([*header, "more"]))
        if random.random() < 0.2:
            header.pop(key, None)
        else:
            header[key] = ODD_VALUES[random.integers(len(ODD_VALUES))]
    return put_together(header, frame)


def forge_json(random: Random, data: bytes) -> bytes:
    """A header that is hardly one."""
    header, frame = take_apart(data)
    raw = dump(header)
    choices = [
        damage(random, raw),
        json.dumps(header).encode(),
        b"[" * int(random.integers(1, 16_000)),
        b'{"games":' * int(random.integers(1, 1500)),
        raw.replace(b'"games":', b'"games":9', 1),
        raw.replace(b"1200", random.choice([b"NaN", b"-Infinity", b"1e999", b"9" * 6000]), 1),
        random.bytes(int(random.integers(0, 300))),
    ]
    return put_together(choices[random.integers(len(choices))], frame)


def forge_counts(random: Random, data: bytes) -> bytes:
    """Counts in the header that are off by a little or by a lot."""
    header, frame = take_apart(data)
    for key in random.choice(["games", "players", "positions", "entries", "actions"], random.integers(1, 4)):
        near = header[key] + int(random.integers(-3, 4))
        header[key] = near if random.random() < 0.5 else int(random.choice(np.array(ODD_NUMBERS[:12])))
    return put_together(header, frame)


def forge_bomb(random: Random, data: bytes) -> bytes:
    """A frame that unpacks to very much, with counts in the header that fit it or do not."""
    header, frame = take_apart(data)
    size = int(random.choice([10**5, 10**6, 10**7, 4 * 10**7]))
    if random.random() < 0.3:
        header |= {"entries": size // 6, "games": 1, "positions": 1000, "actions": 1}
        size = column_bytes(header)
    raw = bytes([int(random.integers(0, 2))]) * size
    if random.random() < 0.3:
        stream = zstandard.ZstdCompressor(level=1).compressobj()
        return put_together(header, stream.compress(raw) + stream.flush())
    bomb = zstandard.compress(raw, 1)
    keep = zstandard.frame_header_size(frame)
    return put_together(header, frame[:keep] + bomb[zstandard.frame_header_size(bomb) :] if random.random() < 0.3 else bomb)


def forge_columns(random: Random, data: bytes) -> bytes:
    """Odd numbers in some columns."""
    header, frame = take_apart(data)
    columns = unpack(header, frame)
    for name in random.choice(list(columns), random.integers(1, 3)):
        forge_column(random, columns, str(name))
    return put_together(header, pack(columns))


def forge_column(random: Random, columns: Wire, name: str) -> None:
    """Change one column in place."""
    column = columns[name]
    if column.size == 0:
        return
    places = random.integers(0, column.size, random.integers(1, 6))
    way = random.integers(5)
    if way == 0:
        random.shuffle(column)
    elif way == 1:
        column[:] = np.roll(column, 1)
    elif way == 2 and column.dtype == np.float32:
        column[places] = random.choice(np.array([np.nan, np.inf, -np.inf, 1e38, -1.0, 0.5, 0.0], np.float32))
    elif way == 3:
        column[places] = column[random.integers(0, column.size, places.size)]
    else:
        column[places] = np.frombuffer(random.bytes(places.size * column.itemsize), column.dtype)


def forge_prefix(random: Random, data: bytes) -> bytes:
    """Another magic, format or header length."""
    changed = bytearray(data[:-DIGEST_BYTES])
    changed[random.integers(0, 14)] = int(random.integers(0, 256))
    return seal(bytes(changed))


def splice(random: Random, data: bytes, other: bytes) -> bytes:
    """The header of one batch and the columns of another."""
    return put_together(take_apart(data)[0], take_apart(other)[1])


CHANGES: tuple[Callable[[Random, bytes], bytes], ...] = (
    damage,
    damage_under_checksum,
    damage_frame,
    damage_columns,
    damage_columns,
    forge_header,
    forge_json,
    forge_counts,
    forge_bomb,
    forge_columns,
    forge_columns,
    forge_columns,
    forge_prefix,
)


def real_batches() -> list[tuple[Game, bytes]]:
    """Batches of several shapes, each with its game."""
    shapes: list[dict[str, Any]] = [
        {"games": 1},
        {"games": 5, "full_share": 0.3},
        {"games": 30, "resign_share": 0.5},
        {"games": 3, "full_share": 0.0},
    ]
    games = [load_game("tic_tac_toe"), load_game("connect_four"), load_game("go", size=5)]
    return [(game, encode(synthetic_batch(game, seed=seed, **shape))) for game in games for seed, shape in enumerate(shapes)]


def judge(game: Game, data: bytes, tally: Tally) -> None:
    """Send one input through the doors."""
    start = time.thread_time()
    stage = "refused by decode"
    try:
        batch = decode(data)
        stage = "refused by verify"
        verify(batch, game)
        stage = "let in"
    except CorruptBatch as error:
        tally.reasons[re.sub(r"[-\d,]+", "#", str(error))[:50]] += 1
    tally.slowest = max(tally.slowest, time.thread_time() - start)
    tally.outcomes[stage] += 1
    if stage == "let in":
        use(game, batch)


def use(game: Game, batch: Any) -> None:
    """What was let in must work."""
    assert encode(decode(encode(batch))) == encode(batch)
    window = ReplayWindow(game, capacity_positions=1000, train_on_cheap=True, td_lambda=0.5)
    if window.add(batch) == 0:
        return
    sample = window.sample(8, 1)
    sums = sample.policies.sum(axis=1)
    assert np.allclose(sums, sample.policy_mask, atol=1e-5)
    assert (sample.policies[~sample.legal] == 0).all() and (np.abs(sample.values) <= 1).all()


def fuzz(*, inputs: int, seed: int) -> Tally:
    """Judge ``inputs`` changed batches."""
    random, bases, tally = np.random.default_rng(seed), real_batches(), Tally()
    for game, data in bases:
        judge(game, data, Tally())
    for number in range(inputs):
        game, data = bases[random.integers(len(bases))]
        if random.random() < 0.03:
            changed = splice(random, data, bases[random.integers(len(bases))][1])
        else:
            changed = CHANGES[random.integers(len(CHANGES))](random, data)
        try:
            judge(game, changed, tally)
        except Exception as error:
            raise AssertionError(f"input {number} of seed {seed}, {len(changed):,} bytes: {error!r}") from error
    return tally


def peak_memory() -> int:
    """The most memory that this process has ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Fuzz as the command line says, print the totals, and fail where a promise is broken."""
    parser = argparse.ArgumentParser(description="Throw damaged and forged game batches at decode and verify.")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    fuzz(inputs=200, seed=arguments.seed + 1)  # compiles everything, so that neither compiler time nor its memory is counted
    before, start = peak_memory(), time.perf_counter()
    tally = fuzz(inputs=arguments.inputs, seed=arguments.seed)
    grown = peak_memory() - before
    print(f"{arguments.inputs:,} inputs in {time.perf_counter() - start:.0f} s")
    for outcome, count in tally.outcomes.most_common():
        print(f"{count:10,} {outcome}")
    print("refused because:")
    for reason, count in tally.reasons.most_common():
        print(f"{count:10,} {reason}")
    print(f"slowest input {tally.slowest * 1000:.0f} ms of processor time, peak memory grown by {grown / 2**20:.0f} MiB")
    if tally.slowest >= SECONDS_BOUND or grown >= MEMORY_BOUND:
        sys.exit("a bound is broken")


if __name__ == "__main__":
    main()
