"""One step of search for all trees: ``select_leaves`` -> evaluate -> ``expand_and_backup``.

``select_leaves`` walks down every tree that still has simulations to make and writes what the network must look at; walks that end
in a finished game, a proven node or a cached position are backed up at once and the tree is walked again.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from games.compiled import inlined, lean
from games.game import Game, Planes, Returns, Rules, States
from training.random import Streams
from training.search.cache import PositionCache, find_position, store_position
from training.search.gumbel import add_root_gumbels, choose_gumbel_child, choose_gumbel_root_child, note_logit
from training.search.puct import Evaluate, Integers, SearchParams, add_root_noise, choose_child, forced_child, note_root_priors
from training.search.tree import AWAITED, CLOSED, DRAW, LOSS, NONE, OVER, UNPROVEN, WIN, Floats, Trees, add_child, open_node

AWAITS_EVALUATION, BACKED_UP, COLLIDED = range(3)  # how a walk ended

LEAF = np.dtype([("tree", np.int32), ("node", np.int32), ("hash", np.uint64)], align=True)


class Leaves(NamedTuple):
    """The walks that await evaluation, K at most, and scratch space."""

    rows: Any  # [K] of LEAF
    observations: Planes  # [K, C, H, W]
    state: States  # [S] scratch
    returns: Returns  # [players] scratch
    scratch: Floats  # [2, A]


def make_leaves(game: Game, count: int) -> Leaves:
    """Space for ``count`` walks."""
    return Leaves(
        rows=np.zeros(count, LEAF).view(np.recarray),
        observations=np.zeros((count, *game.observation_shape), np.float32),
        state=game.initial_state(),
        returns=np.zeros(game.num_players, np.float32),
        scratch=np.zeros((2, game.num_actions), np.float32),
    )


def ask(evaluate: Evaluate, observations: Planes, num_actions: int) -> tuple[Floats, Floats]:
    """The network's answers, checked, since compiled code trusts them.

    Raises:
        ValueError: they are not of the right shape, or not finite.
    """
    logits, values = (np.ascontiguousarray(answer, np.float32) for answer in evaluate(observations))
    count = len(observations)
    if logits.shape != (count, num_actions) or values.shape != (count,):
        raise ValueError(f"the network gave {logits.shape} logits and {values.shape} values for {count} positions of {num_actions} actions")
    if not math.isfinite(logits.sum() + values.sum()):
        raise ValueError("the network gave a logit or a value that is infinite or no number")
    return logits, values


@inlined
def searching(trees: Trees, b: int) -> bool:
    """Whether tree ``b`` has simulations left to make."""
    search, root = trees.searches[b], trees.nodes[b, 0]
    if not search.active:
        return False
    if root.visits == 0:
        return True
    return root.stage != AWAITED and root.proven == UNPROVEN and root.visits - 1 < search.budget


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
            if not trees.searches[b].ready and trees.nodes[b, 0].stage != AWAITED:
                prepare_root(params, trees, b, streams, leaves.scratch)
            end = walk(rules, params, trees, states, schedules, leaves, b, count)
            if end == COLLIDED:
                break
            if end == AWAITS_EVALUATION and not expand_from_cache(trees, leaves, cache, count):
                count += 1
    return count


@lean
def prepare_root(params: SearchParams, trees: Trees, b: int, streams: Streams, scratch: Floats) -> None:
    """Make an evaluated root ready for this move's search: note its priors, and add noise to them if wanted."""
    note_root_priors(trees, b)
    if trees.searches[b].noisy and params.gumbel:
        add_root_gumbels(trees, b, streams, scratch)
    elif trees.searches[b].noisy:
        add_root_noise(params, trees, b, streams, scratch)
    trees.searches[b].ready = True


@inlined
def walk(rules: Rules, params: SearchParams, trees: Trees, states: States, schedules: Integers, leaves: Leaves, b: int, row: int) -> int:
    """Follow tree ``b`` from its root to a new node, to a finished game, or to a node that awaits its evaluation already."""
    step, current_player = rules.step, rules.current_player
    nodes, state = trees.nodes[b], leaves.state
    for word in range(len(state)):
        state[word] = states[b, word]
    number = 0
    while nodes[number].stage >= CLOSED and nodes[number].proven == UNPROVEN:
        node = nodes[number]
        if node.stage == CLOSED:
            open_node(trees, b, number)
        next_number = follow(params, trees, schedules, b, number)
        node.visits += 1
        node.pending += 1
        if next_number != NONE:
            step(state, np.int64(nodes[next_number].action))
        else:
            next_number = add_child(trees, b, number)
            child = nodes[next_number]
            step(state, np.int64(child.action))
            child.player = current_player(state)
            child.turn = 1.0 if child.player == node.player else -1.0
            if params.gumbel:
                note_logit(trees, b, next_number)
        number = next_number
    node = nodes[number]
    node.visits += 1
    node.pending += 1
    if node.proven != UNPROVEN:
        value = np.float32(node.proven - DRAW)
    elif node.stage == OVER:
        value = node.evaluation
    elif node.visits > 1:
        undo(trees, b, number)
        return COLLIDED
    elif rules.terminal(state) != 0:
        value = finish(rules, params, leaves, node)
    else:
        await_evaluation(rules, trees, leaves, b, number, row)
        return AWAITS_EVALUATION
    backup(trees, b, number, value)
    return BACKED_UP


@inlined
def follow(params: SearchParams, trees: Trees, schedules: Integers, b: int, number: int) -> int:
    """The child that the search's rule chooses at a node, or NONE for its first candidate."""
    full = trees.searches[b].full
    if params.gumbel:
        if number > 0:
            return choose_gumbel_child(params, trees, b, number)
        return choose_gumbel_root_child(params, trees, b, schedules[1 if full else 0])
    if number == 0 and full and params.forced_playouts_k > 0:
        forced = forced_child(params, trees, b)
        if forced != NONE:
            return forced
    return choose_child(params, trees, b, number)


@lean
def finish(rules: Rules, params: SearchParams, leaves: Leaves, node: Any) -> np.float32:
    """Note that the game is over at a new node; returns its value there."""
    rules.returns(leaves.state, leaves.returns)
    value = leaves.returns[node.player]
    node.stage = OVER
    node.evaluation = value
    if params.proven_results:
        node.proven = WIN if value > 0 else (LOSS if value < 0 else DRAW)
    return value


@inlined
def await_evaluation(rules: Rules, trees: Trees, leaves: Leaves, b: int, number: int, row: int) -> None:
    """Note a new node's legal actions, and write to ``row`` of ``leaves`` what the network must look at."""
    search, node, leaf = trees.searches[b], trees.nodes[b, number], leaves.rows[row]
    leaf.tree, leaf.node, leaf.hash = b, number, np.uint64(rules.hash(leaves.state))
    node.first_candidate = search.used_candidates
    node.num_candidates = rules.legal_actions(leaves.state, trees.actions[b, node.first_candidate :])
    search.used_candidates += node.num_candidates
    rules.observe(leaves.state, leaves.observations[row])


@inlined
def expand(trees: Trees, b: int, number: int, logits: Floats, value: np.float32) -> None:
    """Give a node its evaluation: ``logits`` ``[A]`` and a value; and back that up."""
    node = trees.nodes[b, number]
    for i in range(node.first_candidate, node.first_candidate + node.num_candidates):
        trees.priors[b, i] = logits[trees.actions[b, i]]
    node.stage = CLOSED
    node.evaluation = value
    backup(trees, b, number, value)


@inlined
def expand_from_cache(trees: Trees, leaves: Leaves, cache: PositionCache, row: int) -> bool:
    """Expand the node of ``row`` from the position cache, if the position is there."""
    leaf = leaves.rows[row]
    slot = find_position(cache, leaf.hash)
    if slot < 0:
        return False
    expand(trees, leaf.tree, leaf.node, cache.logits[slot], cache.values[slot])
    return True


@lean
def expand_and_backup(trees: Trees, leaves: Leaves, cache: PositionCache, logits: Floats, values: Floats, count: int) -> None:
    """Take the network's answers for the first ``count`` walks: ``logits`` ``[N, A]`` and ``values`` ``[N]``."""
    for row in range(count):
        leaf = leaves.rows[row]
        expand(trees, leaf.tree, leaf.node, logits[row], values[row])
        store_position(cache, leaf.hash, logits[row], values[row])


@inlined
def backup(trees: Trees, b: int, number: int, value: np.float32) -> None:
    """Add ``value``, that of node ``number`` for its player, to all above, and settle what it proves."""
    nodes = trees.nodes[b]
    while number != NONE:
        node = nodes[number]
        value *= node.turn
        node.value_sum += value
        node.pending -= 1
        if node.proven != UNPROVEN and node.proven_above == UNPROVEN:
            node.proven_above = node.proven if node.turn > 0 else WIN + LOSS - node.proven
            if node.parent != NONE:
                settle(nodes, node.parent, node.proven_above)
        number = node.parent


@inlined
def settle(nodes: Any, number: int, latest: int) -> None:
    """Prove a node of one tree ``[M]`` if one of its moves, the ``latest``, is a proven win, or if all its moves are proven."""
    node = nodes[number]
    if latest == WIN:
        node.proven = WIN
        return
    if node.num_candidates > 0:
        return
    best = np.int8(LOSS)
    child_number = node.first_child
    while child_number != NONE:
        child = nodes[child_number]
        if child.proven_above == UNPROVEN:
            return
        best = max(best, child.proven_above)
        child_number = child.next_sibling
    node.proven = best


@lean
def undo(trees: Trees, b: int, number: int) -> None:
    """Take back the pending visits of a walk that led to a node somebody else is waiting for."""
    while number != NONE:
        node = trees.nodes[b, number]
        node.visits -= 1
        node.pending -= 1
        number = node.parent
