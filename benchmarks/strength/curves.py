"""When a run reached a strength, from what was measured of it at several times."""

import math
from collections.abc import Sequence

import numpy as np


def never_falling(values: Sequence[float]) -> list[float]:
    """The nearest non-decreasing values, by least squares (pool adjacent violators)."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([value])
        while len(pools) > 1 and np.mean(pools[-2]) >= np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    return [float(np.mean(pool)) for pool in pools for _ in pool]


def time_reached(times: Sequence[float], strengths: Sequence[float], wanted: float) -> tuple[float, bool]:
    """The time at which a run was as strong as wanted, and True; or its last time, and False.

    Interpolates the monotonic curve nearest to the strengths over the logarithm of the time.

    Args:
        times: ascending, above zero.
        strengths: at these times; larger is stronger.
        wanted: on the same scale.
    """
    curve = never_falling(strengths)
    after = next((i for i, strength in enumerate(curve) if strength >= wanted), None)
    if after is None:
        return times[-1], False
    if after == 0:
        return times[0], True
    between = np.interp(wanted, curve[after - 1 : after + 1], np.log(times[after - 1 : after + 1]))
    return math.exp(between), True
