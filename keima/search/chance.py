"""Sampling of chance outcomes."""

import numpy as np
from numpy.typing import NDArray

from keima.base.random import Streams, uniform
from keima.compilation.decorators import compiled_without_refcounts
from keima.games.game import Actions, Rules, States


@compiled_without_refcounts
def sample_chance_outcome(
    rules: Rules, state: States, outcomes: Actions, chances: NDArray[np.float32], streams: Streams, b: int
) -> int:
    """Sample an outcome at a chance state from stream ``b``; ``outcomes`` and ``chances`` ``[O]`` are scratch space."""
    count = rules.chance_outcomes(state, outcomes, chances)
    left = uniform(streams, b)
    for i in range(count - 1):
        left -= chances[i]
        if left < 0:
            return int(outcomes[i])
    return int(outcomes[count - 1])
