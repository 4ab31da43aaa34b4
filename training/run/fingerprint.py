"""A short text that two states of a run share only if they are the same: in the log, it shows that a resumed run goes
on exactly.
"""

import hashlib
import json

from training.learning.learner import LearnerState
from training.replay.replay import ReplayWindow

SAMPLES = 256


def fingerprint(learner: LearnerState, window: ReplayWindow) -> str:
    """Of all that the learner remembers, and of what the window holds and would draw."""
    return f"learner {learner_fingerprint(learner)} window {window_fingerprint(window)}"


def learner_fingerprint(state: LearnerState) -> str:
    """Of the weights, the averaged weights, the optimizer, the random state and the counters."""
    digest = hashlib.sha256(json.dumps(state.counters, sort_keys=True).encode())
    for group, tensors in sorted(state.tensors.items()):
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{group}/{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def window_fingerprint(window: ReplayWindow) -> str:
    """Of the number of games and positions, and of a draw."""
    games, positions = window.num_games, window.num_positions
    if positions == 0:
        return f"{games}/0"
    batch = window.sample(SAMPLES, 0)
    digest = hashlib.sha256()
    for column in (batch.observations, batch.policies, batch.values):
        digest.update(column.tobytes())
    return f"{games}/{positions}/{digest.hexdigest()[:16]}"
