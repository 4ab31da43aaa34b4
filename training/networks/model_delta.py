"""One model as what changes another into it: a third to a half of the bytes, depending on how much was learned in
between.

A delta is laid out as a model file, under a magic of its own; its digest is that of the model that is to come out. Of
each 16-bit word it holds the difference to the base's word, as a small whole number: for numbers of one sign, the steps
of the last digit between the two. Steps of large numbers are large, and training moves large and small numbers alike;
so the differences are sorted by the exponents of the base's numbers, which the receiver knows, and each block of the
frame has a code for its kind. That saves a quarter against words that are XORed, and is faster. The few other words are
sent as they are.
"""

import numpy as np
from numpy.typing import NDArray

from games.compiled import compiled
from training.data.columns import from_planes
from training.networks.model_codec import DIGEST_BYTES, FORMAT, Content, content_sha256, parse_header, sha256_of
from training.networks.model_heading import MAGIC, PREFIX
from training.networks.model_weights import DTYPES, LIMITS, ModelLimits, pack, require, unpacked

DELTA_MAGIC = b"KEIMADL\n"
EXPONENT_BITS = {"bfloat16": 7, "float16": 10}  # the exponent begins above so many bits
EXPONENTS = 256


def encode_delta(model: Content, base: Content) -> bytes | None:
    """What changes ``base`` into ``model``; None when they do not have the same tensors."""
    if model.header.tensors != base.header.tensors:
        return None
    rows = list(model.words)
    for index, dtype in enumerate(DTYPES):
        if dtype in EXPONENT_BITS:
            old, new = base.words[index], model.words[index]
            rows[index] = np.empty_like(new)
            _differences(old, new, EXPONENT_BITS[dtype], _firsts(old, EXPONENT_BITS[dtype]), rows[index])
    head = PREFIX.pack(DELTA_MAGIC, FORMAT, len(model.head) - PREFIX.size) + model.head[PREFIX.size :]
    return b"".join((head, pack(rows), bytes.fromhex(model.sha256)))


def expand_delta(delta: bytes, base: Content, *, limits: ModelLimits = LIMITS) -> Content:
    """The model that ``encode_delta`` made ``delta`` of, with the same ``base``.

    Raises:
        CorruptModel: it is damaged, over the limits, or does not fit ``base``.
    """
    require(len(delta) >= PREFIX.size + DIGEST_BYTES, f"{len(delta)} bytes are too few for a delta")
    magic, number, length = PREFIX.unpack_from(delta)
    require((magic, number) == (DELTA_MAGIC, FORMAT), "it is no delta that this version of the program knows")
    end = PREFIX.size + length
    head = PREFIX.pack(MAGIC, FORMAT, length) + delta[PREFIX.size : end]
    header = parse_header(head, limits)
    require(header.tensors == base.header.tensors, "it was made for another network")
    planes, start, words = unpacked(memoryview(delta)[end:-DIGEST_BYTES], header.tensors, limits), 0, []
    for dtype, old in zip(DTYPES, base.words, strict=True):
        row = planes[start : start + old.nbytes]
        start += old.nbytes
        if dtype in EXPONENT_BITS:
            new = np.empty_like(old)
            bits = EXPONENT_BITS[dtype]
            _changed(old, np.frombuffer(row, np.uint8).reshape(2, old.size), bits, _firsts(old, bits), new)
            words.append(new)
        else:
            words.append(from_planes(row, old.dtype.type, old.size))
    content = Content(head=head, header=header, words=tuple(words), sha256=sha256_of(head, words))
    require(content.sha256 == content_sha256(delta), "with what is here it does not make the model that it was made of")
    return content


@compiled
def _firsts(words: NDArray[np.uint16], bits: int) -> NDArray[np.int64]:
    """Where the differences to numbers of each exponent begin, when they are sorted by it."""
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
def _differences(
    old: NDArray[np.uint16],
    new: NDArray[np.uint16],
    bits: int,
    firsts: NDArray[np.int64],
    differences: NDArray[np.uint16],
) -> None:
    """Sort the differences, modulo 2**16, as 0, -1, 1, -2, 2, ... = 0, 1, 2, 3, 4, ..."""
    for i in range(old.size):
        exponent = (old[i] & 0x7FFF) >> bits
        step = np.int32(np.int16(new[i] - old[i]))
        differences[firsts[exponent]] = (step << 1) ^ (step >> 15)
        firsts[exponent] += 1


@compiled
def _changed(
    old: NDArray[np.uint16], planes: NDArray[np.uint8], bits: int, firsts: NDArray[np.int64], new: NDArray[np.uint16]
) -> None:
    """Undo ``_differences``, whose planes these are, ``[2, N]``; whatever they hold, nothing else is touched."""
    for i in range(old.size):
        exponent = (old[i] & 0x7FFF) >> bits
        place = firsts[exponent]
        firsts[exponent] = place + 1
        step = np.int32(planes[0, place]) | (np.int32(planes[1, place]) << 8)
        new[i] = np.int32(old[i]) + ((step >> 1) ^ -(step & 1))
