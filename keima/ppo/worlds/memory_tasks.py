"""Two tasks that need a memory, which test whether a recurrent policy has learned to remember.

The T-maze (B. Bakker, "Reinforcement learning with long short-term memory", 2001): a sign at the start of a corridor
says at which side of its far end the reward is. CartPole (Barto, Sutton & Anderson, 1983, with Gymnasium's numbers)
shows where the cart and the pole are, and not how fast they move.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled
from keima.compilation.random import Streams, random_below, uniform
from keima.ppo.worlds.world import ArrayWorlds, Seeds, StepResult, empty_step_result

Moves = NDArray[np.int64]

FORWARD, LEFT, RIGHT = range(3)

CART, SPEED, ANGLE, SPIN = range(4)
GRAVITY, CART_MASS, POLE_MASS, HALF_LENGTH, PUSH, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
MOST_ANGLE, MOST_WAY = 12 * math.pi / 180, 2.4


class Mazes(NamedTuple):
    """B corridors, for compiled code."""

    streams: Streams  # [B]
    places: NDArray[np.int64]  # [B, 3]: the position, the number of steps, the sign


class Poles(NamedTuple):
    """B carts with poles, for compiled code."""

    streams: Streams  # [B]
    bodies: NDArray[np.float64]  # [B, 4]: CART and those after it
    steps: NDArray[np.int64]  # [B]


class TMaze(ArrayWorlds):
    """Corridors of ``length`` steps; see ``keima.ppo.worlds.world.Worlds``.

    Actions are forward, left and right. At the end of the corridor, left or right ends the episode, with a reward of 4
    if the sign showed that side, else of -0.1. Any other action without progress costs 0.1. Observations are the sign
    (-1 or 1 at the start, else 0), and whether this is the start, the corridor, or its end. Episodes are truncated
    after twice the corridor's length.

    Args:
        seeds: uint64 ``[B]``: where the random numbers of each world start.
        length: of the corridor.
    """

    num_actions = 3
    metric_names: tuple[str, ...] = ("right_side",)  # 1 where the episode ended with the reward

    def __init__(self, seeds: Seeds, *, length: int = 100) -> None:
        self._length, self._mazes = length, Mazes(np.array(seeds, np.uint64), np.zeros((len(seeds), 3), np.int64))
        super().__init__(empty_step_result(len(seeds), 4, 1), self._mazes._asdict())
        begin_maze_episodes(length, self._mazes, self.moment.observations)

    def step(self, actions: Moves) -> None:
        """Take a step in every maze."""
        step_mazes(self._length, self._mazes, actions, self.moment)


@compiled
def begin_maze_episode(mazes: Mazes, b: int) -> None:
    """Begin an episode in maze ``b``."""
    places = mazes.places
    places[b, 0] = places[b, 1] = 0
    places[b, 2] = 2 * random_below(mazes.streams, b, 2) - 1


@compiled
def write_maze_observation(length: int, mazes: Mazes, b: int, out: NDArray[np.float32]) -> None:
    """Write the observation of maze ``b``."""
    place = mazes.places[b, 0]
    out[b, 0] = mazes.places[b, 2] if place == 0 else 0
    out[b, 1], out[b, 2], out[b, 3] = place == 0, 0 < place < length, place == length


@compiled
def begin_maze_episodes(length: int, mazes: Mazes, observations: NDArray[np.float32]) -> None:
    """Begin an episode in every maze."""
    for b in range(len(mazes.streams)):
        begin_maze_episode(mazes, b)
        write_maze_observation(length, mazes, b, observations)


@compiled
def step_mazes(length: int, mazes: Mazes, actions: Moves, now: StepResult) -> None:
    """Take a step in every maze; where an episode ends, another begins."""
    places, rewards, terminated = mazes.places, now.rewards, now.terminated
    for b in range(len(mazes.streams)):
        rewards[b] = 0.0
        terminated[b] = False
        now.metrics[b, 0] = 0.0
        places[b, 1] += 1
        if places[b, 0] < length:
            if actions[b] == FORWARD:
                places[b, 0] += 1
            else:
                rewards[b] = -0.1
        elif actions[b] == FORWARD:
            rewards[b] = -0.1
        else:
            found = (actions[b] == RIGHT) == (places[b, 2] == 1)
            rewards[b] = 4.0 if found else -0.1
            terminated[b] = True
            now.metrics[b, 0] = found
        now.truncated[b] = not terminated[b] and places[b, 1] >= 2 * length
        write_maze_observation(length, mazes, b, now.observations)
        if terminated[b] or now.truncated[b]:
            now.last_observations[b] = now.observations[b]
            begin_maze_episode(mazes, b)
            write_maze_observation(length, mazes, b, now.observations)


class BlindCartPole(ArrayWorlds):
    """CartPole that shows no speeds; see ``keima.ppo.worlds.world.Worlds``.

    Push left or right; 1 for each step, 500 at most.

    Args:
        seeds: uint64 ``[B]``: where the random numbers of each world start.
        limit: steps after which an episode is truncated.
    """

    num_actions = 2
    metric_names: tuple[str, ...] = ()

    def __init__(self, seeds: Seeds, *, limit: int = 500) -> None:
        self._limit, count = limit, len(seeds)
        self._poles = Poles(np.array(seeds, np.uint64), np.zeros((count, 4)), np.zeros(count, np.int64))
        super().__init__(empty_step_result(count, 2), self._poles._asdict())
        begin_pole_episodes(self._poles, self.moment.observations)

    def step(self, actions: Moves) -> None:
        """Advance every world by a fiftieth of a second."""
        step_poles(self._limit, self._poles, actions, self.moment)


@compiled
def begin_pole_episode(poles: Poles, b: int) -> None:
    """Begin an episode in world ``b``."""
    poles.steps[b] = 0
    for i in range(4):
        poles.bodies[b, i] = 0.1 * uniform(poles.streams, b) - 0.05


@compiled
def write_pole_observation(poles: Poles, b: int, out: NDArray[np.float32]) -> None:
    """Write the observation of world ``b``."""
    out[b, 0], out[b, 1] = poles.bodies[b, CART], poles.bodies[b, ANGLE]


@compiled
def begin_pole_episodes(poles: Poles, observations: NDArray[np.float32]) -> None:
    """Begin an episode in every world."""
    for b in range(len(poles.streams)):
        begin_pole_episode(poles, b)
        write_pole_observation(poles, b, observations)


@compiled
def push_cart(bodies: NDArray[np.float64], b: int, force: float) -> None:
    """Apply the force for ``SECONDS`` (Euler's method, as in Gymnasium)."""
    sine, cosine = math.sin(bodies[b, ANGLE]), math.cos(bodies[b, ANGLE])
    mass = CART_MASS + POLE_MASS
    push = (force + POLE_MASS * HALF_LENGTH * bodies[b, SPIN] ** 2 * sine) / mass
    turn = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cosine**2 / mass))
    speed_up = push - POLE_MASS * HALF_LENGTH * turn * cosine / mass
    bodies[b, CART] += SECONDS * bodies[b, SPEED]
    bodies[b, SPEED] += SECONDS * speed_up
    bodies[b, ANGLE] += SECONDS * bodies[b, SPIN]
    bodies[b, SPIN] += SECONDS * turn


@compiled
def step_poles(limit: int, poles: Poles, actions: Moves, now: StepResult) -> None:
    """Advance every world by a fiftieth of a second; where an episode ends, another begins."""
    bodies = poles.bodies
    for b in range(len(poles.streams)):
        push_cart(bodies, b, PUSH if actions[b] == 1 else -PUSH)
        poles.steps[b] += 1
        now.rewards[b] = 1.0
        now.terminated[b] = abs(bodies[b, CART]) > MOST_WAY or abs(bodies[b, ANGLE]) > MOST_ANGLE
        now.truncated[b] = not now.terminated[b] and poles.steps[b] >= limit
        write_pole_observation(poles, b, now.observations)
        if now.terminated[b] or now.truncated[b]:
            now.last_observations[b] = now.observations[b]
            begin_pole_episode(poles, b)
            write_pole_observation(poles, b, now.observations)
