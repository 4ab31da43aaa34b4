"""The policies by which a search explores and decides, PUCT's or Gumbel search's: compiled code asks only here which.

The branch is taken at run time and costs nothing measurable. Selection as a function value in the workspace was slower,
by 8 % in searches of 9x9 Go and by 20 % in those of Connect Four, since it cannot be inlined; a policy as a type
argument would compile the search once for each algorithm.
"""

from keima.base.random import Streams
from keima.compilation.decorators import inlined_by_llvm
from keima.search.gumbel import (
    add_root_gumbels,
    find_best_considered_child,
    select_gumbel_child,
    select_gumbel_root_child,
    store_child_logit,
    write_improved_policy,
)
from keima.search.puct import (
    Integers,
    SearchParams,
    add_dirichlet_noise,
    select_puct_child,
    write_visit_weights,
)
from keima.search.tree import NONE, Floats, Trees


@inlined_by_llvm
def add_exploration_noise(params: SearchParams, trees: Trees, b: int, streams: Streams, scratch: Floats) -> None:
    """Add the algorithm's noise to the priors of the root's moves; ``scratch`` is ``[2, A]``."""
    if params.gumbel:
        add_root_gumbels(params, trees, b, streams, scratch)
    else:
        add_dirichlet_noise(params, trees, b, streams, scratch)


@inlined_by_llvm
def select_child(params: SearchParams, trees: Trees, b: int, number: int, schedules: Integers) -> int:
    """Return the child to follow at a node, or NONE for the node's first candidate."""
    if not params.gumbel:
        return select_puct_child(params, trees, b, number)
    if number > 0:
        return select_gumbel_child(params, trees, b, number)
    return select_gumbel_root_child(params, trees, b, schedules[1 if trees.searches[b].full else 0])


@inlined_by_llvm
def note_new_child(params: SearchParams, trees: Trees, b: int, number: int) -> None:
    """Store what the algorithm needs of a new child of an action."""
    if params.gumbel:
        store_child_logit(trees, b, number)


@inlined_by_llvm
def write_policy_target(params: SearchParams, trees: Trees, b: int, weights: Floats) -> None:
    """Write the weights ``[A]`` of the actions at an unproven root: Gumbel's improved policy, or PUCT's visits."""
    if params.gumbel:
        write_improved_policy(params, trees, b, weights)
    else:
        write_visit_weights(params, trees, b, weights)


@inlined_by_llvm
def find_chosen_child(params: SearchParams, trees: Trees, b: int) -> int:
    """Return the child of an unproven root whose move the algorithm has chosen, or NONE: its move is sampled."""
    return find_best_considered_child(params, trees, b) if params.gumbel else NONE
