"""One step of search for all trees: take the network's answers, back them up, and walk to the next positions to ask
about.

Walks that end in a finished game, a proven node or a cached position are backed up at once and the tree is walked
again. Each tree is dealt with from beginning to end before the next one, as long as it is in the processor's cache: the
network has displaced it.
"""

from typing import Any, NamedTuple

import numpy as np

from configs.schema import SearchSettings
from games.compiled import inlined, lean
from games.game import CHANCE, Actions, Game, Planes, Returns, Rules, States
from training.common.random import Streams
from training.search.cache import PositionCache, find_position, store_position
from training.search.chance import draw_outcome
from training.search.gumbel import add_root_gumbels, choose_gumbel_child, choose_gumbel_root_child, note_logit
from training.search.lookahead import Ahead, look_ahead, make_ahead, plies_ahead
from training.search.puct import (
    LARGE,
    Evaluate,
    Integers,
    SearchParams,
    add_root_noise,
    choose_child,
    forced_child,
    note_root_priors,
)
from training.search.tree import (
    AWAITED,
    CLOSED,
    DRAW,
    LOSS,
    NONE,
    OPEN,
    OVER,
    UNPROVEN,
    WIN,
    Floats,
    Trees,
    add_child,
    add_outcome,
    find_child,
    open_node,
)

AWAITS_EVALUATION, BACKED_UP, COLLIDED = range(3)  # how a walk ended

UNSOUND = -1  # in place of a count: an answer was no number

LEAF = np.dtype([("node", np.int32), ("hash", np.uint64)], align=True)


class Leaves(NamedTuple):
    """The nodes of B trees that await evaluation, at most L each, and scratch space."""

    rows: Any  # [B, L] of LEAF; the first SEARCH.waiting are meant
    observations: Planes  # [B * L, C, H, W]: what the network is asked next, tree by tree
    state: States  # [S] scratch
    returns: Returns  # [players] scratch
    scratch: Floats  # [2, A]
    outcomes: Actions  # [O] scratch
    chances: Floats  # [O] scratch
    ahead: Ahead  # scratch


def make_leaves(game: Game, num_trees: int, settings: SearchSettings) -> Leaves:
    """Space for ``settings.leaves_per_tree`` positions of each of ``num_trees``."""
    leaves_per_tree = settings.leaves_per_tree
    return Leaves(
        rows=np.zeros((num_trees, leaves_per_tree), LEAF).view(np.recarray),
        observations=np.zeros((num_trees * leaves_per_tree, *game.observation_shape), np.float32),
        state=game.initial_state(),
        returns=np.zeros(game.num_players, np.float32),
        scratch=np.zeros((2, game.num_actions), np.float32),
        outcomes=np.zeros(game.num_outcomes, np.int32),
        chances=np.zeros(game.num_outcomes, np.float32),
        ahead=make_ahead(game, plies_ahead(settings, game)),
    )


def ask(evaluate: Evaluate, observations: Planes, num_actions: int) -> tuple[Floats, Floats]:
    """The network's answers, in the form that compiled code trusts them to have.

    Raises:
        ValueError: there are too few or too many.
    """
    logits, values = evaluate(observations)
    logits, values = np.ascontiguousarray(logits, np.float32), np.ascontiguousarray(values, np.float32)
    count = len(observations)
    if logits.shape != (count, num_actions) or values.shape != (count,):
        raise ValueError(
            f"the network gave {logits.shape} logits and {values.shape} values for {count} positions of {num_actions} actions"
        )
    return logits, values


def checked(count: int) -> int:
    """``count``, as ``search_on`` returns it.

    Raises:
        ValueError: an answer of the network was no number.
    """
    if count == UNSOUND:
        raise ValueError("the network gave a logit or a value that is infinite or no number")
    return count


@inlined
def searching(trees: Trees, b: int) -> bool:
    """Whether tree ``b`` has simulations left to make."""
    search, root = trees.searches[b], trees.nodes[b, 0]
    if not search.active:
        return False
    if root.visits == 0:
        return True
    return root.stage != AWAITED and root.proven == UNPROVEN and root.visits - 1 < search.budget


@lean
def search_on(
    rules: Rules,
    params: SearchParams,
    trees: Trees,
    states: States,
    streams: Streams,
    schedules: Integers,
    leaves: Leaves,
    cache: PositionCache,
    logits: Floats,
    values: Floats,
) -> int:
    """Take the answers ``logits`` ``[N, A]`` and ``values`` ``[N]`` to what was asked, and find what to ask next.

    ``states`` ``[B, S]`` are those at the roots; ``schedules`` ``[2, considered actions + 1, simulations]`` are the
    sequential halving of cheap and full Gumbel searches.

    Returns:
        The number n of positions to evaluate, ``leaves.observations[:n]``, or UNSOUND.
    """
    if not are_numbers(logits, values):
        return UNSOUND
    answered, asked = 0, 0
    for b in range(len(trees.searches)):
        answered = take_answers(trees, leaves, cache, b, logits, values, answered)
        asked = find_leaves(rules, params, trees, states, streams, schedules, leaves, cache, b, asked)
    return asked


@lean
def are_numbers(logits: Floats, values: Floats) -> bool:
    """Whether answers ``[N, A]`` and ``[N]`` are finite."""
    finite = True
    for row in range(len(values)):
        finite &= abs(values[row]) < LARGE
        for action in range(logits.shape[1]):
            finite &= abs(logits[row, action]) < LARGE
    return bool(finite)


@lean
def take_answers(
    trees: Trees, leaves: Leaves, cache: PositionCache, b: int, logits: Floats, values: Floats, row: int
) -> int:
    """Expand and back up what tree ``b`` waits for, from ``row`` of the answers on; returns the row behind."""
    waiting = trees.searches[b].waiting
    for i in range(waiting):
        leaf = leaves.rows[b, i]
        expand(trees, b, leaf.node, logits[row + i], values[row + i])
        store_position(cache, leaf.hash, logits[row + i], values[row + i])
    trees.searches[b].waiting = 0
    return row + waiting


@lean
def find_leaves(
    rules: Rules,
    params: SearchParams,
    trees: Trees,
    states: States,
    streams: Streams,
    schedules: Integers,
    leaves: Leaves,
    cache: PositionCache,
    b: int,
    row: int,
) -> int:
    """Walk tree ``b`` until it waits for as many positions as it may; they are observed from ``row`` on.

    Returns the row behind.
    """
    search = trees.searches[b]
    while search.waiting < leaves.rows.shape[1] and searching(trees, b):
        if not search.ready and trees.nodes[b, 0].stage != AWAITED:
            prepare_root(params, trees, b, streams, leaves.scratch)
        end = walk(rules, params, trees, states, streams, schedules, leaves, b, row + search.waiting)
        if end == COLLIDED:
            break
        if end == AWAITS_EVALUATION and not expand_from_cache(trees, leaves, cache, b):
            search.waiting += 1
    return row + search.waiting


@lean
def prepare_root(params: SearchParams, trees: Trees, b: int, streams: Streams, scratch: Floats) -> None:
    """Make an evaluated root ready for this move's search: note its priors, and add noise to them if wanted."""
    note_root_priors(trees, b)
    if trees.searches[b].noisy and params.gumbel:
        add_root_gumbels(params, trees, b, streams, scratch)
    elif trees.searches[b].noisy:
        add_root_noise(params, trees, b, streams, scratch)
    trees.searches[b].ready = True


@inlined
def walk(
    rules: Rules,
    params: SearchParams,
    trees: Trees,
    states: States,
    streams: Streams,
    schedules: Integers,
    leaves: Leaves,
    b: int,
    row: int,
) -> int:
    """Follow tree ``b`` from its root to a new node, to a finished game, or to a node that awaits its evaluation
    already.
    """
    step = rules.step
    nodes, state = trees.nodes[b], leaves.state
    for word in range(len(state)):
        state[word] = states[b, word]
    number = 0
    while nodes[number].stage >= CLOSED and nodes[number].proven == UNPROVEN:
        node = nodes[number]
        if node.stage == CLOSED:
            open_node(trees, b, number)
        outcome = draw_outcome(rules, state, leaves.outcomes, leaves.chances, streams, b) if node.chance else NONE
        next_number = (
            find_child(trees, b, number, outcome) if node.chance else follow(params, trees, schedules, b, number)
        )
        node.visits += 1
        node.pending += 1
        if next_number != NONE:
            step(state, np.int64(nodes[next_number].action))
        else:
            next_number = add_outcome(trees, b, number, outcome) if node.chance else add_child(trees, b, number)
            enter(rules, params, leaves, node, nodes[next_number])
            if params.gumbel and not node.chance:
                note_logit(trees, b, next_number)
        number = next_number
    node = nodes[number]
    node.visits += 1
    node.pending += 1
    if node.proven != UNPROVEN:
        value = np.float32(node.proven - DRAW)
    elif node.stage == OVER:
        value = node.evaluation
    elif node.visits > 1:
        undo(trees, b, number)
        return COLLIDED
    elif rules.terminal(state) != 0:
        value = finish(rules, params, leaves, node)
    elif number > 0 and len(leaves.ahead.frames) > 0 and decide(rules, leaves, node):
        value = node.evaluation
    else:
        await_evaluation(rules, trees, leaves, b, number, row)
        return AWAITS_EVALUATION
    backup(trees, b, number, value)
    return BACKED_UP


@inlined
def enter(rules: Rules, params: SearchParams, leaves: Leaves, node: Any, child: Any) -> None:
    """Play a new child's move, and note who is to move there and what it has brought."""
    state, current_player = leaves.state, rules.current_player
    before = score(rules, leaves) if params.rewards else np.float32(0.0)
    rules.step(state, np.int64(child.action))
    player = current_player(state)
    if player == CHANCE:
        child.chance = True
        if not params.evaluate_afterstates:
            child.stage = OPEN
        player = node.player
    child.player = player
    child.turn = 1.0 if player == node.player else -1.0
    if params.rewards:
        child.reward = score(rules, leaves) - before
        if not node.chance:
            child.turn = params.discount


@inlined
def score(rules: Rules, leaves: Leaves) -> np.float32:
    """The points made so far in a one-player game."""
    rules.returns(leaves.state, leaves.returns)
    return leaves.returns[0]


@inlined
def follow(params: SearchParams, trees: Trees, schedules: Integers, b: int, number: int) -> int:
    """The child that the search's rule chooses at a node, or NONE for its first candidate."""
    full = trees.searches[b].full
    if params.gumbel:
        if number > 0:
            return choose_gumbel_child(params, trees, b, number)
        return choose_gumbel_root_child(params, trees, b, schedules[1 if full else 0])
    if number == 0 and full and params.forced_playouts_k > 0:
        forced = forced_child(params, trees, b)
        if forced != NONE:
            return forced
    return choose_child(params, trees, b, number)


@lean
def finish(rules: Rules, params: SearchParams, leaves: Leaves, node: Any) -> np.float32:
    """Note that the game is over at a new node; returns its value there."""
    rules.returns(leaves.state, leaves.returns)
    value = np.float32(0.0) if params.rewards else leaves.returns[node.player]  # points were counted on the way
    node.stage = OVER
    node.evaluation = value
    if params.proven_results:
        node.proven = WIN if value > 0 else (LOSS if value < 0 else DRAW)
    return value


@lean
def decide(rules: Rules, leaves: Leaves, node: Any) -> bool:
    """Look ahead at a new node, and note what it is worth if that is decided."""
    proven = look_ahead(rules, leaves.ahead, leaves.state)
    if proven == UNPROVEN:
        return False
    node.stage = OVER
    node.proven = proven
    node.evaluation = np.float32(proven - DRAW)
    return True


@inlined
def await_evaluation(rules: Rules, trees: Trees, leaves: Leaves, b: int, number: int, row: int) -> None:
    """Note a new node's legal actions, and observe it in ``row``."""
    search, node = trees.searches[b], trees.nodes[b, number]
    leaf = leaves.rows[b, search.waiting]
    leaf.node, leaf.hash = (
        number,
        np.uint64(np.int64(rules.hash(leaves.state))),
    )  # without compiling, uint64 refuses a negative int
    node.first_candidate = search.used_candidates
    node.num_candidates = rules.legal_actions(leaves.state, trees.actions[b, node.first_candidate :])
    search.used_candidates += node.num_candidates
    rules.observe(leaves.state, leaves.observations[row])


@inlined
def expand(trees: Trees, b: int, number: int, logits: Floats, value: np.float32) -> None:
    """Give a node its evaluation: ``logits`` ``[A]`` and a value; and back that up."""
    node = trees.nodes[b, number]
    for i in range(node.first_candidate, node.first_candidate + node.num_candidates):
        trees.priors[b, i] = logits[trees.actions[b, i]]
    node.stage = OPEN if node.chance else CLOSED
    node.evaluation = value
    backup(trees, b, number, value)


@inlined
def expand_from_cache(trees: Trees, leaves: Leaves, cache: PositionCache, b: int) -> bool:
    """Expand the node that tree ``b`` has walked to from the position cache, if the position is there."""
    leaf = leaves.rows[b, trees.searches[b].waiting]
    slot = find_position(cache, leaf.hash)
    if slot < 0:
        return False
    expand(trees, b, leaf.node, cache.logits[slot], cache.values[slot])
    return True


@inlined
def backup(trees: Trees, b: int, number: int, value: np.float32) -> None:
    """Add ``value``, that of node ``number`` for its player, and the rewards on the way to all above; and settle what
    it proves.
    """
    nodes = trees.nodes[b]
    while number != NONE:
        node = nodes[number]
        value = node.turn * value + node.reward
        node.value_sum += value
        node.pending -= 1
        if node.proven != UNPROVEN and node.proven_above == UNPROVEN:
            node.proven_above = node.proven if node.turn > 0 else WIN + LOSS - node.proven
            if node.parent != NONE and not nodes[node.parent].chance:  # one outcome proves nothing of what may come
                settle(nodes, node.parent, node.proven_above)
        number = node.parent


@inlined
def settle(nodes: Any, number: int, latest: int) -> None:
    """Prove a node of one tree ``[M]`` if one of its moves, the ``latest``, is a proven win, or if all its moves are
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
        if child.proven_above == UNPROVEN:
            return
        best = max(best, child.proven_above)
        child_number = child.next_sibling
    node.proven = best


@lean
def undo(trees: Trees, b: int, number: int) -> None:
    """Take back the pending visits of a walk that led to a node somebody else is waiting for."""
    while number != NONE:
        node = trees.nodes[b, number]
        node.visits -= 1
        node.pending -= 1
        number = node.parent
