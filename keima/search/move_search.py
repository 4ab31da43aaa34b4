"""Search without noise: the best move in each of many positions, for evaluation, matches and play against people."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compile_for_types, compiled_without_refcounts
from keima.config.sections.search import SearchSettings
from keima.games.game import Actions, Game, Planes, States
from keima.search.cache import clear_position_cache
from keima.search.decide import choose_action, root_value, write_move_weights
from keima.search.puct import Evaluate, Integers
from keima.search.simulate import advance_searches, evaluate_batch, raise_if_failed
from keima.search.tree import NONE, Floats, reset_tree
from keima.search.workspace import Workspace, make_workspace


class SearchResult(NamedTuple):
    """The results of searching N positions."""

    actions: Actions  # [N] the best moves
    values: Floats  # [N] for the player to move
    visits: NDArray[np.int32]  # [N, A]


class Search:
    """Searches positions of ``game``, ``num_trees`` at a time, with ``num_simulations`` simulations each.

    A tree that has found its move takes the next position at once, so that the network's batches stay full although
    some searches are shorter than others.

    Args:
        game: what is played.
        evaluate: the network.
        settings: how to search.
        num_simulations: of each position.
        num_trees: positions that are searched at a time.
        cache_positions: how many evaluations are remembered, 0 for none.
        score_utility: the most that points count (``make_workspace``).
    """

    def __init__(
        self,
        game: Game,
        evaluate: Evaluate,
        settings: SearchSettings,
        *,
        num_simulations: int,
        num_trees: int,
        cache_positions: int = 0,
        score_utility: float = 0.0,
    ) -> None:
        self._game, self._evaluate = game, with_policy_temperature(evaluate, settings.match_policy_temperature)
        work = self._work = make_workspace(
            game,
            settings,
            num_trees=num_trees,
            simulations=num_simulations,
            cache_positions=cache_positions,
            score_utility=score_utility,
            early_stop=settings.match_early_stop,
        )
        work.trees.searches.budget = num_simulations
        self._numbers = np.zeros(num_trees, np.int64)  # of the position that each tree searches
        self._idle, self._done = list(range(num_trees)), np.zeros(num_trees, np.int32)  # trees
        self._queue: deque[tuple[int, States]] = deque()  # positions that wait for a tree
        self._waiting = 0  # rows that await the network
        self._begin_searches = compile_for_types(begin_searches, work, self._done)
        self._advance_searches = compile_for_types(advance_searches, work, *work.empty_answers)
        self._read_finished = compile_for_types(read_finished_searches, work, self._done, self._empty_results(0))

    @property
    def pending(self) -> int:
        """How many submitted positions have no result yet."""
        return len(self._queue) + len(self._numbers) - len(self._idle)

    def find(self, states: States) -> SearchResult:
        """Search ``states`` ``[N, S]``, in each of which a player is to move. What was submitted before is dropped.

        Raises:
            ValueError: the network's answers are not finite, or have the wrong shape.
        """
        self.drop()
        found = self._empty_results(len(states))
        self.submit(range(len(states)), states)
        while self.pending:
            numbers, results = self.advance()
            found.actions[numbers], found.values[numbers] = results.actions, results.values
            found.visits[numbers] = results.visits
        return found

    def submit(self, numbers: Sequence[int], states: States) -> None:
        """Have ``states`` ``[N, S]`` searched, in each of which a player is to move; ``numbers`` ``[N]`` name them."""
        self._queue.extend(zip(numbers, states.copy(), strict=True))

    def advance(self) -> tuple[NDArray[np.int64], SearchResult]:
        """Make one network call and search on; returns the numbers ``[N]`` and results of the positions now done.

        Raises:
            ValueError: see ``find``.
        """
        work, answers = self._work, self._work.empty_answers
        if self._waiting:
            observations = work.leaves.observations[: self._waiting]
            answers = evaluate_batch(self._evaluate, observations, self._game, num_values=work.num_values)
        self._fill_trees()
        self._waiting = raise_if_failed(self._advance_searches(work, *answers))
        results = self._empty_results(len(self._numbers) - len(self._idle))
        count = self._read_finished(work, self._done, results)
        done = self._done[:count]
        self._idle += done.tolist()
        return self._numbers[done], SearchResult(
            actions=results.actions[:count], values=results.values[:count], visits=results.visits[:count]
        )

    def drop(self) -> None:
        """Forget all submitted positions."""
        searches = self._work.trees.searches
        searches.active, searches.waiting = False, 0
        self._idle, self._waiting = list(range(len(self._numbers))), 0
        self._queue.clear()

    def forget_evaluations(self) -> None:
        """After a change of the network, forget the evaluations of the old one."""
        clear_position_cache(self._work.cache)

    def _fill_trees(self) -> None:
        count = min(len(self._queue), len(self._idle))
        if count == 0:
            return
        trees, self._idle = np.array(sorted(self._idle[:count]), np.int32), self._idle[count:]
        for tree in trees:
            self._numbers[tree], self._work.states[tree] = self._queue.popleft()
        self._begin_searches(self._work, trees)

    def _empty_results(self, count: int) -> SearchResult:
        return SearchResult(
            actions=np.zeros(count, np.int32),
            values=np.zeros(count, np.float32),
            visits=np.zeros((count, self._game.num_actions), np.int32),
        )


def with_policy_temperature(evaluate: Evaluate, temperature: float) -> Evaluate:
    """``evaluate`` with policies raised to ``1 / temperature``, since networks trained on searches are overconfident.

    Leela Chess Zero's ``PolicyTemperature`` (lczero.org, "Engine parameters").
    """
    if temperature == 1:
        return evaluate

    def evaluate_softened(observations: Planes) -> tuple[Floats, Floats]:
        logits, values = evaluate(observations)
        return logits / np.float32(temperature), values

    return evaluate_softened


@compiled_without_refcounts
def begin_searches(work: Workspace, numbers: Integers) -> None:
    """Start new searches of ``work.states`` in the trees with these ``numbers`` ``[N]``."""
    trees, current_player = work.trees, work.rules.current_player
    for i in range(len(numbers)):
        b = numbers[i]
        trees.searches[b].active = True
        reset_tree(trees, b, current_player(work.states[b]))


@compiled_without_refcounts
def read_finished_searches(work: Workspace, numbers: Integers, results: SearchResult) -> int:
    """Read and end the searches that await no evaluation: between two steps, these are complete.

    Args:
        numbers: the numbers of their trees are written here, ``[N]``.
        results: and here what they have found.

    Returns:
        N.
    """
    params, trees, weights = work.params, work.trees, work.leaves.scratch[0]
    count = 0
    for b in range(len(trees.searches)):
        search = trees.searches[b]
        if not search.active or search.waiting > 0:
            continue
        search.active = False
        numbers[count] = b
        write_move_weights(params, trees, b, weights)
        results.actions[count] = choose_action(work, b, weights, 0.0)
        results.values[count] = root_value(params, trees, b, weights)
        number = trees.nodes[b, 0].first_child
        while number != NONE:
            child = trees.nodes[b, number]
            results.visits[count, child.action] = child.visits
            number = child.next_sibling
        count += 1
    return count
