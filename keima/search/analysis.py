"""Analysis of one position, a few simulations at a time; the tree is kept when moves are played."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compile_for_types, compiled_without_refcounts, inlined
from keima.config.sections.search import SearchSettings
from keima.games.game import Actions, Game, States
from keima.search.move_search import begin_searches, with_policy_temperature
from keima.search.puct import Evaluate, Integers
from keima.search.simulate import advance_searches, evaluate_batch, raise_if_failed
from keima.search.tree import (
    AWAITED,
    DRAW,
    LOSS,
    NODE,
    NONE,
    OVER,
    UNPROVEN,
    WIN,
    Trees,
    find_child_by_action,
    make_node_root,
)
from keima.search.workspace import make_workspace

MOST_LINE_MOVES = 64  # moves of a principal line that are reported
PROVEN_SCORE = 1e9  # more than any number of visits
TIE_BREAK = 0.25  # how much a move's value counts among moves with equal visits
ONLY_TREE = np.zeros(1, np.int32)  # the numbers of the trees that are searched
USUAL_MOVES = 40  # legal moves of a position, to estimate the memory of a node


@dataclass(frozen=True, kw_only=True)
class MoveAnalysis:
    """A move of the position, as search judges it."""

    action: int
    visits: int
    prior: float  # the network's policy, as flattened in play
    value: float  # for the player to move, in [-1, 1]; of a proven move exactly -1, 0 or 1
    plies: (
        int | None
    )  # until the game ends, at most; None unless both the position and the move are a proven win or loss
    actions: tuple[int, ...]  # the principal line, beginning with this move


class Analysis:
    """A search tree over one position of a game for two and more players: PUCT, without noise.

    Args:
        settings: how to search; ``leaves_per_tree`` is the largest batch for the network.
        max_simulations: the capacity of the tree.
        score_utility: the most that points count (``make_workspace``).
    """

    def __init__(
        self,
        game: Game,
        evaluate: Evaluate,
        settings: SearchSettings,
        *,
        max_simulations: int,
        score_utility: float = 0.0,
    ) -> None:
        self._game, self._max_simulations = game, max_simulations
        self._evaluate = with_policy_temperature(evaluate, settings.match_policy_temperature)
        # Without lookahead every ply to the end of the game is in the tree, so that plies can be counted.
        settings = settings.model_copy(update={"lookahead_plies": 0})
        self._work = make_workspace(
            game, settings, num_trees=1, simulations=max_simulations, score_utility=score_utility
        )
        self._trees, self._empty_answers, nodes = self._work.trees, self._work.empty_answers, self._work.max_nodes
        self._renumbered, self._plies = np.zeros(nodes, np.int32), np.zeros(nodes, np.int32)
        self._begin_searches = compile_for_types(begin_searches, self._work, ONLY_TREE)
        self._advance_searches = compile_for_types(advance_searches, self._work, *self._empty_answers)
        self._allowed_actions: frozenset[int] | None = None
        self.begin(game.initial_state())

    @property
    def state(self) -> States:
        """The position. Callers must not change it."""
        return self._work.states[0]

    @property
    def visits(self) -> int:
        """The simulations of this position, including those kept from earlier positions."""
        return max(int(self._trees.nodes[0, 0].visits) - 1, 0)

    @property
    def is_evaluated(self) -> bool:
        """Whether the network has evaluated the position."""
        return bool(self._trees.nodes[0, 0].stage != AWAITED)

    @property
    def is_finished(self) -> bool:
        """Whether no more simulations are possible: the game is over, the position is proven, or the tree is full."""
        root = self._trees.nodes[0, 0]
        return self._game.terminal(self.state) or bool(root.proven != UNPROVEN) or self.visits >= self._max_simulations

    def begin(self, state: States) -> None:
        """Start a new tree at ``state``, where a player is to move or the game is over."""
        self._work.states[0] = state
        self._allowed_actions = None
        self._begin_searches(self._work, ONLY_TREE)

    def play(self, action: int) -> None:
        """Move on to the position after ``action`` and keep its subtree.

        Raises:
            IllegalAction: the rules forbid it here.
        """
        self._game.play(self.state, action)
        child = find_child_by_action(self._trees, 0, 0, action) if self._allowed_actions is None else NONE
        if child == NONE or self._trees.nodes[0, child].stage == OVER:
            self.begin(self.state)
        else:
            make_node_root(self._trees, 0, child, self._renumbered)

    def consider_only(self, actions: Sequence[int] | None) -> None:
        """Restrict the search to these moves of the position, or lift the restriction (None).

        A change starts a new tree.
        """
        only = None if actions is None else frozenset(actions)
        if only != self._allowed_actions:
            self.begin(self.state)
            self._allowed_actions = only

    def run_simulations(self, simulations: int) -> None:
        """Run ``simulations`` more, or as many as fit into one call of the network.

        Raises:
            ValueError: the network's answers are not finite, or have the wrong shape.
        """
        if self.is_finished:
            return
        search = self._trees.searches[0]
        search.budget = min(self.visits + simulations, self._max_simulations)
        search.active = True
        count = raise_if_failed(self._advance_searches(self._work, *self._empty_answers))
        search.active = False  # back the answers up without starting new simulations
        if count > 0:
            observations = self._work.leaves.observations[:count]
            answers = evaluate_batch(self._evaluate, observations, self._game, num_values=self._work.num_values)
            fresh = not self.is_evaluated
            raise_if_failed(self._advance_searches(self._work, *answers))
            if fresh and self._allowed_actions is not None:
                restrict_candidates(self._trees, 0, 0, np.array(sorted(self._allowed_actions), np.int32))

    def best_moves(self, limit: int = 1) -> list[MoveAnalysis]:
        """The best moves, at most ``limit``, the best first; empty before the network has evaluated the position.

        Proven wins come first, the shortest in front, and proven losses last; the others are sorted by visits.
        """
        root = self._trees.nodes[0, 0]
        decided = bool(root.proven in (WIN, LOSS))
        if decided:
            write_plies_to_end(self._trees, 0, self._plies)
        children, scores = np.empty(self._game.num_actions, np.int32), np.empty(self._game.num_actions)
        count = write_move_scores(self._trees, 0, self._plies, children, scores)
        order = np.argsort(-scores[:count], kind="stable")
        found = [self._analyse_child(int(children[i]), decided) for i in order]
        best = find_best_candidate(self._trees, 0, 0)
        if best != NONE:
            found.insert(int((scores[:count] > 0).sum()), self._analyse_unvisited(best))
        return found[:limit]

    def _analyse_child(self, number: int, decided: bool) -> MoveAnalysis:
        child = self._trees.nodes[0, number]
        actions = np.empty(MOST_LINE_MOVES, np.int32)
        length = write_principal_line(self._trees, 0, number, self._plies, actions)
        proven = child.proven_for_parent != UNPROVEN
        return MoveAnalysis(
            action=int(child.action),
            visits=int(child.visits),
            prior=float(child.prior),
            value=float(child.proven_for_parent - DRAW)
            if proven
            else float(np.clip(child.value_sum / child.visits, -1, 1)),
            plies=1 + int(self._plies[number]) if decided and child.proven_for_parent in (WIN, LOSS) else None,
            actions=(int(child.action), *actions[:length].tolist()),
        )

    def _analyse_unvisited(self, candidate: int) -> MoveAnalysis:
        """An unvisited move."""
        action, value = int(self._trees.actions[0, candidate]), float(self._trees.nodes[0, 0].evaluation)
        prior = float(self._trees.root_priors[0, action]) if self._trees.searches[0].ready else 0.0
        return MoveAnalysis(action=action, visits=0, prior=prior, value=value, plies=None, actions=(action,))


def simulations_that_fit(megabytes: int) -> int:
    """The approximate number of simulations of a tree that takes so much memory."""
    return max(megabytes * 2**20 // (NODE.itemsize + 8 + 8 * USUAL_MOVES), 1)


@compiled_without_refcounts
def restrict_candidates(trees: Trees, b: int, number: int, actions: Actions) -> None:
    """Remove all candidates of a node without children except ``actions`` ``[n]``."""
    node, kept = trees.nodes[b, number], 0
    for i in range(node.first_candidate, node.first_candidate + node.num_candidates):
        action = trees.actions[b, i]
        for j in range(len(actions)):
            if actions[j] == action:
                trees.actions[b, node.first_candidate + kept] = action
                trees.priors[b, node.first_candidate + kept] = trees.priors[b, i]
                kept += 1
    node.num_candidates = kept


@compiled_without_refcounts
def write_plies_to_end(trees: Trees, b: int, plies: Integers) -> None:
    """Write to ``plies`` ``[M]`` the number of plies to the end of the game from each proven win or loss of tree ``b``.

    The winner takes the shortest proven line, the loser the longest. A node's number is larger than its parent's.
    """
    nodes = trees.nodes[b]
    for number in range(trees.searches[b].used_nodes - 1, -1, -1):
        proven, child, found = nodes[number].proven, nodes[number].first_child, 0
        plies[number] = 0
        while child != NONE:
            if proven == LOSS or (proven == WIN and nodes[child].proven_for_parent == WIN):
                through = plies[child] + 1
                if found == 0 or (through < found if proven == WIN else through > found):
                    found = through
            child = nodes[child].next_sibling
        plies[number] = found


@inlined
def move_sort_key(trees: Trees, b: int, number: int, plies: Integers) -> float:
    """The sort key of a visited move: proven wins by ``plies`` ``[M]``, then by visits, then proven losses below 0."""
    child = trees.nodes[b, number]
    if child.proven_for_parent == WIN:
        return PROVEN_SCORE - plies[number]
    if child.proven_for_parent == LOSS:
        return plies[number] - PROVEN_SCORE
    return child.visits + TIE_BREAK * child.value_sum / child.visits


@compiled_without_refcounts
def write_move_scores(trees: Trees, b: int, plies: Integers, children: Integers, scores: NDArray[np.float64]) -> int:
    """Write the root's children and their scores, ``[A]`` each; returns their number."""
    count, child = 0, trees.nodes[b, 0].first_child
    while child != NONE:
        children[count], scores[count] = child, move_sort_key(trees, b, child, plies)
        count += 1
        child = trees.nodes[b, child].next_sibling
    return count


@compiled_without_refcounts
def write_principal_line(trees: Trees, b: int, number: int, plies: Integers, actions: Actions) -> int:
    """Write the best moves of both sides from a node on to ``actions`` ``[n]``; returns their number."""
    nodes = trees.nodes[b]
    for length in range(len(actions)):
        best, best_score, child = NONE, 0.0, nodes[number].first_child
        while child != NONE:
            score = move_sort_key(trees, b, child, plies)
            if best == NONE or score > best_score:
                best, best_score = child, score
            child = nodes[child].next_sibling
        if best == NONE or (best_score < 0 and nodes[number].num_candidates > 0):
            return length
        actions[length] = nodes[best].action
        number = best
    return len(actions)


@compiled_without_refcounts
def find_best_candidate(trees: Trees, b: int, number: int) -> int:
    """The index of an evaluated node's candidate with the largest prior, or NONE."""
    node, best = trees.nodes[b, number], NONE
    if node.stage == AWAITED:
        return NONE
    for i in range(node.first_candidate, node.first_candidate + node.num_candidates):
        if best == NONE or trees.priors[b, i] > trees.priors[b, best]:
            best = i
    return best
