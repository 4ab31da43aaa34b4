"""The content of a model's transfer file, without torch: header, words and hash.

A file has the magic, the format number (16 bits), the header's length (32 bits), the header (JSON: the game and
network, the names, shapes and types of the tensors, the canary), one zstd frame with all weights, and the SHA-256 of
head and unpacked weights, which identifies the model.

Weights are words of 16, 32 or 64 bits, which are transferred exactly. The words of one type are stored plane by plane:
a plane holds the same byte of every word, so that signs and exponents, which are alike, are separate from the last
digits, which are noise.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import zstandard
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from keima.config.older_options import with_older_options, without_left_settings
from keima.data.columns import decompress_frame, from_planes, to_planes
from keima.networks.files.heading import DIGEST_BYTES, MODEL_MAGIC, MODEL_PREFIX, stored_sha256

FORMAT = 2
STORED = -(2**17)  # a level of zstd that hardly compresses and takes almost no time
# Sequences of bytes do not repeat in weights: searching for them doubles the time, and chance matches make frames
# larger.
FEW_MATCHES = {"strategy": zstandard.STRATEGY_FAST, "min_match": 7, "hash_log": 6}

# Number types of a transfer, in the order of the frame, and the types of their words.
WORD_TYPES: dict[str, type[np.unsignedinteger[Any]]] = {
    "bfloat16": np.uint16,
    "float16": np.uint16,
    "float32": np.uint32,
    "int64": np.uint64,
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
MAX_MODEL_BYTES = LIMITS.max_bytes


class HeaderSection(BaseModel):
    """Part of a header; unknown keys and numbers given as text are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TensorEntry(HeaderSection):
    """A tensor in a transfer file."""

    name: HeaderName
    shape: Annotated[tuple[Annotated[int, Field(ge=1, lt=2**32)], ...], Field(max_length=8)]
    dtype: Literal["bfloat16", "float16", "float32", "int64"]


Entries = tuple[TensorEntry, ...]


def require_valid(condition: Any, reason: str) -> None:
    """Raise CorruptModel, unless the condition holds."""
    if not condition:
        raise CorruptModel(reason)


HeaderNumber = Annotated[int, Field(ge=0, lt=2**53)]
HeaderScalar = bool | Annotated[int, Field(ge=-4096, le=4096)] | Annotated[float, Field(ge=-4096, le=4096)] | HeaderName


class Description(HeaderSection):
    """A model's game, network and version."""

    game: HeaderName
    options: Annotated[dict[HeaderName, HeaderScalar], Field(max_length=100)]
    rules_version: HeaderNumber
    network: Annotated[dict[HeaderName, HeaderScalar], Field(max_length=100)]  # the arguments of ``build_network``
    model_version: HeaderNumber

    @model_validator(mode="before")
    @classmethod
    def _without_left_facts(cls, given: Any) -> Any:
        return without_left_settings("model", given) if isinstance(given, dict) else given

    @field_validator("options")
    @classmethod
    def _complete(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        return with_older_options(info.data.get("game", ""), options)

    @field_validator("network")
    @classmethod
    def _without_left_heads(cls, network: dict[str, Any]) -> dict[str, Any]:
        return without_left_settings("network", network)


class Canary(HeaderSection):
    """A network's answers for ``canary_positions``."""

    values: tuple[FiniteFloat, ...]  # [N * V]
    policy_logits: tuple[tuple[FiniteFloat, ...], ...]  # [N, up to CANARY_ACTIONS]


class Header(HeaderSection):
    """The header of a transfer file."""

    model: Description
    canary: Canary
    tensors: Annotated[tuple[TensorEntry, ...], Field(max_length=100_000)]


@dataclass(frozen=True, kw_only=True)
class Content:
    """The unpacked content of a model file: header and weights agree with each other and with the limits."""

    raw_header: bytes  # as it is in the file
    header: Header
    words: WordRows  # the weights

    @cached_property
    def sha256(self) -> str:
        """The hash of header and weights, in hexadecimal: it identifies the model."""
        digest = hashlib.sha256(pack_head(self.raw_header, MODEL_MAGIC))
        for row in self.words:
            digest.update(row.data)
        return digest.hexdigest()


def pack_head(raw_header: bytes, magic: bytes) -> bytes:
    """Return all bytes of a file before the weights."""
    return MODEL_PREFIX.pack(magic, FORMAT, len(raw_header)) + raw_header


def encode_content(content: Content, *, compressed: bool = True) -> bytes:
    """Return the file with this content."""
    return pack_file(content, content.words, MODEL_MAGIC, compressed=compressed)


def pack_file(content: Content, words: WordRows, magic: bytes, *, compressed: bool = True) -> bytes:
    """Return a file that begins with ``magic``, has the header and the hash of ``content``, and holds ``words``."""
    frame = compress_words(words, compressed=compressed)
    return b"".join((pack_head(content.raw_header, magic), frame, bytes.fromhex(content.sha256)))


def decode_content(data: bytes, *, limits: ModelLimits = LIMITS) -> Content:
    """Return the content of a file's bytes.

    Raises:
        CorruptModel: the file is damaged, of another format, over the limits, or its parts contradict each other.
    """
    content = unpack_file(data, MODEL_MAGIC, "model", limits)
    require_valid(
        content.sha256 == stored_sha256(data), "the checksum does not match: the file was changed in transfer"
    )
    return content


def unpack_file(data: bytes, magic: bytes, what: str, limits: ModelLimits) -> Content:
    """Return the content of a file that begins with ``magic``; its hash is not compared.

    Raises:
        CorruptModel: it is damaged, is not a ``what``, has another format, or is over the limits.
    """
    require_valid(len(data) <= limits.max_bytes, f"{len(data):,} bytes are more than the {limits.max_bytes:,} allowed")
    require_valid(len(data) >= MODEL_PREFIX.size + DIGEST_BYTES, f"{len(data)} bytes are too few for a {what}")
    found, number, length = MODEL_PREFIX.unpack_from(data)
    require_valid(found == magic, f"it does not begin like a {what}")
    older = "the program that wrote it" if number < FORMAT else "this program"
    require_valid(number == FORMAT, f"it has format {number}, and this program reads format {FORMAT}: update {older}")
    end = MODEL_PREFIX.size + length
    fits = length <= limits.max_header_bytes and end <= len(data) - DIGEST_BYTES
    require_valid(fits, f"a header of {length:,} bytes does not fit")
    raw = data[MODEL_PREFIX.size : end]
    try:
        header = Header.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise CorruptModel(f"the header is wrong at {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    words = decompress_words(memoryview(data)[end:-DIGEST_BYTES], header.tensors, limits)
    return Content(raw_header=raw, header=header, words=words)


def compress_words(words: WordRows, *, compressed: bool = True) -> bytes:
    """Return the planes of all rows of words as one zstd frame."""
    planes, start = np.empty(sum(row.nbytes for row in words), np.uint8), 0
    for row in words:
        to_planes(row, out=planes[start : start + row.nbytes].reshape(row.itemsize, row.size))
        start += row.nbytes
    if not compressed:
        return zstandard.ZstdCompressor(level=STORED).compress(planes.data)
    settings = zstandard.ZstdCompressionParameters.from_level(1, **FEW_MATCHES)
    return zstandard.ZstdCompressor(compression_params=settings).compress(planes.data)


def decompress_words(frame: memoryview, entries: Entries, limits: ModelLimits) -> WordRows:
    """Return the words in a frame. Their number is checked against the tensors before anything is unpacked.

    Raises:
        CorruptModel: it is damaged, over the limits, or has another number of bytes.
    """
    counts, kinds = count_words(entries, limits), WORD_TYPES.values()
    sizes = [count * np.dtype(kind).itemsize for count, kind in zip(counts, kinds, strict=True)]
    planes, start, words = decompress_frame(frame, sum(sizes), what="weights", error=CorruptModel), 0, []
    for count, kind, size in zip(counts, kinds, sizes, strict=True):
        words.append(from_planes(planes[start : start + size], kind, count))
        start += size
    return tuple(words)


def count_words(entries: Entries, limits: ModelLimits) -> list[int]:
    """Return the number of words of each type in these tensors.

    Raises:
        CorruptModel: they are over the limits, or two have the same name.
    """
    require_valid(len({entry.name for entry in entries}) == len(entries), "two tensors have the same name")
    counts = [sum(math.prod(entry.shape) for entry in entries if entry.dtype == dtype) for dtype in WORD_TYPES]
    require_valid(sum(counts) <= limits.max_elements, f"{sum(counts):,} weights are more than {limits.max_elements:,}")
    return counts


def iterate_tensors(words: WordRows, entries: Entries) -> Iterator[tuple[TensorEntry, NDArray[Any]]]:
    """Yield each tensor with its part of the words."""
    for dtype, row in zip(WORD_TYPES, words, strict=True):
        start = 0
        for entry in entries:
            if entry.dtype == dtype:
                end = start + math.prod(entry.shape)
                yield entry, row[start:end]
                start = end
