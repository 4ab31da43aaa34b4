"""How fast a learner is here, measured before there are games to learn from."""

from typing import Literal

import numpy as np

from keima.config.sections.network import NetworkSettings
from keima.config.sections.training import TrainingSettings
from keima.games import Game
from keima.learning.learner import Learner
from keima.networks.network import build_network
from keima.replay.window import ALL_ROWS, Batch

SECONDS = 1.0  # of steps that count
FEW_POSITIONS = 8  # of the first steps; by them a network is judged whose whole batch takes longer


def count_learner_threads(threads: int | Literal["auto"], *, cores: int, is_spread: bool, asynchronous: bool) -> int:
    """Return the CPU threads of a learner on a machine with so many cores: as many as are set; by default all but one
    where other machines play (``is_spread``), half where workers play here at the same time, and else all.
    """
    if threads != "auto":
        return threads
    return max(1, cores - 1 if is_spread else cores // 2 if asynchronous else cores)


class _OneBatch:
    """A window whose samples are always the same invented positions."""

    def __init__(self, game: Game, network: NetworkSettings, count: int) -> None:
        self._batch = Batch.empty(
            game,
            count,
            replies=network.predict_reply,
            ownership=network.predict_ownership or network.predict_score,
            futures=network.predict_future,
        )
        for array, value in (
            (self._batch.observations, 1.0),
            (self._batch.policies, 1 / game.num_actions),
            (self._batch.replies, 1 / game.num_actions),
            (self._batch.legal, True),
            (self._batch.values, 0.0),
            (self._batch.policy_mask, 1.0),
            (self._batch.score_leads, 0.0),
        ):
            array[...] = np.asarray(value, array.dtype)

    def sample(self, count: int, rng_seed: int, *, rows: slice = ALL_ROWS) -> Batch:
        """See ``keima.learning.learner.Window``."""
        return self._batch


def measure_learning_speed(game: Game, network: NetworkSettings, training: TrainingSettings) -> float:
    """Return the positions per second that a learner of such a network, at its largest, learns with nothing else to do.

    It takes a few seconds, with PyTorch's present number of threads, on the device that the settings name. The time in
    which a real learner draws its positions is not included.

    Raises:
        ValueError: there is no such device here.
    """
    learner = Learner(build_network(game, **network.arguments(len(network.growth))), training)
    few = _OneBatch(game, network, FEW_POSITIONS)
    learner.train(few, 1, 0, batch_size=FEW_POSITIONS)  # kernels are made
    speed = learner.train(few, 1, 0, batch_size=FEW_POSITIONS).samples_per_second
    if training.batch_size > speed * SECONDS:
        return speed
    window = _OneBatch(game, network, training.batch_size)
    learner.train(window, 2, 0)
    return learner.train(window, 10**6, 0, seconds=SECONDS).samples_per_second
