"""PUCT, the rule by which a simulation selects a child: AlphaZero's (Silver et al., Science 2018), refined by KataGo
(Wu, 2019).

The score of a move is its mean value plus ``c * prior * sqrt(N) / (1 + visits)``, where N is the sum of the visits of
all moves and ``c = c_puct + log((1 + N + c_puct_log_base) / c_puct_log_base)``. A move without visits has the node's
mean value less ``fpu_reduction * sqrt(explored prior)``.

A search that counts points adds a small utility for the score lead, once the game is as good as decided: how far a
move's mean lead is above the lead expected at the root (after KataGo's dynamic score utility). It decides among moves
that win or lose alike. Values themselves remain chances to win. The lead of a leaf is the mean of what the network
foresees and of what the board would count: networks learn little of games that go on after they are lost, and do not
see that filling one's own eyes costs a group.

Values in [-1, 1] are compared directly. In a one-player game values are points without a known scale; there the values
of a node's moves are scaled to [-1, 1] by the smallest and the largest of them (MuZero, arXiv 1911.08265, appendix B,
but per node).
"""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from keima.base.random import Streams, draw_gamma
from keima.compilation.decorators import inlined, lean
from keima.config.sections.search import SearchSettings
from keima.games.game import Actions, Game, Planes, States, final_score_kernel
from keima.search.handover import handed_over_kernel
from keima.search.tree import (
    LEAST_PRIOR,
    LOSS,
    NONE,
    OPEN,
    Floats,
    Trees,
    bring_best_forward,
    lead_here,
    mean_here,
    open_node,
)

TOTAL_ALPHA = 10.83  # KataGo's: 0.03 a move on an empty 19x19 board
LARGE = np.float32(1e30)
ONE = np.float32(1.0)
# The smallest range of a node's values that is scaled up, as a share of the largest value: a smaller one is noise.
LEAST_RANGE = np.float32(0.01)
DECIDED = np.float32(0.9)  # the value at the root, of either player, from which on points count
LEAD_WIDTH = 0.75  # sides of a board by which a lead must differ to count half; KataGo's

Integers = NDArray[np.int32]


class Evaluate(Protocol):
    """The network, as search calls it."""

    def __call__(self, observations: Planes) -> tuple[Floats, Floats]:
        """Policy logits ``[N, A]`` and values ``[N]`` for the player to move, of observations ``[N, C, H, W]``.

        Values are in [-1, 1], or in a one-player game the discounted sum of future points. With three and more players
        they are ``[N, V]`` (``Game.num_values``). A search that counts points needs ``[N, 2]``: the value, and by how
        many points the player to move will win.
        """


class SearchParams(NamedTuple):
    """``SearchSettings`` as numbers, for compiled search."""

    gumbel: bool
    exploration: Floats  # [N]: c * sqrt(visits), the factor of a prior
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
    gumbel_noise: float
    evaluate_afterstates: bool
    discount: np.float32
    rewards: bool  # a one-player game: moves have rewards, and values are in points
    score_utility: np.float32  # the most that points count, where the value at the root is -1 or 1; 0: not at all
    lead_width: np.float32  # points
    final_score: Any  # the game's kernel, if points count
    early_stop: bool  # stop once the move is settled


@final_score_kernel
def no_score(state: States, ownership: Actions) -> int:
    """The ``final_score`` of games without points."""
    return 0


def search_params(
    settings: SearchSettings, game: Game, *, max_visits: int, score_utility: float = 0.0, early_stop: bool = False
) -> SearchParams:
    """The parameters of ``settings`` for ``game``, for nodes of at most ``max_visits`` visits.

    With ``score_utility`` points count. Nothing is proven then: a won position is searched on for a better score.
    """
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
        proven_results=settings.proven_results and game.num_players == 2 and score_utility == 0,
        subtree_reuse=settings.subtree_reuse and not gumbel,  # sequential halving counts visits from zero
        considered_actions=settings.gumbel.considered_actions,
        c_visit=np.float32(settings.gumbel.c_visit),
        c_scale=np.float32(settings.gumbel.c_scale),
        gumbel_noise=settings.gumbel.noise,
        evaluate_afterstates=settings.evaluate_afterstates,
        discount=np.float32(settings.discount),
        rewards=game.num_players == 1,
        score_utility=np.float32(score_utility),
        lead_width=np.float32(LEAD_WIDTH * math.sqrt(game.height * game.width)),
        final_score=handed_over_kernel(game.final_score if score_utility > 0 else no_score),
        early_stop=early_stop and not gumbel,  # sequential halving compares moves to its last simulation
    )


def exploration_table(c_puct: float, c_puct_log_base: float, max_visits: int) -> Floats:
    """``c * sqrt(N + 0.01)`` for N from 0 to ``max_visits``; with N = 0 priors must count too."""
    visits = np.arange(max_visits + 1)
    c = c_puct + np.log((1 + visits + c_puct_log_base) / c_puct_log_base)
    return np.asarray(c * np.sqrt(visits + 0.01), np.float32)


class Scale(NamedTuple):
    """The scaling of a node's values to [-1, 1]: ``(value - center) * stretch``; and how points count."""

    center: np.float32
    stretch: np.float32
    score_utility: np.float32
    lead: np.float32  # expected at the root, for the player to move at the node: it counts nothing


@inlined
def mean_value(params: SearchParams, child: Any) -> np.float32:
    """A visited move's mean value for the player who chooses it.

    A pending visit counts as a virtual loss; in points it does not count.
    """
    if params.rewards:
        return child.value_sum / np.float32(max(child.visits - child.pending, 1))
    return (child.value_sum - params.virtual_loss * np.float32(child.pending)) / np.float32(child.visits)


@inlined
def value_scale(params: SearchParams, trees: Trees, b: int, number: int, other: np.float32) -> Scale:
    """The scale of the values of a node's visited moves and of ``other``, the value of its unvisited moves."""
    nodes = trees.nodes[b]
    if not params.rewards:
        if params.score_utility == 0:
            return Scale(np.float32(0.0), ONE, np.float32(0.0), np.float32(0.0))
        lead = lead_here(nodes, 0) if nodes[0].player == nodes[number].player else -lead_here(nodes, 0)
        decided = max((abs(mean_here(nodes, 0)) - DECIDED) / (ONE - DECIDED), np.float32(0.0))
        return Scale(np.float32(0.0), ONE, params.score_utility * decided, lead)
    least, largest = other, other
    next_child = nodes[number].first_child
    while next_child != NONE:
        child = nodes[next_child]
        if child.visits > child.pending:
            value = mean_value(params, child)
            least, largest = min(least, value), max(largest, value)
        next_child = child.next_sibling
    spread = max(largest - least, LEAST_RANGE * max(abs(largest), ONE))
    center, stretch = (largest + least) / np.float32(2.0), np.float32(2.0) / spread
    return Scale(center, stretch, np.float32(0.0), np.float32(0.0))


@inlined
def scaled_value(params: SearchParams, scale: Scale, child: Any) -> np.float32:
    """A visited move's value for the player who chooses it, scaled to [-1, 1], less virtual losses.

    Where points count, their utility is added.
    """
    if not params.rewards:
        if scale.score_utility > 0 and child.visits > child.pending:
            lead = child.lead_sum / np.float32(child.visits - child.pending)
            return mean_value(params, child) + lead_utility(params, scale, lead)
        return mean_value(params, child)
    loss = params.virtual_loss * np.float32(child.pending) / np.float32(child.visits)
    value = np.float32(0.0)
    if child.visits > child.pending:
        value = (mean_value(params, child) - scale.center) * scale.stretch
    return value - loss


@inlined
def unvisited_value(params: SearchParams, trees: Trees, b: int, number: int, scale: Scale, value: np.float32) -> Any:
    """``value``, that of a node's unvisited moves, scaled to [-1, 1], with the utility of the node's own lead."""
    scaled = (value - scale.center) * scale.stretch
    if scale.score_utility > 0:
        scaled += lead_utility(params, scale, lead_here(trees.nodes[b], number))
    return scaled


@inlined
def lead_utility(params: SearchParams, scale: Scale, lead: np.float32) -> np.float32:
    """The utility of a lead in points: from ``-score_utility`` to ``score_utility``, 0 for the lead at the root."""
    difference = (lead - scale.lead) / params.lead_width
    return scale.score_utility * difference / (ONE + abs(difference))


@inlined
def choose_child(params: SearchParams, trees: Trees, b: int, number: int) -> int:
    """The child that PUCT selects, or NONE for the first candidate."""
    nodes = trees.nodes[b]
    node = nodes[number]
    exploration = params.exploration[node.visits - 1]
    mean = mean_here(nodes, number)
    scale = value_scale(params, trees, b, number, mean)
    best, best_score = NONE, -LARGE
    next_child = node.first_child
    while next_child != NONE:
        child = nodes[next_child]
        score = scaled_value(params, scale, child) + exploration * child.prior / (ONE + np.float32(child.visits))
        if score > best_score and child.proven_above != LOSS:
            best, best_score = next_child, score
        next_child = child.next_sibling
    if node.num_candidates == 0:
        return int(best)
    if not node.ordered:
        bring_best_forward(trees, b, number)
    reduction = params.fpu_reduction if number > 0 else params.root_fpu_reduction
    unvisited = unvisited_value(params, trees, b, number, scale, mean) - reduction * np.sqrt(node.explored)
    if unvisited + exploration * trees.priors[b, node.first_candidate] > best_score:
        return NONE
    return int(best)


@inlined
def forced_child(params: SearchParams, trees: Trees, b: int) -> int:
    """A child of the root with fewer than ``sqrt(k * prior * N)`` playouts, or NONE (KataGo, section 3.2)."""
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
    """Open the root and save the network's priors of its moves."""
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
    """Replace the priors of the root's moves by ``priors`` ``[A]``."""
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
    """Write a Dirichlet sample over the actions with positive ``root_priors`` ``[A]`` to ``noise`` ``[A]``."""
    count = 0
    for action in range(len(root_priors)):
        count += root_priors[action] > 0
    alpha = params.dirichlet_alpha if params.dirichlet_alpha > 0 else TOTAL_ALPHA / count
    total = 0.0
    for action in range(len(root_priors)):
        noise[action] = draw_gamma(streams, b, alpha) if root_priors[action] > 0 else 0.0
        total += noise[action]
    for action in range(len(root_priors)):
        noise[action] /= max(total, 1e-30)


@lean
def add_root_noise(params: SearchParams, trees: Trees, b: int, streams: Streams, scratch: Floats) -> None:
    """Apply the root temperature to the root's priors and mix in Dirichlet noise; ``scratch`` is ``[2, A]``."""
    root_priors, noise, softened = trees.root_priors[b], scratch[0], scratch[1]
    draw_dirichlet(params, root_priors, noise, streams, b)
    total = 0.0
    for action in range(len(root_priors)):
        prior = root_priors[action]
        softened[action] = prior ** (1.0 / params.root_policy_temperature) if prior > 0 else 0.0
        total += softened[action]
    share = params.dirichlet_fraction
    for action in range(len(root_priors)):
        softened[action] = (1.0 - share) * softened[action] / total + share * noise[action]
    set_root_priors(trees, b, softened)
