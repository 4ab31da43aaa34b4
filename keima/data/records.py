"""Game batches: the unit in which games travel from workers to the Coach, and the file format of ``*.games``.

A file holds: the magic, the format number (16 bits), the length of the header (32 bits), the header (JSON: who played
what, and all counts), one zstd frame with the columns one after another, and the SHA-256 of everything before it.
Numbers are little-endian. Positions are not sent: the receiver replays them from the moves, which include chance
outcomes. Encoding rounds two columns (``keima/data/columns.py``); ``decode_batch(encode_batch(batch))`` returns the
rounded ones.

With two and more players, returns and root values lie in [-1, 1]. In one-player games they are points.

``decode_batch`` does not trust its input: it rejects a file with the reason, before it allocates more than the file's
bytes account for.
"""

import hashlib
import json
import re
import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.config.older_options import with_older_options
from keima.data.batch_file import MAX_BATCH_BYTES
from keima.data.columns import (
    PolicyColumns,
    compress_columns,
    decompress_frame,
    from_planes,
    invert_policies,
    pack_surprise,
    pack_values,
    place_policies,
    round_points,
    unpack_surprise,
    unpack_values,
)
from keima.games.game import MOST_PLAYERS

MAGIC = b"KEIMAGB\n"
FORMAT = 1
PREFIX = struct.Struct("<8sHI")  # magic, format number, length of the header
DIGEST_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # a safe file name on every system
ZSTD_BEST_RATIO = 32_768  # a block of at least 4 bytes unpacks to at most 128 KiB

FULL_SEARCH, RANDOM_MOVE, CHANCE_OUTCOME = 1, 2, 4  # bits of ``flags``; the last is never combined
AGREED = 255  # in ``resigned``: a draw by agreement; only in imported games, which no model played
MOST_POINTS = 1e10


class CorruptBatch(ValueError):
    """A game batch is damaged, forged, or from another version of the program."""


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """The largest batch that ``decode_batch`` accepts. With the default limits it needs at most 256 MiB.

    A batch of 100 games of 19x19 Go with 800 simulations per move has about 30,000 positions and 3,000,000 policy
    entries.
    """

    max_bytes: int = MAX_BATCH_BYTES
    max_header_bytes: int = 16 * 2**10
    max_games: int = 10_000
    max_positions: int = 1_000_000
    max_entries: int = 8_000_000
    max_players: int = MOST_PLAYERS
    max_actions: int = 2**16


@dataclass(frozen=True, kw_only=True, eq=False)
class GameRecord:
    """One game of a batch, as views of its columns. L moves, E policy entries, P players."""

    returns: NDArray[np.float32]  # [P]
    first_model: int
    last_model: int
    seed: int
    resigned: int
    actions: NDArray[np.int32]  # [L]
    root_values: NDArray[np.float32]  # [L]
    flags: NDArray[np.uint8]  # [L]
    surprise: NDArray[np.float32]  # [L]
    policy_sizes: NDArray[np.int32]  # [L]
    policy_actions: NDArray[np.int32]  # [E]
    policy_weights: NDArray[np.uint16]  # [E]


@dataclass(frozen=True, kw_only=True, eq=False)
class GameBatch:
    """Finished games as columns: G games with P players, M positions (one before each move), E policy entries in all.

    Positions are ordered by game, policy entries by position.
    """

    batch_id: str  # unique; this and the next three match NAME
    run_id: str
    worker: str
    game: str
    options: dict[str, Any]  # of the game: text, numbers, booleans or null
    rules_version: int
    first_game: int  # number of the first game among all games of this worker

    lengths: NDArray[np.int32]  # [G] moves of each game, at least 1
    returns: NDArray[np.float32]  # [G, P] in [-1, 1], or points
    first_model: NDArray[np.int32]  # [G] version of the model that played the first move; 0: an imported game
    last_model: NDArray[np.int32]  # [G] ... and the last move
    seeds: NDArray[np.uint64]  # [G] of each game's random stream
    resigned: NDArray[np.uint8]  # [G] 0: ended by the rules; else 1 + the player who resigned, or AGREED

    actions: NDArray[np.int32]  # [M] moves and chance outcomes
    root_values: NDArray[np.float32]  # [M] of search, for the player to move: in [-1, 1], or points to come
    # [M] FULL_SEARCH: the policy is a target; RANDOM_MOVE: not chosen by search; CHANCE_OUTCOME: no player moved
    flags: NDArray[np.uint8]
    surprise: NDArray[np.float32]  # [M] KL(policy target || prior) in nats; 0 without FULL_SEARCH
    policy_sizes: NDArray[np.int32]  # [M] entries of the policy target; at least 1 with FULL_SEARCH, else 0

    policy_actions: NDArray[np.int32]  # [E] ascending within a position
    policy_weights: NDArray[np.uint16]  # [E] at least 1; relative to each other within a position

    @property
    def num_games(self) -> int:
        """G."""
        return self.lengths.size

    @property
    def num_positions(self) -> int:
        """M."""
        return self.actions.size

    def game_record(self, index: int) -> GameRecord:
        """Return game ``index`` of the batch."""
        first = int(self.lengths[:index].sum())
        moves = slice(first, first + int(self.lengths[index]))
        first = int(self.policy_sizes[: moves.start].sum())
        entries = slice(first, first + int(self.policy_sizes[moves].sum()))
        columns: dict[str, Any] = {
            name: getattr(self, name)[index] for name in ("returns", "first_model", "last_model", "resigned")
        }
        columns |= {
            name: getattr(self, name)[moves] for name in ("actions", "root_values", "flags", "surprise", "policy_sizes")
        }
        columns |= {name: getattr(self, name)[entries] for name in ("policy_actions", "policy_weights")}
        return GameRecord(seed=int(self.seeds[index]), **columns)


# Columns in memory: type and axes.
LAYOUT: dict[str, tuple[type[np.generic], str]] = {
    "lengths": (np.int32, "G"),
    "returns": (np.float32, "GP"),
    "first_model": (np.int32, "G"),
    "last_model": (np.int32, "G"),
    "seeds": (np.uint64, "G"),
    "resigned": (np.uint8, "G"),
    "actions": (np.int32, "M"),
    "root_values": (np.float32, "M"),
    "flags": (np.uint8, "M"),
    "surprise": (np.float32, "M"),
    "policy_sizes": (np.int32, "M"),
    "policy_actions": (np.int32, "E"),
    "policy_weights": (np.uint16, "E"),
}
# Columns in a file, in their order: type and axes. A is one more than the highest action in any policy.
WIRE: dict[str, tuple[type[np.generic], str]] = {
    "lengths": (np.int32, "G"),
    "returns": (np.float32, "GP"),
    "first_model": (np.int32, "G"),
    "last_model": (np.int32, "G"),
    "seeds": (np.uint64, "G"),
    "resigned": (np.uint8, "G"),
    "actions": (np.uint16, "M"),
    "root_values": (np.int8, "M"),
    "flags": (np.uint8, "M"),
    "surprise": (np.uint8, "M"),
    "policy_counts": (np.uint32, "A"),
    "policy_gaps": (np.uint32, "E"),
    "policy_weights": (np.uint16, "E"),
}
WIRE_OF_POINTS = WIRE | {"root_values": (np.float32, "M")}  # of one-player games
TEXTS = ("batch_id", "run_id", "worker", "game")
NUMBERS = ("rules_version", "first_game")
COUNTS = {"games": "G", "players": "P", "positions": "M", "entries": "E", "actions": "A"}
LEAST_COUNTS = {"G": 1, "P": 1, "M": 1, "E": 0, "A": 0}


def encode_batch(batch: GameBatch) -> bytes:
    """Encode a batch as the bytes of a file; the encoding is deterministic.

    Root values and surprises are rounded (``keima/data/columns.py``), the rest is exact.

    Raises:
        CorruptBatch: the fields contradict each other, or exceed the default ``BatchLimits``.
    """
    validate_batch(batch)
    counts, gaps, order = invert_policies(batch.policy_sizes, batch.policy_actions)
    players = batch.returns.shape[1]
    wire = wire_columns(players)
    packed = {name: getattr(batch, name) for name in wire if name in LAYOUT} | {
        "actions": batch.actions.astype(np.uint16),
        "root_values": pack_values(batch.root_values) if players > 1 else round_points(batch.root_values),
        "surprise": pack_surprise(batch.surprise),
        "policy_counts": counts,
        "policy_gaps": gaps,
        "policy_weights": batch.policy_weights[order],
    }
    sizes = {
        "games": batch.num_games,
        "players": players,
        "positions": batch.num_positions,
        "entries": gaps.size,
        "actions": counts.size,
    }
    _check_counts(sizes, BatchLimits())
    header = _encode_header({name: getattr(batch, name) for name in (*TEXTS, *NUMBERS, "options")} | sizes)
    body = PREFIX.pack(MAGIC, FORMAT, len(header)) + header + compress_columns([packed[name] for name in wire])
    return body + hashlib.sha256(body).digest()


def wire_columns(players: int) -> dict[str, tuple[type[np.generic], str]]:
    """Return the columns of a file with games of so many players."""
    return WIRE if players > 1 else WIRE_OF_POINTS


def decode_batch(data: bytes, *, limits: BatchLimits = BatchLimits()) -> GameBatch:
    """Decode a batch. Whether its games follow the rules is left to ``keima.data.verify``.

    Raises:
        CorruptBatch: the file is damaged, of another format, over the limits, or inconsistent.
    """
    header, frame = _split_file(data, limits)
    columns = _unpack_columns(frame, {axis: header.pop(name) for name, axis in COUNTS.items()})
    _convert_policies(columns)
    batch = GameBatch(**(header | columns))
    validate_batch(batch)
    return replace(batch, options=with_older_options(batch.game, batch.options))


def read_run_id(data: bytes) -> str:
    """Return the run id in the header of a file.

    Raises:
        CorruptBatch: the file is damaged, or of another format.
    """
    return str(_split_file(data, BatchLimits())[0]["run_id"])


def _require_valid(condition: Any, reason: str) -> None:
    if not condition:
        raise CorruptBatch(reason)


def _split_file(data: bytes, limits: BatchLimits) -> tuple[dict[str, Any], memoryview]:
    """Return the checked header and the zstd frame."""
    view = memoryview(data)
    _require_valid(len(view) <= limits.max_bytes, f"{len(view):,} bytes exceed the {limits.max_bytes:,} allowed")
    _require_valid(len(view) >= PREFIX.size + DIGEST_BYTES, f"{len(view)} bytes are too few for a game batch")
    magic, number, header_bytes = PREFIX.unpack_from(view)
    _require_valid(magic == MAGIC, "it is not a game batch")
    older = "the program that wrote it" if number < FORMAT else "this program"
    _require_valid(number == FORMAT, f"unknown format {number} (this program reads format {FORMAT}): update {older}")
    body, digest = view[:-DIGEST_BYTES], view[-DIGEST_BYTES:]
    _require_valid(
        hashlib.sha256(body).digest() == digest, "the checksum does not match: the file is truncated or changed"
    )
    end = PREFIX.size + header_bytes
    _require_valid(
        header_bytes <= limits.max_header_bytes and end <= len(body), f"a header of {header_bytes:,} bytes does not fit"
    )
    return _parse_header(bytes(body[PREFIX.size : end]), limits), body[end:]


def _encode_header(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _parse_header(raw: bytes, limits: BatchLimits) -> dict[str, Any]:
    """Return the header, with the right keys and counts within the limits."""
    try:
        header = json.loads(raw)
        canonical = _encode_header(header)
    except (ValueError, RecursionError) as error:
        raise CorruptBatch(f"the header cannot be read: {error}") from error
    _require_valid(
        isinstance(header, dict) and header.keys() == {*TEXTS, *NUMBERS, *COUNTS, "options"},
        "the header has the wrong keys",
    )
    _require_valid(raw == canonical, "the header is not in canonical form")
    _check_counts({name: header[name] for name in COUNTS}, limits)
    return header


def _check_counts(counts: dict[str, Any], limits: BatchLimits) -> None:
    for name, axis in COUNTS.items():
        count, most = counts[name], getattr(limits, f"max_{name}")
        _require_valid(type(count) is int, f"{name} is not an integer")
        _require_valid(
            LEAST_COUNTS[axis] <= count <= most, f"{name} is {count}, not from {LEAST_COUNTS[axis]} to {most:,}"
        )


def _unpack_columns(frame: memoryview, axes: dict[str, int]) -> dict[str, NDArray[Any]]:
    """Return the columns of the file, allocating nothing before header and frame agree on the size."""
    wire = wire_columns(axes["P"])
    shapes = {name: tuple(axes[axis] for axis in letters) for name, (_, letters) in wire.items()}
    sizes = {name: int(np.prod(shapes[name])) * np.dtype(dtype).itemsize for name, (dtype, _) in wire.items()}
    total = sum(sizes.values())
    _require_valid(total <= ZSTD_BEST_RATIO * len(frame), f"{len(frame):,} bytes cannot hold what the header declares")
    raw = decompress_frame(frame, total, what="columns", error=CorruptBatch)
    columns, start = {}, 0
    for name, (dtype, _) in wire.items():
        part = raw[start : start + sizes[name]]
        columns[name] = from_planes(part, dtype, sizes[name] // np.dtype(dtype).itemsize).reshape(shapes[name])
        start += sizes[name]
    return columns


def _convert_policies(columns: dict[str, NDArray[Any]]) -> None:
    """Convert the columns of the file to those of a batch."""
    counts, gaps, weights = (columns.pop(name) for name in ("policy_counts", "policy_gaps", "policy_weights"))
    _require_valid(
        counts.sum(dtype=np.int64) == gaps.size, "the policies' counts do not add up to the number of entries"
    )
    _require_valid(counts.size == 0 or counts[-1] > 0, "the last action of the policies is never used")
    policies = PolicyColumns(
        sizes=np.zeros(columns["actions"].size, np.int32),
        actions=np.empty(gaps.size, np.int32),
        weights=np.empty(gaps.size, np.uint16),
    )
    placed = place_policies(counts, gaps, weights, policies)
    _require_valid(placed, "a policy entry belongs to no position")
    columns |= {f"policy_{name}": column for name, column in policies._asdict().items()}
    columns["actions"] = columns["actions"].astype(np.int32)
    if columns["root_values"].dtype == np.int8:
        columns["root_values"] = unpack_values(columns["root_values"])
    columns["surprise"] = unpack_surprise(columns["surprise"])


def validate_batch(batch: GameBatch) -> None:
    """Check a batch as far as possible without the rules of its game.

    Raises:
        CorruptBatch: a field has the wrong type, size or range, or contradicts another field.
    """
    _check_header(batch)
    _check_layout(batch)
    _check_games(batch)
    _check_positions(batch)


def _check_header(batch: GameBatch) -> None:
    for name in TEXTS:
        text = getattr(batch, name)
        allowed = "up to 100 letters, digits, dots, dashes and underscores, with a letter or digit first"
        _require_valid(isinstance(text, str) and NAME.fullmatch(text), f"{name} is not a name: {allowed}")
    for name in NUMBERS:
        number = getattr(batch, name)
        _require_valid(type(number) is int and 0 <= number < 2**53, f"{name} is not a non-negative integer")
    _require_valid(isinstance(batch.options, dict), "options are not a table")
    plain = all(isinstance(value, str | int | float | None) for value in batch.options.values())
    _require_valid(
        plain and all(isinstance(key, str) for key in batch.options), "options are not names with plain values"
    )


def _check_layout(batch: GameBatch) -> None:
    _require_valid(batch.returns.ndim == 2, "returns are not a table of games and players")
    axes = {
        "G": batch.lengths.size,
        "P": batch.returns.shape[1],
        "M": batch.actions.size,
        "E": batch.policy_actions.size,
    }
    for name, (dtype, letters) in LAYOUT.items():
        column = getattr(batch, name)
        shape = tuple(axes[axis] for axis in letters)
        _require_valid(
            column.dtype == dtype and column.shape == shape, f"{name} is not {np.dtype(dtype).name} of shape {shape}"
        )


def _check_games(batch: GameBatch) -> None:
    _require_valid(batch.num_games >= 1, "there are no games")
    _require_valid(batch.lengths.min() >= 1, "a game has no moves")
    _require_valid(
        batch.lengths.sum(dtype=np.int64) == batch.num_positions,
        "the games' lengths do not add up to the number of positions",
    )
    _require_range(batch, batch.returns, "return")
    _require_valid(
        (batch.first_model >= 0).all() and (batch.first_model <= batch.last_model).all(),
        "a game's models are out of order",
    )
    agreed = (batch.resigned == AGREED) & (batch.last_model == 0) & (batch.returns.shape[1] == 2)
    known = agreed | (batch.resigned <= batch.returns.shape[1])
    _require_valid(known.all(), "the player who resigned does not exist")
    _require_valid(batch.returns.shape[1] <= 2 or not batch.resigned.any(), "a player resigned among three or more")


def _require_range(batch: GameBatch, values: NDArray[np.float32], what: str) -> None:
    # Comparisons with NaN are false: it is out of every range.
    most, text = (MOST_POINTS, "the range of points") if batch.returns.shape[1] == 1 else (1, "[-1, 1]")
    _require_valid((np.abs(values) <= most).all(), f"a {what} is outside {text}")


def _check_positions(batch: GameBatch) -> None:
    full, sizes = (batch.flags & FULL_SEARCH) != 0, batch.policy_sizes
    _require_valid((batch.flags <= CHANCE_OUTCOME).all(), "a position has unknown flags")
    _require_valid(batch.actions.min() >= 0 and batch.actions.max() < 2**16, "an action does not fit 16 bits")
    _require_range(batch, batch.root_values, "root value")
    _require_valid(
        ((batch.surprise >= 0) & (batch.surprise < np.inf)).all(), "a surprise is not a finite number from 0"
    )
    _require_valid((batch.surprise[~full] == 0).all(), "a position without full search has a surprise")
    _require_valid(
        sizes.min() >= 0 and ((sizes > 0) == full).all(),
        "there are policies for other positions than those with full search",
    )
    _require_valid(
        sizes.sum(dtype=np.int64) == batch.policy_actions.size,
        "the policies' sizes do not add up to the number of entries",
    )
    _require_valid((batch.policy_weights > 0).all(), "a policy entry has no weight")
    if batch.policy_actions.size == 0:
        return
    _require_valid(
        batch.policy_actions.min() >= 0 and batch.policy_actions.max() < 2**16,
        "an action of a policy does not fit 16 bits",
    )
    rising = np.diff(batch.policy_actions) > 0
    bounds = np.cumsum(sizes[sizes > 0])[:-1]
    rising[bounds - 1] = True
    _require_valid(rising.all(), "the actions of a policy are not in ascending order")
