"""Which child a simulation follows: PUCT, as in AlphaZero (Silver et al., Science 2018) with KataGo's refinements (Wu, 2019).

The score of a move is its mean value plus ``c * prior * sqrt(N) / (1 + visits)``, where N is the sum of the visits of all moves and
``c = c_puct + log((1 + N + c_puct_log_base) / c_puct_log_base)``. A move without visits has the node's mean value less
``fpu_reduction * sqrt(explored prior)``.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from configs.schema import SearchSettings
from games.compiled import inlined, lean
from games.game import Planes
from training.random import Streams, gamma
from training.search.tree import LEAST_PRIOR, LOSS, NONE, OPEN, Floats, Trees, bring_best_forward, open_node

TOTAL_ALPHA = 10.83  # KataGo's: 0.03 a move on an empty 19x19 board
LARGE = np.float32(1e30)
ONE = np.float32(1.0)

Integers = NDArray[np.int32]


class Evaluate(Protocol):
    """All that search knows of a network."""

    def __call__(self, observations: Planes) -> tuple[Floats, Floats]:
        """Policy logits ``[N, A]`` and values ``[N]`` in [-1, 1] for the player to move, of observations ``[N, C, H, W]``."""


class SearchParams(NamedTuple):
    """The numbers that compiled search reads, from ``SearchSettings``."""

    gumbel: bool
    exploration: Floats  # [N]: c * sqrt(number of visits), which a prior is multiplied by
    fpu_reduction: np.float32
    root_fpu_reduction: np.float32
    dirichlet_alpha: float  # 0: TOTAL_ALPHA divided by the number of legal actions
    dirichlet_fraction: float
    root_policy_temperature: float
    forced_playouts_k: np.float32  # 0: none
    virtual_loss: np.float32
    proven_results: bool
    subtree_reuse: bool
    considered_actions: int
    c_visit: np.float32
    c_scale: np.float32


def search_params(settings: SearchSettings, *, max_visits: int) -> SearchParams:
    """The compiled search's view of ``settings``, for nodes of at most ``max_visits``."""
    gumbel = settings.algorithm == "gumbel"
    forced = settings.forced_playouts and not gumbel
    return SearchParams(
        gumbel=gumbel,
        exploration=exploration_table(settings.c_puct, settings.c_puct_log_base, max_visits),
        fpu_reduction=np.float32(settings.fpu_reduction),
        root_fpu_reduction=np.float32(settings.root_fpu_reduction),
        dirichlet_alpha=0.0 if settings.dirichlet_alpha == "auto" else settings.dirichlet_alpha,
        dirichlet_fraction=settings.dirichlet_fraction,
        root_policy_temperature=settings.root_policy_temperature,
        forced_playouts_k=np.float32(settings.forced_playouts_k if forced else 0.0),
        virtual_loss=np.float32(settings.virtual_loss),
        proven_results=settings.proven_results,
        subtree_reuse=settings.subtree_reuse and not gumbel,  # sequential halving counts visits from zero
        considered_actions=settings.gumbel.considered_actions,
        c_visit=np.float32(settings.gumbel.c_visit),
        c_scale=np.float32(settings.gumbel.c_scale),
    )


def exploration_table(c_puct: float, c_puct_log_base: float, max_visits: int) -> Floats:
    """``c * sqrt(N)`` for N from 0 to ``max_visits``; a little is added to N so that priors count from the first simulation on."""
    visits = np.arange(max_visits + 1)
    c = c_puct + np.log((1 + visits + c_puct_log_base) / c_puct_log_base)
    return np.asarray(c * np.sqrt(visits + 0.01), np.float32)


@inlined
def choose_child(params: SearchParams, trees: Trees, b: int, number: int) -> int:
    """The child that PUCT follows, or NONE for the first candidate."""
    nodes = trees.nodes[b]
    node = nodes[number]
    scale = params.exploration[node.visits - 1]
    best, best_score = NONE, -LARGE
    next_child = node.first_child
    while next_child != NONE:
        child = nodes[next_child]
        visits = np.float32(child.visits)
        value = (child.value_sum - params.virtual_loss * np.float32(child.pending)) / visits
        score = value + scale * child.prior / (ONE + visits)
        if score > best_score and child.proven_above != LOSS:
            best, best_score = next_child, score
        next_child = child.next_sibling
    if node.num_candidates == 0:
        return int(best)
    if not node.ordered:
        bring_best_forward(trees, b, number)
    mean = node.turn * node.value_sum / np.float32(node.visits - node.pending)
    reduction = params.fpu_reduction if number > 0 else params.root_fpu_reduction
    unvisited = mean - reduction * np.sqrt(node.explored)
    if unvisited + scale * trees.priors[b, node.first_candidate] > best_score:
        return NONE
    return int(best)


@inlined
def forced_child(params: SearchParams, trees: Trees, b: int) -> int:
    """A child of the root that has had less than ``sqrt(k * prior * N)`` playouts, or NONE (KataGo, 3.2)."""
    nodes = trees.nodes[b]
    forced = params.forced_playouts_k * np.float32(nodes[0].visits - 1)
    number = nodes[0].first_child
    while number != NONE:
        child = nodes[number]
        visits = np.float32(child.visits)
        if visits * visits < forced * child.prior and child.proven_above != LOSS:
            return int(number)
        number = child.next_sibling
    return NONE


@lean
def note_root_priors(trees: Trees, b: int) -> None:
    """Open the root and remember the priors that the network gave its moves."""
    root = trees.nodes[b, 0]
    if root.stage != OPEN:
        open_node(trees, b, 0)
    for action in range(trees.root_priors.shape[1]):
        trees.root_priors[b, action] = 0.0
    for i in range(root.first_candidate, root.first_candidate + root.num_candidates):
        trees.root_priors[b, trees.actions[b, i]] = max(trees.priors[b, i], LEAST_PRIOR)
    number = root.first_child
    while number != NONE:
        child = trees.nodes[b, number]
        trees.root_priors[b, child.action] = max(child.prior, LEAST_PRIOR)
        number = child.next_sibling


@lean
def set_root_priors(trees: Trees, b: int, priors: Floats) -> None:
    """Search on with other ``priors`` ``[A]`` at the root."""
    root = trees.nodes[b, 0]
    root.explored = 0.0
    root.ordered = False
    for i in range(root.first_candidate, root.first_candidate + root.num_candidates):
        trees.priors[b, i] = priors[trees.actions[b, i]]
    number = root.first_child
    while number != NONE:
        child = trees.nodes[b, number]
        child.prior = priors[child.action]
        root.explored += child.prior
        number = child.next_sibling


@lean
def draw_dirichlet(params: SearchParams, root_priors: Floats, noise: Floats, streams: Streams, b: int) -> None:
    """Write to ``noise`` ``[A]`` a Dirichlet draw over the actions that have ``root_priors`` ``[A]``."""
    count = 0
    for action in range(len(root_priors)):
        count += root_priors[action] > 0
    alpha = params.dirichlet_alpha if params.dirichlet_alpha > 0 else TOTAL_ALPHA / count
    total = 0.0
    for action in range(len(root_priors)):
        noise[action] = gamma(streams, b, alpha) if root_priors[action] > 0 else 0.0
        total += noise[action]
    for action in range(len(root_priors)):
        noise[action] /= max(total, 1e-30)


@lean
def add_root_noise(params: SearchParams, trees: Trees, b: int, streams: Streams, scratch: Floats) -> None:
    """Soften the root's priors by a temperature and mix Dirichlet noise into them; ``scratch`` is ``[2, A]``."""
    root_priors, noise, softened = trees.root_priors[b], scratch[0], scratch[1]
    draw_dirichlet(params, root_priors, noise, streams, b)
    total = 0.0
    for action in range(len(root_priors)):
        softened[action] = root_priors[action] ** (1.0 / params.root_policy_temperature) if root_priors[action] > 0 else 0.0
        total += softened[action]
    for action in range(len(root_priors)):
        softened[action] = (1.0 - params.dirichlet_fraction) * softened[action] / total + params.dirichlet_fraction * noise[action]
    set_root_priors(trees, b, softened)
