"""Gumbel search: planning with few simulations (Danihelka, Guez, Schrittwieser & Silver, ICLR 2022).

At the root, sequential halving spends the simulations on the moves of the largest ``gumbel + logit + sigma(q)``; below
it, visits are spread so that they approach the improved policy ``softmax(logit + sigma(completed q))``, which is also
the target for learning. ``sigma(q) = (c_visit + most visits) * c_scale * q`` with q scaled to [0, 1]; a move without
visits has its value completed by the mean of the network's value and the visited moves' (the paper's appendix D).
Values in points are scaled to [0, 1] node by node, as in PUCT.
"""

import math

import numpy as np

from keima.base.random import Streams, exponential
from keima.compilation.decorators import inlined, lean
from keima.search.puct import (
    LARGE,
    ONE,
    Integers,
    Scale,
    SearchParams,
    mean_value,
    scaled_value,
    set_root_priors,
    unvisited_value,
    value_scale,
)
from keima.search.tree import LEAST_PRIOR, LOSS, NONE, Floats, Trees, bring_best_forward, softmax

HALF = np.float32(0.5)


def halving_schedule(considered_actions: int, num_simulations: int, *, columns: int) -> Integers:
    """The visit count that the next simulated move must have, ``[considered_actions + 1, columns]``, padded with zeros.

    Row m is for m considered moves: all are visited in turn, then the better half of them, and so on (Karnin, Koren &
    Somekh, "Almost optimal exploration in multi-armed bandits", 2013).
    """
    table = np.zeros((considered_actions + 1, columns), np.int32)
    for row in range(1, considered_actions + 1):
        phases = max(1, math.ceil(math.log2(row)))
        sequence: list[int] = []
        considered, visits = row, 0
        while len(sequence) < num_simulations:
            for _ in range(max(1, num_simulations // (phases * considered))):
                sequence += [visits] * considered
                visits += 1
            considered = max(2, considered // 2) if row > 1 else 1
        table[row, :num_simulations] = sequence[:num_simulations]
    return table


@lean
def add_root_gumbels(params: SearchParams, trees: Trees, b: int, streams: Streams, scratch: Floats) -> None:
    """Multiply the prior of each root move by the exponential of a Gumbel sample; ``scratch`` is ``[2, A]``."""
    noisy = scratch[0]
    for action in range(len(noisy)):
        if trees.root_priors[b, action] > 0:
            draw = exponential(streams, b)  # exp(gumbel) is 1 / exponential
            noisy[action] = trees.root_priors[b, action] / draw**params.gumbel_noise
    set_root_priors(trees, b, noisy)


@inlined
def note_logit(trees: Trees, b: int, child_number: int) -> None:
    """Store a new child's logit; a child of the root gets back the network's prior in place of the noisy one."""
    child = trees.nodes[b, child_number]
    child.logit = np.float32(math.log(max(child.prior, LEAST_PRIOR)))
    if child.parent == 0:
        child.prior = trees.root_priors[b, child.action]


@inlined
def sigma(weight: np.float32, value: np.float32) -> np.float32:
    """The amount that a value in [-1, 1] adds to a logit."""
    return weight * (ONE + value) * HALF


@inlined
def complete_values(params: SearchParams, trees: Trees, b: int, number: int) -> tuple[np.float32, np.float32, Scale]:
    """The weight of values in ``sigma`` at a node, the scaled value of its unvisited moves, and the scale of values."""
    node = trees.nodes[b, number]
    most, weighted, explored = 0, np.float32(0.0), np.float32(0.0)
    next_child = node.first_child
    while next_child != NONE:
        child = trees.nodes[b, next_child]
        most = max(most, child.visits)
        weighted += child.prior * mean_value(params, child)
        explored += child.prior
        next_child = child.next_sibling
    unvisited = node.evaluation
    if explored > 0:
        visits = np.float32(node.visits - 1)
        unvisited = (node.evaluation + visits * weighted / explored) / (ONE + visits)
    scale = value_scale(params, trees, b, number, unvisited)
    weight = (params.c_visit + np.float32(most)) * params.c_scale
    return weight, unvisited_value(params, trees, b, number, scale, unvisited), scale


@inlined
def choose_gumbel_child(params: SearchParams, trees: Trees, b: int, number: int) -> int:
    """The child to follow below the root, or NONE for the first candidate: the move whose share of visits lags most
    behind the improved policy.
    """
    nodes = trees.nodes[b]
    node = nodes[number]
    weight, unvisited, scale = complete_values(params, trees, b, number)
    prior, unexplored, largest = np.float32(0.0), np.float32(0.0), -LARGE
    if node.num_candidates > 0:
        if not node.ordered:
            bring_best_forward(trees, b, number)
        prior, unexplored = trees.priors[b, node.first_candidate], max(ONE - node.explored, np.float32(0.0))
        largest = np.float32(math.log(max(prior, LEAST_PRIOR))) + sigma(weight, unvisited)
    next_child = node.first_child
    while next_child != NONE:
        child = nodes[next_child]
        largest = max(largest, child.logit + sigma(weight, scaled_value(params, scale, child)))
        next_child = child.next_sibling
    factor = np.float32(math.exp(sigma(weight, unvisited) - largest))
    total = unexplored * factor
    next_child = node.first_child
    while next_child != NONE:
        child = nodes[next_child]
        total += np.float32(math.exp(child.logit + sigma(weight, scaled_value(params, scale, child)) - largest))
        next_child = child.next_sibling
    best, best_lag = NONE, prior * factor / total if node.num_candidates > 0 else -LARGE
    next_child = node.first_child
    while next_child != NONE:
        child = nodes[next_child]
        share = np.float32(math.exp(child.logit + sigma(weight, scaled_value(params, scale, child)) - largest)) / total
        lag = share - np.float32(child.visits) / np.float32(node.visits)
        if lag > best_lag and child.proven_above != LOSS:
            best, best_lag = next_child, lag
        next_child = child.next_sibling
    return int(best)


@inlined
def choose_gumbel_root_child(params: SearchParams, trees: Trees, b: int, schedule: Integers) -> int:
    """The child to follow at the root, or NONE for the first candidate: the move of the largest score among those with
    the scheduled visit count.

    If proven losses leave no such move, the one of the largest score.
    """
    root = trees.nodes[b, 0]
    weight, unvisited, scale = complete_values(params, trees, b, 0)
    due = schedule[
        min(params.considered_actions, count_root_moves(trees, b)), min(root.visits - 1, schedule.shape[1] - 1)
    ]
    best, best_score, best_due = NONE, -LARGE, False
    if root.num_candidates > 0:
        if not root.ordered:
            bring_best_forward(trees, b, 0)
        prior = max(trees.priors[b, root.first_candidate], LEAST_PRIOR)
        best_score, best_due = np.float32(math.log(prior)) + sigma(weight, unvisited), due == 0
    number = root.first_child
    while number != NONE:
        child = trees.nodes[b, number]
        score, is_due = child.logit + sigma(weight, scaled_value(params, scale, child)), child.visits == due
        better = is_due if is_due != best_due else score > best_score
        if better and child.proven_above != LOSS:
            best, best_score, best_due = number, score, is_due
        number = child.next_sibling
    return int(best)


@lean
def count_root_moves(trees: Trees, b: int) -> int:
    """The number of the root's moves."""
    root = trees.nodes[b, 0]
    count, number = root.num_candidates, root.first_child
    while number != NONE:
        count += 1
        number = trees.nodes[b, number].next_sibling
    return int(count)


@lean
def write_improved_policy(params: SearchParams, trees: Trees, b: int, policy: Floats) -> None:
    """Write the root's improved policy, without noise and proven losses, to ``policy`` ``[A]``."""
    weight, unvisited, scale = complete_values(params, trees, b, 0)
    for action in range(len(policy)):
        prior = trees.root_priors[b, action]
        policy[action] = math.log(prior) + sigma(weight, unvisited) if prior > 0 else -LARGE
    number = trees.nodes[b, 0].first_child
    while number != NONE:
        child = trees.nodes[b, number]
        logit = math.log(trees.root_priors[b, child.action])
        policy[child.action] = (
            logit + sigma(weight, scaled_value(params, scale, child)) if child.proven_above != LOSS else -LARGE
        )
        number = child.next_sibling
    softmax(policy)


@lean
def best_considered_child(params: SearchParams, trees: Trees, b: int) -> int:
    """The child to play: the largest score among the most visited that are not proven losses, or NONE."""
    weight, _, scale = complete_values(params, trees, b, 0)
    best, most, best_score = NONE, 0, -LARGE
    number = trees.nodes[b, 0].first_child
    while number != NONE:
        child = trees.nodes[b, number]
        score = child.logit + sigma(weight, scaled_value(params, scale, child))
        if (child.visits > most or (child.visits == most and score > best_score)) and child.proven_above != LOSS:
            best, most, best_score = number, child.visits, score
        number = child.next_sibling
    return int(best)
