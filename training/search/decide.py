"""What a finished search says: the weights of the root's moves, as a target for learning and to choose the move from."""

import math

import numpy as np

from games.compiled import lean
from training.common.random import Streams, uniform
from training.search.gumbel import best_considered_child, write_improved_policy
from training.search.puct import SearchParams, mean_value, scaled_value, value_scale
from training.search.tree import DRAW, LOSS, NONE, UNPROVEN, Floats, Trees, find_child

SHARES = np.float32(1000.0)  # weights that are no visit counts are shares in thousandths
LEAST_TEMPERATURE = 0.01  # below, the best move is played


@lean
def root_value(params: SearchParams, trees: Trees, b: int, weights: Floats) -> float:
    """What the player to move may expect: the mean of the simulations, or the proven value.

    In points, the mean over the moves by their ``weights`` ``[A]``, so that the tries at worse ones are not held
    against the position.
    """
    root = trees.nodes[b, 0]
    if root.proven != UNPROVEN:
        return float(root.proven - DRAW)
    if params.rewards:
        return weighted_value(params, trees, b, weights)
    return float(root.value_sum / max(root.visits, 1))


@lean
def weighted_value(params: SearchParams, trees: Trees, b: int, weights: Floats) -> float:
    """The mean value of the root's visited moves, each counted by its weight in ``weights`` ``[A]``; without any, the
    network's value.
    """
    total, weighted = 0.0, 0.0
    number = trees.nodes[b, 0].first_child
    while number != NONE:
        child = trees.nodes[b, number]
        total += weights[child.action]
        weighted += weights[child.action] * mean_value(params, child)
        number = child.next_sibling
    return weighted / total if total > 0 else float(trees.nodes[b, 0].evaluation)


@lean
def write_weights(params: SearchParams, trees: Trees, b: int, weights: Floats) -> None:
    """The weight of each action at the root, written to ``weights`` ``[A]``, zero for what nobody should learn or play.

    Of a proven root, the moves that keep its value; else visits without those of proven losses and, after a full
    search, without the forced playouts that were not worth it; for Gumbel search, the improved policy. If that leaves
    nothing (there were no visits, or only of proven losses), the network's policy.
    """
    root = trees.nodes[b, 0]
    unproven = root.proven == UNPROVEN
    if params.gumbel and unproven:
        write_improved_policy(params, trees, b, weights)
        scale_to(weights, SHARES)
        return
    weights[:] = 0
    number = root.first_child
    while number != NONE:
        child = trees.nodes[b, number]
        if not unproven:
            weights[child.action] = max(child.visits, 1) if child.proven_above == root.proven else 0
        elif child.proven_above != LOSS:
            weights[child.action] = child.visits
        number = child.next_sibling
    if weights[np.argmax(weights)] == 0:
        write_network_policy(trees, b, weights)
    elif trees.searches[b].full and params.forced_playouts_k > 0 and unproven:
        prune_forced_playouts(params, trees, b, weights)


@lean
def write_network_policy(trees: Trees, b: int, weights: Floats) -> None:
    """The network's policy over the moves that are no proven losses, written to ``weights`` ``[A]``."""
    for action in range(len(weights)):
        weights[action] = trees.root_priors[b, action]
    number = trees.nodes[b, 0].first_child
    while number != NONE:
        child = trees.nodes[b, number]
        if child.proven_above == LOSS:
            weights[child.action] = 0
        number = child.next_sibling
    scale_to(weights, SHARES)


@lean
def scale_to(weights: Floats, wanted: np.float32) -> None:
    """Scale ``weights`` so that their sum is ``wanted``."""
    total = np.float32(0.0)
    for action in range(len(weights)):
        total += weights[action]
    for action in range(len(weights)):
        weights[action] *= wanted / total


@lean
def prune_forced_playouts(params: SearchParams, trees: Trees, b: int, weights: Floats) -> None:
    """Take out of the visits in ``weights`` ``[A]`` the playouts that were forced and that PUCT alone would not have
    made.

    KataGo, 3.2: "policy target pruning". A move left with a single playout loses that too.
    """
    nodes = trees.nodes[b]
    total = nodes[0].visits - 1
    exploration = params.exploration[total]
    best = int(np.argmax(weights))
    favourite = nodes[find_child(trees, b, 0, best)]
    if favourite.visits == 1:  # among single playouts there is no favourite
        return
    scale = value_scale(params, trees, b, 0, mean_value(params, favourite))
    best_score = scaled_value(params, scale, favourite) + exploration * favourite.prior / (1 + favourite.visits)
    number = nodes[0].first_child
    while number != NONE:
        child = nodes[number]
        number = child.next_sibling
        if child.action == best or weights[child.action] == 0:
            continue
        gap = best_score - scaled_value(params, scale, child)
        earned = child.visits if gap <= 0 else math.ceil(exploration * child.prior / gap - 1.0)
        forced = math.ceil(math.sqrt(params.forced_playouts_k * child.prior * total))
        left = min(child.visits, max(earned, child.visits - forced))
        weights[child.action] = left if left > 1 else 0


@lean
def choose_action(
    params: SearchParams, trees: Trees, b: int, weights: Floats, temperature: float, streams: Streams
) -> int:
    """The action to play: drawn with ``weights ** (1 / temperature)`` from ``weights`` ``[A]``, or the best one.

    Gumbel search has drawn its noise already: it plays what it has considered to the end.
    """
    if params.gumbel and trees.nodes[b, 0].proven == UNPROVEN:
        considered = best_considered_child(params, trees, b)
        if considered != NONE:
            return int(trees.nodes[b, considered].action)
    return draw_action(weights, temperature, streams, b)


@lean
def draw_action(weights: Floats, temperature: float, streams: Streams, b: int) -> int:
    """An action drawn with ``weights ** (1 / temperature)`` from ``weights`` ``[A]``, or the best one."""
    best = int(np.argmax(weights))
    if temperature < LEAST_TEMPERATURE:
        return best
    total = 0.0
    for action in range(len(weights)):
        if weights[action] > 0:
            total += (weights[action] / weights[best]) ** (1.0 / temperature)
    left = uniform(streams, b) * total
    for action in range(len(weights)):
        if weights[action] > 0:
            left -= (weights[action] / weights[best]) ** (1.0 / temperature)
            if left < 0:
                return action
    return best


@lean
def surprise(trees: Trees, b: int, weights: Floats) -> float:
    """KL(weights || the network's policy) in nats: how much search taught. Nothing where every move loses."""
    if trees.nodes[b, 0].proven == LOSS:
        return 0.0
    total, divergence = 0.0, 0.0
    for action in range(len(weights)):
        total += weights[action]
    for action in range(len(weights)):
        if weights[action] > 0:
            share = weights[action] / total
            divergence += share * math.log(share / trees.root_priors[b, action])
    return max(divergence, 0.0)
