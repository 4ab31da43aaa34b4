"""A cache of evaluations by position: what many games share, such as openings, is evaluated once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import inlined_by_llvm
from keima.search.tree import Floats

EMPTY = np.uint64(0x9E3779B97F4A7C15)  # an unlikely hash; 0 may be the hash of a game's start


class PositionCache(NamedTuple):
    """A hash table of N slots, N a power of two or 0; a newer position replaces an older one in its slot."""

    keys: NDArray[np.uint64]  # [N] EMPTY, or the position's hash
    logits: Floats  # [N, A]
    values: Floats  # [N, V]


def make_position_cache(positions: int, num_actions: int, num_values: int) -> PositionCache:
    """Allocate a cache of at least ``positions`` slots; with 0 it caches nothing."""
    slots = 1 << (positions - 1).bit_length() if positions > 0 else 0
    return PositionCache(
        keys=np.full(slots, EMPTY),
        logits=np.zeros((slots, num_actions), np.float32),
        values=np.zeros((slots, num_values), np.float32),
    )


@inlined_by_llvm
def find_position(cache: PositionCache, key: int) -> int:
    """Return the slot that holds ``key``, or -1."""
    if len(cache.keys) == 0 or key == EMPTY:
        return -1
    slot = np.int64(key & np.uint64(len(cache.keys) - 1))
    return int(slot) if cache.keys[slot] == key else -1


@inlined_by_llvm
def store_position(cache: PositionCache, key: int, logits: Floats, values: Floats) -> None:
    """Store an evaluation, ``logits`` ``[A]`` and ``values`` ``[V]``."""
    if len(cache.keys) == 0:
        return
    slot = np.int64(key & np.uint64(len(cache.keys) - 1))
    cache.keys[slot] = key
    for action in range(len(logits)):
        cache.logits[slot, action] = logits[action]
    for player in range(len(values)):
        cache.values[slot, player] = values[player]


def clear_position_cache(cache: PositionCache) -> None:
    """Empty the cache, because the network has changed."""
    cache.keys[:] = EMPTY
