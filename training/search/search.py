"""Search for strength: the best moves in given positions, without noise. Evaluation, matches and people's opponents use it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.schema import SearchSettings
from games.compiled import lean, specialized
from games.game import Actions, Game, States
from training.random import Streams
from training.search.cache import make_cache
from training.search.decide import choose_move, root_value, write_weights
from training.search.gumbel import halving_schedule
from training.search.puct import Evaluate, Floats, Integers, SearchParams, search_params
from training.search.simulate import expand_and_backup, make_leaves, select_leaves
from training.search.tree import Trees, make_trees, plant


@dataclass(frozen=True, kw_only=True)
class Found:
    """What search found in N positions."""

    actions: Actions  # [N] the best
    values: Floats  # [N] for the player to move
    visits: NDArray[np.int32]  # [N, A]


class Search:
    """Searches positions of ``game``, at most ``num_trees`` at a time, with ``num_simulations`` each."""

    def __init__(self, game: Game, evaluate: Evaluate, settings: SearchSettings, *, num_simulations: int, num_trees: int) -> None:
        self._game, self._evaluate, self._num_trees = game, evaluate, num_trees
        nodes = num_simulations + settings.leaves_per_tree + 2
        params = search_params(settings)
        self._trees = make_trees(num_trees, max_nodes=nodes, max_edges=nodes * game.num_actions)
        self._trees.searches.budget = num_simulations
        self._states = game.initial_states(num_trees)
        leaves = make_leaves(game, num_trees * settings.leaves_per_tree)
        cache = make_cache(0, game.num_actions)
        schedule = halving_schedule(settings.gumbel.considered_actions, num_simulations, columns=num_simulations)
        streams = np.zeros(num_trees, np.uint64)
        self._observations = leaves.observations
        self._select_arguments = (
            *(game.rules, params, self._trees, self._states, streams, np.stack([schedule, schedule])),
            *(leaves, cache, settings.leaves_per_tree),
        )
        self._backup_arguments = (params, self._trees, leaves, cache)
        self._read_arguments = (params, self._trees, streams, leaves.scores)
        no_answers = (np.zeros((1, game.num_actions), np.float32), np.zeros(1, np.float32))
        self._select = specialized(select_leaves, *self._select_arguments)
        self._backup = specialized(expand_and_backup, *self._backup_arguments, *no_answers, 0)

    def find(self, states: States) -> Found:
        """Search ``states`` ``[N, S]``, in none of which the game is over."""
        parts = [self._find(states[i : i + self._num_trees]) for i in range(0, len(states), self._num_trees)]
        return Found(
            actions=np.concatenate([part.actions for part in parts]),
            values=np.concatenate([part.values for part in parts]),
            visits=np.concatenate([part.visits for part in parts]),
        )

    def _find(self, states: States) -> Found:
        count = len(states)
        self._states[:count] = states
        self._trees.searches.active = np.arange(self._num_trees) < count
        for b in range(count):
            plant(self._trees, b, self._game.current_player(states[b]))
        while waiting := self._select(*self._select_arguments):
            logits, values = self._evaluate(self._observations[:waiting])
            self._backup(*self._backup_arguments, logits, values, waiting)
        actions = np.zeros(count, np.int32)
        root_values = np.zeros(count, np.float32)
        visits = np.zeros((count, self._game.num_actions), np.int32)
        read_roots(*self._read_arguments, actions, root_values, visits)
        return Found(actions=actions, values=root_values, visits=visits)


@lean
def read_roots(
    params: SearchParams, trees: Trees, streams: Streams, weights: Floats, actions: Actions, values: Floats, visits: Integers
) -> None:
    """The best action ``[N]``, the value ``[N]`` and the visits ``[N, A]`` of the first N roots."""
    for b in range(len(actions)):
        root = trees.nodes[b, 0]
        write_weights(params, trees, b, weights)
        actions[b] = trees.edges[b, root.first_edge + choose_move(params, trees, b, weights, 0.0, streams)].action
        values[b] = root_value(trees, b)
        for i in range(root.num_edges):
            edge = trees.edges[b, root.first_edge + i]
            visits[b, edge.action] = edge.visits
