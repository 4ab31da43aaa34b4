"""The compiled search in single steps: tests inspect the trees between them."""

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compile_for_types
from keima.config.sections.search import SearchSettings
from keima.games.game import CHANCE, Game, States
from keima.search.puct import Evaluate
from keima.search.simulate import advance_searches, evaluate_batch
from keima.search.tree import DRAW, NONE, UNPROVEN, WITH_PRIORS, find_child_by_action, make_node_root, reset_tree
from keima.search.workspace import make_workspace
from tests.search.naive_search import NaiveNode, Path

# The visits, proven value and sum of values of each edge, by the moves that lead to it.
Summary = dict[Path, tuple[int, int | None, float]]


class Forest:
    """One tree for each of ``states``, searched as ``settings`` say with ``num_simulations`` each."""

    def __init__(
        self,
        game: Game,
        evaluate: Evaluate,
        settings: SearchSettings,
        states: States,
        *,
        num_simulations: int,
        full: bool = False,
        noisy: bool = False,
        cache_positions: int = 0,
        score_utility: float = 0.0,
    ) -> None:
        count = len(states)
        self.game, self.evaluate = game, evaluate
        self._work = work = make_workspace(
            game,
            settings,
            num_trees=count,
            simulations=num_simulations,
            cache_positions=cache_positions,
            score_utility=score_utility,
        )
        self.params, self.trees, self.states, self.streams = work.params, work.trees, work.states, work.streams
        self.leaves = work.leaves
        self.states[:], self.streams[:] = states, np.arange(count)
        self._renumbered = np.zeros(work.max_nodes, np.int32)
        self._empty_answers = work.empty_answers
        self._advance_searches = compile_for_types(advance_searches, work, *self._empty_answers)
        searches = self.trees.searches
        searches.active, searches.full, searches.noisy, searches.budget = True, full, noisy, num_simulations
        for b in range(count):
            reset_tree(self.trees, b, game.current_player(self.states[b]))

    def select(self) -> int:
        """Simulate; return the number of leaves that await evaluation."""
        return int(self._advance_searches(self._work, *self._empty_answers))

    def answer(self, count: int) -> None:
        """Evaluate those leaves, without new simulations."""
        self.trees.searches.active = False
        answers = evaluate_batch(
            self.evaluate, self.leaves.observations[:count], self.game, num_values=self._work.num_values
        )
        self._advance_searches(self._work, *answers)
        self.trees.searches.active = True

    def step(self) -> int:
        """Simulate and evaluate; return the number of leaves."""
        count = self.select()
        if count:
            self.answer(count)
        return count

    def run(self) -> "Forest":
        """Search to the end."""
        while self.step():
            pass
        return self

    def play(self, b: int, action: int) -> None:
        """Keep the subtree of tree ``b`` below ``action``."""
        child = find_child_by_action(self.trees, b, 0, action)
        self.game.play(self.states[b], action)
        self.keep(b, child)

    def keep(self, b: int, number: int) -> None:
        """Make node ``number`` of tree ``b`` its root."""
        make_node_root(self.trees, b, number, self._renumbered)

    def path_to(self, b: int, number: int) -> Path:
        """Return the moves that lead to a node."""
        node = self.trees.nodes[b, number]
        return (*self.path_to(b, int(node.parent)), int(node.action)) if number else ()

    def children(self, b: int, number: int = 0) -> list[int]:
        """Return the numbers of a node's children, the latest visited first."""
        found, child = [], int(self.trees.nodes[b, number].first_child)
        while child != NONE:
            found.append(child)
            child = int(self.trees.nodes[b, child].next_sibling)
        return found

    def busiest(self, b: int) -> int:
        """Return the number of the root's most visited child."""
        return max(self.children(b), key=lambda child: int(self.trees.nodes[b, child].visits))

    def candidates(self, b: int, number: int = 0) -> dict[int, float]:
        """Return the prior of each of a node's unvisited moves."""
        node = self.trees.nodes[b, number]
        assert node.stage == WITH_PRIORS
        row = slice(int(node.first_candidate), int(node.first_candidate + node.num_candidates))
        return dict(zip(self.trees.actions[b, row].tolist(), self.trees.priors[b, row].tolist(), strict=True))

    def network_priors(self, b: int) -> dict[int, float]:
        """Return the prior that the network gave each of the root's moves."""
        priors = self.trees.root_priors[b]
        return {int(action): float(priors[action]) for action in np.flatnonzero(priors)}

    def root_priors(self, b: int) -> dict[int, float]:
        """Return the prior of each of the root's moves in a PUCT search, including noise."""
        nodes = self.trees.nodes[b]
        return self.candidates(b) | {int(nodes[child].action): float(nodes[child].prior) for child in self.children(b)}

    def root_gumbels(self, b: int) -> dict[int, float]:
        """Return the noise of each of the root's moves in a Gumbel search."""
        nodes = self.trees.nodes[b]
        noisy = {action: math.log(weight) for action, weight in self.candidates(b).items()}
        noisy |= {int(nodes[child].action): float(nodes[child].logit) for child in self.children(b)}
        return {action: logit - math.log(self.trees.root_priors[b, action]) for action, logit in noisy.items()}

    def summary(self, b: int, number: int = 0, path: Path = ()) -> Summary:
        """Return everything that has been visited in tree ``b``."""
        found: Summary = {}
        for child in self.children(b, number):
            node = self.trees.nodes[b, child]
            here = (*path, int(node.action))
            proven = None if node.proven_for_parent == UNPROVEN else int(node.proven_for_parent) - DRAW
            found[here] = (int(node.visits), proven, float(node.value_sum))
            found |= self.summary(b, child, here)
        return found


def naive_summary(node: NaiveNode, path: Path = ()) -> Summary:
    """Return everything that a naive search has visited."""
    found: Summary = {}
    for action, edge in node.edges.items():
        if edge.child is not None:
            here = (*path, action)
            found[here] = (edge.visits, edge.proven, edge.value)
            found |= naive_summary(edge.child, here)
    return found


def play_at_random(game: Game, state: States, random: np.random.Generator) -> None:
    """Play any legal move, or a possible chance outcome, each with equal probability."""
    legal = game.legal_actions(state) if game.current_player(state) != CHANCE else game.chance_outcomes(state)[0]
    game.play(state, int(random.choice(legal)))


def random_states(game: Game, count: int, random: np.random.Generator, *, most_plies: int) -> States:
    """Return non-terminal positions after up to ``most_plies`` random moves and the chance outcomes after them."""
    states = game.initial_states(count)
    for state in states:
        after, plies = state.copy(), int(random.integers(most_plies + 1))
        for ply in itertools.count():
            if game.terminal(after):
                break
            if game.current_player(after) != CHANCE:
                state[:] = after
                if ply >= plies:
                    break
            play_at_random(game, after, random)
    return states


def same_shape(summary: Summary) -> dict[Path, tuple[int, int | None]]:
    """Return the part of a summary that is exact."""
    return {path: (visits, proven) for path, (visits, proven, _) in summary.items()}


def values_of(summary: Summary) -> NDArray[np.float64]:
    """Return the sums of values, in the order of the paths."""
    return np.array([summary[path][2] for path in sorted(summary)])
