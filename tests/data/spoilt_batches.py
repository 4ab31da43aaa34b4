"""Batches of games, damaged as by a broken disk or line and forged as by a liar, and the use of an accepted one.

A forged one has a valid checksum, so that the checks behind it are tested too: its header, zstd frame, columns or games
are changed. ``tools/fuzz.py`` sends them to the readers of workers' games.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import zstandard

from keima.config.sections.training import TrainingSettings
from keima.data.records import DIGEST_BYTES, decode_batch, encode_batch
from keima.data.verify import verify_batch
from keima.games import load_game
from keima.replay.window import ReplayWindow
from tests.data.forging import Wire, column_bytes, dump, pack, put_together, seal, take_apart, unpack
from tests.synthetic import synthetic_batch

Random = np.random.Generator
GAMES = {game.name: game for game in (load_game("tic_tac_toe"), load_game("connect_four"), load_game("go", size=5))}
ODD_NUMBERS = (
    0,
    -1,
    1,
    2,
    255,
    256,
    65535,
    65536,
    10**6,
    8 * 10**6,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**63,
    2**64,
    10**30,
)
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


def flip_bits(random: Random, data: bytes) -> bytes:
    """Flip some bits."""
    changed = bytearray(data)
    for place in random.integers(0, 8 * len(changed), random.integers(1, 9)).tolist():
        changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def truncate(random: Random, data: bytes) -> bytes:
    """Remove the end, or the beginning."""
    place = int(random.integers(0, len(data)))
    return data[:place] if random.random() < 0.8 else data[place:]


def insert(random: Random, data: bytes) -> bytes:
    """Insert bytes."""
    place = int(random.integers(0, len(data) + 1))
    return data[:place] + random.bytes(int(random.integers(1, 100))) + data[place:]


def cut_out(random: Random, data: bytes) -> bytes:
    """Remove bytes in between."""
    place = int(random.integers(0, len(data)))
    return data[:place] + data[place + int(random.integers(1, 100)) :]


ACCIDENTS = (flip_bits, truncate, insert, cut_out)


def damage(random: Random, data: bytes) -> bytes:
    """Apply one of the accidents above."""
    return ACCIDENTS[random.integers(len(ACCIDENTS))](random, data) if data else data


def damage_under_checksum(random: Random, data: bytes) -> bytes:
    """Apply an accident that happened before the checksum was computed."""
    return seal(damage(random, data[:-DIGEST_BYTES]))


def damage_frame(random: Random, data: bytes) -> bytes:
    """Apply an accident to the zstd frame alone."""
    header, frame = take_apart(data)
    return put_together(header, damage(random, frame))


def damage_columns(random: Random, data: bytes) -> bytes:
    """Apply an accident to the columns before they were packed."""
    header, frame = take_apart(data)
    return put_together(header, zstandard.compress(flip_bits(random, zstandard.decompress(frame)), 1))


def forge_header(random: Random, data: bytes) -> bytes:
    """Put odd values into the header, and remove or add keys."""
    header, frame = take_apart(data)
    for _ in range(random.integers(1, 4)):
        key = str(random.choice([*header, "more"]))
        if random.random() < 0.2:
            header.pop(key, None)
        else:
            header[key] = ODD_VALUES[random.integers(len(ODD_VALUES))]
    return put_together(header, frame)


def forge_json(random: Random, data: bytes) -> bytes:
    """Make a header that is hardly one."""
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
    """Change counts in the header by a little or by a lot."""
    header, frame = take_apart(data)
    for key in random.choice(["games", "players", "positions", "entries", "actions"], random.integers(1, 4)):
        near = header[key] + int(random.integers(-3, 4))
        header[key] = near if random.random() < 0.5 else int(random.choice(np.array(ODD_NUMBERS[:12])))
    return put_together(header, frame)


@functools.lru_cache(maxsize=1000)
def packed(size: int, byte: int, says_its_size: bool) -> bytes:
    """Return a zstd frame of this many equal bytes."""
    stream = zstandard.ZstdCompressor(level=1).compressobj(size if says_its_size else -1)
    parts = [stream.compress(bytes([byte]) * min(2**20, size - start)) for start in range(0, size, 2**20)]
    return b"".join([*parts, stream.flush()])


def forge_bomb(random: Random, data: bytes) -> bytes:
    """Make a frame that unpacks to a huge size, with matching or other counts in the header."""
    header, frame = take_apart(data)
    size = int(random.choice([10**5, 10**6, 10**7, 4 * 10**7]))
    if random.random() < 0.3:
        header |= {"entries": size // 6, "games": 1, "positions": 1000, "actions": 1}
        size = column_bytes(header)
    bomb = packed(size, int(random.integers(0, 2)), bool(random.random() < 0.7))
    keep = zstandard.frame_header_size(frame)
    return put_together(
        header, frame[:keep] + bomb[zstandard.frame_header_size(bomb) :] if random.random() < 0.3 else bomb
    )


def forge_columns(random: Random, data: bytes) -> bytes:
    """Put odd numbers into some columns."""
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
    """Change the magic, the format or the header's length."""
    changed = bytearray(data[:-DIGEST_BYTES])
    changed[random.integers(0, 14)] = int(random.integers(0, 256))
    return seal(bytes(changed))


def splice(random: Random, data: bytes, other: bytes) -> bytes:
    """Combine the header of one batch with the columns of another."""
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


@functools.cache
def real_batches() -> list[bytes]:
    """Return batches of several games and shapes."""
    shapes: list[dict[str, Any]] = [
        {"games": 1},
        {"games": 5, "full_share": 0.3},
        {"games": 30, "resign_share": 0.5},
        {"games": 3, "full_share": 0.0},
    ]
    return [
        encode_batch(synthetic_batch(game, seed=seed, **shape))
        for game in GAMES.values()
        for seed, shape in enumerate(shapes)
    ]


def spoil_batch(random: Random, data: bytes) -> bytes:
    """Apply one of the changes above, or use the columns of another batch."""
    if random.random() < 0.03:
        others = real_batches()
        return splice(random, data, others[random.integers(len(others))])
    return CHANGES[random.integers(len(CHANGES))](random, data)


def read_batch(data: bytes) -> object:
    """Read through the usual door, then add to a replay window and draw samples: accepted input must work."""
    batch = decode_batch(data)
    game = GAMES.get(batch.game, GAMES["go"])
    verify_batch(batch, game)
    assert encode_batch(decode_batch(encode_batch(batch))) == encode_batch(batch)
    window = ReplayWindow(game, capacity_positions=1000, training=TrainingSettings(td_lambda=0.5))
    if window.add(batch):
        sample = window.sample(8, 1)
        assert np.allclose(sample.policies.sum(axis=1), sample.policy_mask, atol=1e-5)
        assert (sample.policies[~sample.legal] == 0).all() and (np.abs(sample.values) <= 1).all()
    return batch
