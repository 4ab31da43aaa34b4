"""Which edge a simulation follows: PUCT, as in AlphaZero (Silver et al., Science 2018) with KataGo's refinements (Wu, 2019).

The score of an edge is its mean value plus ``c * prior * sqrt(N) / (1 + visits)``, where ``c = c_puct +
log(1 + (1 + N) / c_puct_log_base)``. An unvisited edge has the parent's mean value less ``fpu_reduction * sqrt(explored prior)``.
"""

import math
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from configs.schema import SearchSettings
from games.compiled import lean
from games.game import Planes
from training.random import Streams, gamma
from training.search.tree import LOSS, Trees, bring_best_forward, swap_edges

TOTAL_ALPHA = 10.83  # KataGo's: 0.03 a move on an empty 19x19 board
LARGE = np.float32(1e30)
TINY = 1e-30
ONE = np.float32(1.0)

Integers = NDArray[np.int32]
Floats = NDArray[np.float32]


class Evaluate(Protocol):
    """All that search knows of a network."""

    def __call__(self, observations: Planes) -> tuple[Floats, Floats]:
        """Policy logits ``[N, A]`` and values ``[N]`` in [-1, 1] for the player to move, of observations ``[N, C, H, W]``."""


class SearchParams(NamedTuple):
    """The numbers that compiled search reads, from ``SearchSettings``."""

    gumbel: bool
    c_puct: float
    c_puct_log_base: float
    fpu_reduction: float
    root_fpu_reduction: float
    dirichlet_alpha: float  # 0: TOTAL_ALPHA divided by the number of legal actions
    dirichlet_fraction: float
    root_policy_temperature: float
    forced_playouts_k: float  # 0: none
    virtual_loss: float
    proven_results: bool
    subtree_reuse: bool
    considered_actions: int
    c_visit: float
    c_scale: float


def search_params(settings: SearchSettings) -> SearchParams:
    """The compiled search's view of ``settings``."""
    gumbel = settings.algorithm == "gumbel"
    return SearchParams(
        gumbel=gumbel,
        c_puct=settings.c_puct,
        c_puct_log_base=settings.c_puct_log_base,
        fpu_reduction=settings.fpu_reduction,
        root_fpu_reduction=settings.root_fpu_reduction,
        dirichlet_alpha=0.0 if settings.dirichlet_alpha == "auto" else settings.dirichlet_alpha,
        dirichlet_fraction=settings.dirichlet_fraction,
        root_policy_temperature=settings.root_policy_temperature,
        forced_playouts_k=settings.forced_playouts_k if settings.forced_playouts and not gumbel else 0.0,
        virtual_loss=settings.virtual_loss if settings.leaves_per_tree > 1 else 0.0,  # one walk at a time needs none
        proven_results=settings.proven_results,
        subtree_reuse=settings.subtree_reuse and not gumbel,  # sequential halving counts visits from zero
        considered_actions=settings.gumbel.considered_actions,
        c_visit=settings.gumbel.c_visit,
        c_scale=settings.gumbel.c_scale,
    )


@lean
def exploration_scale(params: SearchParams, total: int) -> float:
    """What a prior is multiplied by, before the division by one plus the visits of its edge."""
    c = params.c_puct + math.log(1.0 + (1.0 + total) / params.c_puct_log_base)
    return c * math.sqrt(total + 0.01)  # so that priors count from the first simulation on


@lean
def choose_edge(params: SearchParams, trees: Trees, b: int, number: int) -> int:
    """The edge that PUCT follows below the root: a visited one, or the unvisited one of the largest prior."""
    node = trees.nodes[b, number]
    border = node.first_edge + node.num_visited
    scale = np.float32(exploration_scale(params, node.visits - 1))
    best, best_score = node.first_edge, -LARGE
    for i in range(node.first_edge, border):
        edge = trees.edges[b, i]
        visits = np.float32(edge.visits)
        score = edge.value / visits + scale * edge.prior / (ONE + visits)
        if score > best_score and edge.proven != LOSS:
            best, best_score = i, score
    if node.num_visited < node.num_edges:
        mean = node.value_sum / np.float32(node.visits)
        unvisited = mean - np.float32(params.fpu_reduction) * np.sqrt(node.explored)
        if unvisited + scale * trees.edges[b, border].prior > best_score:
            best = border
    return int(best)


@lean
def choose_root_edge(params: SearchParams, trees: Trees, b: int) -> int:
    """The edge that PUCT follows at the root.

    In a full search an edge that has been tried at all gets at least ``sqrt(k * prior * N)`` forced playouts (KataGo, 3.2).
    """
    root = trees.nodes[b, 0]
    total = root.visits - 1
    scale = np.float32(exploration_scale(params, total))
    unvisited = root.value_sum / np.float32(root.visits) - np.float32(params.root_fpu_reduction) * np.sqrt(root.explored)
    forced = np.float32(params.forced_playouts_k * total) if trees.searches[b].full else np.float32(0.0)
    best, best_score = root.first_edge, -LARGE
    for i in range(root.first_edge, root.first_edge + root.num_edges):
        edge = trees.edges[b, i]
        visits = np.float32(edge.visits)
        value = edge.value / visits if visits > 0 else unvisited
        score = value + scale * edge.prior / (ONE + visits)
        if visits > 0 and visits * visits < forced * edge.prior:
            score += LARGE / 2
        if score > best_score and edge.proven != LOSS:
            best, best_score = i, score
    return int(best)


@lean
def visit_edge(params: SearchParams, trees: Trees, b: int, number: int, i: int) -> int:
    """Count a pending visit of edge ``i``; returns where it stands now, first visits being moved to the visited ones."""
    node = trees.nodes[b, number]
    border = node.first_edge + node.num_visited
    if i >= border:
        if i != border:
            swap_edges(trees, b, i, border)
        i = border
        node.num_visited += 1
        node.explored += trees.edges[b, i].prior
        bring_best_forward(trees, b, number)
    edge = trees.edges[b, i]
    edge.visits += 1
    edge.value -= np.float32(params.virtual_loss)
    return int(i)


@lean
def add_root_noise(params: SearchParams, trees: Trees, b: int, streams: Streams) -> None:
    """Soften the root's priors by a temperature and mix Dirichlet noise into them."""
    root = trees.nodes[b, 0]
    first, count = root.first_edge, root.num_edges
    alpha = params.dirichlet_alpha if params.dirichlet_alpha > 0 else TOTAL_ALPHA / count
    total_prior, total_noise = 0.0, 0.0
    for i in range(first, first + count):
        edge = trees.edges[b, i]
        edge.prior = edge.root_prior ** (1.0 / params.root_policy_temperature)
        edge.gumbel = gamma(streams, b, alpha)  # the field is free in PUCT
        total_prior += edge.prior
        total_noise += edge.gumbel
    fraction = params.dirichlet_fraction
    explored = 0.0
    for i in range(first, first + count):
        edge = trees.edges[b, i]
        edge.prior = (1.0 - fraction) * edge.prior / total_prior + fraction * edge.gumbel / max(total_noise, TINY)
        if i < first + root.num_visited:
            explored += edge.prior
    root.explored = explored
