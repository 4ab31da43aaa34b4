"""Encode the columns of a game batch: numbers as byte planes, policies by action.

A byte plane holds the same byte of every number. So zstd finds long runs of similar bytes, and planes of zeros cost
nothing.

Policies are transposed: for each action, the gaps between the positions that give it weight. Search often prefers the
same move in several positions in a row, so most gaps are one. On 9x9 Go this takes a third less than a list of actions
per position.
"""

from typing import Any, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from keima.compilation.decorators import compiled

VALUE_STEPS = 127  # root values have steps of 1 / 127, well below the noise of search
POINT_BITS = 7  # root values in points are exact to 1 / 256, well below the noise of chance
OCTAVE_STEPS = 4  # surprises have logarithmic steps of a quarter octave: within 9 %
LEAST_SURPRISE = 2.0**-12  # nats; values below 0.92 of it become 0


def compress_columns(columns: list[NDArray[Any]]) -> bytes:
    """Return the planes of the columns as one zstd frame; deterministic.

    Each plane starts a new zstd block with its own Huffman code, which saves an eighth. Matches of fewer than six bytes
    are disabled, since short ones are coincidences that cost more than they save: another tenth.
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


def decompress_frame(frame: memoryview, total: int, *, what: str, error: type[Exception]) -> memoryview:
    """Return the content of a zstd frame. Nothing is unpacked unless the frame, too, declares ``total`` bytes.

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
    """Return the bytes of the array's N elements, the lowest byte of each first, ``[itemsize, N]``, in ``out`` if that
    is given.
    """
    words = np.ascontiguousarray(array).reshape(-1).view(f"u{array.itemsize}")
    planes = np.empty((array.itemsize, array.size), np.uint8) if out is None else out
    for number, plane in enumerate(planes):
        plane[:] = words >> (8 * number) if number else words  # several times as fast as transposing bytes
    return planes


def from_planes(planes: memoryview, dtype: type[np.generic], count: int) -> NDArray[Any]:
    """Decode ``count`` elements from their consecutive byte planes."""
    itemsize = np.dtype(dtype).itemsize
    rows = np.frombuffer(planes, np.uint8).reshape(itemsize, count)
    words = rows[-1].astype(f"u{itemsize}")
    for row in rows[-2::-1]:
        words <<= 8
        words |= row
    return words.view(dtype)


def pack_values(values: NDArray[np.float32]) -> NDArray[np.int8]:
    """Quantize values in [-1, 1] in steps of 1 / ``VALUE_STEPS``."""
    return np.rint(values * VALUE_STEPS).astype(np.int8)


def unpack_values(steps: NDArray[np.int8]) -> NDArray[np.float32]:
    """Return the values of these steps; the inverse of ``pack_values``. -128 gives a value below -1."""
    return steps.astype(np.float32) / np.float32(VALUE_STEPS)


def round_points(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round numbers to ``POINT_BITS`` bits of mantissa, so that their lower bytes are zero and cost nothing."""
    dropped = 23 - POINT_BITS
    bits = values.view(np.uint32) + np.uint32(1 << (dropped - 1))
    return (bits & np.uint32(2**32 - (1 << dropped))).view(np.float32)


def pack_surprise(surprise: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Quantize surprises in nats: 0 for none, else 1 + the steps above ``LEAST_SURPRISE``."""
    octaves = np.log2(np.maximum(surprise, LEAST_SURPRISE / 2, dtype=np.float64) / LEAST_SURPRISE)
    return np.clip(np.rint(octaves * OCTAVE_STEPS) + 1, 0, 255).astype(np.uint8)


def unpack_surprise(steps: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the surprises of these steps; the inverse of ``pack_surprise``."""
    table = np.exp2((np.arange(256) - 1) / OCTAVE_STEPS) * LEAST_SURPRISE
    table[0] = 0
    return table.astype(np.float32)[steps]


def invert_policies(
    sizes: NDArray[np.int32], actions: NDArray[np.int32]
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.int64]]:
    """Transpose policies: from actions per position to positions per action.

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


class PolicyColumns(NamedTuple):
    """The policies of M positions with E entries, position by position."""

    sizes: NDArray[np.int32]  # [M] how many entries each position has
    actions: NDArray[np.int32]  # [E] ascending within a position
    weights: NDArray[np.uint16]  # [E]


@compiled
def place_policies(
    counts: NDArray[np.uint32], gaps: NDArray[np.uint32], weights: NDArray[np.uint16], policies: PolicyColumns
) -> bool:
    """Transpose policies back to ascending actions per position; the inverse of ``invert_policies``.

    Args:
        counts: ``[A]``; their sum is E.
        gaps: ``[E]``.
        weights: in the order of the gaps, ``[E]``.
        policies: receives the policies; its sizes are zero before.

    Returns:
        Whether the gaps make sense: none is zero, and none leads past the last position. If not, the outputs mean
        nothing.
    """
    sizes = policies.sizes
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
            policies.actions[places[position]] = action
            policies.weights[places[position]] = weights[entry]
            places[position] += 1
            entry += 1
    return True
