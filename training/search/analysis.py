"""One position, searched as long as is wanted: a few simulations at a time, and on in the same tree when moves are
played.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from configs.schema import SearchSettings
from games.compiled import inlined, lean, specialized
from games.game import Actions, Game, States
from training.search.prepared import prepare
from training.search.puct import Evaluate, Integers
from training.search.search import plant_all
from training.search.simulate import ask, checked, search_on
from training.search.tree import AWAITED, DRAW, LOSS, NODE, NONE, OVER, UNPROVEN, WIN, Trees, find_child, keep_subtree

LONGEST_LINE = 64  # moves of a line that are told
PROVEN_RANK = 1e9  # more than any number of visits
TIE_BREAK = 0.25  # a move's value counts among equal visits
USUAL_MOVES = 40  # of a position, for a guess at the memory of a node


@dataclass(frozen=True, kw_only=True)
class Line:
    """A move of the position, and what search thinks of it."""

    action: int
    visits: int
    prior: float  # the share that the network gave it
    value: float  # for the player to move, in [-1, 1]; of a proven move exactly -1, 0 or 1
    plies: (
        int | None
    )  # until the game ends, at most; only where the position is a proven win or loss, of moves that are proven too
    actions: tuple[int, ...]  # what is expected, this move first


class Analysis:
    """A tree over one position of a game for two players, with PUCT and without noise.

    Args:
        settings: of the search; ``leaves_per_tree`` is the largest batch for the network.
        max_simulations: the tree is full with so many.
    """

    def __init__(self, game: Game, evaluate: Evaluate, settings: SearchSettings, *, max_simulations: int) -> None:
        self._game, self._evaluate, self._max_simulations = game, evaluate, max_simulations
        settings = settings.model_copy(
            update={"lookahead_plies": 0}
        )  # every ply to the end is to be in the tree, and counted
        self._arguments = prepare(game, settings, num_trees=1, simulations=max_simulations)
        self._trees, self._states, self._leaves = self._arguments.trees, self._arguments.states, self._arguments.leaves
        self._no_answers, nodes = self._arguments.no_answers, self._arguments.max_nodes
        self._plant_arguments = (self._arguments.rules, self._trees, self._states, 1)
        self._renumbered, self._plies = np.zeros(nodes, np.int32), np.zeros(nodes, np.int32)
        self._plant = specialized(plant_all, *self._plant_arguments)
        self._search_on = specialized(search_on, *self._arguments, *self._no_answers)
        self._only: frozenset[int] | None = None
        self.begin(game.initial_state())

    @property
    def state(self) -> States:
        """The position; nobody else may change it."""
        return self._states[0]

    @property
    def visits(self) -> int:
        """The simulations that the tree has of this position, those kept from earlier ones included."""
        return max(int(self._trees.nodes[0, 0].visits) - 1, 0)

    @property
    def evaluated(self) -> bool:
        """Whether there is anything to say of the position yet."""
        return bool(self._trees.nodes[0, 0].stage != AWAITED)

    @property
    def finished(self) -> bool:
        """Whether more simulations are impossible: the game is over, the position is proven, or the tree is full."""
        root = self._trees.nodes[0, 0]
        return self._game.terminal(self.state) or bool(root.proven != UNPROVEN) or self.visits >= self._max_simulations

    def begin(self, state: States) -> None:
        """Begin anew with a position, in which a player is to move or the game is over."""
        self._states[0] = state
        self._only = None
        self._plant(*self._plant_arguments)

    def play(self, action: int) -> None:
        """Go on to the position after ``action``, with what the tree has of it.

        Raises:
            IllegalAction: the rules forbid it here.
        """
        self._game.play(self.state, action)
        child = find_child(self._trees, 0, 0, action) if self._only is None else NONE
        if child == NONE or self._trees.nodes[0, child].stage == OVER:
            self.begin(self.state)
        else:
            keep_subtree(self._trees, 0, child, self._renumbered)

    def consider_only(self, actions: Sequence[int] | None) -> None:
        """Look at no other moves of this position than these, or at all (None).

        Where that is a change, it begins anew.
        """
        only = None if actions is None else frozenset(actions)
        if only != self._only:
            self.begin(self.state)
            self._only = only

    def think(self, simulations: int) -> None:
        """Make ``simulations`` more, or as many as go into one call of the network.

        Raises:
            ValueError: the network's answers are no numbers, or too few.
        """
        if self.finished:
            return
        search = self._trees.searches[0]
        search.budget = min(self.visits + simulations, self._max_simulations)
        search.active = True
        count = checked(self._search_on(*self._arguments, *self._no_answers))
        search.active = False  # the answers are taken, and nothing more is asked
        if count > 0:
            answers = ask(self._evaluate, self._leaves.observations[:count], self._game.num_actions)
            fresh = not self.evaluated
            checked(self._search_on(*self._arguments, *answers))
            if fresh and self._only is not None:
                keep_candidates(self._trees, 0, 0, np.array(sorted(self._only), np.int32))

    def lines(self, most: int = 1) -> list[Line]:
        """The best moves, at most so many and the best one first, as far as the network has looked at the position at
        all.

        A proven win comes first, the shorter the better, and proven losses last; else the moves stand by their visits.
        """
        root = self._trees.nodes[0, 0]
        decided = bool(root.proven in (WIN, LOSS))
        if decided:
            note_plies(self._trees, 0, self._plies)
        children, ranks = np.empty(self._game.num_actions, np.int32), np.empty(self._game.num_actions)
        count = rank_children(self._trees, 0, 0, self._plies, children, ranks)
        order = np.argsort(-ranks[:count], kind="stable")
        found = [self._line(int(children[i]), decided) for i in order]
        best = best_candidate(self._trees, 0, 0)
        if best != NONE:
            found.insert(int((ranks[:count] > 0).sum()), self._unvisited(best))
        return found[:most]

    def _line(self, number: int, decided: bool) -> Line:
        child = self._trees.nodes[0, number]
        actions = np.empty(LONGEST_LINE, np.int32)
        length = read_line(self._trees, 0, number, self._plies, actions)
        proven = child.proven_above != UNPROVEN
        return Line(
            action=int(child.action),
            visits=int(child.visits),
            prior=float(child.prior),
            value=float(child.proven_above - DRAW) if proven else float(np.clip(child.value_sum / child.visits, -1, 1)),
            plies=1 + int(self._plies[number]) if decided and child.proven_above in (WIN, LOSS) else None,
            actions=(int(child.action), *actions[:length].tolist()),
        )

    def _unvisited(self, candidate: int) -> Line:
        """The likeliest of the moves without visits."""
        action, value = int(self._trees.actions[0, candidate]), float(self._trees.nodes[0, 0].evaluation)
        prior = float(self._trees.root_priors[0, action]) if self._trees.searches[0].ready else 0.0
        return Line(action=action, visits=0, prior=prior, value=value, plies=None, actions=(action,))


def simulations_in(megabytes: int) -> int:
    """About how many simulations a tree may have that takes so much memory."""
    return max(megabytes * 2**20 // (NODE.itemsize + 8 + 8 * USUAL_MOVES), 1)


@lean
def keep_candidates(trees: Trees, b: int, number: int, actions: Actions) -> None:
    """Let a node that has no children yet forget all candidates but those with ``actions`` ``[n]``."""
    node, kept = trees.nodes[b, number], 0
    for i in range(node.first_candidate, node.first_candidate + node.num_candidates):
        action = trees.actions[b, i]
        for j in range(len(actions)):
            if actions[j] == action:
                trees.actions[b, node.first_candidate + kept] = action
                trees.priors[b, node.first_candidate + kept] = trees.priors[b, i]
                kept += 1
    node.num_candidates = kept


@lean
def note_plies(trees: Trees, b: int, plies: Integers) -> None:
    """Write to ``plies`` ``[M]`` how long the game goes on from each proven win or loss of tree ``b``, at most.

    The winner takes the shortest way that is proven, the loser the longest. A node's number is larger than its
    parent's.
    """
    nodes = trees.nodes[b]
    for number in range(trees.searches[b].used_nodes - 1, -1, -1):
        proven, child, found = nodes[number].proven, nodes[number].first_child, 0
        plies[number] = 0
        while child != NONE:
            if proven == LOSS or (proven == WIN and nodes[child].proven_above == WIN):
                through = plies[child] + 1
                if found == 0 or (through < found if proven == WIN else through > found):
                    found = through
            child = nodes[child].next_sibling
        plies[number] = found


@inlined
def rank(trees: Trees, b: int, number: int, plies: Integers) -> float:
    """How good a visited move is among the others: proven wins by their ``plies`` ``[M]``, then by visits, then proven
    losses, below 0.
    """
    child = trees.nodes[b, number]
    if child.proven_above == WIN:
        return PROVEN_RANK - plies[number]
    if child.proven_above == LOSS:
        return plies[number] - PROVEN_RANK
    return child.visits + TIE_BREAK * child.value_sum / child.visits


@lean
def rank_children(
    trees: Trees, b: int, number: int, plies: Integers, children: Integers, ranks: NDArray[np.float64]
) -> int:
    """Write a node's children and their ranks, ``[A]`` each; returns how many there are."""
    count, child = 0, trees.nodes[b, number].first_child
    while child != NONE:
        children[count], ranks[count] = child, rank(trees, b, child, plies)
        count += 1
        child = trees.nodes[b, child].next_sibling
    return count


@lean
def read_line(trees: Trees, b: int, number: int, plies: Integers, actions: Actions) -> int:
    """Write the best moves from a node on, each side's, to ``actions`` ``[n]``; returns how many there are."""
    nodes = trees.nodes[b]
    for length in range(len(actions)):
        best, best_rank, child = NONE, 0.0, nodes[number].first_child
        while child != NONE:
            its_rank = rank(trees, b, child, plies)
            if best == NONE or its_rank > best_rank:
                best, best_rank = child, its_rank
            child = nodes[child].next_sibling
        if best == NONE or (best_rank < 0 and nodes[number].num_candidates > 0):
            return length
        actions[length] = nodes[best].action
        number = best
    return len(actions)


@lean
def best_candidate(trees: Trees, b: int, number: int) -> int:
    """Where the likeliest candidate of an evaluated node is, or NONE."""
    node, best = trees.nodes[b, number], NONE
    if node.stage == AWAITED:
        return NONE
    for i in range(node.first_candidate, node.first_candidate + node.num_candidates):
        if best == NONE or trees.priors[b, i] > trees.priors[b, best]:
            best = i
    return best
