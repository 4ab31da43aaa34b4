"""Alpha-beta search to a fixed depth by the score on the board: an opponent that has learned nothing.

Alpha-beta (D. Knuth and R. Moore, "An analysis of alpha-beta pruning", 1975), for two-player games without chance whose
``Game.final_score`` counts any board. The end of a game is worth its result, and a sooner win more; a position at full
depth is worth player 0's lead in points, and no lead as much as a win. Moves are tried in the order of the leads right
after them. All moves of the best value are found.

One player maximizes and the other minimizes, instead of negating values at every ply: a player may move twice.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled, compiled_part, inlined_by_llvm
from keima.games.game import Actions, Game, Returns, Rules, States
from keima.games.move_ordering import bring_best_forward
from keima.search.lookahead import copy_state

WON = 1 << 40  # the value of a return of 1 to player 0, minus one per ply until then; more than any lead
INFINITE = 1 << 50

LEVEL = np.dtype(
    [
        ("low", np.int64),  # values up to it do not matter, because the maximizing player has as much elsewhere
        ("high", np.int64),  # the same for the minimizing player, from it on
        ("best", np.int64),  # value of the moves so far
        ("count", np.int32),  # moves
        ("tried", np.int32),  # the first of them
        ("maximizes", np.bool_),  # whether player 0 is to move
    ],
    align=True,
)


class AlphaBetaScratch(NamedTuple):
    """The search stack to depth D: a row per position of the variation that is being searched."""

    levels: Any  # [D + 1] of LEVEL
    states: States  # [D + 1, S]
    actions: Actions  # [D + 1, A]
    sort_keys: NDArray[np.int64]  # [D + 1, A] sort keys of the moves
    ownership: Actions  # [H * W] scratch space
    returns: Returns  # [2] scratch space


class BestMoves(NamedTuple):
    """The results of searching states ``[N, S]``."""

    actions: Actions  # [N, A] the best actions at the start of each row
    counts: NDArray[np.int64]  # [N] their numbers
    values: NDArray[np.int64]  # [N] for the player to move: twice the lead in points, or ``WON`` minus the plies to it


def find_best_moves(game: Game, states: States, *, depth: int) -> BestMoves:
    """Search each of ``states`` ``[N, S]``, in none of which the game is over, to a depth of at least one ply.

    Raises:
        ValueError: the game has no score, or chance; see ``check_game_has_score``.
    """
    check_game_has_score(game)
    points = game.height * game.width
    variation = AlphaBetaScratch(
        levels=np.zeros(depth + 1, LEVEL).view(np.recarray),
        states=game.initial_states(depth + 1),
        actions=np.zeros((depth + 1, game.num_actions), np.int32),
        sort_keys=np.zeros((depth + 1, game.num_actions), np.int64),
        ownership=np.zeros(points, np.int32),
        returns=np.zeros(2, np.float32),
    )
    found = BestMoves(
        actions=np.zeros((len(states), game.num_actions), np.int32),
        counts=np.zeros(len(states), np.int64),
        values=np.zeros(len(states), np.int64),
    )
    search_states(game.rules, game.final_score, variation, states, found)
    return found


def check_game_has_score(game: Game) -> None:
    """Check that alpha-beta can play a game.

    Raises:
        ValueError: it cannot.
    """
    if game.num_players != 2:
        raise ValueError(f"alpha-beta plays games for two, and {game.name} is a game for {game.num_players}")
    if game.num_outcomes > 0:
        raise ValueError(f"alpha-beta plays no games of chance such as {game.name}: use mcts:1000")
    if game.final_score is None:
        raise ValueError(
            f"alpha-beta needs a score on the board (final_score), and {game.name} has none: use mcts:1000"
        )


@compiled
def search_states(
    rules: Rules, final_score: Any, variation: AlphaBetaScratch, states: States, found: BestMoves
) -> None:
    """Search each of ``states`` ``[N, S]``."""
    root = variation.levels[0]
    for i in range(len(states)):
        copy_state(states[i], variation.states[0])
        root.low, root.high = -INFINITE, INFINITE
        enter_position(rules, final_score, variation, 0)
        while make_next_move(rules, variation, 0):
            value = value_after_move(rules, final_score, variation)
            if value > root.best if root.maximizes else value < root.best:
                root.best, found.counts[i] = value, 0
            if value == root.best:
                found.actions[i, found.counts[i]] = variation.actions[0, root.tried - 1]
                found.counts[i] += 1
            # The window includes the best value, so that moves of equal value are recognized.
            if root.maximizes:
                root.low = root.best - 1
            else:
                root.high = root.best + 1
        found.values[i] = root.best if root.maximizes else -root.best


@compiled_part
def value_after_move(rules: Rules, final_score: Any, variation: AlphaBetaScratch) -> int:
    """Return the value of the position at level 1, exact within its window.

    A loop instead of a recursion, which numba cannot load from its cache.
    """
    levels, number, arrived = variation.levels, 1, True
    while number >= 1:
        level = levels[number]
        if arrived:
            decided = enter_position(rules, final_score, variation, number)
        else:
            decided = include_value(level, levels[number + 1].best)
        arrived = not decided and make_next_move(rules, variation, number)
        number += 1 if arrived else -1
    return int(levels[1].best)


@inlined_by_llvm
def include_value(level: Any, value: int) -> bool:
    """Include the value of one more move; returns whether the others no longer matter."""
    if level.maximizes:
        level.best = max(level.best, value)
        level.low = max(level.low, value)
    else:
        level.best = min(level.best, value)
        level.high = min(level.high, value)
    # Cutoff: the window (low, high) is empty (Knuth and Moore 1975)
    return bool(level.low >= level.high)


@compiled_part
def enter_position(rules: Rules, final_score: Any, variation: AlphaBetaScratch, number: int) -> bool:
    """Start on the position at a level; returns whether its value, in ``best``, is already known."""
    level, state = variation.levels[number], variation.states[number]
    last = len(variation.levels) - 1
    if number == last or rules.terminal(state) != 0:
        level.best = static_value(rules, final_score, variation, number)
        return True
    level.maximizes = rules.current_player(state) == 0
    level.count, level.tried = rules.legal_actions(state, variation.actions[number]), 0
    level.best = -INFINITE if level.maximizes else INFINITE
    if number + 1 < last:
        write_sort_keys(rules, final_score, variation, number)
    return False


@inlined_by_llvm
def static_value(rules: Rules, final_score: Any, variation: AlphaBetaScratch, number: int) -> int:
    """Return the value of the position at a level, without search: player 0's result, or lead."""
    if rules.terminal(variation.states[number]) == 0:
        return final_score(variation.states[number], variation.ownership)
    rules.returns(variation.states[number], variation.returns)
    result = np.float64(variation.returns[0])
    return int(result * WON) - int(np.sign(result)) * number


@compiled_part
def write_sort_keys(rules: Rules, final_score: Any, variation: AlphaBetaScratch, number: int) -> None:
    """Note the sort keys of the moves at a level: the values right after them, for the player to move."""
    level, step = variation.levels[number], rules.step
    state, after = variation.states[number], variation.states[number + 1]
    for k in range(level.count):
        copy_state(state, after)
        step(after, np.int64(variation.actions[number, k]))
        value = static_value(rules, final_score, variation, number + 1)
        variation.sort_keys[number, k] = value if level.maximizes else -value


@compiled_part
def make_next_move(rules: Rules, variation: AlphaBetaScratch, number: int) -> bool:
    """Make the most promising untried move of a level at the next one; False if there is none."""
    level, below = variation.levels[number], variation.levels[number + 1]
    actions, keys = variation.actions[number], variation.sort_keys[number]
    k = level.tried
    if k == level.count:
        return False
    if number + 2 < len(variation.levels):
        bring_best_forward(actions, keys, k, level.count)
    level.tried = k + 1
    copy_state(variation.states[number], variation.states[number + 1])
    rules.step(variation.states[number + 1], np.int64(actions[k]))
    below.low, below.high = level.low, level.high
    return True
