"""Analysis of positions, a few simulations at a time; a tree is kept when moves are played."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compile_for_types, compiled_without_refcounts, inlined_by_llvm
from keima.config.sections.search import SearchSettings
from keima.games.game import Actions, Game, States
from keima.search.move_search import begin_searches, with_policy_temperature
from keima.search.puct import Evaluate, Integers
from keima.search.simulate import advance_searches, evaluate_batch, raise_if_failed
from keima.search.tree import (
    AWAITED,
    DRAW,
    EVALUATED,
    LOSS,
    NODE,
    NONE,
    OVER,
    UNPROVEN,
    WIN,
    Floats,
    Trees,
    find_child_by_action,
    make_node_root,
)
from keima.search.workspace import make_workspace

MOST_LINE_MOVES = 64  # moves of a principal line that are reported
PROVEN_SCORE = 1e9  # more than any number of visits
TIE_BREAK = 0.25  # how much a move's value counts among moves with equal visits, and its prior among proven ones
ONLY_TREE = np.zeros(1, np.int32)  # the numbers of the trees that are searched
USUAL_MOVES = 40  # legal moves of a position, to estimate the memory of a node


@dataclass(frozen=True, kw_only=True)
class MoveAnalysis:
    """A move of the position, as search judges it."""

    action: int
    visits: int
    prior: float  # the network's policy, as flattened in play
    value: float  # for the player to move, in [-1, 1]; of a proven move exactly -1, 0 or 1
    # Until the game ends, at most; None with lookahead, and unless both position and move are a proven win or loss.
    plies: int | None
    actions: tuple[int, ...]  # the principal line, beginning with this move


def make_analysis_settings(settings: SearchSettings, *, leaves: int, lookahead: bool = False) -> SearchSettings:
    """Return the search for ``AnalysisTrees`` that is nearest to that of a run's matches: PUCT, with the run's numbers.

    Args:
        settings: the run's.
        leaves: the most positions of one tree in a call of the network.
        lookahead: whether to look ahead by the rules as in matches. Then plies to the end of a decided game are not
            counted, since not all of them are in the tree.
    """
    changes = {
        "algorithm": "puct",
        "forced_playouts": False,
        "leaves_per_tree": leaves,
        "lookahead_plies": settings.match_lookahead_plies if lookahead else 0,
    }
    return settings.model_copy(update=changes)


class AnalysisTrees:
    """The search trees of B positions of a game for two and more players, which share each call of the network: PUCT,
    without noise. An ``Analysis`` works on one of them.

    Args:
        settings: how to search; ``leaves_per_tree`` is the most positions of one tree in a call of the network.
        max_simulations: the capacity of a tree.
        num_trees: B.
        score_utility: the most that points count (``make_workspace``).
    """

    def __init__(
        self,
        game: Game,
        evaluate: Evaluate,
        settings: SearchSettings,
        *,
        max_simulations: int,
        num_trees: int = 1,
        score_utility: float = 0.0,
    ) -> None:
        self.game, self.max_simulations = game, max_simulations
        self.counts_plies = settings.lookahead_plies == 0
        self._evaluate = with_policy_temperature(evaluate, settings.match_policy_temperature)
        work = self._work = make_workspace(
            game, settings, num_trees=num_trees, simulations=max_simulations, score_utility=score_utility
        )
        self.trees, self.states = work.trees, work.states
        self.plies, self._renumbered = np.zeros(work.max_nodes, np.int32), np.zeros(work.max_nodes, np.int32)  # scratch
        self._begin_searches = compile_for_types(begin_searches, work, np.zeros(1, np.int32))
        self._compile_readers()  # before the search, which another process may be compiling on a first start
        self._advance_searches = compile_for_types(advance_searches, work, *work.empty_answers)

    def _compile_readers(self) -> None:
        trees, some = self.trees, np.empty(0, np.int32)
        compile_for_types(write_policy, trees, 0, np.empty(0, np.float32))
        compile_for_types(restrict_candidates, trees, 0, 0, some)
        compile_for_types(find_best_candidate, trees, 0, 0)
        compile_for_types(find_child_by_action, trees, 0, 0, 0)
        compile_for_types(make_node_root, trees, 0, 0, some)
        compile_for_types(write_move_scores, trees, 0, some, some, np.empty(0))
        compile_for_types(write_principal_line, trees, 0, 0, some, some)

    def begin(self, number: int) -> None:
        """Replace a tree by a new one over its state in ``states``."""
        self._begin_searches(self._work, np.array([number], np.int32))
        self.trees.searches[number].active = False

    def make_root(self, number: int, child: int) -> None:
        """Make a child of a tree's root its root."""
        make_node_root(self.trees, number, child, self._renumbered)

    def is_full(self, number: int) -> bool:
        """Return whether a tree has no room for another simulation."""
        work = self._work
        return bool(
            self.trees.nodes[number, 0].visits - 1 >= self.max_simulations
            or self.trees.searches[number].used_nodes + work.params.spare_nodes > work.max_nodes
        )

    def run_simulations(self, budgets: Mapping[int, int]) -> None:
        """Search the trees with these numbers until they have as many simulations, or as many as fit into one call of
        the network.

        Raises:
            ValueError: the network's answers are not finite, or have the wrong shape.
        """
        work, searches = self._work, self.trees.searches
        for number, budget in budgets.items():
            searches[number].budget, searches[number].active = budget, True
        count = raise_if_failed(self._advance_searches(work, *work.empty_answers))
        searches.active = False  # back the answers up without starting new simulations
        if count > 0:
            observations = work.leaves.observations[:count]
            answers = evaluate_batch(self._evaluate, observations, self.game, num_values=work.num_values)
            raise_if_failed(self._advance_searches(work, *answers))


class Analysis:
    """One position, and its tree.

    Args:
        trees: where the tree is.
        number: of the tree.
    """

    def __init__(self, trees: AnalysisTrees, number: int = 0) -> None:
        self.shared, self._game, self._trees, self._number = trees, trees.game, trees.trees, number
        self._allowed_actions: frozenset[int] | None = None
        self._policy: Floats | None = None  # of a restricted search, before the restriction
        self.begin(trees.game.initial_state())

    @property
    def state(self) -> States:
        """The position. Callers must not change it."""
        return self.shared.states[self._number]

    @property
    def visits(self) -> int:
        """The simulations of this position, including those kept from earlier positions."""
        return max(int(self._root.visits) - 1, 0)

    @property
    def is_evaluated(self) -> bool:
        """Whether the network has evaluated the position."""
        return bool(self._root.stage != AWAITED)

    @property
    def is_finished(self) -> bool:
        """Whether no more simulations are possible: the game is over, the position is proven, or the tree is full."""
        root = self._root
        return self._game.terminal(self.state) or bool(root.proven != UNPROVEN) or self.shared.is_full(self._number)

    @property
    def value(self) -> float:
        """The mean value of an evaluated position for the player to move, in [-1, 1]; exact if it is proven."""
        root = self._root
        if root.proven != UNPROVEN:
            return float(root.proven - DRAW)
        return float(np.clip(root.value_sum / root.visits, -1, 1))

    @property
    def network_value(self) -> float:
        """What the network alone says of an evaluated position, for the player to move, in [-1, 1]."""
        return float(self._root.evaluation)

    @property
    def policy(self) -> Floats:
        """The network's policy in an evaluated position, ``[A]``, 0 for illegal moves."""
        if self._policy is not None:
            return self._policy
        policy = np.zeros(self._game.num_actions, np.float32)
        write_policy(self._trees, self._number, policy)
        return policy

    @property
    def _root(self) -> Any:
        return self._trees.nodes[self._number, 0]

    def begin(self, state: States) -> None:
        """Start a new tree at ``state``, where a player is to move or the game is over."""
        self.state[:] = state
        self._allowed_actions = self._policy = None
        self.shared.begin(self._number)

    def play(self, action: int) -> None:
        """Move on to the position after ``action`` and keep its subtree.

        Raises:
            IllegalAction: the rules forbid it here.
        """
        self._game.play(self.state, action)
        child = find_child_by_action(self._trees, self._number, 0, action) if self._allowed_actions is None else NONE
        if child == NONE or self._trees.nodes[self._number, child].stage == OVER:
            self.begin(self.state)
        else:
            self.shared.make_root(self._number, child)

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
        run_side_by_side({self: simulations})

    def prepare_simulations(self, simulations: int) -> tuple[int, int]:
        """Return the tree's number, and the simulations that it shall have after as many more."""
        return self._number, min(self.visits + simulations, self.shared.max_simulations)

    def restrict_moves(self) -> None:
        """Restrict a position that has just been evaluated to the moves that may be considered."""
        if self._allowed_actions is not None:
            self._policy = self.policy
            restrict_candidates(self._trees, self._number, 0, np.array(sorted(self._allowed_actions), np.int32))

    def best_moves(self, limit: int = 1) -> list[MoveAnalysis]:
        """Return the best moves, at most ``limit``, the best first; empty before the network has evaluated the
        position.

        Proven wins come first, the shortest in front, and proven losses last; the others are sorted by visits.
        """
        decided, plies = bool(self._root.proven in (WIN, LOSS)), self.shared.plies
        if decided:
            write_plies_to_end(self._trees, self._number, plies)
        children, scores = np.empty(self._game.num_actions, np.int32), np.empty(self._game.num_actions)
        count = write_move_scores(self._trees, self._number, plies, children, scores)
        order = np.argsort(-scores[:count], kind="stable")
        found = [self._analyse_child(int(children[i]), decided) for i in order]
        best = find_best_candidate(self._trees, self._number, 0)
        if best != NONE:
            found.insert(int((scores[:count] > 0).sum()), self._analyse_unvisited(best))
        return found[:limit]

    def _analyse_child(self, number: int, decided: bool) -> MoveAnalysis:
        child, plies = self._trees.nodes[self._number, number], self.shared.plies
        actions = np.empty(MOST_LINE_MOVES, np.int32)
        length = write_principal_line(self._trees, self._number, number, plies, actions)
        proven = child.proven_for_parent != UNPROVEN
        return MoveAnalysis(
            action=int(child.action),
            visits=int(child.visits),
            prior=float(child.prior),
            value=float(child.proven_for_parent - DRAW)
            if proven
            else float(np.clip(child.value_sum / child.visits, -1, 1)),
            plies=1 + int(plies[number])
            if self.shared.counts_plies and decided and child.proven_for_parent in (WIN, LOSS)
            else None,
            actions=(int(child.action), *actions[:length].tolist()),
        )

    def _analyse_unvisited(self, candidate: int) -> MoveAnalysis:
        """Return an unvisited move."""
        action, value = int(self._trees.actions[self._number, candidate]), self.network_value
        prior = (
            float(self._trees.root_priors[self._number, action]) if self._trees.searches[self._number].ready else 0.0
        )
        return MoveAnalysis(action=action, visits=0, prior=prior, value=value, plies=None, actions=(action,))


def run_side_by_side(wanted: Mapping[Analysis, int]) -> None:
    """Run as many more simulations of each position, or as many as fit into one call of the network that all share.

    Args:
        wanted: positions of the same ``AnalysisTrees``, with their simulations.

    Raises:
        ValueError: the network's answers are not finite, or have the wrong shape.
    """
    searched = {analysis: simulations for analysis, simulations in wanted.items() if not analysis.is_finished}
    if not searched:
        return
    fresh = [analysis for analysis in searched if not analysis.is_evaluated]
    next(iter(searched)).shared.run_simulations(
        dict(analysis.prepare_simulations(simulations) for analysis, simulations in searched.items())
    )
    for analysis in fresh:
        analysis.restrict_moves()


def simulations_that_fit(megabytes: int, *, moves: int = USUAL_MOVES) -> int:
    """Return about how many simulations a tree of so much memory holds, for positions of so many moves."""
    return max(megabytes * 2**20 // (NODE.itemsize + 8 + 8 * moves), 1)


@compiled_without_refcounts
def write_policy(trees: Trees, b: int, policy: Floats) -> None:
    """Write the priors of an evaluated root's moves to ``policy`` ``[A]``, which is zero elsewhere."""
    root = trees.nodes[b, 0]
    first, end = root.first_candidate, root.first_candidate + root.num_candidates
    for i in range(first, end):
        policy[trees.actions[b, i]] = trees.priors[b, i]
    if root.stage == EVALUATED:  # the candidates still have logits, and no child
        largest = trees.priors[b, first]
        for i in range(first, end):
            largest = max(largest, trees.priors[b, i])
        total = np.float32(0.0)
        for i in range(first, end):
            policy[trees.actions[b, i]] = math.exp(trees.priors[b, i] - largest)
            total += policy[trees.actions[b, i]]
        for action in range(len(policy)):
            policy[action] /= total
    child = root.first_child
    while child != NONE:
        policy[trees.nodes[b, child].action] = trees.nodes[b, child].prior
        child = trees.nodes[b, child].next_sibling


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


@inlined_by_llvm
def move_sort_key(trees: Trees, b: int, number: int, plies: Integers) -> float:
    """Return the sort key of a visited move: proven wins by ``plies`` ``[M]``, then by visits, then proven losses below
    0. Where plies are equal, as after lookahead, the policy decides: a lost move that it prefers may resist longer.
    """
    child = trees.nodes[b, number]
    if child.proven_for_parent == WIN:
        return PROVEN_SCORE - plies[number] + TIE_BREAK * child.prior
    if child.proven_for_parent == LOSS:
        return plies[number] - PROVEN_SCORE + TIE_BREAK * child.prior
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
    """Write the best moves of both sides from a node on, up to a chance event, to ``actions`` ``[n]``; returns their
    number.
    """
    nodes = trees.nodes[b]
    for length in range(len(actions)):
        if nodes[number].chance:
            return length
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
    """Return the index of an evaluated node's candidate with the largest prior, or NONE."""
    node, best = trees.nodes[b, number], NONE
    if node.stage == AWAITED:
        return NONE
    for i in range(node.first_candidate, node.first_candidate + node.num_candidates):
        if best == NONE or trees.priors[b, i] > trees.priors[b, best]:
            best = i
    return best
