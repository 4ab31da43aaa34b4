"""The trees of B games at once, as flat arrays of records.

Tree ``b`` is row ``b`` of every array. Node 0 is the root. The edges of a node stand side by side, the visited ones first, so that
selection looks at a few edges and not at every legal action: ``edges[b, first_edge : first_edge + num_edges]``.

Values are always those of the player to move: a node's for the player to move there, an edge's for the player who chooses it.
Records and not one array a field, because a compiled call with many arrays costs more than a simulation may.
"""

from typing import Any, NamedTuple

import numpy as np

from games.compiled import lean

UNEXPANDED = -1  # num_edges of a node whose evaluation has not come back
NONE = -1  # no child, no parent
UNPROVEN, LOSS, DRAW, WIN = range(4)  # what the rules have been shown to force; a proven value is proven - DRAW

NODE = np.dtype(
    [
        ("value_sum", np.float32),  # of the evaluations here and below, for the player to move
        ("explored", np.float32),  # the sum of the priors of the visited edges
        ("visits", np.int32),  # simulations through this node, its own evaluation included, pending ones included
        ("parent", np.int32),
        ("parent_edge", np.int32),
        ("first_edge", np.int32),
        ("num_edges", np.int32),  # 0 where the game is over
        ("num_visited", np.int32),  # of those edges
        ("player", np.int8),  # to move
        ("proven", np.int8),  # UNPROVEN, or the value under perfect play
    ],
    align=True,
)
EDGE = np.dtype(
    [
        ("value", np.float32),  # sum, for the player to move above the edge; a pending visit counts as a virtual loss
        ("prior", np.float32),
        ("visits", np.int32),  # pending ones included
        ("child", np.int32),
        ("action", np.int32),
        ("root_prior", np.float32),  # at the root: the network's prior, before noise
        ("gumbel", np.float32),  # at the root: this move's Gumbel noise
        ("proven", np.int8),  # for the player to move above the edge
    ],
    align=True,
)
SEARCH = np.dtype(
    [
        ("used_nodes", np.int32),
        ("used_edges", np.int32),
        ("budget", np.int32),  # simulations wanted at the root, those kept from the move before included
        ("active", np.bool_),
        ("full", np.bool_),  # a full search, with root noise and forced playouts, for a policy target
        ("noisy", np.bool_),  # whether noise is added at the root at all
        ("ready", np.bool_),  # whether this move's noise has been added
    ],
    align=True,
)


class Trees(NamedTuple):
    """B trees of at most M nodes and E edges (record arrays: ``Any`` because numpy's types know no fields)."""

    searches: Any  # [B] of SEARCH
    nodes: Any  # [B, M] of NODE
    edges: Any  # [B, E] of EDGE


def make_trees(count: int, *, max_nodes: int, max_edges: int) -> Trees:
    """``count`` empty trees. The arrays are mapped, not filled: memory is used as trees grow."""
    return Trees(
        np.zeros(count, SEARCH).view(np.recarray),
        np.zeros((count, max_nodes), NODE).view(np.recarray),
        np.zeros((count, max_edges), EDGE).view(np.recarray),
    )


@lean
def add_node(trees: Trees, b: int, parent: int, parent_edge: int, player: int) -> int:
    """A new node of tree ``b``, awaiting its evaluation."""
    search = trees.searches[b]
    number = search.used_nodes
    search.used_nodes = number + 1
    node = trees.nodes[b, number]
    node.value_sum = 0.0
    node.explored = 0.0
    node.visits = 0
    node.parent = parent
    node.parent_edge = parent_edge
    node.first_edge = 0
    node.num_edges = UNEXPANDED
    node.num_visited = 0
    node.player = player
    node.proven = UNPROVEN
    return int(number)


@lean
def plant(trees: Trees, b: int, player: int) -> None:
    """Cut tree ``b`` down to a root that awaits its evaluation."""
    search = trees.searches[b]
    search.used_nodes = 0
    search.used_edges = 0
    search.ready = False
    add_node(trees, b, NONE, NONE, player)


@lean
def swap_edges(trees: Trees, b: int, one: int, other: int) -> None:
    """Exchange two unvisited edges of one node."""
    first, second = trees.edges[b, one], trees.edges[b, other]
    action, prior, root_prior, noise = first.action, first.prior, first.root_prior, first.gumbel
    first.action, first.prior, first.root_prior, first.gumbel = second.action, second.prior, second.root_prior, second.gumbel
    second.action, second.prior, second.root_prior, second.gumbel = action, prior, root_prior, noise


@lean
def bring_best_forward(trees: Trees, b: int, number: int) -> None:
    """Put the unvisited edge of the largest prior right behind the visited ones, where selection looks for it."""
    node = trees.nodes[b, number]
    begin = node.first_edge + node.num_visited
    best, best_prior = begin, np.float32(-1.0)
    for edge in range(begin, node.first_edge + node.num_edges):
        prior = trees.edges[b, edge].prior
        if prior > best_prior:
            best, best_prior = edge, prior
    if best != begin:
        swap_edges(trees, b, begin, best)


@lean
def keep_subtree(trees: Trees, b: int, root: int, spare: Trees) -> None:
    """Make node ``root`` the root of tree ``b`` and forget the rest.

    The nodes are renumbered breadth first into ``spare``, a single tree of the same size, and copied back.
    """
    spare.nodes[0, 0] = trees.nodes[b, root]
    spare.nodes[0, 0].parent = NONE
    found, edges, new = 1, 0, 0
    while new < found:
        node = spare.nodes[0, new]
        first = node.first_edge
        node.first_edge = edges
        for old in range(first, first + max(node.num_edges, 0)):
            spare.edges[0, edges] = trees.edges[b, old]
            edge = spare.edges[0, edges]
            if edge.child != NONE:
                spare.nodes[0, found] = trees.nodes[b, edge.child]
                spare.nodes[0, found].parent = new
                spare.nodes[0, found].parent_edge = edges
                edge.child = found
                found += 1
            edges += 1
        new += 1
    for number in range(found):
        trees.nodes[b, number] = spare.nodes[0, number]
    for number in range(edges):
        trees.edges[b, number] = spare.edges[0, number]
    search = trees.searches[b]
    search.used_nodes = found
    search.used_edges = edges
    search.ready = False
    for number in range(max(trees.nodes[b, 0].num_edges, 0)):
        trees.edges[b, number].root_prior = trees.edges[b, number].prior
