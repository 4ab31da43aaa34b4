"""The result of a search: the weights of the root's moves, as a policy target and to choose the move from."""

import math

import numpy as np

from keima.base.random import Streams, uniform
from keima.compilation.decorators import compiled_part
from keima.search.policies import find_chosen_child, write_policy_target
from keima.search.puct import SearchParams, child_mean_value
from keima.search.tree import DRAW, LOSS, NONE, POLICY_WEIGHT_SUM, UNPROVEN, Floats, Trees, scale_to_sum
from keima.search.workspace import Workspace

LEAST_TEMPERATURE = 0.01  # below this the best move is played


@compiled_part
def root_value(params: SearchParams, trees: Trees, b: int, weights: Floats) -> float:
    """Return the root's value for the player to move: the proven value, or the mean of the simulations.

    In one-player games the mean over the moves, weighted by ``weights`` ``[A]``, so that exploring bad moves does not
    lower it.
    """
    root = trees.nodes[b, 0]
    if root.proven != UNPROVEN:
        return float(root.proven - DRAW)
    if params.has_rewards:
        return weighted_mean_value(params, trees, b, weights)
    return float(root.value_sum / max(root.visits, 1))


@compiled_part
def weighted_mean_value(params: SearchParams, trees: Trees, b: int, weights: Floats) -> float:
    """Return the mean value of the root's visited moves by ``weights`` ``[A]``; without visits the network's."""
    total, weighted = 0.0, 0.0
    number = trees.nodes[b, 0].first_child
    while number != NONE:
        child = trees.nodes[b, number]
        total += weights[child.action]
        weighted += weights[child.action] * child_mean_value(params, child)
        number = child.next_sibling
    return weighted / total if total > 0 else float(trees.nodes[b, 0].evaluation)


@compiled_part
def write_move_weights(params: SearchParams, trees: Trees, b: int, weights: Floats) -> None:
    """Write the weight of each action at the root to ``weights`` ``[A]``; 0 for moves not to be learned or played.

    At a proven root these are the visits of the moves that keep its value, else the algorithm's policy target. If no
    move is left (no visits, or only proven losses), the network's policy.
    """
    if trees.nodes[b, 0].proven == UNPROVEN:
        write_policy_target(params, trees, b, weights)
    else:
        write_proven_weights(trees, b, weights)
    if weights[np.argmax(weights)] == 0:
        write_network_policy(trees, b, weights)


@compiled_part
def write_proven_weights(trees: Trees, b: int, weights: Floats) -> None:
    """Write the visits of the moves that keep a proven root's value to ``weights`` ``[A]``."""
    root = trees.nodes[b, 0]
    weights[:] = 0
    number = root.first_child
    while number != NONE:
        child = trees.nodes[b, number]
        if child.proven_for_parent == root.proven:
            weights[child.action] = max(child.visits, 1)
        number = child.next_sibling


@compiled_part
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


@compiled_part
def choose_action(work: Workspace, b: int, weights: Floats, temperature: float) -> int:
    """Return the action to play: the one that the algorithm has chosen already, else as ``sample_action`` draws it."""
    trees = work.trees
    chosen = find_chosen_child(work.params, trees, b) if trees.nodes[b, 0].proven == UNPROVEN else NONE
    if chosen != NONE:
        return int(trees.nodes[b, chosen].action)
    return sample_action(weights, temperature, work.streams, b)


@compiled_part
def sample_action(weights: Floats, temperature: float, streams: Streams, b: int) -> int:
    """Return an action sampled in proportion to ``weights ** (1 / temperature)``, ``[A]``, or the best one."""
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


@compiled_part
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
