"""Fingerprints of a run's state in the log: equal ones show that a resumed run continues exactly."""

import hashlib
import json

from keima.learning.learner import LearnerState
from keima.replay.window import ReplayWindow

SAMPLED_POSITIONS = 256


def fingerprint(learner: LearnerState, window: ReplayWindow) -> str:
    """Return the fingerprint of a learner's state and a window."""
    return f"learner {learner_fingerprint(learner)} window {window_fingerprint(window)}"


def learner_fingerprint(state: LearnerState) -> str:
    """Return the fingerprint of weights, averaged weights, optimizer, random state and counters."""
    digest = hashlib.sha256(json.dumps(state.counters, sort_keys=True).encode())
    for group, tensors in sorted(state.tensors.items()):
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{group}/{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def window_fingerprint(window: ReplayWindow) -> str:
    """Return the fingerprint of a window: its numbers of games and positions, and a sample."""
    games, positions = window.num_games, window.num_positions
    if positions == 0:
        return f"{games}/0"
    batch = window.sample(SAMPLED_POSITIONS, 0)
    digest = hashlib.sha256()
    for column in (batch.observations, batch.policies, batch.values):
        digest.update(column.tobytes())
    return f"{games}/{positions}/{digest.hexdigest()[:16]}"
