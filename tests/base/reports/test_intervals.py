"""Confidence intervals."""

import numpy as np
import pytest

from keima.base.reports.intervals import mean_margin


def test_the_interval_of_a_mean_contains_it_nineteen_times_in_twenty() -> None:
    random = np.random.default_rng(1)
    inside = 0
    for _ in range(1000):
        values = random.exponential(10.0, 200)
        margin = mean_margin(values)
        assert margin is not None
        inside += abs(values.mean() - 10.0) <= margin
    assert 920 <= inside <= 970


@pytest.mark.parametrize("count", [2, 3, 4, 10])
def test_the_interval_of_a_mean_of_few_values_contains_it_as_often(count: int) -> None:
    random = np.random.default_rng(1)
    margins = [(values.mean(), mean_margin(values)) for values in random.normal(3.0, 2.0, (4000, count))]
    inside = np.mean([margin is not None and abs(mean - 3.0) <= margin for mean, margin in margins])
    assert 0.94 <= inside <= 0.96
