"""Game batches survive encoding, and nothing but a game batch is decoded."""

import tracemalloc
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import zstandard

from keima.data.records import (
    FORMAT,
    LAYOUT,
    MAGIC,
    PREFIX,
    BatchLimits,
    CorruptBatch,
    GameBatch,
    decode_batch,
    encode_batch,
)
from keima.games import load_game
from keima.games.game import MOST_PLAYERS
from tests.data.forging import Wire, dump, pack, put_together, seal, take_apart, unpack
from tests.synthetic import synthetic_batch
from tools.fuzz import fuzz

ROUNDED = {"root_values", "surprise"}


@pytest.fixture(scope="module")
def batch() -> GameBatch:
    return synthetic_batch(load_game("connect_four"), games=30, full_share=0.5, resign_share=0.5)


@pytest.fixture(scope="module")
def data(batch: GameBatch) -> bytes:
    return encode_batch(batch)


def test_all_but_the_rounded_columns_survive_exactly(batch: GameBatch, data: bytes) -> None:
    again = decode_batch(data)
    for field in fields(GameBatch):
        before, after = getattr(batch, field.name), getattr(again, field.name)
        if field.name in LAYOUT:
            assert after.dtype == before.dtype
            assert field.name in ROUNDED or np.array_equal(after, before), field.name
        else:
            assert after == before
    assert 0 < np.abs(again.root_values - batch.root_values).max() <= 0.5 / 127
    surprised = batch.surprise > 2.0**-12
    assert np.abs(np.log2(again.surprise[surprised] / batch.surprise[surprised])).max() <= 0.126
    assert again.surprise[~surprised].max() <= 2.0**-12


def test_a_decoded_batch_encodes_to_the_same_bytes(data: bytes) -> None:
    assert encode_batch(decode_batch(data)) == data


def test_equal_batches_give_equal_bytes(batch: GameBatch, data: bytes) -> None:
    copies = {name: getattr(batch, name).copy() for name in LAYOUT}
    assert encode_batch(replace(batch, options=dict(batch.options), **copies)) == data


def test_the_largest_and_the_smallest_numbers_survive() -> None:
    batch = GameBatch(
        batch_id="b",
        run_id="r",
        worker="w",
        game="g",
        options={"komi": 6.5, "size": 9, "name": "é", "swap": True, "none": None},
        rules_version=0,
        first_game=2**53 - 1,
        lengths=np.array([1, 2], np.int32),
        returns=np.array([[1.0, -1.0], [0.1, -0.1]], np.float32),
        first_model=np.array([0, 0], np.int32),
        last_model=np.array([0, 2**31 - 1], np.int32),
        seeds=np.array([0, 2**64 - 1], np.uint64),
        resigned=np.array([0, 2], np.uint8),
        actions=np.array([0, 65535, 7], np.int32),
        root_values=np.array([-1, 1, 0], np.float32),
        flags=np.array([1, 2, 3], np.uint8),
        surprise=np.array([0, 0, 64], np.float32),
        policy_sizes=np.array([1, 0, 2], np.int32),
        policy_actions=np.array([65535, 0, 65535], np.int32),
        policy_weights=np.array([65535, 1, 2], np.uint16),
    )
    again = decode_batch(encode_batch(batch))
    assert again.options == batch.options
    for name in LAYOUT:
        assert np.array_equal(getattr(again, name), getattr(batch, name)), name


def test_a_batch_without_policies_survives(batch: GameBatch) -> None:
    none: dict[str, Any] = {"surprise": np.zeros_like(batch.surprise), "flags": np.zeros_like(batch.flags)}
    none |= {"policy_sizes": np.zeros_like(batch.policy_sizes)}
    none |= {"policy_actions": batch.policy_actions[:0], "policy_weights": batch.policy_weights[:0]}
    again = decode_batch(encode_batch(replace(batch, **none)))
    assert again.policy_actions.size == 0
    assert np.array_equal(again.actions, batch.actions)


def test_a_game_record_is_the_game_s_part_of_every_column(batch: GameBatch) -> None:
    records = [batch.game_record(index) for index in range(batch.num_games)]
    assert [record.actions.size for record in records] == batch.lengths.tolist()
    for name in ("actions", "root_values", "flags", "surprise", "policy_sizes", "policy_actions", "policy_weights"):
        assert np.array_equal(np.concatenate([getattr(record, name) for record in records]), getattr(batch, name))
    for record in records:
        assert record.policy_sizes.sum() == record.policy_actions.size == record.policy_weights.size
    assert [record.seed for record in records] == batch.seeds.tolist()
    assert np.array_equal([record.returns for record in records], batch.returns)


def test_a_batch_cut_short_anywhere_is_refused(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(CorruptBatch):
            decode_batch(data[:size])


def test_any_changed_bit_is_noticed(data: bytes) -> None:
    random = np.random.default_rng(1)
    for place in [*range(64), *random.integers(0, len(data), 500)]:
        changed = bytearray(data)
        changed[place] ^= 1 << random.integers(8)
        with pytest.raises(CorruptBatch):
            decode_batch(bytes(changed))


def test_appended_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptBatch, match="checksum"):
        decode_batch(data + b"\0")
    header, frame = take_apart(data)
    with pytest.raises(CorruptBatch, match="cannot be unpacked"):
        decode_batch(put_together(header, frame + b"\0"))
    with pytest.raises(CorruptBatch, match="cannot be unpacked"):
        decode_batch(put_together(header, frame + frame))


@pytest.mark.parametrize(("number", "who"), [(FORMAT + 6, "this program"), (FORMAT - 1, "the program that wrote it")])
def test_another_format_is_refused_with_who_must_update(data: bytes, number: int, who: str) -> None:
    with pytest.raises(
        CorruptBatch, match=rf"unknown format {number} \(this program reads format {FORMAT}\): update {who}$"
    ):
        decode_batch(MAGIC + PREFIX.pack(MAGIC, number, 0)[8:] + data[PREFIX.size :])


def test_other_files_are_refused() -> None:
    for other in (b"", b"KEIMAGB\n", b"\0" * 1000, b"PK\x03\x04" + b"\0" * 1000):
        with pytest.raises(CorruptBatch, match=r"too few|it is not a game batch"):
            decode_batch(other)


def test_a_file_over_the_limit_is_refused_unread(data: bytes) -> None:
    with pytest.raises(CorruptBatch, match="exceed the 100 allowed"):
        decode_batch(data, limits=BatchLimits(max_bytes=100))


@pytest.mark.parametrize("name", ["games", "positions", "entries", "players", "actions"])
def test_counts_over_the_limits_are_refused(data: bytes, name: str) -> None:
    count = take_apart(data)[0][name]
    decode_batch(data, limits=BatchLimits(**{f"max_{name}": count}))
    with pytest.raises(CorruptBatch, match=f"{name} is {count}"):
        decode_batch(data, limits=BatchLimits(**{f"max_{name}": count - 1}))


@pytest.mark.parametrize("name", ["games", "positions", "entries", "players", "actions"])
@pytest.mark.parametrize("value", [-1, 2**31, 2**64, 10**400, 1.0, 0.5, True, None, "1", [1]])
def test_absurd_counts_are_refused(data: bytes, name: str, value: Any) -> None:
    header, frame = take_apart(data)
    with pytest.raises(CorruptBatch, match=f"{name} is"):
        decode_batch(put_together(header | {name: value}, frame))


@pytest.mark.parametrize("name", ["games", "positions", "entries", "players", "actions"])
def test_counts_that_do_not_match_the_columns_are_refused(data: bytes, name: str) -> None:
    header, frame = take_apart(data)
    with pytest.raises(CorruptBatch):
        decode_batch(put_together(header | {name: header[name] - 1}, frame))


@pytest.mark.parametrize("name", ["batch_id", "run_id", "worker", "game"])
@pytest.mark.parametrize("value", ["", "a/b", "../a", ".", "..", "-rf", "a\n", "a\0", "é", "x" * 101, 7, None, ["a"]])
def test_a_name_that_is_dangerous_as_a_file_name_is_refused(data: bytes, name: str, value: Any) -> None:
    header, frame = take_apart(data)
    with pytest.raises(CorruptBatch, match=f"{name} is not a name"):
        decode_batch(put_together(header | {name: value}, frame))


@pytest.mark.parametrize("name", ["rules_version", "first_game"])
@pytest.mark.parametrize("value", [-1, 2**53, 1.0, True, None, "1"])
def test_absurd_numbers_are_refused(data: bytes, name: str, value: Any) -> None:
    header, frame = take_apart(data)
    with pytest.raises(CorruptBatch, match=f"{name} is not (an|a non-negative) integer"):
        decode_batch(put_together(header | {name: value}, frame))


@pytest.mark.parametrize("options", [None, [], "size", {"a": [1]}, {"a": {"b": 1}}])
def test_options_must_be_a_flat_table(data: bytes, options: Any) -> None:
    header, frame = take_apart(data)
    with pytest.raises(CorruptBatch, match="options"):
        decode_batch(put_together(header | {"options": options}, frame))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"7",
        b"\xff\xfe",
        b'{"games"',
        b"[" * 10_000,
        b"9" * 10_000,
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'"\\ud800"',
    ],
)
def test_an_invalid_header_is_refused(data: bytes, raw: bytes) -> None:
    with pytest.raises(CorruptBatch, match="the header"):
        decode_batch(put_together(raw, take_apart(data)[1]))


def test_a_header_not_in_canonical_form_is_refused(data: bytes) -> None:
    header, frame = take_apart(data)
    for raw in (
        dump(header) + b" ",
        dump(header)[:-1] + b',"worker":"worker1"}',
        b'{"worker":"worker2",' + dump(header)[1:],
    ):
        with pytest.raises(CorruptBatch, match="not in canonical form"):
            decode_batch(put_together(raw, frame))
    with pytest.raises(CorruptBatch, match="the wrong keys"):
        decode_batch(put_together(header | {"more": 1}, frame))
    with pytest.raises(CorruptBatch, match="cannot be read"):
        decode_batch(put_together(header | {"options": {"komi": float("nan")}}, frame))


def test_a_header_length_beyond_the_file_is_refused(data: bytes) -> None:
    header, frame = take_apart(data)
    for size in (len(data), 2**32 - 1):
        body = PREFIX.pack(MAGIC, FORMAT, size) + dump(header) + frame
        with pytest.raises(CorruptBatch, match="does not fit"):
            decode_batch(seal(body))


def peak_bytes(data: bytes) -> int:
    """Return the most memory that refusing ``data`` takes."""
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decode_batch(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_small_file_cannot_make_the_reader_allocate_much(data: bytes) -> None:
    """Neither by counts in the header, nor by the size that the zstd frame declares, nor by its actual size."""
    header, frame = take_apart(data)
    most = {"games": 10_000, "positions": 1_000_000, "entries": 8_000_000, "players": MOST_PLAYERS, "actions": 65536}
    bomb = zstandard.compress(bytes(100_000_000))
    stream = zstandard.ZstdCompressor().compressobj()
    undeclared = stream.compress(bytes(100_000_000)) + stream.flush()
    for forged in (header | most, header):
        for content in (frame, bomb, undeclared, b"", frame[:10]):
            if forged is not header or content is not frame:
                assert peak_bytes(put_together(forged, content)) < 1_000_000


def test_a_frame_that_holds_less_or_more_than_it_declares_is_refused(data: bytes) -> None:
    header, frame = take_apart(data)
    raw = zstandard.decompress(frame)
    for wrong in (raw[:-1], raw + b"\0"):
        honest = bytearray(zstandard.compress(raw, 1))
        lying = bytearray(zstandard.compress(wrong, 1))
        size = zstandard.frame_header_size(bytes(honest))
        assert size == zstandard.frame_header_size(bytes(lying))
        lying[:size] = honest[:size]
        with pytest.raises(CorruptBatch):
            decode_batch(put_together(header, bytes(lying)))


@pytest.mark.medium
def test_the_largest_batch_allowed_stays_within_the_documented_memory() -> None:
    limits = BatchLimits()
    games, positions, entries = limits.max_games, limits.max_positions, limits.max_entries
    header = {
        "batch_id": "b",
        "run_id": "r",
        "worker": "w",
        "game": "g",
        "options": {},
        "rules_version": 1,
        "first_game": 0,
    }
    counts = {
        "games": games,
        "players": MOST_PLAYERS,
        "positions": positions,
        "entries": entries,
        "actions": entries // positions,
    }
    columns: Wire = {
        "lengths": np.full(games, positions // games, np.int32),
        "returns": np.zeros((games, MOST_PLAYERS), np.float32),
        "first_model": np.zeros(games, np.int32),
        "last_model": np.zeros(games, np.int32),
        "seeds": np.zeros(games, np.uint64),
        "resigned": np.zeros(games, np.uint8),
        "actions": np.zeros(positions, np.uint16),
        "root_values": np.zeros(positions, np.int8),
        "flags": np.ones(positions, np.uint8),
        "surprise": np.zeros(positions, np.uint8),
        "policy_counts": np.full(entries // positions, positions, np.uint32),
        "policy_gaps": np.ones(entries, np.uint32),
        "policy_weights": np.ones(entries, np.uint16),
    }
    data = put_together(header | counts, pack(columns))
    tracemalloc.start()
    batch = decode_batch(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert batch.policy_actions.size == entries
    assert peak < 256 * 2**20


FORGED_COLUMNS: dict[str, tuple[str, Any, str]] = {
    "a game without moves": ("lengths", lambda column: column * [0, *[1] * (column.size - 1)], "no moves"),
    "a negative length": ("lengths", lambda column: -column, "no moves"),
    "lengths that add up to another number": ("lengths", lambda column: column + 1, "do not add up"),
    "a return beyond 1": ("returns", lambda column: column * 1.5, "outside"),
    "a return that is not a number": ("returns", lambda column: np.full_like(column, np.nan), "outside"),
    "an infinite return": ("returns", lambda column: np.full_like(column, np.inf), "outside"),
    "a negative model": ("first_model", lambda column: column - 100, "out of order"),
    "a first model after the last": ("first_model", lambda column: column + 100, "out of order"),
    "a third player who resigned": ("resigned", lambda column: column * 0 + 3, "does not exist"),
    "a value below -1": ("root_values", lambda column: np.full_like(column, -128), "outside"),
    "unknown flags": ("flags", lambda column: column | 4, "unknown flags"),
    "full searches without a policy": ("flags", lambda column: column | 1, "other positions"),
    "policies without a full search": ("flags", lambda column: column * 0 + 2, "has a surprise"),
    "a surprise without a full search": ("surprise", lambda column: column * 0 + 9, "has a surprise"),
    "counts that add up to another number": ("policy_counts", lambda column: column + 1, "do not add up"),
    "counts that wrap around": ("policy_counts", lambda column: column + 2**31, "do not add up"),
    "a last count of zero": (
        "policy_counts",
        lambda column: np.append(column[:-2], [column[-2:].sum(), 0]),
        "never used",
    ),
    "a gap of zero": ("policy_gaps", lambda column: column * 0, "belongs to no position"),
    "gaps beyond the last position": ("policy_gaps", lambda column: column + 2**31, "belongs to no position"),
    "weights of zero": ("policy_weights", lambda column: column * 0, "no weight"),
}


@pytest.mark.parametrize("fault", FORGED_COLUMNS)
def test_contradictory_columns_are_refused(data: bytes, fault: str) -> None:
    header, frame = take_apart(data)
    columns = unpack(header, frame)
    name, forge, reason = FORGED_COLUMNS[fault]
    columns[name] = forge(columns[name]).astype(columns[name].dtype)
    with pytest.raises(CorruptBatch, match=reason):
        decode_batch(put_together(header, pack(columns)))


FAULTY_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "another type": ({"actions": lambda column: column.astype(np.int64)}, "actions is not int32"),
    "another shape": ({"seeds": lambda column: column[:-1]}, "seeds is not uint64 of shape"),
    "one return per game": ({"returns": lambda column: column[:, 0]}, "not a table of games and players"),
    "a resignation among three": (
        {
            "returns": lambda column: np.zeros((len(column), 3), np.float32),
            "resigned": lambda column: np.ones_like(column),
        },
        "among three or more",
    ),
    "no games": ({name: lambda column: column[:0] for name in LAYOUT}, "no games"),
    "a value that is not a number": ({"root_values": lambda column: column * np.nan}, "a root value"),
    "an infinite surprise": ({"surprise": lambda column: column + np.inf}, "a surprise"),
    "a surprise that is not a number": ({"surprise": lambda column: column + np.nan}, "a surprise"),
    "a negative surprise": ({"surprise": lambda column: column - 1}, "a surprise"),
    "a negative action": ({"actions": lambda column: column - 100}, "an action does not fit"),
    "an action of 17 bits": ({"actions": lambda column: column + 2**16}, "an action does not fit"),
    "a policy action of 17 bits": (
        {"policy_actions": lambda column: column + 2**16},
        "an action of a policy does not fit",
    ),
    "policy actions that descend": ({"policy_actions": lambda column: 100 - column}, "not in ascending order"),
    "policy actions that repeat": ({"policy_actions": lambda column: column * 0}, "not in ascending order"),
    "negative sizes": ({"policy_sizes": lambda column: -column}, "other positions"),
    "sizes that add up to another number": ({"policy_sizes": lambda column: column * 2}, "do not add up"),
}


@pytest.mark.parametrize("fault", FAULTY_FIELDS)
def test_a_batch_that_would_be_refused_is_not_encoded(batch: GameBatch, fault: str) -> None:
    changes, reason = FAULTY_FIELDS[fault]
    changed = {name: change(getattr(batch, name)) for name, change in changes.items()}
    changed = {
        name: column if "type" in fault else column.astype(getattr(batch, name).dtype)
        for name, column in changed.items()
    }
    with pytest.raises(CorruptBatch, match=reason):
        encode_batch(replace(batch, **changed))


@pytest.mark.medium
def test_damaged_and_forged_files_raise_only_corrupt_batch() -> None:
    tally = fuzz(["batch"], inputs=1500, seconds=250, seed=7)["batch"]
    assert tally.refused and tally.let_in and not tally.reasons


def test_a_batch_over_the_readers_limits_is_not_encoded() -> None:
    batch = synthetic_batch(load_game("tic_tac_toe"), games=10_001, num_simulations=1)
    with pytest.raises(CorruptBatch, match="games is 10001"):
        encode_batch(batch)


def test_a_batch_that_names_no_planes_is_of_before_there_was_a_choice() -> None:
    header, frame = take_apart(encode_batch(synthetic_batch(load_game("connect_four", planes="threats"), games=2)))
    assert decode_batch(put_together(header | {"options": {}}, frame)).options == {"planes": "threats"}
