"""What a finished search says: the weights of the root's actions, as a target for learning and to choose the move from."""

import math

import numpy as np

from games.compiled import lean
from training.random import Streams, uniform
from training.search.gumbel import improved_scores, softmax
from training.search.puct import Floats, SearchParams, exploration_scale
from training.search.tree import DRAW, LOSS, UNPROVEN, WIN, Trees


@lean
def root_value(trees: Trees, b: int) -> float:
    """What the player to move may expect: the mean of the simulations, or the proven value."""
    root = trees.nodes[b, 0]
    if root.proven != UNPROVEN:
        return float(root.proven - DRAW)
    return float(root.value_sum / max(root.visits, 1))


@lean
def write_weights(params: SearchParams, trees: Trees, b: int, weights: Floats) -> None:
    """The weight of each root edge, written to ``weights`` ``[edges]``, zero for moves that nobody should learn or play.

    Of a proven root, the edges that keep its value; else visits without those of proven losses and, after a full search, without
    the forced playouts that were not worth it; for Gumbel search, the improved policy.
    """
    root = trees.nodes[b, 0]
    if params.gumbel and root.proven == UNPROVEN:
        improved_scores(params, trees, b, 0, weights)
        softmax(weights, root.num_edges)
    total = np.float32(0.0)
    for i in range(root.num_edges):
        edge = trees.edges[b, root.first_edge + i]
        if root.proven != UNPROVEN:
            weights[i] = max(edge.visits, 1) if edge.proven == root.proven else 0
        elif edge.proven == LOSS:
            weights[i] = 0
        elif not params.gumbel:
            weights[i] = edge.visits
        total += weights[i]
    if total == 0:
        for i in range(root.num_edges):
            weights[i] = trees.edges[b, root.first_edge + i].prior
    elif trees.searches[b].full and params.forced_playouts_k > 0 and root.proven == UNPROVEN:
        prune_forced_playouts(params, trees, b, weights)


@lean
def prune_forced_playouts(params: SearchParams, trees: Trees, b: int, weights: Floats) -> None:
    """Take out of the visits in ``weights`` the playouts that were forced and that PUCT alone would not have made.

    KataGo, 3.2: "policy target pruning". An edge left with a single playout loses that too.
    """
    root = trees.nodes[b, 0]
    total = root.visits - 1
    scale = exploration_scale(params, total)
    best = 0
    for i in range(1, root.num_edges):
        if weights[i] > weights[best]:
            best = i
    favourite = trees.edges[b, root.first_edge + best]
    best_score = favourite.value / favourite.visits + scale * favourite.prior / (1 + favourite.visits)
    for i in range(root.num_edges):
        if i == best or weights[i] == 0:
            continue
        edge = trees.edges[b, root.first_edge + i]
        gap = best_score - edge.value / edge.visits
        earned = weights[i] if gap <= 0 else math.ceil(scale * edge.prior / gap - 1.0)
        forced = math.ceil(math.sqrt(params.forced_playouts_k * edge.prior * total))
        left = min(weights[i], max(earned, weights[i] - forced))
        weights[i] = left if left > 1 else 0


@lean
def choose_move(params: SearchParams, trees: Trees, b: int, weights: Floats, temperature: float, streams: Streams) -> int:
    """The number of the root edge to play: drawn with ``weights ** (1 / temperature)``, or the best one.

    Gumbel search has drawn its noise already: of the most visited edges, the one of the largest score is played.
    """
    root = trees.nodes[b, 0]
    if params.gumbel and root.proven == UNPROVEN and root.visits > 1:
        return most_visited_gumbel(trees, b, weights)
    best = 0
    for i in range(1, root.num_edges):
        if weights[i] > weights[best]:
            best = i
    if temperature < 0.01:
        return best
    total = 0.0
    for i in range(root.num_edges):
        total += (weights[i] / weights[best]) ** (1.0 / temperature)
    left = uniform(streams, b) * total
    for i in range(root.num_edges):
        left -= (weights[i] / weights[best]) ** (1.0 / temperature)
        if left < 0 and weights[i] > 0:
            return i
    return best


@lean
def most_visited_gumbel(trees: Trees, b: int, weights: Floats) -> int:
    """Of the most visited edges that are no proven loss, the one of the largest ``gumbel + logit + sigma(q)``."""
    root = trees.nodes[b, 0]
    best, most, best_score = 0, -1, -np.inf
    for i in range(root.num_edges):
        edge = trees.edges[b, root.first_edge + i]
        if edge.proven == LOSS or weights[i] <= 0:
            continue
        score = edge.gumbel + math.log(weights[i])  # the improved policy is the softmax of the other two terms
        if edge.visits > most or (edge.visits == most and score > best_score):
            best, most, best_score = i, edge.visits, score
    return best


@lean
def surprise(trees: Trees, b: int, weights: Floats) -> float:
    """KL(weights || the network's priors) in nats: how much search taught."""
    root = trees.nodes[b, 0]
    total = 0.0
    for i in range(root.num_edges):
        total += weights[i]
    divergence = 0.0
    for i in range(root.num_edges):
        if weights[i] > 0:
            share = weights[i] / total
            divergence += share * math.log(share / max(trees.edges[b, root.first_edge + i].root_prior, 1e-12))
    return max(divergence, 0.0)


@lean
def keeps_target(trees: Trees, b: int) -> bool:
    """Whether a full search's weights are worth learning: not in a lost position, where every move is as good."""
    root = trees.nodes[b, 0]
    return root.proven == WIN or root.proven == DRAW or (root.proven == UNPROVEN and root.visits - 1 >= trees.searches[b].budget)
