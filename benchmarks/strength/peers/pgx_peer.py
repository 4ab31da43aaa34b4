"""Trains and plays by pgx's Connect Four and mctx's Gumbel search, in the loop of pgx's example; see adapter.py.

The loop plays many games side by side for so many steps, then learns once from each of their positions, and so on.
Games that do not end in these steps have no outcome to learn from. The settings *authors* are those of pgx's example,
examples/alphazero, which was made for GPUs: two cores need hours for its first iteration. Its optimizer, network and
search are used here too. In matches the search draws no Gumbel noise, as mctx advises for games like this.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import haiku as hk
import jax
import jax.numpy as jnp
import mctx
import numpy as np
import optax
import pgx

from benchmarks.strength.peers.adapter import Choose, Positions, Task, Trained, end_on_time, run_adapter

Array = Any  # of JAX or NumPy
Tree = Any  # of arrays


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a training, named as pgx's example calls them where it is clear; the defaults are its own."""

    num_channels: int = 128
    num_blocks: int = 6
    selfplay_batch_size: int = 1024  # games side by side
    num_simulations: int = 32
    max_num_steps: int = 256  # of each game in an iteration
    training_batch_size: int = 4096
    learning_rate: float = 1e-3


SETTINGS = {
    "authors": Settings(),
    "tuned": Settings(
        num_channels=32,
        num_blocks=4,
        selfplay_batch_size=64,
        num_simulations=32,
        max_num_steps=42,
        training_batch_size=128,
    ),
    "quick": Settings(
        num_channels=8,
        num_blocks=1,
        selfplay_batch_size=16,
        num_simulations=4,
        max_num_steps=42,
        training_batch_size=128,
    ),
}
CHECKPOINT = "network.npz"
LONGEST = 42  # moves
BATCH = 64  # positions that are searched together when moves are chosen
NORM_DECAY = 0.9

env = pgx.make("connect_four")


class Network(NamedTuple):
    """The weights of a network, and the moving averages of its normalization."""

    weights: Tree
    averages: Tree


class Played(NamedTuple):
    """What games side by side have seen, ``[steps, games, ...]``.

    Attributes:
        improved: the policy that the search recommends.
        rewards: of the player who moved.
        ended: whether the move ended the game.
    """

    observations: Array
    improved: Array
    rewards: Array
    ended: Array


class Batch(NamedTuple):
    """Positions to learn from, ``[N, ...]``; ``known``: whether the outcome is."""

    observations: Array
    improved: Array
    outcomes: Array
    known: Array


def normalize(features: Array, learning: bool) -> Array:
    """Normalize features over the batch, and cut them off below 0."""
    norm = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=NORM_DECAY)
    return jax.nn.relu(norm(features, is_training=learning))


def make_forward(settings: Settings) -> Any:
    """Return the network as a pair of functions, to make its weights and to call it."""

    def call(observations: Array, learning: bool) -> tuple[Array, Array]:
        stream = hk.Conv2D(settings.num_channels, 3)(observations.astype(jnp.float32))
        for _ in range(settings.num_blocks):
            change = hk.Conv2D(settings.num_channels, 3)(normalize(stream, learning))
            stream += hk.Conv2D(settings.num_channels, 3)(normalize(change, learning))
        stream = normalize(stream, learning)
        policy = hk.Flatten()(normalize(hk.Conv2D(2, 1)(stream), learning))
        value = hk.Flatten()(normalize(hk.Conv2D(1, 1)(stream), learning))
        value = jax.nn.relu(hk.Linear(settings.num_channels)(value))
        return hk.Linear(env.num_actions)(policy), jnp.tanh(hk.Linear(1)(value))[:, 0]

    return hk.without_apply_rng(hk.transform_with_state(call))


class Peer:
    """A network with its search and its learning, compiled for these settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._forward = make_forward(settings)
        self._optimizer = optax.adam(settings.learning_rate)
        self.play = jax.jit(self._play)
        self.learn = jax.jit(self._learn)
        self.answer = jax.jit(self._answer, static_argnums=3)

    def begin(self, seed: int) -> tuple[Network, Tree]:
        """Return a new network, and the optimizer's state."""
        init = jax.jit(partial(self._forward.init, learning=True))
        network = Network(*init(jax.random.PRNGKey(seed), jnp.zeros((1, *env.observation_shape))))
        return network, self._optimizer.init(network.weights)

    def _evaluate(self, network: Network, states: pgx.State) -> tuple[Array, Array]:
        """Return the logits ``[N, 7]``, the lowest number where a move is illegal, and the values ``[N]``."""
        (logits, values), _ = self._forward.apply(*network, states.observation, learning=False)
        return jnp.where(states.legal_action_mask, logits, jnp.finfo(logits.dtype).min), values

    def _search(self, network: Network, states: pgx.State, key: Array, simulations: int, noise: float) -> Any:
        """Search from states ``[N]``, and return what mctx found."""
        logits, values = self._evaluate(network, states)
        return mctx.gumbel_muzero_policy(
            network,
            key,
            mctx.RootFnOutput(prior_logits=logits, value=values, embedding=states),
            self._expand,
            simulations,
            invalid_actions=~states.legal_action_mask,
            gumbel_scale=noise,
        )

    def _expand(self, network: Network, key: Array, actions: Array, states: pgx.State) -> tuple[Any, pgx.State]:
        """Play an action in each of the states, as mctx asks: the sign of the value changes with the player."""
        after = jax.vmap(env.step)(states, actions)
        logits, values = self._evaluate(network, after)
        output = mctx.RecurrentFnOutput(
            reward=rewards_of_movers(states, after),
            discount=jnp.where(after.terminated, 0.0, -1.0),
            prior_logits=logits,
            value=jnp.where(after.terminated, 0.0, values),
        )
        return output, after

    def _play(self, network: Network, key: Array) -> Played:
        """Play games side by side; one that ends is followed by another."""
        games = self._settings.selfplay_batch_size

        def move(states: pgx.State, key: Array) -> tuple[pgx.State, Played]:
            search_key, begin_key = jax.random.split(key)
            found = self._search(network, states, search_key, self._settings.num_simulations, 1.0)
            after = jax.vmap(env.step)(states, found.action)
            seen = Played(states.observation, found.action_weights, rewards_of_movers(states, after), after.terminated)
            return select(after.terminated, begin_games(begin_key, games), after), seen

        keys = jax.random.split(key, 1 + self._settings.max_num_steps)
        return jax.lax.scan(move, begin_games(keys[0], games), keys[1:])[1]

    def _learn(self, network: Network, optimizer: Tree, batch: Batch) -> tuple[Network, Tree]:
        """Take a step of the optimizer."""

        def find_loss(weights: Tree) -> tuple[Array, Tree]:
            (logits, values), averages = self._forward.apply(
                weights, network.averages, batch.observations, learning=True
            )
            policy_loss = optax.softmax_cross_entropy(logits, batch.improved).mean()
            value_loss = (optax.l2_loss(values, batch.outcomes) * batch.known).mean()
            return policy_loss + value_loss, averages

        gradients, averages = jax.grad(find_loss, has_aux=True)(network.weights)
        changes, optimizer = self._optimizer.update(gradients, optimizer)
        return Network(optax.apply_updates(network.weights, changes), averages), optimizer

    def _answer(self, network: Network, moves: Array, key: Array, simulations: int) -> tuple[Array, Array]:
        """Return the columns by search and by the policy alone after moves ``[N, plies]``, -1 after the last one."""

        def replay(states: pgx.State, columns: Array) -> tuple[pgx.State, None]:
            return select(columns >= 0, jax.vmap(env.step)(states, jnp.maximum(columns, 0)), states), None

        states = jax.lax.scan(replay, begin_games(key, len(moves)), moves.T)[0]
        found = self._search(network, states, key, simulations, 0.0)
        return found.action, self._evaluate(network, states)[0].argmax(1)


def begin_games(key: Array, count: int) -> pgx.State:
    """Return the states ``[count]`` of new games."""
    return jax.vmap(env.init)(jax.random.split(key, count))


def rewards_of_movers(before: pgx.State, after: pgx.State) -> Array:
    """Return the rewards ``[N]`` of the players who moved."""
    return jnp.take_along_axis(after.rewards, before.current_player[:, None], 1)[:, 0]


def select(rows: Array, these: Tree, others: Tree) -> Tree:
    """Return the rows ``[N]`` of these arrays, and the other rows of the others."""
    return jax.tree.map(lambda a, b: jnp.where(rows.reshape(-1, *[1] * (a.ndim - 1)), a, b), these, others)


def make_batch(played: Played) -> Batch:
    """Return all positions with the outcomes of their games for the players to move."""
    rewards, ended = np.asarray(played.rewards), np.asarray(played.ended)
    outcomes, known = np.zeros_like(rewards), np.zeros_like(ended)
    later = np.zeros_like(rewards[0]), np.zeros_like(ended[0])
    for step in reversed(range(len(rewards))):
        later = np.where(ended[step], rewards[step], -later[0]), ended[step] | later[1]
        outcomes[step], known[step] = later
    parts = played.observations, played.improved, outcomes, known
    return Batch(*(np.asarray(part).reshape(-1, *part.shape[2:]) for part in parts))


def cut(batch: Batch, size: int, random: np.random.Generator) -> Iterator[Batch]:
    """Yield parts of a batch, shuffled; the rest that makes no whole part is left out."""
    order = random.permutation(len(batch.outcomes))
    for first in range(0, len(order) - size + 1, size):
        yield Batch(*(part[order[first : first + size]] for part in batch))


def save(path: Path, network: Network) -> None:
    """Write a network, whole or not at all."""
    part = path.with_suffix(".part.npz")
    np.savez(part, *jax.tree.leaves(network))
    part.replace(path)


def load(path: Path, like: Network) -> Network:
    """Read a network that is built like another."""
    with np.load(path) as file:
        leaves = [file[f"arr_{number}"] for number in range(len(file.files))]
    return Network(*jax.tree.unflatten(jax.tree.structure(like), leaves))


def train(folder: Path, task: Task) -> None:
    """Train until the time is over; each iteration leaves its network."""
    settings = SETTINGS[task.settings]
    games = positions = 0

    def count_done() -> Trained:
        return Trained(games=games, positions=positions, evaluations=positions * (1 + settings.num_simulations) or None)

    end_on_time(folder, task, count_done)
    peer, random = Peer(settings), np.random.default_rng(task.seed)
    network, optimizer = peer.begin(task.seed)
    save(folder / CHECKPOINT, network)
    for key in make_keys(task.seed):
        played = peer.play(network, key)
        for batch in cut(make_batch(played), settings.training_batch_size, random):
            network, optimizer = peer.learn(network, optimizer, batch)
        save(folder / CHECKPOINT, network)
        games += int(played.ended.sum())
        positions += played.ended.size


def make_keys(seed: int) -> Iterator[Array]:
    """Yield random keys without end."""
    key = jax.random.PRNGKey(seed)
    while True:
        key, used = jax.random.split(key)
        yield used


def make_player(folder: Path, task: Task, simulations: int) -> Choose:
    """Return what chooses moves with the last network of a training."""
    peer = Peer(SETTINGS[task.settings])
    network = load(folder / CHECKPOINT, peer.begin(task.seed)[0])
    key = jax.random.PRNGKey(task.seed)

    def choose(positions: Positions) -> tuple[list[int], list[int]]:
        search, policy = list[int](), list[int]()
        for first in range(0, len(positions), BATCH):
            some = positions[first : first + BATCH]
            moves = np.full((BATCH, LONGEST), -1, np.int32)
            for row, played in enumerate(some):
                moves[row, : len(played)] = played
            for columns, found in zip((search, policy), peer.answer(network, moves, key, simulations), strict=True):
                columns.extend(found[: len(some)].tolist())
        return search, policy

    return choose


if __name__ == "__main__":
    run_adapter(train, make_player, sys.argv[1:])
