"""Random numbers for compiled code. A seed gives the same games for any number of threads.

A stream is one 64-bit word that each draw advances, kept in an array ``streams`` ``[B]`` with one word per game or
tree, so that a thread touches only the words of its own games. The generator is SplitMix64 (Steele, Lea & Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014): a counter and a mixer, with a period of 2**64. Seed a stream
with ``keima.base.random.seed_stream``.
"""

import math

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled, inlined_by_llvm

Streams = NDArray[np.uint64]  # [B]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFT_1, SHIFT_2, SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
# Right shifts that keep so many bits.
SHIFT_TO_32_BITS, SHIFT_TO_52_BITS, SHIFT_TO_53_BITS = np.uint64(32), np.uint64(12), np.uint64(11)


@inlined_by_llvm
def next_word(streams: Streams, b: int) -> int:
    """Return 64 random bits (uint64) from stream ``b``."""
    state = streams[b] + GOLDEN
    streams[b] = state
    state = (state ^ (state >> SHIFT_1)) * MIX_1
    state = (state ^ (state >> SHIFT_2)) * MIX_2
    return state ^ (state >> SHIFT_3)


@inlined_by_llvm
def uniform(streams: Streams, b: int) -> float:
    """Return a uniform sample from [0, 1)."""
    return np.float64(next_word(streams, b) >> SHIFT_TO_53_BITS) * 2.0**-53


@inlined_by_llvm
def random_below(streams: Streams, b: int, n: int) -> int:
    """Return an integer from 0 to ``n - 1``, for 0 < ``n`` < 2**31, uniform to one part in 2**32 / ``n``."""
    # floor(u * n), where u in [0, 1) is 32 bits long
    return int(np.int64(((next_word(streams, b) >> SHIFT_TO_32_BITS) * np.uint64(n)) >> SHIFT_TO_32_BITS))


@compiled
def exponential(streams: Streams, b: int) -> float:
    """Return an exponential sample with mean 1; never 0. ``int(mean * exponential(...))`` is geometric from 0."""
    # -log(u), where u in (0, 1) is the middle of one of 2**52 intervals
    return -math.log((np.float64(next_word(streams, b) >> SHIFT_TO_52_BITS) + 0.5) * 2.0**-52)


@compiled
def normal(streams: Streams, b: int) -> float:
    """Return a standard normal sample (Box-Muller transform)."""
    return math.sqrt(2.0 * exponential(streams, b)) * math.cos(2.0 * math.pi * uniform(streams, b))
