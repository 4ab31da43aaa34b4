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
from keima.compilation.decorators import compiled_part, inlined_by_llvm
from keima.config.sections.search import SearchSettings
from keima.games.game import MOST_CHANCE_EVENTS, Actions, Game, Planes, States, final_score_kernel
from keima.search.handover import pass_kernel_by_address
from keima.search.tree import (
    LOSS,
    MIN_PRIOR,
    NONE,
    WITH_PRIORS,
    Floats,
    Trees,
    find_child_by_action,
    move_best_candidate_first,
    node_mean_lead,
    node_mean_value,
    turn_logits_into_priors,
)

TOTAL_ALPHA = 10.83  # KataGo's: 0.03 a move on an empty 19x19 board
LARGE = np.float32(1e30)
ONE = np.float32(1.0)
# The smallest range of a node's values that is scaled up, as a share of the largest value: a smaller one is noise.
LEAST_RANGE = np.float32(0.01)
DECIDED_VALUE = np.float32(0.9)  # the value at the root, of either player, from which on points count
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
    has_rewards: bool  # a one-player game: moves have rewards, and values are in points
    score_utility: np.float32  # the most that points count, where the value at the root is -1 or 1; 0: not at all
    lead_width: np.float32  # points
    final_score: Any  # the game's kernel, if points count
    early_stop: bool  # stop once the move is settled
    spare_nodes: int  # of a tree, without which no simulation begins


@final_score_kernel
def no_score(state: States, ownership: Actions) -> int:
    """Return the ``final_score`` of games without points."""
    return 0


def search_params(
    settings: SearchSettings, game: Game, *, max_visits: int, score_utility: float = 0.0, early_stop: bool = False
) -> SearchParams:
    """Return the parameters of ``settings`` for ``game``, for nodes of at most ``max_visits`` visits.

    With ``score_utility`` points count. Nothing is proven then: a won position is searched on for a better score.
    """
    gumbel = settings.algorithm == "gumbel"
    forced = settings.forced_playouts and not gumbel
    return SearchParams(
        gumbel=gumbel,
        exploration=make_exploration_table(settings.c_puct, settings.c_puct_log_base, max_visits),
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
        has_rewards=game.num_players == 1,
        score_utility=np.float32(score_utility),
        lead_width=np.float32(LEAD_WIDTH * math.sqrt(game.height * game.width)),
        final_score=pass_kernel_by_address(game.final_score if score_utility > 0 else no_score),
        early_stop=early_stop and not gumbel,  # sequential halving compares moves to its last simulation
        spare_nodes=spare_nodes(game),
    )


def spare_nodes(game: Game) -> int:
    """Return how many nodes one simulation can add; 0 without chance, where there is always room for the one."""
    return MOST_CHANCE_EVENTS + 1 if game.num_outcomes else 0


def make_exploration_table(c_puct: float, c_puct_log_base: float, max_visits: int) -> Floats:
    """``c * sqrt(N + 0.01)`` for N from 0 to ``max_visits``; with N = 0 priors must count too."""
    visits = np.arange(max_visits + 1)
    # c(N) = c_puct + log((1 + N + c_puct_log_base) / c_puct_log_base) (Silver et al. 2018)
    c = c_puct + np.log((1 + visits + c_puct_log_base) / c_puct_log_base)
    return np.asarray(c * np.sqrt(visits + 0.01), np.float32)


class ValueScale(NamedTuple):
    """The scaling of a node's values to [-1, 1]: ``(value - center) * stretch``; and how points count."""

    center: np.float32
    stretch: np.float32
    score_utility: np.float32
    lead: np.float32  # expected at the root, for the player to move at the node: it counts nothing


@inlined_by_llvm
def child_mean_value(params: SearchParams, child: Any) -> np.float32:
    """Return a visited move's mean value for the player who chooses it.

    A pending visit counts as a virtual loss; in points it does not count.
    """
    if params.has_rewards:
        return child.value_sum / np.float32(max(child.visits - child.pending, 1))
    # Q(a) = (W(a) - virtual loss * pending(a)) / n(a)
    return (child.value_sum - params.virtual_loss * np.float32(child.pending)) / np.float32(child.visits)


@inlined_by_llvm
def compute_value_scale(params: SearchParams, trees: Trees, b: int, number: int, unvisited: np.float32) -> ValueScale:
    """Return the scale of the values of a node's visited moves and of ``unvisited``, that of the others."""
    nodes = trees.nodes[b]
    if not params.has_rewards:
        if params.score_utility == 0:
            return ValueScale(np.float32(0.0), ONE, np.float32(0.0), np.float32(0.0))
        lead = node_mean_lead(nodes, 0) if nodes[0].player == nodes[number].player else -node_mean_lead(nodes, 0)
        decided = max((abs(node_mean_value(nodes, 0)) - DECIDED_VALUE) / (ONE - DECIDED_VALUE), np.float32(0.0))
        return ValueScale(np.float32(0.0), ONE, params.score_utility * decided, lead)
    least, largest = unvisited, unvisited
    next_child = nodes[number].first_child
    while next_child != NONE:
        child = nodes[next_child]
        if child.visits > child.pending:
            value = child_mean_value(params, child)
            least, largest = min(least, value), max(largest, value)
        next_child = child.next_sibling
    # 2 * (Q - center) / (max Q - min Q), in [-1, 1]: the normalization of MuZero (Schrittwieser et al. 2020)
    spread = max(largest - least, LEAST_RANGE * max(abs(largest), ONE))
    center, stretch = (largest + least) / np.float32(2.0), np.float32(2.0) / spread
    return ValueScale(center, stretch, np.float32(0.0), np.float32(0.0))


@inlined_by_llvm
def scaled_child_value(params: SearchParams, scale: ValueScale, child: Any) -> np.float32:
    """Return a visited move's value for the player who chooses it, scaled to [-1, 1], less virtual losses.

    Where points count, their utility is added.
    """
    if not params.has_rewards:
        if scale.score_utility > 0 and child.visits > child.pending:
            lead = child.lead_sum / np.float32(child.visits - child.pending)
            return child_mean_value(params, child) + score_lead_utility(params, scale, lead)
        return child_mean_value(params, child)
    loss = params.virtual_loss * np.float32(child.pending) / np.float32(child.visits)
    value = np.float32(0.0)
    if child.visits > child.pending:
        value = (child_mean_value(params, child) - scale.center) * scale.stretch
    return value - loss


@inlined_by_llvm
def scaled_unvisited_value(
    params: SearchParams, trees: Trees, b: int, number: int, scale: ValueScale, value: np.float32
) -> Any:
    """``value``, that of a node's unvisited moves, scaled to [-1, 1], with the utility of the node's own lead."""
    scaled = (value - scale.center) * scale.stretch
    if scale.score_utility > 0:
        scaled += score_lead_utility(params, scale, node_mean_lead(trees.nodes[b], number))
    return scaled


@inlined_by_llvm
def score_lead_utility(params: SearchParams, scale: ValueScale, lead: np.float32) -> np.float32:
    """Return the utility of a lead in points: up to ``score_utility`` either way, 0 for the lead at the root."""
    # u * d / (1 + abs(d)), d = (lead - lead at the root) / width: after the dynamic score utility of Wu 2019
    difference = (lead - scale.lead) / params.lead_width
    return scale.score_utility * difference / (ONE + abs(difference))


@inlined_by_llvm
def find_forced_child(params: SearchParams, trees: Trees, b: int) -> int:
    """Return a child of the root with fewer than ``sqrt(k * prior * N)`` playouts, or NONE (KataGo, section 3.2)."""
    nodes = trees.nodes[b]
    forced = params.forced_playouts_k * np.float32(nodes[0].visits - 1)
    number = nodes[0].first_child
    while number != NONE:
        child = nodes[number]
        visits = np.float32(child.visits)
        # n(a) < sqrt(k * P(a) * N), squared (forced playouts, Wu 2019, section 3.2)
        if visits * visits < forced * child.prior and child.proven_for_parent != LOSS:
            return int(number)
        number = child.next_sibling
    return NONE


@inlined_by_llvm
def select_puct_child(params: SearchParams, trees: Trees, b: int, number: int) -> int:
    """Return the child that PUCT selects, or NONE for the first candidate. At the root of a full search, forced
    playouts come first.
    """
    if number == 0 and trees.searches[b].full and params.forced_playouts_k > 0:
        forced = find_forced_child(params, trees, b)
        if forced != NONE:
            return forced
    nodes = trees.nodes[b]
    node = nodes[number]
    exploration = params.exploration[node.visits - 1]
    mean = node_mean_value(nodes, number)
    scale = compute_value_scale(params, trees, b, number, mean)
    best, best_score = NONE, -LARGE
    next_child = node.first_child
    while next_child != NONE:
        child = nodes[next_child]
        # Q(a) + c(N) * P(a) * sqrt(N) / (1 + n(a)) (PUCT, Silver et al. 2018); ``exploration`` is c(N) * sqrt(N)
        score = scaled_child_value(params, scale, child) + exploration * child.prior / (ONE + np.float32(child.visits))
        if score > best_score and child.proven_for_parent != LOSS:
            best, best_score = next_child, score
        next_child = child.next_sibling
    if node.num_candidates == 0:
        return int(best)
    if not node.best_first:
        move_best_candidate_first(trees, b, number)
    reduction = params.fpu_reduction if number > 0 else params.root_fpu_reduction
    # First-play urgency: Q(unvisited) = V - reduction * sqrt(sum of P over visited moves) (Wu 2019)
    unvisited = scaled_unvisited_value(params, trees, b, number, scale, mean) - reduction * np.sqrt(node.explored_prior)
    # PUCT again, with n(a) = 0
    if unvisited + exploration * trees.priors[b, node.first_candidate] > best_score:
        return NONE
    return int(best)


@compiled_part
def save_root_priors(trees: Trees, b: int) -> None:
    """Open the root and save the network's priors of its moves."""
    root = trees.nodes[b, 0]
    if root.stage != WITH_PRIORS:
        turn_logits_into_priors(trees, b, 0)
    for action in range(trees.root_priors.shape[1]):
        trees.root_priors[b, action] = 0.0
    for i in range(root.first_candidate, root.first_candidate + root.num_candidates):
        trees.root_priors[b, trees.actions[b, i]] = max(trees.priors[b, i], MIN_PRIOR)
    number = root.first_child
    while number != NONE:
        child = trees.nodes[b, number]
        trees.root_priors[b, child.action] = max(child.prior, MIN_PRIOR)
        number = child.next_sibling


@compiled_part
def set_root_priors(trees: Trees, b: int, priors: Floats) -> None:
    """Replace the priors of the root's moves by ``priors`` ``[A]``."""
    root = trees.nodes[b, 0]
    root.explored_prior = 0.0
    root.best_first = False
    for i in range(root.first_candidate, root.first_candidate + root.num_candidates):
        trees.priors[b, i] = priors[trees.actions[b, i]]
    number = root.first_child
    while number != NONE:
        child = trees.nodes[b, number]
        child.prior = priors[child.action]
        root.explored_prior += child.prior
        number = child.next_sibling


@compiled_part
def sample_dirichlet(params: SearchParams, root_priors: Floats, noise: Floats, streams: Streams, b: int) -> None:
    """Write a Dirichlet sample over the actions with positive ``root_priors`` ``[A]`` to ``noise`` ``[A]``."""
    count = 0
    for action in range(len(root_priors)):
        count += root_priors[action] > 0
    # alpha = 0.03 * 19**2 / legal moves (Wu 2019)
    alpha = params.dirichlet_alpha if params.dirichlet_alpha > 0 else TOTAL_ALPHA / count
    total = 0.0
    for action in range(len(root_priors)):
        # Dirichlet(alpha) is x(a) / sum of x, where x(a) is drawn from Gamma(alpha, 1)
        noise[action] = draw_gamma(streams, b, alpha) if root_priors[action] > 0 else 0.0
        total += noise[action]
    for action in range(len(root_priors)):
        noise[action] /= max(total, 1e-30)


@compiled_part
def add_dirichlet_noise(params: SearchParams, trees: Trees, b: int, streams: Streams, scratch: Floats) -> None:
    """Apply the root temperature to the root's priors and mix in Dirichlet noise; ``scratch`` is ``[2, A]``."""
    root_priors, noise, softened = trees.root_priors[b], scratch[0], scratch[1]
    sample_dirichlet(params, root_priors, noise, streams, b)
    total = 0.0
    for action in range(len(root_priors)):
        prior = root_priors[action]
        # P(a)**(1 / T) / sum of P**(1 / T) (root softmax temperature, Wu 2019)
        softened[action] = prior ** (1.0 / params.root_policy_temperature) if prior > 0 else 0.0
        total += softened[action]
    share = params.dirichlet_fraction
    for action in range(len(root_priors)):
        # P(a) = (1 - share) * P(a) + share * noise(a) (Silver et al. 2018)
        softened[action] = (1.0 - share) * softened[action] / total + share * noise[action]
    set_root_priors(trees, b, softened)


@compiled_part
def write_visit_weights(params: SearchParams, trees: Trees, b: int, weights: Floats) -> None:
    """Write the visits of the root's moves to ``weights`` ``[A]``: without proven losses and, after a full search, with
    forced playouts pruned.
    """
    weights[:] = 0
    number = trees.nodes[b, 0].first_child
    while number != NONE:
        child = trees.nodes[b, number]
        if child.proven_for_parent != LOSS:
            weights[child.action] = child.visits
        number = child.next_sibling
    if weights[np.argmax(weights)] > 0 and trees.searches[b].full and params.forced_playouts_k > 0:
        prune_forced_playouts(params, trees, b, weights)


@compiled_part
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
