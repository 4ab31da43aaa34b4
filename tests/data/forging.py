"""Game batches taken apart and put together again with a valid checksum, so that later checks can be tested."""

import hashlib
import json
import math
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from keima.data.columns import from_planes, to_planes
from keima.data.records import COUNTS, DIGEST_BYTES, FORMAT, MAGIC, PREFIX, WIRE

Wire = dict[str, NDArray[Any]]


def take_apart(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the zstd frame of a valid file."""
    _, _, size = PREFIX.unpack_from(data)
    return json.loads(data[PREFIX.size : PREFIX.size + size]), data[PREFIX.size + size : -DIGEST_BYTES]


def sizes(header: dict[str, Any]) -> dict[str, int]:
    """Return how many elements each column has, according to the header."""
    axes = {axis: header[name] for name, axis in COUNTS.items()}
    return {name: math.prod(axes[axis] for axis in letters) for name, (_, letters) in WIRE.items()}


def column_bytes(header: dict[str, Any]) -> int:
    """Return how many bytes all columns have together, according to the header."""
    return sum(count * np.dtype(WIRE[name][0]).itemsize for name, count in sizes(header).items())


def unpack(header: dict[str, Any], frame: bytes) -> Wire:
    """Return the columns of a valid file."""
    raw, start, columns = zstandard.decompress(frame), 0, {}
    for name, count in sizes(header).items():
        dtype = WIRE[name][0]
        stop = start + count * np.dtype(dtype).itemsize
        columns[name] = from_planes(memoryview(raw)[start:stop], dtype, count).copy()
        start = stop
    return columns


def pack(columns: Wire) -> bytes:
    """Return a zstd frame of columns, made faster and larger than the real one."""
    return zstandard.compress(b"".join(to_planes(columns[name]).tobytes() for name in WIRE), 1)


def dump(header: Any) -> bytes:
    """Return a header in its file format."""
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def put_together(header: Any, frame: bytes, *, magic: bytes = MAGIC, number: int = FORMAT) -> bytes:
    """Return a file of these parts; ``header`` may also be the bytes themselves."""
    raw = header if isinstance(header, bytes) else dump(header)
    return seal(PREFIX.pack(magic, number, len(raw)) + raw + frame)


def seal(body: bytes) -> bytes:
    """Return ``body`` with its checksum."""
    return body + hashlib.sha256(body).digest()
