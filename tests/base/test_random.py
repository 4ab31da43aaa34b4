"""Random streams: the published generator, the right distributions, and nothing shared between streams."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from keima.base import random
from keima.compilation.decorators import compiled
from tests.sources import ROOT

DRAWS = 200_000


@compiled
def draw_words(streams: random.Streams, out: NDArray[np.uint64]) -> None:
    for n in range(out.size):
        out[n] = random.next_word(streams, n % streams.size)


@compiled
def draw_uniform(streams: random.Streams, out: NDArray[np.float64]) -> None:
    for n in range(out.size):
        out[n] = random.uniform(streams, 0)


@compiled
def draw_below(streams: random.Streams, out: NDArray[np.int64], bound: int) -> None:
    for n in range(out.size):
        out[n] = random.random_below(streams, 0, bound)


@compiled
def draw_exponential(streams: random.Streams, out: NDArray[np.float64]) -> None:
    for n in range(out.size):
        out[n] = random.exponential(streams, 0)


@compiled
def draw_gumbel(streams: random.Streams, out: NDArray[np.float64]) -> None:
    for n in range(out.size):
        out[n] = random.draw_gumbel(streams, 0)


@compiled
def draw_normal(streams: random.Streams, out: NDArray[np.float64]) -> None:
    for n in range(out.size):
        out[n] = random.normal(streams, 0)


@compiled
def draw_gamma(streams: random.Streams, out: NDArray[np.float64], alpha: float) -> None:
    for n in range(out.size):
        out[n] = random.draw_gamma(streams, 0, alpha)


def drawn(draw: Callable[..., None], *arguments: Any, seed: int = 1) -> NDArray[np.float64]:
    out = np.empty(DRAWS)
    draw(np.array([random.seed_stream(seed)], np.uint64), out, *arguments)
    return out


def assert_moments(sample: NDArray[np.float64], *, mean: float, variance: float, kurtosis: float) -> None:
    """Assert that mean and variance are within five standard errors of the given ones (the variance's follows from the
    excess kurtosis).
    """
    assert abs(sample.mean() - mean) < 5 * math.sqrt(variance / sample.size)
    assert abs(sample.var() - variance) < 5 * variance * math.sqrt((kurtosis + 2) / sample.size)


def test_words_are_those_of_the_published_generator() -> None:
    out = np.empty(5, np.uint64)
    draw_words(np.array([1234567], np.uint64), out)
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert out.tolist() == expected


def test_streams_are_independent() -> None:
    starts = np.array([random.seed_stream(1, b) for b in range(3)], np.uint64)
    together = np.empty(30, np.uint64)
    draw_words(starts.copy(), together)
    for b in range(3):
        alone = np.empty(10, np.uint64)
        draw_words(starts[b : b + 1].copy(), alone)
        assert np.array_equal(alone, together[b::3])


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    sample = drawn(draw_uniform)
    assert sample.min() >= 0 and sample.max() < 1
    assert_moments(sample, mean=0.5, variance=1 / 12, kurtosis=-1.2)
    assert abs(np.corrcoef(sample[1:], sample[:-1])[0, 1]) < 5 / math.sqrt(DRAWS)


@pytest.mark.parametrize("bound", [1, 2, 7, 82])
def test_whole_numbers_below_a_bound_are_equally_likely(bound: int) -> None:
    out = np.empty(DRAWS, np.int64)
    draw_below(np.array([random.seed_stream(2)], np.uint64), out, bound)
    counts = np.bincount(out)
    assert counts.size == bound
    expected = DRAWS / bound
    assert np.abs(counts - expected).max() < 5 * math.sqrt(expected)


def test_a_bound_near_the_largest_is_not_exceeded() -> None:
    out = np.empty(DRAWS, np.int64)
    draw_below(np.array([random.seed_stream(3)], np.uint64), out, 2**31 - 1)
    assert out.min() >= 0 and 2**31 - 2**21 < out.max() < 2**31 - 1


def test_exponential_numbers_have_the_right_moments() -> None:
    sample = drawn(draw_exponential)
    assert sample.min() > 0
    assert_moments(sample, mean=1, variance=1, kurtosis=6)


def test_gumbel_numbers_have_the_right_moments() -> None:
    assert_moments(drawn(draw_gumbel), mean=0.5772156649, variance=math.pi**2 / 6, kurtosis=2.4)


def test_normal_numbers_have_the_right_moments_and_tails() -> None:
    sample = drawn(draw_normal)
    assert_moments(sample, mean=0, variance=1, kurtosis=0)
    tail = math.erfc(2 / math.sqrt(2)) / 2
    for beyond in ((sample > 2).mean(), (sample < -2).mean()):
        assert abs(beyond - tail) < 5 * math.sqrt(tail / DRAWS)


@pytest.mark.parametrize("alpha", [0.03, 0.1, 0.3, 0.999, 1.0, 2.5, 10.83])
def test_gamma_numbers_have_the_right_moments(alpha: float) -> None:
    sample = drawn(draw_gamma, alpha)
    assert sample.min() > 0
    assert_moments(sample, mean=alpha, variance=alpha, kurtosis=6 / alpha)


def test_gamma_numbers_of_a_small_shape_are_spread_over_their_magnitudes() -> None:
    """For small x, P(gamma < x) is close to x**alpha / Gamma(alpha + 1): moments alone would miss an error there."""
    sample = drawn(draw_gamma, 0.1)
    for x in (1e-12, 1e-6, 1e-3):
        expected = x**0.1 / math.gamma(1.1)
        assert abs((sample < x).mean() - expected) < 5 * math.sqrt(expected / DRAWS) + x


@pytest.mark.medium
def test_a_seed_is_the_same_in_every_process() -> None:
    command = "from keima.base.random import seed_stream; print(seed_stream(5, 'worker1', 7))"
    runs = [
        subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    outputs = {run.stdout for run in runs}
    assert outputs == {f"{random.seed_stream(5, 'worker1', 7)}\n"}


def test_different_words_give_different_seeds() -> None:
    words: list[tuple[int | str, ...]] = [
        (),
        (0,),
        ("0",),
        (0, 0),
        (1, 23),
        (12, 3),
        ("ab", "c"),
        ("a", "bc"),
        (-1,),
        (2**64,),
        (2**64 - 1,),
    ]
    seeds = {random.seed_stream(*each) for each in words}
    assert len(seeds) == len(words)
    assert all(0 <= seed < 2**64 for seed in seeds)
