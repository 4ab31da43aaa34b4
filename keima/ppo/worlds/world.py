"""Worlds: vectorized environments in which policies learn from rewards.

A world is an environment of reinforcement learning. B of them are one object of arrays, and one call of compiled code
steps them all. An episode ends by *termination*, after which no rewards follow, or by *truncation*, a time limit: then
its last observation is kept, so that the rewards that would have followed can be estimated. The next episode begins at
once.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Observations = NDArray[np.float32]  # [B, F]
Seeds = NDArray[np.uint64]  # [B]: where the stream of each world starts
WorldState = dict[str, NDArray[Any]]  # arrays by name, the first axis being the world


class StepResult(NamedTuple):
    """The state of the worlds after a step.

    Each step overwrites the same arrays; compiled code takes them as one argument.
    """

    observations: Observations  # [B, F] now: of a new episode where one has ended
    last_observations: Observations  # [B, F] where an episode has ended, its last one; elsewhere without meaning
    rewards: NDArray[np.float32]  # [B]
    terminated: NDArray[np.bool_]  # [B]
    truncated: NDArray[np.bool_]  # [B], never together with terminated
    metrics: NDArray[np.float64]  # [B, K] of an episode that has ended; elsewhere without meaning


def empty_step_result(num_envs: int, observation_size: int, num_metrics: int = 0) -> StepResult:
    """Return the arrays for ``num_envs`` worlds."""
    return StepResult(
        observations=np.zeros((num_envs, observation_size), np.float32),
        last_observations=np.zeros((num_envs, observation_size), np.float32),
        rewards=np.zeros(num_envs, np.float32),
        terminated=np.zeros(num_envs, np.bool_),
        truncated=np.zeros(num_envs, np.bool_),
        metrics=np.zeros((num_envs, num_metrics), np.float64),
    )


class Worlds(Protocol):
    """B environments, each in an episode, with actions numbered from 0."""

    num_envs: int
    observation_size: int
    num_actions: int
    metric_names: tuple[str, ...]  # metrics of an episode in addition to reward and length
    moment: StepResult

    def step(self, actions: NDArray[np.int64]) -> None:
        """Take an action ``[B]`` in each world; the result is in ``moment``."""

    def state(self) -> WorldState:
        """Return a copy of everything that ``restore`` needs for an exact resume."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from ``state``.

        Raises:
            ValueError: it is of other worlds.
        """


class ArrayWorlds:
    """Worlds whose whole state is a set of arrays, with the world as first axis."""

    def __init__(self, moment: StepResult, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.moment = moment
        self.num_envs, self.observation_size = moment.observations.shape
        self._arrays = {**arrays, "observations": moment.observations}

    def state(self) -> WorldState:
        """Return a copy of all arrays, including the current observations."""
        return {name: array.copy() for name, array in self._arrays.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume from ``state``.

        Raises:
            ValueError: it is of other worlds, or of another number of them.
        """
        shapes = {name: (array.shape, array.dtype) for name, array in state.items()}
        if shapes != {name: (array.shape, array.dtype) for name, array in self._arrays.items()}:
            raise ValueError("the saved worlds differ from these: have their settings changed?")
        for name, array in self._arrays.items():
            array[:] = state[name]
