"""Sampling of chance outcomes."""

from keima.base.random import Streams, uniform
from keima.compilation.decorators import compiled_part
from keima.games.game import MoveScratch, Rules, States


@compiled_part
def sample_chance_outcome(rules: Rules, state: States, scratch: MoveScratch, streams: Streams, b: int) -> int:
    """Sample an outcome at a chance state from stream ``b``."""
    outcomes, chances = scratch.actions, scratch.chances
    count = rules.chance_outcomes(state, outcomes, chances)
    # Inverse transform sampling: outcome i is drawn if p(0) + ... + p(i) is the first sum above a uniform number
    left = uniform(streams, b)
    for i in range(count - 1):
        left -= chances[i]
        if left < 0:
            return int(outcomes[i])
    return int(outcomes[count - 1])
