"""A model's weights as words of 16, 32 or 64 bits, which are transferred exactly, and as compressed bytes.

Matrices and kernels have 16 bits; one-dimensional tensors, such as batch norm's, keep 32. The words of one type are
stored plane by plane: a plane holds the same byte of every word, so that signs and exponents, which are alike, are
separate from the last digits, which are noise.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from training.data.columns import decompress, from_planes, to_planes

STORED = -(2**17)  # a level of zstd that hardly compresses and takes almost no time
# Sequences of bytes do not repeat in weights: searching for them doubles the time, and chance matches make frames
# larger.
FEW_MATCHES = {"strategy": zstandard.STRATEGY_FAST, "min_match": 7, "hash_log": 6}

# Number types of a transfer, in the order of the frame: torch's type, and the type of their words.
WORD_TYPES: dict[str, tuple[torch.dtype, type[np.unsignedinteger[Any]]]] = {
    "bfloat16": (torch.bfloat16, np.uint16),
    "float16": (torch.float16, np.uint16),
    "float32": (torch.float32, np.uint32),
    "int64": (torch.int64, np.uint64),
}

WordRows = tuple[NDArray[np.unsignedinteger[Any]], ...]  # one row for each of WORD_TYPES
HeaderName = Annotated[str, Field(max_length=200)]


class CorruptModel(ValueError):
    """A model file is invalid: damaged, forged, of another game or network, or from another version of the program."""


@dataclass(frozen=True, kw_only=True)
class ModelLimits:
    """The largest model that is accepted."""

    max_bytes: int = 256 * 2**20  # the whole file
    max_header_bytes: int = 2**20
    max_elements: int = 2**28  # of all tensors together


LIMITS = ModelLimits()


class HeaderSection(BaseModel):
    """Part of a header; unknown keys and numbers given as text are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TensorEntry(HeaderSection):
    """A tensor in a transfer file."""

    name: HeaderName
    shape: Annotated[tuple[Annotated[int, Field(ge=1, lt=2**32)], ...], Field(max_length=8)]
    dtype: Literal["bfloat16", "float16", "float32", "int64"]


Entries = tuple[TensorEntry, ...]


def require(condition: Any, reason: str) -> None:
    """Raise CorruptModel, unless the condition holds."""
    if not condition:
        raise CorruptModel(reason)


def entry_for(name: str, tensor: Tensor, dtype: Literal["bfloat16", "float16"]) -> TensorEntry:
    """How a tensor is transferred. Whole numbers and one-dimensional tensors are few, and keep all their bits."""
    if not tensor.is_floating_point():
        return TensorEntry(name=name, shape=tuple(tensor.shape), dtype="int64")
    return TensorEntry(name=name, shape=tuple(tensor.shape), dtype=dtype if tensor.ndim > 1 else "float32")


def to_words(weights: Mapping[str, Tensor], entries: Entries) -> WordRows:
    """All weights, rounded if necessary.

    Tensor by tensor, so that intermediate results stay in the processor's caches.
    """
    counts = counts_of(entries, LIMITS)
    words = tuple(np.empty(count, kind) for count, (_, kind) in zip(counts, WORD_TYPES.values(), strict=True))
    with one_thread():
        for entry, part in _places(words, entries):
            values = weights[entry.name].detach().cpu().to(WORD_TYPES[entry.dtype][0]).contiguous().flatten()
            part[:] = values.view(torch.uint8).numpy().view(part.dtype)
    return words


def from_words(words: WordRows, entries: Entries) -> dict[str, Tensor]:
    """The tensors, in float32 (or int64). They share one block of memory: numpy uses large pages, which is much faster.

    Raises:
        CorruptModel: a tensor has numbers that are not finite.
    """
    row = torch.from_numpy(np.empty(sum(part.size for part in words), np.float32))
    start, weights = 0, dict[str, Tensor]()
    with one_thread():
        for entry, part in _places(words, entries):
            number = WORD_TYPES[entry.dtype][0]
            values = torch.from_numpy(part.view(np.uint8)).view(number)
            if number.is_floating_point:
                # One pass: infinities are extremes, and NaN makes both extremes NaN.
                finite = torch.stack(values.aminmax()).isfinite().all()
                require(finite, f"tensor {entry.name} has infinite or undefined numbers")
                values = row[start : start + len(values)].copy_(values)
                start += len(values)
            weights[entry.name] = values.reshape(entry.shape)
    return {entry.name: weights[entry.name] for entry in entries}


def pack(words: Iterable[NDArray[Any]], *, compressed: bool = True) -> bytes:
    """The planes of all rows of words as one zstd frame."""
    rows = list(words)
    planes, start = np.empty(sum(row.nbytes for row in rows), np.uint8), 0
    for row in rows:
        to_planes(row, out=planes[start : start + row.nbytes].reshape(row.itemsize, row.size))
        start += row.nbytes
    if not compressed:
        return zstandard.ZstdCompressor(level=STORED).compress(planes.data)
    settings = zstandard.ZstdCompressionParameters.from_level(1, **FEW_MATCHES)
    return zstandard.ZstdCompressor(compression_params=settings).compress(planes.data)


def unpack(frame: memoryview, entries: Entries, limits: ModelLimits) -> WordRows:
    """The words in a frame.

    Raises:
        CorruptModel: it is damaged, over the limits, or has another number of bytes.
    """
    planes, start, words = unpacked(frame, entries, limits), 0, []
    for count, (_, kind) in zip(counts_of(entries, limits), WORD_TYPES.values(), strict=True):
        end = start + count * np.dtype(kind).itemsize
        words.append(from_planes(planes[start:end], kind, count))
        start = end
    return tuple(words)


def unpacked(frame: memoryview, entries: Entries, limits: ModelLimits) -> memoryview:
    """The planes in a frame. Their size is checked against the tensors before anything is unpacked.

    Raises:
        CorruptModel: it is damaged, over the limits, or has another number of bytes.
    """
    total = sum(
        count * np.dtype(kind).itemsize
        for count, (_, kind) in zip(counts_of(entries, limits), WORD_TYPES.values(), strict=True)
    )
    return decompress(frame, total, what="weights", error=CorruptModel)


def counts_of(entries: Entries, limits: ModelLimits) -> list[int]:
    """The number of words of each type in these tensors.

    Raises:
        CorruptModel: they are over the limits, or two have the same name.
    """
    require(len({entry.name for entry in entries}) == len(entries), "two tensors have the same name")
    counts = [sum(math.prod(entry.shape) for entry in entries if entry.dtype == dtype) for dtype in WORD_TYPES]
    require(sum(counts) <= limits.max_elements, f"{sum(counts):,} weights are more than {limits.max_elements:,}")
    return counts


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the block, torch uses one thread: with more, each of many small operations waits for all threads, which
    takes long when other programs keep cores busy.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _places(words: WordRows, entries: Entries) -> Iterator[tuple[TensorEntry, NDArray[Any]]]:
    """Each tensor with its part of the words."""
    for dtype, row in zip(WORD_TYPES, words, strict=True):
        start = 0
        for entry in entries:
            if entry.dtype == dtype:
                end = start + math.prod(entry.shape)
                yield entry, row[start:end]
                start = end
