"""UCT: Monte-Carlo tree search with random playouts, an opponent that knows nothing but the rules.

L. Kocsis and C. Szepesvari, "Bandit based Monte-Carlo planning" (ECML 2006), as C. Browne et al. describe it ("A survey
of Monte Carlo tree search methods", 2012). A playout descends by UCB1, where moves without a visit come first, in
random order; it adds one node, plays on at random to the end of the game, and adds the result to all nodes on its path:
1 for a win, 0.5 for a draw, 0 for a loss. Chance outcomes are sampled. The move with the most visits is played.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.base.random import Streams, random_below, seed_stream
from keima.compilation.decorators import compiled, compiled_part, inlined_by_llvm
from keima.games.authoring.kept_errors import raise_kept_error
from keima.games.chance import sample_chance_outcome
from keima.games.game import CHANCE, Actions, Game, MoveScratch, Returns, Rules, States
from keima.search.lookahead import copy_state
from keima.search.tree import NONE

EXPLORATION = math.sqrt(2.0)  # UCB1's constant for results from 0 to 1
GAME_OVER, NOT_VISITED = -2, -3  # in place of the player to move: the game is over; no playout has passed through yet

UCT_NODE = np.dtype(
    [
        ("points", np.float64),  # of the player who moved there, in all playouts through this node
        ("visits", np.int32),
        ("player", np.int32),  # to move, or CHANCE, OVER or UNSEEN
        ("untried", np.int32),  # moves without a child
        ("action", np.int32),  # that led here, or the chance outcome
        ("parent", np.int32),
        ("first_child", np.int32),  # the newest; children are linked by next_sibling
        ("next_sibling", np.int32),
    ],
    align=True,
)


class UctTree(NamedTuple):
    """A tree of at most M nodes, of which node 0 is the root, and scratch space.

    Record arrays are typed ``Any``, because numpy's types do not know their fields.
    """

    nodes: Any  # [M] of NODE
    used_nodes: NDArray[np.int64]  # [1]
    state: States  # [S] that a playout has reached
    moves: MoveScratch
    tried: NDArray[np.bool_]  # [A], False between calls
    returns: Returns  # [players]
    streams: Streams  # [1]
    exploration: NDArray[np.float64]  # [M] EXPLORATION * sqrt(log(N)) for a node of N visits
    inverse_roots: NDArray[np.float64]  # [M] 1 / sqrt(n) for a child of n visits


class UctPlayer:
    """Plays the move that UCT visits most.

    Args:
        playouts: per move.
        seed: of all random numbers; the same moves are asked for in the same order after the same seed.

    Raises:
        ValueError: the game is for one player.
    """

    def __init__(self, game: Game, *, playouts: int, seed: int) -> None:
        if game.num_players == 1:
            raise ValueError(f"{game.name} is a game for one player, and UCT counts results from -1 to 1")
        self._rules, self._playouts = game.rules, playouts
        visits = np.maximum(1.0, np.arange(playouts + 1))
        self._tree = UctTree(
            nodes=np.zeros(playouts + 1, UCT_NODE).view(np.recarray),
            used_nodes=np.zeros(1, np.int64),
            state=game.initial_state(),
            moves=game.make_move_scratch(),
            tried=np.zeros(game.num_actions, np.bool_),
            returns=np.zeros(game.num_players, np.float32),
            streams=np.array([seed_stream(seed, "uct")], np.uint64),
            exploration=EXPLORATION * np.sqrt(np.log(visits)),
            inverse_roots=1.0 / np.sqrt(visits),
        )

    def choose(self, states: States) -> Actions:
        """Return the most visited action in each of ``states`` ``[N, S]``."""
        chosen = np.empty(len(states), np.int32)
        write_most_visited_actions(self._rules, self._tree, states, self._playouts, chosen)
        raise_kept_error()
        return chosen


@compiled
def write_most_visited_actions(rules: Rules, tree: UctTree, states: States, playouts: int, chosen: Actions) -> None:
    """Write the most visited action of each of ``states`` ``[N, S]`` to ``chosen`` ``[N]``."""
    for i in range(len(states)):
        build_tree(rules, tree, states[i], playouts)
        chosen[i] = find_most_visited_action(tree)


@compiled_part
def build_tree(rules: Rules, tree: UctTree, state: States, playouts: int) -> None:
    """Build a new tree from ``state`` ``[S]``."""
    tree.used_nodes[0] = 0
    add_node(tree, NONE, NONE)
    for _ in range(playouts):
        copy_state(state, tree.state)
        number = descend_to_leaf(rules, tree)
        play_to_end(rules, tree)
        back_up_returns(tree, number)


@inlined_by_llvm
def add_node(tree: UctTree, parent: int, action: int) -> int:
    """Add a node behind ``action``; returns its number."""
    number = tree.used_nodes[0]
    tree.used_nodes[0] = number + 1
    node = tree.nodes[number]
    node.points = 0.0
    node.visits = 0
    node.player = NOT_VISITED
    node.action = action
    node.parent = parent
    node.first_child = NONE
    node.next_sibling = NONE
    if parent != NONE:
        node.next_sibling = tree.nodes[parent].first_child
        tree.nodes[parent].first_child = number
    return int(number)


@inlined_by_llvm
def descend_to_leaf(rules: Rules, tree: UctTree) -> int:
    """Descend from the root to a new node or to the end of the game; returns the node. ``tree.state`` is the position
    there.
    """
    step, nodes, state = rules.step, tree.nodes, tree.state
    number = 0
    while True:
        node = nodes[number]
        if node.player == NOT_VISITED:
            note_player_to_move(rules, tree, node)
        if node.player == GAME_OVER:
            return number
        if node.player == CHANCE:
            action = sample_chance_outcome(rules, state, tree.moves, tree.streams, 0)
            child = find_outcome_child(nodes, number, action)
        elif node.untried > 0:
            action, child = draw_untried_action(tree, node, rules.legal_actions(state, tree.moves.actions)), NONE
        else:
            child = select_ucb1_child(tree, node)
            action = int(nodes[child].action)
        step(state, np.int64(action))
        if child == NONE:
            return add_node(tree, number, action)
        number = child


@inlined_by_llvm
def note_player_to_move(rules: Rules, tree: UctTree, node: Any) -> None:
    """Note who is to move at a node through which the first playout passes, and how many moves there are."""
    node.untried = 0
    if rules.terminal(tree.state) != 0:
        node.player = GAME_OVER
    else:
        node.player = rules.current_player(tree.state)
        if node.player != CHANCE:
            node.untried = rules.legal_actions(tree.state, tree.moves.actions)


@inlined_by_llvm
def find_outcome_child(nodes: Any, number: int, outcome: int) -> int:
    """Return the child of a chance node behind this outcome, or NONE."""
    child = nodes[number].first_child
    while child != NONE and nodes[child].action != outcome:
        child = nodes[child].next_sibling
    return int(child)


@inlined_by_llvm
def draw_untried_action(tree: UctTree, node: Any, count: int) -> int:
    """Return one of the first ``count`` actions in ``tree.moves.actions``; all without a child are equally likely."""
    nodes, legal, tried = tree.nodes, tree.moves.actions, tree.tried
    child = node.first_child
    while child != NONE:
        tried[nodes[child].action] = True
        child = nodes[child].next_sibling
    skipped, found = random_below(tree.streams, 0, node.untried), NONE
    node.untried -= 1
    for i in range(count):
        action = int(legal[i])
        if not tried[action]:
            if skipped == 0:
                found = action
            skipped -= 1
        tried[action] = False
    return found


@inlined_by_llvm
def select_ucb1_child(tree: UctTree, node: Any) -> int:
    """Return the child that UCB1 selects at a node whose moves have all been tried."""
    nodes, inverse_roots, explored = tree.nodes, tree.inverse_roots, tree.exploration[node.visits]
    best, highest = NONE, -math.inf
    child = node.first_child
    while child != NONE:
        inverse_root = inverse_roots[nodes[child].visits]
        # UCB1: mean(a) + c * sqrt(log N / n(a)) (Auer et al. 2002)
        bound = inverse_root * (nodes[child].points * inverse_root + explored)
        if bound > highest:
            best, highest = int(child), bound
        child = nodes[child].next_sibling
    return best


@inlined_by_llvm
def play_to_end(rules: Rules, tree: UctTree) -> None:
    """Play at random to the end of the game, whose results are then in ``tree.returns``."""
    legal_actions, step, terminal = rules.legal_actions, rules.step, rules.terminal
    state, legal, streams = tree.state, tree.moves.actions, tree.streams
    while True:
        count = legal_actions(state, legal)
        if count > 0:
            step(state, np.int64(legal[random_below(streams, 0, count)]))
        elif terminal(state) != 0:
            break
        else:
            step(state, np.int64(sample_chance_outcome(rules, state, tree.moves, streams, 0)))
    rules.returns(state, tree.returns)


@inlined_by_llvm
def back_up_returns(tree: UctTree, number: int) -> None:
    """Add a playout's results to a node and to all above it, from 0 to 1."""
    nodes = tree.nodes
    while number != NONE:
        node = nodes[number]
        node.visits += 1
        number = node.parent
        if number != NONE and nodes[number].player != CHANCE:
            node.points += (1.0 + tree.returns[nodes[number].player]) / 2.0


@compiled_part
def find_most_visited_action(tree: UctTree) -> int:
    """Return the action of the root with the most visits, of several the one with the best mean."""
    nodes = tree.nodes
    best, child = nodes[0].first_child, nodes[0].first_child
    while child != NONE:
        more = nodes[child].visits - nodes[best].visits
        if more > 0 or (more == 0 and nodes[child].points > nodes[best].points):
            best = child
        child = nodes[child].next_sibling
    return int(nodes[best].action)
