"""A model as its difference from another: a third to a half of the bytes, depending on how much was learned in between.

A delta has the layout of a model file with a magic of its own; its digest is that of the resulting model. For each
16-bit word it holds the difference from the base's word, a small whole number: for numbers of the same sign, the steps
of the last digit between the two. Steps of large numbers are large, and training changes large and small numbers alike.
So the differences are sorted by the exponents of the base's numbers, which the receiver knows, and zstd gives each
block its own code. That saves a quarter compared with XOR, and is faster. The few other words are sent whole.
"""

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.data.columns import from_planes
from keima.networks.files.model_content import (
    FORMAT,
    LIMITS,
    WORD_TYPES,
    Content,
    ModelLimits,
    compress_words,
    decompress_planes,
    parse_header,
    require_valid,
    sha256_of,
)
from keima.networks.files.model_heading import DIGEST_BYTES, MODEL_MAGIC, MODEL_PREFIX, stored_sha256

DELTA_MAGIC = b"KEIMADL\n"
EXPONENT_BITS = {"bfloat16": 7, "float16": 10}  # the number of bits below the exponent
EXPONENTS = 256


def encode_delta(model: Content, base: Content) -> bytes | None:
    """The delta from ``base`` to ``model``; None if their tensors differ."""
    if model.header.tensors != base.header.tensors:
        return None
    rows = list(model.words)
    for index, dtype in enumerate(WORD_TYPES):
        if dtype in EXPONENT_BITS:
            old, new = base.words[index], model.words[index]
            rows[index] = np.empty_like(new)
            _write_differences(old, new, EXPONENT_BITS[dtype], _first_indices(old, EXPONENT_BITS[dtype]), rows[index])
    head = MODEL_PREFIX.pack(DELTA_MAGIC, FORMAT, len(model.head) - MODEL_PREFIX.size) + model.head[MODEL_PREFIX.size :]
    return b"".join((head, compress_words(rows), bytes.fromhex(model.sha256)))


def expand_delta(delta: bytes, base: Content, *, limits: ModelLimits = LIMITS) -> Content:
    """The model from which ``encode_delta`` made ``delta`` with the same ``base``.

    Raises:
        CorruptModel: the delta is damaged, over the limits, or does not fit ``base``.
    """
    require_valid(len(delta) >= MODEL_PREFIX.size + DIGEST_BYTES, f"{len(delta)} bytes are too few for a delta")
    magic, number, length = MODEL_PREFIX.unpack_from(delta)
    require_valid((magic, number) == (DELTA_MAGIC, FORMAT), "it is not a delta that this version of the program reads")
    end = MODEL_PREFIX.size + length
    head = MODEL_PREFIX.pack(MODEL_MAGIC, FORMAT, length) + delta[MODEL_PREFIX.size : end]
    header = parse_header(head, limits)
    require_valid(header.tensors == base.header.tensors, "it was made for another network")
    planes, start, words = decompress_planes(memoryview(delta)[end:-DIGEST_BYTES], header.tensors, limits), 0, []
    for dtype, old in zip(WORD_TYPES, base.words, strict=True):
        row = planes[start : start + old.nbytes]
        start += old.nbytes
        if dtype in EXPONENT_BITS:
            new = np.empty_like(old)
            bits = EXPONENT_BITS[dtype]
            _apply_differences(
                old, np.frombuffer(row, np.uint8).reshape(2, old.size), bits, _first_indices(old, bits), new
            )
            words.append(new)
        else:
            words.append(from_planes(row, old.dtype.type, old.size))
    content = Content(head=head, header=header, words=tuple(words), sha256=sha256_of(head, words))
    require_valid(
        content.sha256 == stored_sha256(delta), "applied to the model here, it does not give the intended model"
    )
    return content


@compiled
def _first_indices(words: NDArray[np.uint16], bits: int) -> NDArray[np.int64]:
    """The start of each exponent's differences, when they are sorted by exponent."""
    firsts = np.zeros(EXPONENTS, np.int64)
    for word in words:
        firsts[(word & 0x7FFF) >> bits] += 1
    first = 0
    for exponent in range(EXPONENTS):
        count = firsts[exponent]
        firsts[exponent] = first
        first += count
    return firsts


@compiled
def _write_differences(
    old: NDArray[np.uint16],
    new: NDArray[np.uint16],
    bits: int,
    firsts: NDArray[np.int64],
    differences: NDArray[np.uint16],
) -> None:
    """Write the differences modulo 2**16, sorted by exponent, as 0, 1, 2, 3, 4, ... for 0, -1, 1, -2, 2, ..."""
    for i in range(old.size):
        exponent = (old[i] & 0x7FFF) >> bits
        step = np.int32(np.int16(new[i] - old[i]))
        differences[firsts[exponent]] = (step << 1) ^ (step >> 15)
        firsts[exponent] += 1


@compiled
def _apply_differences(
    old: NDArray[np.uint16], planes: NDArray[np.uint8], bits: int, firsts: NDArray[np.int64], new: NDArray[np.uint16]
) -> None:
    """Undo ``_write_differences``, given its planes ``[2, N]``; safe for any content."""
    for i in range(old.size):
        exponent = (old[i] & 0x7FFF) >> bits
        place = firsts[exponent]
        firsts[exponent] = place + 1
        step = np.int32(planes[0, place]) | (np.int32(planes[1, place]) << 8)
        new[i] = np.int32(old[i]) + ((step >> 1) ^ -(step & 1))
