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
from keima.compilation.decorators import compiled_part, inlined_by_llvm
from keima.search.puct import (
    LARGE,
    ONE,
    Integers,
    SearchParams,
    ValueScale,
    child_mean_value,
    compute_value_scale,
    scaled_child_value,
    scaled_unvisited_value,
    set_root_priors,
)
from keima.search.tree import (
    LOSS,
    MIN_PRIOR,
    NONE,
    POLICY_WEIGHT_SUM,
    Floats,
    Trees,
    move_best_candidate_first,
    scale_to_sum,
    softmax_in_place,
)

HALF = np.float32(0.5)


def halving_schedule(considered_actions: int, num_simulations: int, *, columns: int) -> Integers:
    """Return the visit count that the next simulated move must have, ``[considered_actions + 1, columns]``, padded with
    zeros.

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
            considered = max(2, considered // 2)  # one move has all simulations in its first phase
        table[row, :num_simulations] = sequence[:num_simulations]
    return table


@compiled_part
def add_root_gumbels(params: SearchParams, trees: Trees, b: int, streams: Streams, scratch: Floats) -> None:
    """Multiply the prior of each root move by the exponential of a Gumbel sample; ``scratch`` is ``[2, A]``."""
    noisy = scratch[0]
    for action in range(len(noisy)):
        if trees.root_priors[b, action] > 0:
            draw = exponential(streams, b)  # exp(gumbel) is 1 / exponential
            # P(a) * exp(noise * g(a)) = P(a) / draw**noise: the prior of logit(a) + noise * g(a)
            noisy[action] = trees.root_priors[b, action] / draw**params.gumbel_noise
    set_root_priors(trees, b, noisy)


@inlined_by_llvm
def store_child_logit(trees: Trees, b: int, child_number: int) -> None:
    """Store a new child's logit; a child of the root gets back the network's prior in place of the noisy one."""
    child = trees.nodes[b, child_number]
    child.logit = np.float32(math.log(max(child.prior, MIN_PRIOR)))
    if child.parent == 0:
        child.prior = trees.root_priors[b, child.action]


@inlined_by_llvm
def value_logit(weight: np.float32, value: np.float32) -> np.float32:
    """Return the amount that a value in [-1, 1] adds to a logit."""
    # sigma(q) = (c_visit + max n) * c_scale * q, where q = (1 + value) / 2 (Danihelka et al. 2022)
    return weight * (ONE + value) * HALF


@inlined_by_llvm
def complete_values(
    params: SearchParams, trees: Trees, b: int, number: int
) -> tuple[np.float32, np.float32, ValueScale]:
    """Return the weight of values in ``value_logit``, the scaled value of the node's unvisited moves, and the value
    scale.
    """
    node = trees.nodes[b, number]
    most, weighted, explored = 0, np.float32(0.0), np.float32(0.0)
    next_child = node.first_child
    while next_child != NONE:
        child = trees.nodes[b, next_child]
        most = max(most, child.visits)
        if child.visits > child.pending or not params.has_rewards:  # in points, a pending one has no value
            weighted += child.prior * child_mean_value(params, child)
            explored += child.prior
        next_child = child.next_sibling
    unvisited = node.evaluation
    if explored > 0:
        visits = np.float32(node.visits - 1)
        # v_mix = (v + N * (sum of P * Q / sum of P, over visited moves)) / (1 + N) (Danihelka et al. 2022, appendix D)
        unvisited = (node.evaluation + visits * weighted / explored) / (ONE + visits)
    scale = compute_value_scale(params, trees, b, number, unvisited)
    # (c_visit + max n) * c_scale, the factor in sigma
    weight = (params.c_visit + np.float32(most)) * params.c_scale
    return weight, scaled_unvisited_value(params, trees, b, number, scale, unvisited), scale


@inlined_by_llvm
def select_gumbel_child(params: SearchParams, trees: Trees, b: int, number: int) -> int:
    """Return the child to follow below the root, or NONE for the first candidate: the move whose share of visits lags
    most behind the improved policy.
    """
    nodes = trees.nodes[b]
    node = nodes[number]
    weight, unvisited, scale = complete_values(params, trees, b, number)
    prior, unexplored, largest = np.float32(0.0), np.float32(0.0), -LARGE
    if node.num_candidates > 0:
        if not node.best_first:
            move_best_candidate_first(trees, b, number)
        prior, unexplored = trees.priors[b, node.first_candidate], max(ONE - node.explored_prior, np.float32(0.0))
        largest = np.float32(math.log(max(prior, MIN_PRIOR))) + value_logit(weight, unvisited)
    next_child = node.first_child
    while next_child != NONE:
        child = nodes[next_child]
        largest = max(largest, child.logit + value_logit(weight, scaled_child_value(params, scale, child)))
        next_child = child.next_sibling
    factor = np.float32(math.exp(value_logit(weight, unvisited) - largest))
    total = unexplored * factor
    next_child = node.first_child
    while next_child != NONE:
        child = nodes[next_child]
        total += np.float32(
            math.exp(child.logit + value_logit(weight, scaled_child_value(params, scale, child)) - largest)
        )
        next_child = child.next_sibling
    best, best_lag = NONE, prior * factor / total if node.num_candidates > 0 else -LARGE
    next_child = node.first_child
    while next_child != NONE:
        child = nodes[next_child]
        share = (
            np.float32(math.exp(child.logit + value_logit(weight, scaled_child_value(params, scale, child)) - largest))
            / total
        )
        # Select the largest pi'(a) - n(a) / (1 + N), pi' = softmax(logit + sigma(completed q)) (Danihelka et al. 2022)
        lag = share - np.float32(child.visits) / np.float32(node.visits)
        if lag > best_lag and child.proven_for_parent != LOSS:
            best, best_lag = next_child, lag
        next_child = child.next_sibling
    return int(best)


@inlined_by_llvm
def select_gumbel_root_child(params: SearchParams, trees: Trees, b: int, schedule: Integers) -> int:
    """Return the child to follow at the root, or NONE for the first candidate: the move of the largest score among
    those with the scheduled visit count.

    If proven losses leave no such move, the one of the largest score.
    """
    root = trees.nodes[b, 0]
    weight, unvisited, scale = complete_values(params, trees, b, 0)
    due = schedule[
        min(params.considered_actions, count_root_moves(trees, b)), min(root.visits - 1, schedule.shape[1] - 1)
    ]
    best, best_score, best_due = NONE, -LARGE, False
    if root.num_candidates > 0:
        if not root.best_first:
            move_best_candidate_first(trees, b, 0)
        prior = max(trees.priors[b, root.first_candidate], MIN_PRIOR)
        best_score, best_due = np.float32(math.log(prior)) + value_logit(weight, unvisited), due == 0
    number = root.first_child
    while number != NONE:
        child = trees.nodes[b, number]
        score, is_due = (
            child.logit + value_logit(weight, scaled_child_value(params, scale, child)),
            child.visits == due,
        )
        better = is_due if is_due != best_due else score > best_score
        if better and child.proven_for_parent != LOSS:
            best, best_score, best_due = number, score, is_due
        number = child.next_sibling
    return int(best)


@compiled_part
def count_root_moves(trees: Trees, b: int) -> int:
    """Return the number of the root's moves."""
    root = trees.nodes[b, 0]
    count, number = root.num_candidates, root.first_child
    while number != NONE:
        count += 1
        number = trees.nodes[b, number].next_sibling
    return int(count)


@compiled_part
def write_improved_policy(params: SearchParams, trees: Trees, b: int, policy: Floats) -> None:
    """Write the root's improved policy, without noise and proven losses, to ``policy`` ``[A]``, in thousandths."""
    weight, unvisited, scale = complete_values(params, trees, b, 0)
    for action in range(len(policy)):
        prior = trees.root_priors[b, action]
        policy[action] = math.log(prior) + value_logit(weight, unvisited) if prior > 0 else -LARGE
    number = trees.nodes[b, 0].first_child
    while number != NONE:
        child = trees.nodes[b, number]
        logit = math.log(trees.root_priors[b, child.action])
        policy[child.action] = (
            logit + value_logit(weight, scaled_child_value(params, scale, child))
            if child.proven_for_parent != LOSS
            else -LARGE
        )
        number = child.next_sibling
    softmax_in_place(policy)
    scale_to_sum(policy, POLICY_WEIGHT_SUM)


@compiled_part
def find_best_considered_child(params: SearchParams, trees: Trees, b: int) -> int:
    """Return the child to play: the largest score among the most visited that are not proven losses, or NONE."""
    weight, _, scale = complete_values(params, trees, b, 0)
    best, most, best_score = NONE, 0, -LARGE
    number = trees.nodes[b, 0].first_child
    while number != NONE:
        child = trees.nodes[b, number]
        score = child.logit + value_logit(weight, scaled_child_value(params, scale, child))
        if (child.visits > most or (child.visits == most and score > best_score)) and child.proven_for_parent != LOSS:
            best, most, best_score = number, child.visits, score
        number = child.next_sibling
    return int(best)
