"""A small model, its file, and such files put together by hand, with a valid checksum as far as possible."""

import hashlib
import json
import math
import struct
from typing import Any

import numpy as np
import zstandard

from keima.games import Game
from keima.networks.files.model import (
    Model,
    describe_model,
    encode_model,
)
from tests.small_networks import CONNECT_FOUR, trained_network

SMALL = {"type": "resnet", "blocks": 2, "channels": 8, "global_pooling": True}


PREFIX = struct.Struct("<8sHI")


def model(game: Game = CONNECT_FOUR, version: int = 7, shift: float = 0.0) -> Model:
    weights = trained_network(game, blocks=2, channels=8).state_dict()
    shifted = {name: tensor + shift if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    return Model(description=describe_model(game, SMALL, version), weights=shifted)


DATA = encode_model(model(), CONNECT_FOUR)


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the planes of a file."""
    *_, length = PREFIX.unpack_from(data)
    end = PREFIX.size + length
    return json.loads(data[PREFIX.size : end]), zstandard.ZstdDecompressor().decompress(data[end:-32])


def join(header: Any, planes: bytes, *, extra: bytes = b"", form: int = 2, magic: bytes = b"KEIMAMD\n") -> bytes:
    """Return a file with a valid checksum, as far as possible."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    head = PREFIX.pack(magic, form, len(raw)) + raw
    return (
        head
        + zstandard.ZstdCompressor(level=1).compress(planes)
        + extra
        + hashlib.sha256(head + words(header, planes)).digest()
    )


def words(header: Any, planes: bytes) -> bytes:
    """Return the weights in the form that the checksum covers: each one's bytes side by side."""
    parts, start = [], 0
    for dtype, size in (("bfloat16", 2), ("float16", 2), ("float32", 4), ("int64", 8)):
        shapes = (
            [entry["shape"] for entry in header["tensors"] if entry["dtype"] == dtype]
            if isinstance(header, dict)
            else []
        )
        end = start + size * sum(math.prod(shape) for shape in shapes)
        rows = np.frombuffer(planes[start:end], np.uint8)
        parts.append(rows.reshape(size, -1).T.tobytes() if len(rows) % size == 0 else b"")
        start = end
    return b"".join(parts)


def forged(**changes: Any) -> bytes:
    header, planes = split(DATA)
    return join(header | changes, planes)


HEADER, PLANES = split(DATA)
