"""Search for strength: the best moves in given positions, without noise.

Evaluation, matches and people's opponents use it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.schema import SearchSettings
from games.compiled import lean, specialized
from games.game import Actions, Game, Rules, States
from training.common.random import Streams
from training.search.decide import choose_action, root_value, write_weights
from training.search.prepared import prepare
from training.search.puct import Evaluate, Integers, SearchParams
from training.search.simulate import ask, checked, search_on
from training.search.tree import NONE, Floats, Trees, plant


@dataclass(frozen=True, kw_only=True)
class Found:
    """What search found in N positions."""

    actions: Actions  # [N] the best
    values: Floats  # [N] for the player to move
    visits: NDArray[np.int32]  # [N, A]


class Search:
    """Searches positions of ``game``, at most ``num_trees`` at a time, with ``num_simulations`` each."""

    def __init__(
        self, game: Game, evaluate: Evaluate, settings: SearchSettings, *, num_simulations: int, num_trees: int
    ) -> None:
        self._evaluate, self._num_trees, self._num_actions = evaluate, num_trees, game.num_actions
        self._prepared = prepare(game, settings, num_trees=num_trees, simulations=num_simulations)
        rules, params, trees, states, streams = self._prepared[:5]
        trees.searches.budget = num_simulations
        self._plant_arguments = (rules, trees, states)
        self._read_arguments = (params, trees, streams, self._prepared.leaves.scratch)
        self._plant = specialized(plant_all, *self._plant_arguments, 0)
        self._search_on = specialized(search_on, *self._prepared, *self._prepared.no_answers)

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
        self._prepared.states[: len(states)] = states
        self._plant(*self._plant_arguments, len(states))
        answers = self._prepared.no_answers
        while count := checked(self._search_on(*self._prepared, *answers)):
            answers = ask(self._evaluate, self._prepared.leaves.observations[:count], self._num_actions)
        read_roots(*self._read_arguments, actions, values, visits)


@lean
def plant_all(rules: Rules, trees: Trees, states: States, count: int) -> None:
    """Begin with new trees for the first ``count`` states ``[B, S]``, and let the others rest."""
    for b in range(len(states)):
        trees.searches[b].active = b < count
        plant(trees, b, rules.current_player(states[b]))


@lean
def read_roots(
    params: SearchParams,
    trees: Trees,
    streams: Streams,
    scratch: Floats,
    actions: Actions,
    values: Floats,
    visits: Integers,
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
