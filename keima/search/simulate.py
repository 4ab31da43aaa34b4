"""One step of search in all trees: back up the network's answers, then simulate until the next positions are known.

Simulations that end in a finished game, a proven node or a cached position are backed up at once, and the tree is
simulated again. Each tree is processed from start to end before the next one, while it is in the processor's cache: the
network has evicted it.
"""

from typing import Any

import numpy as np

from keima.base.random import Streams
from keima.compilation.decorators import compiled_part, compiled_without_refcounts, inlined_by_llvm
from keima.games.authoring.kept_errors import raise_kept_error
from keima.games.chance import sample_chance_outcome
from keima.games.game import CHANCE, Game, Planes, Rules
from keima.search.cache import PositionCache, find_position, store_position
from keima.search.lookahead import prove_by_lookahead
from keima.search.policies import add_exploration_noise, note_new_child, select_child
from keima.search.puct import LARGE, Evaluate, SearchParams, save_root_priors
from keima.search.tree import (
    AWAITED,
    DRAW,
    EVALUATED,
    LOSS,
    NONE,
    OVER,
    UNPROVEN,
    WIN,
    WITH_PRIORS,
    Floats,
    Trees,
    add_child,
    add_outcome_child,
    find_child_by_action,
    node_mean_lead,
    turn_logits_into_priors,
)
from keima.search.workspace import Leaves, Workspace

AWAITS_EVALUATION, BACKED_UP, COLLIDED = range(3)  # how a simulation ended

NOT_FINITE = -1  # returned in place of a count: an answer was not finite


def evaluate_batch(
    evaluate: Evaluate, observations: Planes, game: Game, *, num_values: int | None = None
) -> tuple[Floats, Floats]:
    """Call the network; returns logits ``[N, A]`` and values ``[N, V]`` in the form that compiled code relies on.

    Args:
        num_values: V; None: the game's. It is 2 in searches that count points.

    Raises:
        ValueError: the network returned other shapes.
    """
    logits, values = evaluate(observations)
    logits, values = np.ascontiguousarray(logits, np.float32), np.ascontiguousarray(values, np.float32)
    count = len(observations)
    num_values = num_values or game.num_values
    wanted = (count,) if num_values == 1 else (count, num_values)
    if logits.shape != (count, game.num_actions) or values.shape != wanted:
        raise ValueError(
            f"the network returned {logits.shape} logits and {values.shape} values for {count} positions of "
            f"{game.num_actions} actions"
        )
    return logits, values.reshape(count, num_values)


def raise_if_failed(count: int) -> int:
    """``count``, as ``advance_searches`` returns it.

    Raises:
        ValueError: an answer of the network was not finite.
        BaseException: what rules that are asked in Python could not raise.
    """
    raise_kept_error()
    if count == NOT_FINITE:
        raise ValueError("the network returned NaN or infinity for a logit or a value")
    return count


@inlined_by_llvm
def has_simulations_left(params: SearchParams, trees: Trees, b: int) -> bool:
    """Return whether tree ``b`` has simulations left that are needed."""
    search, root = trees.searches[b], trees.nodes[b, 0]
    if not search.active:
        return False
    if root.visits == 0:
        return True
    if root.stage == AWAITED or root.proven != UNPROVEN or root.visits - 1 >= search.budget:
        return False
    if search.used_nodes + params.spare_nodes > len(trees.nodes[b]):
        return False
    return not (params.early_stop and is_best_move_settled(trees, b))


@compiled_part
def is_best_move_settled(trees: Trees, b: int) -> bool:
    """Return whether the simulations that are left cannot bring another root move to as many visits as the most
    visited.
    """
    nodes, visits = trees.nodes[b], trees.nodes[b, 0].visits - 1
    left = trees.searches[b].budget - visits
    if visits <= left:  # spares the first half of a search the loop
        return False
    most = second = np.int32(0)
    number = nodes[0].first_child
    while number != NONE:
        child = nodes[number]
        if child.proven_for_parent != LOSS:
            second = max(second, min(most, child.visits))
            most = max(most, child.visits)
        number = child.next_sibling
    # Even if all that are left went to the second, it would not reach the first
    return bool(most - second > left)


@compiled_without_refcounts
def advance_searches(work: Workspace, logits: Floats, values: Floats) -> int:
    """Back up the answers ``logits`` ``[N, A]`` and ``values`` ``[N, V]`` to the last batch, and prepare the next.

    As one record the workspace costs no speed; compiling takes 7 to 17 % longer than with its parts as arguments, once
    on a machine.

    Returns:
        The size n of the next batch, ``work.leaves.observations[:n]``, or NOT_FINITE.
    """
    if not are_finite(logits, values):
        return NOT_FINITE
    answered = waiting = int(np.int64(0))  # for a literal 0, numba would compile what takes it once more
    for b in range(len(work.trees.searches)):
        answered = back_up_answers(work, b, logits, values, answered)
        waiting = collect_leaves(work, b, waiting)
    return waiting


@compiled_part
def are_finite(logits: Floats, values: Floats) -> bool:
    """Return whether answers ``[N, A]`` and ``[N, V]`` are finite."""
    finite = True
    for row in range(len(values)):
        for player in range(values.shape[1]):
            finite &= abs(values[row, player]) < LARGE
        for action in range(logits.shape[1]):
            finite &= abs(logits[row, action]) < LARGE
    return bool(finite)


@inlined_by_llvm
def back_up_answers(work: Workspace, b: int, logits: Floats, values: Floats, row: int) -> int:
    """Expand and back up the leaves of tree ``b``, whose answers begin at ``row``; returns the row after them."""
    trees, leaves, cache = work.trees, work.leaves, work.cache
    waiting = trees.searches[b].waiting
    for i in range(waiting):
        leaf = leaves.rows[b, i]
        expand_leaf(trees, b, leaf, logits[row + i], values[row + i])
        store_position(cache, leaf.hash, logits[row + i], values[row + i])
    trees.searches[b].waiting = 0
    return row + waiting


@inlined_by_llvm  # into the loop over trees: as a call, its arguments alone cost a quarter of a microsecond
def collect_leaves(work: Workspace, b: int, row: int) -> int:
    """Simulate in tree ``b`` until it has as many leaves as allowed; they are observed from ``row`` on.

    Returns:
        The row after them.
    """
    params, trees, leaves = work.params, work.trees, work.leaves
    search = trees.searches[b]
    while search.waiting < leaves.rows.shape[1] and has_simulations_left(params, trees, b):
        if not search.ready and trees.nodes[b, 0].stage != AWAITED:
            prepare_root(params, trees, b, work.streams, leaves.scratch)
        end = run_simulation(work, b, row + search.waiting)
        if end == COLLIDED:
            break
        if end == AWAITS_EVALUATION and not expand_leaf_from_cache(trees, leaves, work.cache, b):
            search.waiting += 1
    return row + search.waiting


@compiled_part
def prepare_root(params: SearchParams, trees: Trees, b: int, streams: Streams, scratch: Floats) -> None:
    """Prepare an evaluated root for this move's search: save its priors, and add noise if wanted."""
    save_root_priors(trees, b)
    if trees.searches[b].noisy:
        add_exploration_noise(params, trees, b, streams, scratch)
    trees.searches[b].ready = True


@inlined_by_llvm
def run_simulation(work: Workspace, b: int, row: int) -> int:
    """Descend tree ``b`` from its root to a new node, a finished game, or a node that already awaits its evaluation.

    Returns:
        AWAITS_EVALUATION (the new node is observed in ``row``), BACKED_UP or COLLIDED.
    """
    rules, params, trees, leaves = work.rules, work.params, work.trees, work.leaves
    step = rules.step
    nodes, state = trees.nodes[b], leaves.state
    for word in range(len(state)):
        state[word] = work.states[b, word]
    number = 0
    while nodes[number].stage >= EVALUATED and nodes[number].proven == UNPROVEN:
        node = nodes[number]
        if node.stage == EVALUATED:
            turn_logits_into_priors(trees, b, number)
        outcome = sample_chance_outcome(rules, state, leaves.moves, work.streams, b) if node.chance else NONE
        next_number = (
            find_child_by_action(trees, b, number, outcome)
            if node.chance
            else select_child(params, trees, b, number, work.schedules)
        )
        node.visits += 1
        node.pending += 1
        if next_number != NONE:
            step(state, np.int64(nodes[next_number].action))
        else:
            next_number = add_outcome_child(trees, b, number, outcome) if node.chance else add_child(trees, b, number)
            play_child_move(rules, params, leaves, node, nodes[next_number])
            if not node.chance:
                note_new_child(params, trees, b, next_number)
        number = next_number
    node = nodes[number]
    node.visits += 1
    node.pending += 1
    lead = np.float32(0.0)
    if node.proven != UNPROVEN:
        value = np.float32(node.proven - DRAW)
    elif node.stage == OVER:
        value, lead = node.evaluation, node_mean_lead(nodes, number)
    elif node.visits > 1:
        undo_visits(trees, b, number)
        return COLLIDED
    elif rules.terminal(state) != 0:
        value, lead = mark_terminal(rules, params, leaves, node), count_score_lead(params, leaves, node)
    elif number > 0 and len(leaves.lookahead.frames) > 0 and prove_new_node(rules, leaves, node):
        value = node.evaluation
    else:
        add_leaf_to_batch(work, b, number, row)
        return AWAITS_EVALUATION
    if len(leaves.returns) > 2:  # the game is over, since with so many players nothing is proven
        rules.returns(leaves.state, leaves.returns)
        back_up_player_values(trees, b, number, leaves.returns, 0)
    else:
        back_up_value(trees, b, number, value, lead)
    return BACKED_UP


@inlined_by_llvm
def play_child_move(rules: Rules, params: SearchParams, leaves: Leaves, node: Any, child: Any) -> None:
    """Play a new child's move; record the player to move there and the reward."""
    state, current_player = leaves.state, rules.current_player
    before = current_score(rules, leaves) if params.has_rewards else np.float32(0.0)
    rules.step(state, np.int64(child.action))
    player = current_player(state)
    if (player < 0 or player >= len(leaves.returns)) and rules.terminal(state) != 0:
        player = node.player  # what the game says is arbitrary there
    if player == CHANCE:
        child.chance = True
        if not params.evaluate_afterstates:
            child.stage = WITH_PRIORS
        player = node.player
    child.player = player
    child.value_factor = 1.0 if player == node.player else (-1.0 if len(leaves.returns) == 2 else 0.0)
    if params.has_rewards:
        child.reward = current_score(rules, leaves) - before
        if not node.chance:
            child.value_factor = params.discount


@inlined_by_llvm
def current_score(rules: Rules, leaves: Leaves) -> np.float32:
    """Return the score so far of a one-player game."""
    rules.returns(leaves.state, leaves.returns)
    return leaves.returns[0]


@compiled_part
def mark_terminal(rules: Rules, params: SearchParams, leaves: Leaves, node: Any) -> np.float32:
    """Mark a new node where the game is over; returns its value."""
    rules.returns(leaves.state, leaves.returns)
    value = np.float32(0.0) if params.has_rewards else leaves.returns[node.player]  # rewards were added along the path
    node.stage = OVER
    node.evaluation = value
    if params.proven_results and (value == 0 or abs(value) == 1):  # what lies between is no win: there may be better
        node.proven = WIN if value > 0 else (LOSS if value < 0 else DRAW)
    return value


@inlined_by_llvm
def count_score_lead(params: SearchParams, leaves: Leaves, node: Any) -> np.float32:
    """Return the score lead of a node's player by the rules, as if the game ended there; 0 unless points count."""
    if params.score_utility == 0:
        return np.float32(0.0)
    lead = np.float32(params.final_score(leaves.state, leaves.ownership)) / np.float32(2.0)
    return lead if node.player == 0 else -lead


@compiled_part
def prove_new_node(rules: Rules, leaves: Leaves, node: Any) -> bool:
    """Look ahead from a new node; if that decides the game, mark the node as proven."""
    proven = prove_by_lookahead(rules, leaves.lookahead, leaves.state)
    if proven == UNPROVEN:
        return False
    node.stage = OVER
    node.proven = proven
    node.evaluation = np.float32(proven - DRAW)
    return True


@inlined_by_llvm
def add_leaf_to_batch(work: Workspace, b: int, number: int, row: int) -> None:
    """Store a new node's legal actions, and observe its position in ``row``."""
    rules, params, trees, leaves = work.rules, work.params, work.trees, work.leaves
    search, node = trees.searches[b], trees.nodes[b, number]
    leaf = leaves.rows[b, search.waiting]
    leaf.node = number
    leaf.counted_lead = count_score_lead(params, leaves, node)
    leaf.hash = np.uint64(np.int64(rules.hash(leaves.state)))  # interpreted, np.uint64 rejects a negative int
    node.first_candidate = search.used_candidates
    node.num_candidates = rules.legal_actions(leaves.state, trees.actions[b, node.first_candidate :])
    search.used_candidates += node.num_candidates
    rules.observe(leaves.state, leaves.observations[row])


@inlined_by_llvm
def expand_leaf(trees: Trees, b: int, leaf: Any, logits: Floats, values: Floats) -> None:
    """Give a leaf's node its evaluation, ``logits`` ``[A]`` and ``values`` ``[V]``, and back the values up.

    Of two values the second is the lead that the network foresees.
    """
    number = int(leaf.node)
    node = trees.nodes[b, number]
    for i in range(node.first_candidate, node.first_candidate + node.num_candidates):
        trees.priors[b, i] = logits[trees.actions[b, i]]
    node.stage = WITH_PRIORS if node.chance else EVALUATED
    node.evaluation = values[0]
    if len(values) > 2:
        back_up_player_values(trees, b, number, values, node.player)
    else:
        # The lead of a leaf is the mean of what the network foresees and what the board counts
        lead = (values[1] + leaf.counted_lead) / np.float32(2.0) if len(values) == 2 else np.float32(0.0)
        back_up_value(trees, b, number, values[0], lead)


@inlined_by_llvm
def expand_leaf_from_cache(trees: Trees, leaves: Leaves, cache: PositionCache, b: int) -> bool:
    """Expand tree ``b``'s newest leaf from the position cache; False if its position is not cached."""
    leaf = leaves.rows[b, trees.searches[b].waiting]
    slot = find_position(cache, leaf.hash)
    if slot < 0:
        return False
    expand_leaf(trees, b, leaf, cache.logits[slot], cache.values[slot])
    return True


@inlined_by_llvm
def back_up_value(trees: Trees, b: int, number: int, value: np.float32, lead: np.float32) -> None:
    """Add ``value``, that of node ``number`` for its player, the rewards on the path, and the player's ``lead`` in
    points to all nodes above.

    Propagates proofs as far as they go.
    """
    nodes = trees.nodes[b]
    while number != NONE:
        node = nodes[number]
        # Negamax, or in points the return of a move: value = reward + discount * value
        value = node.value_factor * value + node.reward
        lead = node.value_factor * lead
        node.value_sum += value
        node.lead_sum += lead
        node.pending -= 1
        if node.proven != UNPROVEN and node.proven_for_parent == UNPROVEN:
            node.proven_for_parent = node.proven if node.value_factor > 0 else WIN + LOSS - node.proven
            if node.parent != NONE and not nodes[node.parent].chance:  # one outcome proves nothing about the others
                update_proof(nodes, node.parent, node.proven_for_parent)
        number = node.parent


@inlined_by_llvm
def back_up_player_values(trees: Trees, b: int, number: int, values: Floats, first: int) -> None:
    """Add to node ``number`` and to all above it what ``values`` ``[players]`` have for the player who moved there.

    They are those of player ``first``, of the player whose number is one higher, and so on around.
    """
    nodes = trees.nodes[b]
    while number != NONE:
        node = nodes[number]
        player = nodes[node.parent].player if node.parent != NONE else node.player
        node.value_sum += values[(player - first + len(values)) % len(values)]
        node.pending -= 1
        number = node.parent


@inlined_by_llvm
def update_proof(nodes: Any, number: int, latest: int) -> None:
    """Prove a node of one tree ``[M]`` if ``latest``, the newest proof of its moves, is a win, or if all its moves are
    proven.
    """
    node = nodes[number]
    if latest == WIN:
        node.proven = WIN
        return
    if node.num_candidates > 0:
        return
    best = np.int8(LOSS)
    child_number = node.first_child
    while child_number != NONE:
        child = nodes[child_number]
        if child.proven_for_parent == UNPROVEN:
            return
        best = max(best, child.proven_for_parent)
        child_number = child.next_sibling
    node.proven = best


@compiled_part
def undo_visits(trees: Trees, b: int, number: int) -> None:
    """Undo the visits of a simulation that met a node whose evaluation is already pending."""
    while number != NONE:
        node = trees.nodes[b, number]
        node.visits -= 1
        node.pending -= 1
        number = node.parent
