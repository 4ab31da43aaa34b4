"""Search without noise: the best move in each of many positions, for evaluation, matches and play against people."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.schema import SearchSettings
from games.compiled import lean, specialized
from games.game import Actions, Game, Rules, States
from training.common.random import Streams
from training.search.decide import choose_action, root_value, write_weights
from training.search.puct import Evaluate, Integers, SearchParams
from training.search.simulate import checked, evaluate_batch, search_step
from training.search.tree import NONE, Floats, Trees, reset_tree
from training.search.workspace import make_workspace


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The results of searching N positions."""

    actions: Actions  # [N] the best moves
    values: Floats  # [N] for the player to move
    visits: NDArray[np.int32]  # [N, A]


class Search:
    """Searches positions of ``game``, ``num_trees`` at a time, with ``num_simulations`` simulations each."""

    def __init__(
        self, game: Game, evaluate: Evaluate, settings: SearchSettings, *, num_simulations: int, num_trees: int
    ) -> None:
        self._game, self._evaluate, self._num_trees = game, evaluate, num_trees
        self._work = make_workspace(game, settings, num_trees=num_trees, simulations=num_simulations)
        self._work.trees.searches.budget = num_simulations
        work = self._work
        self._reset_trees = specialized(reset_trees, work.rules, work.trees, work.states, 0)
        self._search_step = specialized(search_step, *work, *work.no_answers)

    def find(self, states: States) -> SearchResult:
        """Search ``states`` ``[N, S]``, in each of which a player is to move.

        Raises:
            ValueError: the network's answers are not finite, or have the wrong shape.
        """
        count = len(states)
        found = SearchResult(
            actions=np.zeros(count, np.int32),
            values=np.zeros(count, np.float32),
            visits=np.zeros((count, self._game.num_actions), np.int32),
        )
        for first in range(0, count, self._num_trees):
            part = slice(first, first + self._num_trees)
            self._find(states[part], found.actions[part], found.values[part], found.visits[part])
        return found

    def _find(self, states: States, actions: Actions, values: Floats, visits: Integers) -> None:
        work = self._work
        work.states[: len(states)] = states
        self._reset_trees(work.rules, work.trees, work.states, len(states))
        answers = work.no_answers
        while count := checked(self._search_step(*work, *answers)):
            answers = evaluate_batch(self._evaluate, work.leaves.observations[:count], self._game)
        read_roots(work.params, work.trees, work.streams, work.leaves.scratch[0], actions, values, visits)


@lean
def reset_trees(rules: Rules, trees: Trees, states: States, count: int) -> None:
    """Start new trees for the first ``count`` of ``states`` ``[B, S]``; deactivate the others."""
    for b in range(len(states)):
        trees.searches[b].active = b < count
        reset_tree(trees, b, rules.current_player(states[b]))


@lean
def read_roots(
    params: SearchParams,
    trees: Trees,
    streams: Streams,
    weights: Floats,
    actions: Actions,
    values: Floats,
    visits: Integers,
) -> None:
    """Write the best action ``[N]``, the value ``[N]`` and the visits ``[N, A]`` of the first N roots; ``weights``
    ``[A]`` is scratch space.
    """
    for b in range(len(actions)):
        write_weights(params, trees, b, weights)
        actions[b] = choose_action(params, trees, b, weights, 0.0, streams)
        values[b] = root_value(params, trees, b, weights)
        number = trees.nodes[b, 0].first_child
        while number != NONE:
            child = trees.nodes[b, number]
            visits[b, child.action] = child.visits
            number = child.next_sibling
