"""The trees of B games at once, as flat arrays.

Tree ``b`` is row ``b`` of every array; node 0 is the root. A node is a position together with the move that led there:
a visited move *is* a node, a child in its parent's linked list. Unvisited moves are mere candidates, an action and a
prior each in adjacent arrays; a search visits few of them.

A node's value sum is from the view of the player who moved there, because that is what selection compares. It includes
the reward of the move, in one-player games. With three and more players each maximizes its own value (max^n: C. A.
Luckhardt and K. B. Irani, "An algorithmic solution of n-person games", AAAI 1986).

After an action of a game of chance, where nature is to move, the node is an afterstate. Each simulation through it
samples an outcome; its value is the mean over these, and over its own evaluation if afterstates are evaluated, which is
free of the noise of single outcomes.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled_part, compiled_without_refcounts, inlined_by_llvm
from keima.games.game import Actions

Floats = NDArray[np.float32]

NONE = -1  # no child, no sibling, no parent
# Stages of a node: not evaluated yet; the game is over; evaluated; evaluated, and its candidates have priors.
AWAITED, OVER, EVALUATED, WITH_PRIORS = range(4)
UNPROVEN, LOSS, DRAW, WIN = range(4)  # the result that is proven for the player to move; its value is proven - DRAW
POLICY_WEIGHT_SUM = np.float32(1000.0)  # weights that are not visit counts are shares in thousandths
MIN_PRIOR = np.float32(1e-12)  # of a legal move, so that its logarithm is finite

NODE = np.dtype(
    [
        # Rewards and evaluations here and below, for the player above; at the root for the player to move.
        ("value_sum", np.float32),
        ("lead_sum", np.float32),  # likewise score leads in points, in searches that count points
        ("visits", np.int32),  # simulations through this node, its own evaluation and pending ones included
        ("pending", np.int32),  # those of them that still await their evaluation
        ("prior", np.float32),  # of the move that led here
        ("next_sibling", np.int32),
        ("proven", np.int8),  # for the player to move
        ("proven_for_parent", np.int8),  # the same for the player above
        ("stage", np.int8),
        ("best_first", np.bool_),  # whether the first candidate has the largest prior
        # The factor from a value here to a value above: 1.0 or the discount; where the player to move changes, -1.0, or
        # with three and more players 0.0, since one player's value does not tell another's.
        ("value_factor", np.float32),
        ("reward", np.float32),  # of the move that led here, in a one-player game
        ("chance", np.bool_),  # whether nature is to move
        ("player", np.int8),  # to move; at an afterstate the player who moved last
        ("action", np.int32),  # that led here
        ("parent", np.int32),
        ("first_child", np.int32),  # the newest; children are linked by next_sibling
        ("first_candidate", np.int32),
        ("num_candidates", np.int32),
        ("explored_prior", np.float32),  # the sum of the children's priors
        ("evaluation", np.float32),  # the network's value, or the game's outcome, for the player to move
        ("logit", np.float32),  # the logarithm of ``prior``, with noise at the root of a Gumbel search
    ],
    align=True,
)
SEARCH = np.dtype(
    [
        ("used_nodes", np.int32),
        ("used_candidates", np.int32),
        ("budget", np.int32),  # simulations wanted at the root, including those kept from the previous move
        ("waiting", np.int32),  # leaves that await evaluation
        ("active", np.bool_),
        ("full", np.bool_),  # a full search, whose result is a policy target
        ("noisy", np.bool_),  # whether noise is added at the root
        ("ready", np.bool_),  # whether the root has been prepared for this search
    ],
    align=True,
)


class Trees(NamedTuple):
    """B trees of at most M nodes and E candidates over A actions.

    Record arrays are typed ``Any``, because numpy's types do not know their fields.
    """

    searches: Any  # [B] of SEARCH
    nodes: Any  # [B, M] of NODE
    priors: Floats  # [B, E] of candidates; logits in nodes that are EVALUATED
    actions: Actions  # [B, E] of candidates
    root_priors: Floats  # [B, A] of the network, at least MIN_PRIOR for legal actions and 0 elsewhere


def make_trees(count: int, *, max_nodes: int, num_actions: int, most_legal_actions: int) -> Trees:
    """Allocate ``count`` empty trees. The arrays are mapped, not filled: memory is used as trees grow."""
    candidates = max_nodes * most_legal_actions
    return Trees(
        searches=np.zeros(count, SEARCH).view(np.recarray),
        nodes=np.zeros((count, max_nodes), NODE).view(np.recarray),
        priors=np.zeros((count, candidates), np.float32),
        actions=np.zeros((count, candidates), np.int32),
        root_priors=np.zeros((count, num_actions), np.float32),
    )


@compiled_part
def reset_tree(trees: Trees, b: int, player: int) -> None:
    """Replace tree ``b`` by a root that awaits its evaluation, with ``player`` to move."""
    search = trees.searches[b]
    search.used_nodes = 1
    search.used_candidates = 0
    search.waiting = 0
    search.ready = False
    clear_node(trees.nodes[b, 0])
    trees.nodes[b, 0].player = player


@inlined_by_llvm
def clear_node(node: Any) -> None:
    """Reset a node: it awaits its evaluation and has no parent."""
    node.value_sum = 0.0
    node.lead_sum = 0.0
    node.visits = 0
    node.pending = 0
    node.next_sibling = NONE
    node.proven = UNPROVEN
    node.proven_for_parent = UNPROVEN
    node.stage = AWAITED
    node.value_factor = 1.0
    node.reward = 0.0
    node.chance = False
    node.parent = NONE
    node.first_child = NONE
    node.num_candidates = 0
    node.explored_prior = 0.0


@inlined_by_llvm
def add_child(trees: Trees, b: int, number: int) -> int:
    """Turn a node's first candidate into a child; returns the child's number.

    The caller sets the player to move there.
    """
    search, node = trees.searches[b], trees.nodes[b, number]
    new = search.used_nodes
    search.used_nodes += 1
    child = trees.nodes[b, new]
    clear_node(child)
    child.parent = number
    child.action = trees.actions[b, node.first_candidate]
    child.prior = trees.priors[b, node.first_candidate]
    child.next_sibling = node.first_child
    node.first_child = new
    node.first_candidate += 1
    node.num_candidates -= 1
    node.best_first = False
    node.explored_prior += child.prior
    return int(new)


@inlined_by_llvm
def add_outcome_child(trees: Trees, b: int, number: int, outcome: int) -> int:
    """Add a child for ``outcome`` to a chance node; returns the child's number.

    The caller sets the player to move there.
    """
    search, node = trees.searches[b], trees.nodes[b, number]
    new = search.used_nodes
    search.used_nodes += 1
    child = trees.nodes[b, new]
    clear_node(child)
    child.parent = number
    child.action = outcome
    child.next_sibling = node.first_child
    node.first_child = new
    return int(new)


@inlined_by_llvm
def turn_logits_into_priors(trees: Trees, b: int, number: int) -> None:
    """Turn the logits of an evaluated node's candidates into priors.

    Done when a simulation first passes through the node, because most nodes remain leaves.
    """
    node = trees.nodes[b, number]
    priors = trees.priors[b, node.first_candidate : node.first_candidate + node.num_candidates]
    softmax_in_place(priors)
    node.stage = WITH_PRIORS
    node.best_first = False


@compiled_part
def softmax_in_place(scores: Floats) -> None:
    """Turn ``scores`` into probabilities, in place."""
    largest = scores[0]
    for i in range(len(scores)):
        largest = max(largest, scores[i])
    total = np.float32(0.0)
    for i in range(len(scores)):
        # softmax(x)(i) = exp(x(i) - max x) / sum of exp(x - max x)
        scores[i] = math.exp(scores[i] - largest)
        total += scores[i]
    scale = np.float32(1.0) / total
    for i in range(len(scores)):
        scores[i] *= scale


@compiled_part
def scale_to_sum(weights: Floats, wanted: np.float32) -> None:
    """Scale ``weights`` to the sum ``wanted``."""
    total = np.float32(0.0)
    for action in range(len(weights)):
        total += weights[action]
    for action in range(len(weights)):
        weights[action] *= wanted / total


@inlined_by_llvm
def move_best_candidate_first(trees: Trees, b: int, number: int) -> None:
    """Move the candidate of the largest prior to the front, where selection expects it."""
    node = trees.nodes[b, number]
    first, end = node.first_candidate, node.first_candidate + node.num_candidates
    best = first
    for i in range(first, end):
        if trees.priors[b, i] > trees.priors[b, best]:
            best = i
    action, prior = trees.actions[b, first], trees.priors[b, first]
    trees.actions[b, first], trees.priors[b, first] = trees.actions[b, best], trees.priors[b, best]
    trees.actions[b, best], trees.priors[b, best] = action, prior
    node.best_first = True


@compiled_without_refcounts
def find_child_by_action(trees: Trees, b: int, number: int, action: int) -> int:
    """Return a node's child by an action or a chance outcome, or NONE."""
    child = trees.nodes[b, number].first_child
    while child != NONE and trees.nodes[b, child].action != action:
        child = trees.nodes[b, child].next_sibling
    return int(child)


@compiled_without_refcounts
def make_node_root(trees: Trees, b: int, root: int, renumbered: NDArray[np.int32]) -> None:
    """Make node ``root`` the root of tree ``b`` and drop the rest. No evaluation may be pending.

    A node's number is larger than its parent's, and its candidates lie behind: one pass moves everything down in
    place. ``renumbered`` ``[M]`` is scratch space.
    """
    search, nodes = trees.searches[b], trees.nodes[b]
    found, candidates = 0, 0
    for old in range(root, search.used_nodes):
        node = nodes[old]
        parent = NONE if old == root or node.parent < root else renumbered[node.parent]
        if old != root and parent == NONE:
            renumbered[old] = NONE
            continue
        renumbered[old] = found
        nodes[found] = node
        node = nodes[found]
        node.parent = parent
        node.first_child = NONE
        node.next_sibling = NONE
        if parent != NONE:
            node.next_sibling = nodes[parent].first_child
            nodes[parent].first_child = found
        move_candidates(trees, b, found, candidates)
        candidates += node.num_candidates
        found += 1
    convert_root_sums_to_mover(nodes)
    search.used_nodes = found
    search.used_candidates = candidates
    search.ready = False


@compiled_part
def convert_root_sums_to_mover(nodes: Any) -> None:
    """Change the sums of the new root of one tree ``[M]`` from those of the player above to those of its own player."""
    root = nodes[0]
    if root.value_factor != 0:
        root.value_sum = (root.value_sum - np.float32(root.visits) * root.reward) / root.value_factor
    else:
        root.value_sum = sum_node_values(nodes, 0)
    root.lead_sum *= root.value_factor
    root.value_factor = 1.0
    root.reward = 0.0


@inlined_by_llvm
def node_mean_value(nodes: Any, number: int) -> np.float32:
    """Return a node's mean value for the player to move there, in one tree ``[M]``."""
    node = nodes[number]
    visits = np.float32(node.visits - node.pending)
    if node.value_factor != 0:
        # The inverse of the backup: value = (mean above - reward) / factor
        return (node.value_sum / visits - node.reward) / node.value_factor
    return sum_node_values(nodes, number) / visits


@compiled_part
def sum_node_values(nodes: Any, number: int) -> np.float32:
    """Return the sum of a node's values for the player to move there, in one tree ``[M]``."""
    total, child_number = nodes[number].evaluation, nodes[number].first_child
    while child_number != NONE:
        total += nodes[child_number].value_sum
        child_number = nodes[child_number].next_sibling
    return np.float32(total)


@inlined_by_llvm
def node_mean_lead(nodes: Any, number: int) -> np.float32:
    """Return a node's mean score lead for the player to move there, in one tree ``[M]`` of a game for two."""
    node = nodes[number]
    return node.value_factor * node.lead_sum / np.float32(max(node.visits - node.pending, 1))


@compiled_part
def move_candidates(trees: Trees, b: int, number: int, first: int) -> None:
    """Move a node's candidates down to the place ``first``."""
    node = trees.nodes[b, number]
    for i in range(node.num_candidates):
        trees.actions[b, first + i] = trees.actions[b, node.first_candidate + i]
        trees.priors[b, first + i] = trees.priors[b, node.first_candidate + i]
    node.first_candidate = first
