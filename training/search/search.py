"""Search for strength: the best moves in given positions, without noise. Evaluation, matches and people's opponents use it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.schema import SearchSettings
from games.compiled import lean, specialized
from games.game import Actions, Game, Rules, States
from training.random import Streams
from training.search.cache import make_cache
from training.search.decide import choose_action, root_value, write_weights
from training.search.gumbel import halving_schedule
from training.search.handover import handed_over
from training.search.puct import Evaluate, Integers, SearchParams, search_params
from training.search.simulate import ask, checked, make_leaves, nodes_for, search_on
from training.search.tree import NONE, Floats, Trees, make_trees, plant


@dataclass(frozen=True, kw_only=True)
class Found:
    """What search found in N positions."""

    actions: Actions  # [N] the best
    values: Floats  # [N] for the player to move
    visits: NDArray[np.int32]  # [N, A]


class Search:
    """Searches positions of ``game``, at most ``num_trees`` at a time, with ``num_simulations`` each."""

    def __init__(self, game: Game, evaluate: Evaluate, settings: SearchSettings, *, num_simulations: int, num_trees: int) -> None:
        self._evaluate, self._num_trees, self._num_actions = evaluate, num_trees, game.num_actions
        nodes = nodes_for(game, num_simulations, settings.leaves_per_tree)
        params = search_params(settings, game, max_visits=nodes)
        self._trees = make_trees(num_trees, max_nodes=nodes, num_actions=game.num_actions, most_legal_actions=game.most_legal_actions)
        self._trees.searches.budget = num_simulations
        self._states = game.initial_states(num_trees)
        leaves = make_leaves(game, num_trees, settings.leaves_per_tree)
        schedule = halving_schedule(settings.gumbel.considered_actions, num_simulations, columns=num_simulations)
        streams = np.zeros(num_trees, np.uint64)
        self._observations = leaves.observations
        rules = handed_over(game.rules)
        self._plant_arguments = (rules, self._trees, self._states)
        self._arguments = (
            *(rules, params, self._trees, self._states, streams, np.stack([schedule, schedule])),
            *(leaves, make_cache(0, game.num_actions)),
        )
        self._no_answers = (np.zeros((0, game.num_actions), np.float32), np.zeros(0, np.float32))
        self._read_arguments = (params, self._trees, streams, leaves.scratch)
        self._plant = specialized(plant_all, *self._plant_arguments, 0)
        self._search_on = specialized(search_on, *self._arguments, *self._no_answers)

    def find(self, states: States) -> Found:
        """Search ``states`` ``[N, S]``, in all of which a player is to move.

        Raises:
            ValueError: the network's answers are no numbers, or too few.
        """
        count = len(states)
        found = Found(
            actions=np.zeros(count, np.int32),
            values=np.zeros(count, np.float32),
            visits=np.zeros((count, self._num_actions), np.int32),
        )
        for first in range(0, count, self._num_trees):
            part = slice(first, first + self._num_trees)
            self._find(states[part], found.actions[part], found.values[part], found.visits[part])
        return found

    def _find(self, states: States, actions: Actions, values: Floats, visits: Integers) -> None:
        self._states[: len(states)] = states
        self._plant(*self._plant_arguments, len(states))
        answers = self._no_answers
        while count := checked(self._search_on(*self._arguments, *answers)):
            answers = ask(self._evaluate, self._observations[:count], self._num_actions)
        read_roots(*self._read_arguments, actions, values, visits)


@lean
def plant_all(rules: Rules, trees: Trees, states: States, count: int) -> None:
    """Begin with new trees for the first ``count`` states ``[B, S]``, and let the others rest."""
    for b in range(len(states)):
        trees.searches[b].active = b < count
        plant(trees, b, rules.current_player(states[b]))


@lean
def read_roots(
    params: SearchParams, trees: Trees, streams: Streams, scratch: Floats, actions: Actions, values: Floats, visits: Integers
) -> None:
    """The best action ``[N]``, the value ``[N]`` and the visits ``[N, A]`` of the first N roots."""
    for b in range(len(actions)):
        write_weights(params, trees, b, scratch[0])
        actions[b] = choose_action(params, trees, b, scratch[0], 0.0, streams)
        values[b] = root_value(params, trees, b, scratch[0])
        number = trees.nodes[b, 0].first_child
        while number != NONE:
            child = trees.nodes[b, number]
            visits[b, child.action] = child.visits
            number = child.next_sibling
