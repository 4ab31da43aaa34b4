"""95 % confidence intervals of proportions and means."""

import math

import numpy as np
from numpy.typing import NDArray

Z = 1.959964  # 95 % of a normal distribution lies within this many standard deviations


def wilson_interval(hits: float, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a proportion (Wilson 1927), within 0 and 1; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    share, z2 = hits / trials, Z * Z
    middle = share + z2 / (2 * trials)
    reach = Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, (middle - reach) / (1 + z2 / trials)), min(1.0, (middle + reach) / (1 + z2 / trials))


def mean_margin(values: NDArray[np.float64]) -> float | None:
    """Return half the width of the 95 % interval of the mean of ``values`` ``[N]`` (Student 1908); None for N < 2."""
    return (
        float(student_quantile(len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
        if len(values) > 1
        else None
    )


def mean_margin_of_groups(values: NDArray[np.float64], groups: NDArray[np.int64]) -> float:
    """Return the ``mean_margin`` of ``values`` ``[N]`` that are dependent within ``groups`` ``[N]`` (cluster-robust).

    There must be at least two groups.
    """
    sums = np.bincount(groups, values - values.mean())
    count = len(np.unique(groups))
    return float(student_quantile(count - 1) * math.sqrt((sums**2).sum() * count / (count - 1)) / len(values))


def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t with ``freedom`` degrees of freedom, which replaces ``Z`` for few
    values.

    Exact for one and two, else within 1 % (expansion 26.7.5 in Abramowitz and Stegun).
    """
    if freedom < 3:
        return {1: 12.7062, 2: 4.3027}[freedom]
    powers = Z ** np.arange(1, 8, 2)  # 1, 3, 5, 7
    terms = [powers @ (1, 1, 0, 0) / 4, powers @ (3, 16, 5, 0) / 96, powers @ (-15, 17, 19, 3) / 384]
    return float(Z + sum(term / freedom**order for order, term in enumerate(terms, start=1)))
