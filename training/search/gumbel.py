"""Gumbel search: planning with few simulations (Danihelka, Guez, Schrittwieser & Silver, ICLR 2022).

At the root, sequential halving spends the simulations on the actions of the largest ``gumbel + logit + sigma(q)``; below it, an
edge is followed so that visits approach the improved policy ``softmax(logit + sigma(completed q))``, which is also the target for
learning. Values enter ``sigma(q) = (c_visit + max visits) * c_scale * q`` scaled to [0, 1].
"""

import math

import numpy as np

from games.compiled import lean
from training.random import Streams, gumbel
from training.search.puct import LARGE, Floats, Integers, SearchParams
from training.search.tree import LOSS, Trees

LEAST_PRIOR = np.float32(1e-12)


def halving_schedule(considered_actions: int, num_simulations: int, *, columns: int) -> Integers:
    """Which visit count an action must have to be simulated next, ``[considered_actions + 1, columns]``, zeros behind the end.

    Row m is for m considered actions (Karnin, Koren & Somekh, "Almost optimal exploration in multi-armed bandits", 2013): all are
    visited in turn, then the better half of them, and so on.
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
def add_root_gumbel(trees: Trees, b: int, streams: Streams) -> None:
    """Draw this move's noise; without it (in play for strength) the largest logits are considered."""
    root = trees.nodes[b, 0]
    for i in range(root.first_edge, root.first_edge + root.num_edges):
        trees.edges[b, i].gumbel = gumbel(streams, b) if trees.searches[b].noisy else 0.0


@lean
def improved_scores(params: SearchParams, trees: Trees, b: int, number: int, scores: Floats) -> None:
    """``logit + sigma(completed q)`` of each edge of a node, written to ``scores`` ``[edges]``.

    An unvisited edge's value is completed by the mean of the network's value and the visited edges' (the paper's appendix D).
    """
    node = trees.nodes[b, number]
    most, visits_below, weighted = 0, 0, 0.0
    own_value = node.value_sum  # less the edges' values below: the evaluation of the node itself
    for i in range(node.first_edge, node.first_edge + node.num_visited):
        edge = trees.edges[b, i]
        most = max(most, edge.visits)
        visits_below += edge.visits
        own_value -= edge.value
        weighted += edge.prior * edge.value / edge.visits
    explored = node.explored
    mixed = own_value if explored <= 0 else (own_value + visits_below * weighted / explored) / (1 + visits_below)
    scale = (params.c_visit + most) * params.c_scale
    for i in range(node.num_edges):
        edge = trees.edges[b, node.first_edge + i]
        value = edge.value / edge.visits if edge.visits > 0 else mixed
        scores[i] = math.log(max(edge.prior, LEAST_PRIOR)) + scale * (1.0 + value) / 2.0


@lean
def softmax(scores: Floats, count: int) -> None:
    """Turn the first ``count`` of ``scores`` into probabilities in place."""
    largest = -LARGE
    for i in range(count):
        largest = max(largest, scores[i])
    total = np.float32(0.0)
    for i in range(count):
        scores[i] = np.float32(math.exp(scores[i] - largest))
        total += scores[i]
    for i in range(count):
        scores[i] /= total


@lean
def choose_gumbel_edge(params: SearchParams, trees: Trees, b: int, number: int, scores: Floats) -> int:
    """The edge to follow below the root: the one whose visits lag most behind the improved policy."""
    node = trees.nodes[b, number]
    improved_scores(params, trees, b, number, scores)
    softmax(scores, node.num_edges)
    best, best_lag = 0, -LARGE
    for i in range(node.num_edges):
        edge = trees.edges[b, node.first_edge + i]
        lag = scores[i] - edge.visits / np.float32(node.visits)
        if lag > best_lag and edge.proven != LOSS:
            best, best_lag = i, lag
    return int(node.first_edge + best)


@lean
def choose_gumbel_root_edge(params: SearchParams, trees: Trees, b: int, schedule: Integers, scores: Floats) -> int:
    """The edge to follow at the root: of those with the scheduled number of visits, the one of the largest score.

    When proven losses have spoilt the schedule, the best edge of all is followed.
    """
    root = trees.nodes[b, 0]
    improved_scores(params, trees, b, 0, scores)
    considered = min(params.considered_actions, root.num_edges)
    due = schedule[considered, min(root.visits - 1, schedule.shape[1] - 1)]
    best, best_score = 0, -2 * LARGE
    for i in range(root.num_edges):
        edge = trees.edges[b, root.first_edge + i]
        score = scores[i] + edge.gumbel
        if edge.visits != due:
            score -= LARGE / 2
        if score > best_score and edge.proven != LOSS:
            best, best_score = i, score
    return int(root.first_edge + best)
