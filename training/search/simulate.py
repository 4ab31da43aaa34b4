"""One step of search for all trees: ``select_leaves`` -> evaluate -> ``expand_and_backup``.

``select_leaves`` walks down every tree that still has simulations to make and writes what the network must look at; walks that end
in a finished game, a proven node or a cached position are backed up at once and the tree is walked again.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from games.compiled import lean
from games.game import Actions, Game, Planes, Returns, Rules, States
from training.random import Streams
from training.search.cache import PositionCache, find_position, store_position
from training.search.gumbel import add_root_gumbel, choose_gumbel_edge, choose_gumbel_root_edge
from training.search.puct import Floats, Integers, SearchParams, add_root_noise, choose_edge, choose_root_edge, visit_edge
from training.search.tree import DRAW, LOSS, NONE, UNEXPANDED, UNPROVEN, WIN, Trees, add_node, bring_best_forward

AWAITS_EVALUATION, BACKED_UP, COLLIDED = range(3)  # how a walk ended

LEAF = np.dtype([("tree", np.int32), ("node", np.int32), ("num_actions", np.int32), ("hash", np.uint64)], align=True)


class Leaves(NamedTuple):
    """The walks that await evaluation, K at most, and scratch space."""

    rows: Any  # [K] of LEAF
    actions: Actions  # [K, A] the legal ones
    observations: Planes  # [K, C, H, W]
    state: States  # [S] scratch
    returns: Returns  # [players] scratch
    scores: Floats  # [A] scratch


def make_leaves(game: Game, count: int) -> Leaves:
    """Space for ``count`` walks."""
    return Leaves(
        rows=np.zeros(count, LEAF).view(np.recarray),
        actions=np.zeros((count, game.num_actions), np.int32),
        observations=np.zeros((count, *game.observation_shape), np.float32),
        state=game.initial_state(),
        returns=np.zeros(game.num_players, np.float32),
        scores=np.zeros(game.num_actions, np.float32),
    )


@lean
def searching(trees: Trees, b: int) -> bool:
    """Whether tree ``b`` has simulations left to make."""
    search, root = trees.searches[b], trees.nodes[b, 0]
    if not search.active:
        return False
    if root.visits == 0:
        return True
    return root.num_edges != UNEXPANDED and root.proven == UNPROVEN and root.visits - 1 < search.budget


@lean
def select_leaves(
    rules: Rules,
    params: SearchParams,
    trees: Trees,
    states: States,
    streams: Streams,
    schedules: Integers,
    leaves: Leaves,
    cache: PositionCache,
    leaves_per_tree: int,
) -> int:
    """Find what to evaluate next, at most ``leaves_per_tree`` positions a tree.

    ``states`` ``[B, S]`` are those at the roots; ``schedules`` ``[2, considered actions + 1, simulations]`` are the sequential
    halving of cheap and full Gumbel searches.

    Returns:
        The number n of rows of ``leaves`` that were filled; their observations are ``leaves.observations[:n]``.
    """
    count = 0
    for b in range(len(trees.searches)):
        wanted = count + leaves_per_tree
        while count < wanted and searching(trees, b):
            if not trees.searches[b].ready and trees.nodes[b, 0].num_edges > 0:
                prepare_root(params, trees, b, streams)
            end = walk(rules, params, trees, states, schedules, leaves, b, count)
            if end == COLLIDED:
                break
            if end == AWAITS_EVALUATION and not expand_from_cache(params, trees, leaves, cache, count):
                count += 1
    return count


@lean
def prepare_root(params: SearchParams, trees: Trees, b: int, streams: Streams) -> None:
    """Add the noise of this move's search to an expanded root."""
    if params.gumbel:
        add_root_gumbel(trees, b, streams)
    elif trees.searches[b].noisy:
        add_root_noise(params, trees, b, streams)
    trees.searches[b].ready = True


@lean
def walk(rules: Rules, params: SearchParams, trees: Trees, states: States, schedules: Integers, leaves: Leaves, b: int, row: int) -> int:
    """Follow tree ``b`` from its root to a new node, to a finished game, or to a node that awaits its evaluation already."""
    step, current_player = rules.step, rules.current_player
    state = leaves.state
    for word in range(len(state)):
        state[word] = states[b, word]
    number = 0
    node = trees.nodes[b, 0]
    node.visits += 1
    while node.num_edges != UNEXPANDED and node.proven == UNPROVEN and node.num_edges > 0:
        i = follow(params, trees, schedules, leaves, b, number)
        i = visit_edge(params, trees, b, number, i)
        edge = trees.edges[b, i]
        step(state, np.int64(edge.action))
        if edge.child == NONE:
            edge.child = add_node(trees, b, number, i, current_player(state))
        number = edge.child
        node = trees.nodes[b, number]
        node.visits += 1
    leaf = leaves.rows[row]
    leaf.tree, leaf.node = b, number
    if node.proven != UNPROVEN:
        backup(params, trees, b, number, float(node.proven - DRAW))
        return BACKED_UP
    if node.num_edges == UNEXPANDED and node.visits > 1:
        undo(params, trees, b, number)
        return COLLIDED
    if node.num_edges == 0 or rules.terminal(state) != 0:
        finish(rules, params, trees, leaves, b, number)
        return BACKED_UP
    leaf.num_actions = rules.legal_actions(state, leaves.actions[row])
    leaf.hash = np.uint64(rules.hash(state))
    rules.observe(state, leaves.observations[row])
    return AWAITS_EVALUATION


@lean
def follow(params: SearchParams, trees: Trees, schedules: Integers, leaves: Leaves, b: int, number: int) -> int:
    """The edge that the search's rule chooses at a node."""
    if not params.gumbel:
        return choose_edge(params, trees, b, number) if number > 0 else choose_root_edge(params, trees, b)
    if number > 0:
        return choose_gumbel_edge(params, trees, b, number, leaves.scores)
    return choose_gumbel_root_edge(params, trees, b, schedules[1 if trees.searches[b].full else 0], leaves.scores)


@lean
def finish(rules: Rules, params: SearchParams, trees: Trees, leaves: Leaves, b: int, number: int) -> None:
    """Give a node in which the game is over its value, and back it up."""
    rules.returns(leaves.state, leaves.returns)
    node = trees.nodes[b, number]
    value = leaves.returns[node.player]
    node.num_edges = 0
    if params.proven_results:
        node.proven = WIN if value > 0 else (LOSS if value < 0 else DRAW)
    backup(params, trees, b, number, value)


@lean
def expand(trees: Trees, leaves: Leaves, row: int, logits: Floats) -> None:
    """Give the node of ``row`` its edges, with the softmax of the legal actions' ``logits`` ``[A]`` as priors."""
    leaf = leaves.rows[row]
    search, node = trees.searches[leaf.tree], trees.nodes[leaf.tree, leaf.node]
    node.first_edge = search.used_edges
    node.num_edges = leaf.num_actions
    search.used_edges += leaf.num_actions
    scores = leaves.scores
    largest = -np.float32(1e30)
    for i in range(leaf.num_actions):
        scores[i] = logits[leaves.actions[row, i]]
        largest = max(largest, scores[i])
    total = np.float32(0.0)
    for i in range(leaf.num_actions):
        scores[i] = np.float32(math.exp(scores[i] - largest))
        total += scores[i]
    scale = np.float32(1.0) / total
    for i in range(leaf.num_actions):
        edge = trees.edges[leaf.tree, node.first_edge + i]
        edge.value = 0.0
        edge.prior = scores[i] * scale
        edge.visits = 0
        edge.child = NONE
        edge.action = leaves.actions[row, i]
        edge.root_prior = edge.prior
        edge.proven = UNPROVEN
    bring_best_forward(trees, leaf.tree, leaf.node)


@lean
def expand_from_cache(params: SearchParams, trees: Trees, leaves: Leaves, cache: PositionCache, row: int) -> bool:
    """Expand and back up the walk of ``row`` from the position cache, if the position is there."""
    leaf = leaves.rows[row]
    slot = find_position(cache, leaf.hash)
    if slot < 0:
        return False
    expand(trees, leaves, row, cache.logits[slot])
    backup(params, trees, leaf.tree, leaf.node, cache.values[slot])
    return True


@lean
def expand_and_backup(
    params: SearchParams, trees: Trees, leaves: Leaves, cache: PositionCache, logits: Floats, values: Floats, count: int
) -> None:
    """Take the network's answers for the first ``count`` walks: ``logits`` ``[N, A]`` and ``values`` ``[N]``."""
    for row in range(count):
        leaf = leaves.rows[row]
        expand(trees, leaves, row, logits[row])
        backup(params, trees, leaf.tree, leaf.node, values[row])
        store_position(cache, leaf.hash, logits[row], values[row])


@lean
def backup(params: SearchParams, trees: Trees, b: int, number: int, value: float) -> None:
    """Add ``value``, that of node ``number`` for its player, to all above, and settle what it proves."""
    virtual_loss = np.float32(params.virtual_loss)
    child = trees.nodes[b, number]
    child.value_sum += np.float32(value)
    while child.parent != NONE:
        node, edge = trees.nodes[b, child.parent], trees.edges[b, child.parent_edge]
        same_player = node.player == child.player
        if not same_player:
            value = -value
        edge.value += np.float32(value) + virtual_loss
        node.value_sum += np.float32(value)
        if child.proven != UNPROVEN and edge.proven == UNPROVEN:
            edge.proven = child.proven if same_player else WIN + LOSS - child.proven
            settle(trees, b, child.parent, edge.proven)
        child = node


@lean
def settle(trees: Trees, b: int, number: int, latest: int) -> None:
    """Prove a node if one of its edges, the ``latest``, is a proven win, or if all its edges are proven."""
    node = trees.nodes[b, number]
    if latest == WIN:
        node.proven = WIN
        return
    if node.num_visited < node.num_edges:
        return
    best = np.int8(LOSS)
    for i in range(node.first_edge, node.first_edge + node.num_edges):
        proven = trees.edges[b, i].proven
        if proven == UNPROVEN:
            return
        best = max(best, proven)
    node.proven = best


@lean
def undo(params: SearchParams, trees: Trees, b: int, number: int) -> None:
    """Take back the pending visits of a walk that led to a node somebody else is waiting for."""
    node = trees.nodes[b, number]
    node.visits -= 1
    while node.parent != NONE:
        edge = trees.edges[b, node.parent_edge]
        edge.visits -= 1
        edge.value += np.float32(params.virtual_loss)
        node = trees.nodes[b, node.parent]
        node.visits -= 1
