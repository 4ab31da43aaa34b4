"""Random numbers of training, from the streams of ``keima/compilation/random.py``, and the seeds of streams."""

import hashlib
import json
import math

from keima.compilation.decorators import compiled
from keima.compilation.random import Streams, exponential, next_word, normal, random_below, uniform

__all__ = [
    "Streams",
    "draw_gamma",
    "draw_gumbel",
    "exponential",
    "next_word",
    "normal",
    "random_below",
    "seed_stream",
    "uniform",
]

TINY = 1e-300


def seed_stream(*words: int | str) -> int:
    """Return the seed, below 2**64, of the stream named by these words, such as a run's seed, a worker and a game."""
    digest = hashlib.sha256(json.dumps(words).encode())
    return int.from_bytes(digest.digest()[:8], "little")


@compiled
def draw_gumbel(streams: Streams, b: int) -> float:
    """Return a standard Gumbel sample. Logits plus Gumbel samples, sorted, sample the softmax without replacement."""
    return -math.log(exponential(streams, b))


@compiled
def draw_gamma(streams: Streams, b: int, alpha: float) -> float:
    """Return a gamma sample with shape ``alpha`` > 0 and scale 1; never 0. Several, divided by their sum, are
    Dirichlet.

    Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; below 1 by their boost from ``alpha +
    1``.
    """
    shape = alpha + 1.0 if alpha < 1.0 else alpha
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = normal(streams, b)
        v = 1.0 + c * x
        if v > 0.0 and -exponential(streams, b) < 0.5 * x * x + d * (1.0 - v**3 + 3.0 * math.log(v)):
            break
    value = d * v**3
    if alpha < 1.0:
        value *= math.exp(-exponential(streams, b) / alpha)
    return max(value, TINY)
