"""How the columns of a game batch become bytes: plane by plane, and policies action by action.

A plane holds the same byte of every number. zstd then sees many alike bytes in a row; planes that are all zero cost
nothing.

A policy is sent the other way round: for each action, the positions that gave it weight, as gaps. A move that search
likes it likes for several positions in a row, so most gaps are one. On 9x9 Go this takes a third less than each
position's list of actions.
"""

from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from games.compiled import compiled

VALUE_STEPS = 127  # root values are sent in steps of 1 / 127, well below what a search's noise leaves of them
POINT_BITS = 7  # root values in points are sent to one part in 256, well below what luck leaves of them
OCTAVE_STEPS = 4  # surprises are sent as logarithms, in steps of a quarter of an octave: within 9 %
LEAST_SURPRISE = 2.0**-12  # nats; anything below 0.92 of it counts as none


def compress(columns: list[NDArray[Any]]) -> bytes:
    """The planes of the columns as one zstd frame; the same columns give the same bytes.

    Each plane starts a new zstd block, with its own Huffman code: joined, they take an eighth more. Matches of fewer
    than six bytes are left out, because in such numbers they are chance and cost more than they save: another tenth.
    """
    settings = zstandard.ZstdCompressionParameters.from_level(19, min_match=6, strategy=zstandard.STRATEGY_BTULTRA2)
    stream = zstandard.ZstdCompressor(compression_params=settings).compressobj(
        size=sum(column.nbytes for column in columns)
    )
    parts = []
    for column in columns:
        for plane in to_planes(column):
            parts += [stream.compress(plane.tobytes()), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    return b"".join([*parts, stream.flush()])


def decompress(frame: memoryview, total: int, *, what: str, error: type[Exception]) -> memoryview:
    """What a zstd frame holds. Nothing is unpacked before it is known that the frame, too, speaks of ``total`` bytes.

    Args:
        frame: one frame, and nothing behind it.
        total: how many bytes the header beside it declares.
        what: they are, in messages.
        error: to raise.

    Raises:
        error: the frame is damaged, or holds another number of bytes.
    """
    try:
        declared = zstandard.get_frame_parameters(frame).content_size
        if declared != total:
            raise error(f"the header declares {total:,} bytes of {what}, the zstd frame {declared:,}")
        data = zstandard.ZstdDecompressor().decompress(frame, max_output_size=total, allow_extra_data=False)
    except zstandard.ZstdError as damage:
        raise error(f"the {what} cannot be unpacked: {damage}") from damage
    if len(data) != total:
        raise error("the zstd frame holds less than it declares")
    return memoryview(data)


def to_planes(array: NDArray[Any], *, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """The bytes of the array's N elements, the lowest byte of each first, ``[itemsize, N]``, in ``out`` if that is
    given.
    """
    words = np.ascontiguousarray(array).reshape(-1).view(f"u{array.itemsize}")
    planes = np.empty((array.itemsize, array.size), np.uint8) if out is None else out
    for number, plane in enumerate(planes):
        plane[:] = words >> (8 * number) if number else words  # several times as fast as to transpose bytes
    return planes


def from_planes(planes: memoryview, dtype: type[np.generic], count: int) -> NDArray[Any]:
    """The ``count`` elements whose planes, one after another, are ``planes``."""
    itemsize = np.dtype(dtype).itemsize
    rows = np.frombuffer(planes, np.uint8).reshape(itemsize, count)
    words = rows[-1].astype(f"u{itemsize}")
    for row in rows[-2::-1]:
        words <<= 8
        words |= row
    return words.view(dtype)


def pack_values(values: NDArray[np.float32]) -> NDArray[np.int8]:
    """Values in [-1, 1] in steps of 1 / ``VALUE_STEPS``."""
    return np.rint(values * VALUE_STEPS).astype(np.int8)


def unpack_values(steps: NDArray[np.int8]) -> NDArray[np.float32]:
    """The values of these steps. They pack to the same steps again; -128 gives a value below -1."""
    return steps.astype(np.float32) / np.float32(VALUE_STEPS)


def round_points(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Numbers with ``POINT_BITS`` bits of fraction, so that their lower bytes are zero and cost nothing."""
    dropped = 23 - POINT_BITS
    bits = values.view(np.uint32) + np.uint32(1 << (dropped - 1))
    return (bits & np.uint32(2**32 - (1 << dropped))).view(np.float32)


def pack_surprise(surprise: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Surprises >= 0, in nats: 0 for none, else 1 + the steps above ``LEAST_SURPRISE``."""
    octaves = np.log2(np.maximum(surprise, LEAST_SURPRISE / 2, dtype=np.float64) / LEAST_SURPRISE)
    return np.clip(np.rint(octaves * OCTAVE_STEPS) + 1, 0, 255).astype(np.uint8)


def unpack_surprise(steps: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The surprises of these steps; they pack to the same steps again."""
    table = np.exp2((np.arange(256) - 1) / OCTAVE_STEPS) * LEAST_SURPRISE
    table[0] = 0
    return table.astype(np.float32)[steps]


def invert_policies(
    sizes: NDArray[np.int32], actions: NDArray[np.int32]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.int64]]:
    """Policies as positions for each action.

    Args:
        sizes: how many entries each position has, ``[M]``.
        actions: the entries' actions, ascending within a position, ``[E]``.

    Returns:
        How many positions give each action weight, ``[A]``, where the last count is not zero; the gaps between these
        positions, the first one counted from -1, ``[E]``; and which entry each gap belongs to, ``[E]``.
    """
    order = np.argsort(actions.astype(np.uint16), kind="stable")
    counts = np.bincount(actions).astype(np.uint32)
    positions = np.repeat(np.arange(sizes.size), sizes)[order]
    gaps = np.diff(positions, prepend=-1)
    firsts = (np.cumsum(counts, dtype=np.int64) - counts)[counts > 0]
    gaps[firsts] = positions[firsts] + 1
    return counts, gaps.astype(np.uint32), order


@compiled
def place_policies(
    counts: NDArray[np.uint32],
    gaps: NDArray[np.uint32],
    weights: NDArray[np.uint16],
    sizes: NDArray[np.int32],
    policy_actions: NDArray[np.int32],
    policy_weights: NDArray[np.uint16],
) -> bool:
    """Turn positions for each action into actions for each position, ascending: the inverse of ``invert_policies``.

    Args:
        counts: ``[A]``; their sum is E.
        gaps: ``[E]``.
        weights: in the order of the gaps, ``[E]``.
        sizes: zeros ``[M]``; receives how many entries each position has.
        policy_actions: receives the actions, position by position, ``[E]``.
        policy_weights: receives their weights, ``[E]``.

    Returns:
        Whether the gaps make sense: none is zero, and none leads past the last position. If not, the outputs mean
        nothing.
    """
    entry = 0
    for count in counts:
        position = -1
        for _ in range(count):
            position += int(gaps[entry])
            if gaps[entry] == 0 or position >= sizes.size:
                return False
            sizes[position] += 1
            entry += 1
    places = np.empty(sizes.size, np.int64)
    place = 0
    for m in range(sizes.size):
        places[m] = place
        place += sizes[m]
    entry = 0
    for action in range(counts.size):
        position = -1
        for _ in range(counts[action]):
            position += int(gaps[entry])
            policy_actions[places[position]] = action
            policy_weights[places[position]] = weights[entry]
            places[position] += 1
            entry += 1
    return True
