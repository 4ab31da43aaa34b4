"""The result of a search: the weights of the root's moves, as a policy target and to choose the move from."""

import math

import numpy as np

from keima.base.random import Streams, uniform
from keima.compilation.decorators import compiled_without_refcounts
from keima.search.gumbel import find_best_considered_child, write_improved_policy
from keima.search.puct import SearchParams, child_mean_value, compute_value_scale, scaled_child_value
from keima.search.tree import DRAW, LOSS, NONE, UNPROVEN, Floats, Trees, find_child_by_action

POLICY_WEIGHT_SUM = np.float32(1000.0)  # weights that are not visit counts are shares in thousandths
LEAST_TEMPERATURE = 0.01  # below this the best move is played


@compiled_without_refcounts
def root_value(params: SearchParams, trees: Trees, b: int, weights: Floats) -> float:
    """The root's value for the player to move: the proven value, or the mean of the simulations.

    In one-player games the mean over the moves, weighted by ``weights`` ``[A]``, so that exploring bad moves does not
    lower it.
    """
    root = trees.nodes[b, 0]
    if root.proven != UNPROVEN:
        return float(root.proven - DRAW)
    if params.has_rewards:
        return weighted_mean_value(params, trees, b, weights)
    return float(root.value_sum / max(root.visits, 1))


@compiled_without_refcounts
def weighted_mean_value(params: SearchParams, trees: Trees, b: int, weights: Floats) -> float:
    """The mean value of the root's visited moves, by ``weights`` ``[A]``; without visits, the network's value."""
    total, weighted = 0.0, 0.0
    number = trees.nodes[b, 0].first_child
    while number != NONE:
        child = trees.nodes[b, number]
        total += weights[child.action]
        weighted += weights[child.action] * child_mean_value(params, child)
        number = child.next_sibling
    return weighted / total if total > 0 else float(trees.nodes[b, 0].evaluation)


@compiled_without_refcounts
def write_move_weights(params: SearchParams, trees: Trees, b: int, weights: Floats) -> None:
    """Write the weight of each action at the root to ``weights`` ``[A]``; 0 for moves not to be learned or played.

    At a proven root these are the visits of the moves that keep its value; in Gumbel search, the improved policy; else
    the visits, without proven losses and, after a full search, with forced playouts pruned. If no move is left (no
    visits, or only proven losses), the network's policy.
    """
    root = trees.nodes[b, 0]
    unproven = root.proven == UNPROVEN
    if params.gumbel and unproven:
        write_improved_policy(params, trees, b, weights)
        scale_to_sum(weights, POLICY_WEIGHT_SUM)
        return
    weights[:] = 0
    number = root.first_child
    while number != NONE:
        child = trees.nodes[b, number]
        if not unproven:
            weights[child.action] = max(child.visits, 1) if child.proven_for_parent == root.proven else 0
        elif child.proven_for_parent != LOSS:
            weights[child.action] = child.visits
        number = child.next_sibling
    if weights[np.argmax(weights)] == 0:
        write_network_policy(trees, b, weights)
    elif trees.searches[b].full and params.forced_playouts_k > 0 and unproven:
        prune_forced_playouts(params, trees, b, weights)


@compiled_without_refcounts
def write_network_policy(trees: Trees, b: int, weights: Floats) -> None:
    """Write the network's policy over the moves that are not proven losses to ``weights`` ``[A]``."""
    for action in range(len(weights)):
        weights[action] = trees.root_priors[b, action]
    number = trees.nodes[b, 0].first_child
    while number != NONE:
        child = trees.nodes[b, number]
        if child.proven_for_parent == LOSS:
            weights[child.action] = 0
        number = child.next_sibling
    scale_to_sum(weights, POLICY_WEIGHT_SUM)


@compiled_without_refcounts
def scale_to_sum(weights: Floats, wanted: np.float32) -> None:
    """Scale ``weights`` to the sum ``wanted``."""
    total = np.float32(0.0)
    for action in range(len(weights)):
        total += weights[action]
    for action in range(len(weights)):
        weights[action] *= wanted / total


@compiled_without_refcounts
def prune_forced_playouts(params: SearchParams, trees: Trees, b: int, weights: Floats) -> None:
    """Remove from the visits in ``weights`` ``[A]`` the forced playouts that PUCT alone would not have made.

    "Policy target pruning" (KataGo, section 3.2). A move left with a single playout loses it too.
    """
    nodes = trees.nodes[b]
    total = nodes[0].visits - 1
    exploration = params.exploration[total]
    best = int(np.argmax(weights))
    most_visited = nodes[find_child_by_action(trees, b, 0, best)]
    if most_visited.visits == 1:  # with single playouts only, no move is the best
        return
    scale = compute_value_scale(params, trees, b, 0, child_mean_value(params, most_visited))
    best_score = scaled_child_value(params, scale, most_visited)
    best_score += exploration * most_visited.prior / (1 + most_visited.visits)
    number = nodes[0].first_child
    while number != NONE:
        child = nodes[number]
        number = child.next_sibling
        if child.action == best or weights[child.action] == 0:
            continue
        gap = best_score - scaled_child_value(params, scale, child)
        # The fewest n with Q(a) + c(N) * P(a) * sqrt(N) / (1 + n) <= score of the best move (policy target pruning)
        earned = child.visits if gap <= 0 else math.ceil(exploration * child.prior / gap - 1.0)
        # n_forced(a) = sqrt(k * P(a) * N) (Wu 2019, section 3.2)
        forced = math.ceil(math.sqrt(params.forced_playouts_k * child.prior * total))
        left = min(child.visits, max(earned, child.visits - forced))
        weights[child.action] = left if left > 1 else 0


@compiled_without_refcounts
def choose_action(
    params: SearchParams, trees: Trees, b: int, weights: Floats, temperature: float, streams: Streams
) -> int:
    """The action to play: sampled in proportion to ``weights ** (1 / temperature)``, ``[A]``, or the best one.

    Gumbel search has sampled already: it plays the winner of its sequential halving.
    """
    if params.gumbel and trees.nodes[b, 0].proven == UNPROVEN:
        considered = find_best_considered_child(params, trees, b)
        if considered != NONE:
            return int(trees.nodes[b, considered].action)
    return sample_action(weights, temperature, streams, b)


@compiled_without_refcounts
def sample_action(weights: Floats, temperature: float, streams: Streams, b: int) -> int:
    """An action sampled in proportion to ``weights ** (1 / temperature)``, ``[A]``, or the best one."""
    best = int(np.argmax(weights))
    if temperature < LEAST_TEMPERATURE:
        return best
    total = 0.0
    for action in range(len(weights)):
        if weights[action] > 0:
            total += (weights[action] / weights[best]) ** (1.0 / temperature)
    # pi(a) = w(a)**(1 / T) / sum of w**(1 / T) (Silver et al. 2017); divided by the largest w, no power overflows
    left = uniform(streams, b) * total
    for action in range(len(weights)):
        if weights[action] > 0:
            left -= (weights[action] / weights[best]) ** (1.0 / temperature)
            if left < 0:
                return action
    return best


@compiled_without_refcounts
def policy_surprise(trees: Trees, b: int, weights: Floats) -> float:
    """KL(weights || the network's policy) in nats, KataGo's policy surprise; 0 where every move loses."""
    if trees.nodes[b, 0].proven == LOSS:
        return 0.0
    total, divergence = 0.0, 0.0
    for action in range(len(weights)):
        total += weights[action]
    for action in range(len(weights)):
        if weights[action] > 0:
            # KL(w || P) = sum of w(a) * log(w(a) / P(a)), with the weights w scaled to the sum 1
            share = weights[action] / total
            divergence += share * math.log(share / trees.root_priors[b, action])
    return max(divergence, 0.0)
