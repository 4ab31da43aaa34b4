"""A model as its difference from another: a third to a half of the bytes, depending on how much was learned in between.

A delta has the layout of a model file with a magic of its own; its digest is that of the resulting model. For each
16-bit word it holds the difference from the base's word, a small whole number: for numbers of the same sign, the steps
of the last digit between the two. Steps of large numbers are large, and training changes large and small numbers alike.
So the differences are sorted by the exponents of the base's numbers, which the receiver knows, and zstd gives each
block its own code. That saves a quarter compared with XOR, and is faster. The few other words are sent whole.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.networks.files.container import (
    LIMITS,
    WORD_TYPES,
    Content,
    ModelLimits,
    WordRows,
    pack_file,
    require_valid,
    unpack_file,
)
from keima.networks.files.heading import stored_sha256

DELTA_MAGIC = b"KEIMADL\n"
EXPONENT_BITS = {"bfloat16": 7, "float16": 10}  # the number of bits below the exponent
EXPONENTS = 256

ShortWords = NDArray[np.uint16]


def encode_delta(model: Content, base: Content) -> bytes | None:
    """Return the delta from ``base`` to ``model``; None if their tensors differ."""
    if model.header.tensors != base.header.tensors:
        return None
    return pack_file(model, _change_short_words(_make_differences, base.words, model.words), DELTA_MAGIC)


def expand_delta(delta: bytes, base: Content, *, limits: ModelLimits = LIMITS) -> Content:
    """Return the model from which ``encode_delta`` made ``delta`` with the same ``base``.

    Raises:
        CorruptModel: the delta is damaged, over the limits, or does not fit ``base``.
    """
    found = unpack_file(delta, DELTA_MAGIC, "delta", limits)
    require_valid(found.header.tensors == base.header.tensors, "it was made for another network")
    content = replace(found, words=_change_short_words(_apply_differences, base.words, found.words))
    require_valid(
        content.sha256 == stored_sha256(delta), "applied to the model here, it does not give the intended model"
    )
    return content


def _change_short_words(
    change: Callable[[ShortWords, ShortWords, int], ShortWords], base: WordRows, words: WordRows
) -> WordRows:
    """Return the words of the types with 16 bits changed by ``change(base's, these, bits)``, and the others."""
    return tuple(
        change(old, row, EXPONENT_BITS[dtype]) if dtype in EXPONENT_BITS else row
        for dtype, old, row in zip(WORD_TYPES, base, words, strict=True)
    )


@compiled
def _make_differences(old: ShortWords, new: ShortWords, bits: int) -> ShortWords:
    """Return the differences modulo 2**16, sorted by exponent, as 0, 1, 2, 3, 4, ... for 0, -1, 1, -2, 2, ..."""
    places, differences = _first_places(old, bits), np.empty_like(old)
    for i in range(old.size):
        exponent = (old[i] & 0x7FFF) >> bits
        step = np.int32(np.int16(new[i] - old[i]))
        differences[places[exponent]] = (step << 1) ^ (step >> 15)
        places[exponent] += 1
    return differences


@compiled
def _apply_differences(old: ShortWords, differences: ShortWords, bits: int) -> ShortWords:
    """Undo ``_make_differences``; safe for any content."""
    places, new = _first_places(old, bits), np.empty_like(old)
    for i in range(old.size):
        exponent = (old[i] & 0x7FFF) >> bits
        step = np.int32(differences[places[exponent]])
        new[i] = np.int32(old[i]) + ((step >> 1) ^ -(step & 1))
        places[exponent] += 1
    return new


@compiled
def _first_places(words: ShortWords, bits: int) -> NDArray[np.int64]:
    """Return the start of each exponent's differences, when they are sorted by exponent."""
    firsts = np.zeros(EXPONENTS, np.int64)
    for word in words:
        firsts[(word & 0x7FFF) >> bits] += 1
    first = 0
    for exponent in range(EXPONENTS):
        count = firsts[exponent]
        firsts[exponent] = first
        first += count
    return firsts
