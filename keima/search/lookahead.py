"""Exhaustive search a few plies ahead of a new position, before the network is called.

A position that the rules decide so soon needs no evaluation, and its exact value is backed up at once: simulations see
tactics a few plies deeper than their leaves (H. Baier and M. Winands, "Monte-Carlo Tree Search and Minimax Hybrids",
CIG 2013). The search keeps a lower and an upper bound for each position and follows only moves that can change them.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from keima.compilation.decorators import compiled_part, inlined_by_llvm
from keima.config.sections.search import SearchSettings
from keima.games.game import Actions, Game, Returns, Rules, States
from keima.search.tree import DRAW, UNPROVEN

FRAME = np.dtype(
    [
        ("count", np.int32),  # moves that do not end the game
        ("next", np.int32),  # the first of them not yet followed
        ("player", np.int32),  # to move
        ("low", np.int8),  # lower bound for the player to move over the moves seen so far: -1, 0 or 1
        ("high", np.int8),  # upper bound
    ],
    align=True,
)


class LookaheadScratch(NamedTuple):
    """Scratch space to look D plies ahead."""

    frames: Any  # [D] of FRAME
    states: States  # [D + 1, S]
    actions: Actions  # [D, A] that do not end the game
    returns: Returns  # [players]


def lookahead_depth(settings: SearchSettings, game: Game) -> int:
    """Return the depth of the lookahead; 0 where results are not proven, and in games of one player or with chance."""
    possible = settings.proven_results and game.num_players == 2 and not game.num_outcomes
    return settings.lookahead_plies if possible else 0


def make_lookahead_scratch(game: Game, plies: int) -> LookaheadScratch:
    """Allocate the scratch space to look ``plies`` ahead."""
    return LookaheadScratch(
        frames=np.zeros(plies, FRAME).view(np.recarray),
        states=game.initial_states(plies + 1),
        actions=np.zeros((plies, game.num_actions), np.int32),
        returns=np.zeros(game.num_players, np.float32),
    )


@compiled_part
def prove_by_lookahead(rules: Rules, lookahead: LookaheadScratch, state: States) -> int:
    """Return the result that is forced in ``state`` ``[S]``, which is not over: LOSS, DRAW or WIN for the player to
    move, or UNPROVEN within the depth.
    """
    copy_state(state, lookahead.states[0])
    depth = 0
    expand_frame(rules, lookahead, depth)
    while True:
        frame = lookahead.frames[depth]
        left = frame.next < frame.count
        if left and not (frame.low == 1 or (depth > 0 and is_cut_off(lookahead.frames[depth - 1], frame))):
            copy_state(lookahead.states[depth], lookahead.states[depth + 1])
            rules.step(lookahead.states[depth + 1], np.int64(lookahead.actions[depth, frame.next]))
            frame.next += 1
            depth += 1
            expand_frame(rules, lookahead, depth)
            continue
        high = 1 if left else frame.high
        if depth == 0:
            return DRAW + high if frame.low == high else UNPROVEN
        depth -= 1
        above = lookahead.frames[depth]
        if above.player == frame.player:
            include_bounds(above, frame.low, high)
        else:
            # Negamax: the opponent's upper bound, negated, is the lower bound of the player above
            include_bounds(above, -high, -frame.low)


@inlined_by_llvm
def is_cut_off(above: Any, frame: Any) -> bool:
    """Return whether more moves cannot matter: the parent has a move of unknown value, so only a win helps there, and
    this position is not lost.
    """
    return above.high == 1 and above.player != frame.player and frame.high > -1


@inlined_by_llvm
def include_bounds(frame: Any, low: int, high: int) -> None:
    """Include the bounds of one more move, from the view of the player to move."""
    frame.low = max(frame.low, low)
    frame.high = max(frame.high, high)


@inlined_by_llvm
def copy_state(source: States, target: States) -> None:
    """Copy a state word by word, which is faster than numpy for a few words."""
    for word in range(len(source)):
        target[word] = source[word]


@compiled_part
def expand_frame(rules: Rules, lookahead: LookaheadScratch, depth: int) -> None:
    """Play each move of the position at ``depth``: include those that end the game, and list the others."""
    legal_actions, step, terminal, returns = rules.legal_actions, rules.step, rules.terminal, rules.returns
    frame, actions = lookahead.frames[depth], lookahead.actions[depth]
    state, next_state = lookahead.states[depth], lookahead.states[depth + 1]
    frame.player = rules.current_player(state)
    frame.low = frame.high = -1
    frame.next = frame.count = 0
    for i in range(legal_actions(state, actions)):
        copy_state(state, next_state)
        step(next_state, np.int64(actions[i]))
        if terminal(next_state) == 0:
            actions[frame.count] = actions[i]
            frame.count += 1
            continue
        returns(next_state, lookahead.returns)
        value = lookahead.returns[frame.player]
        # What lies between a draw and a win, or a loss, is at least the lower and at most the higher of them.
        include_bounds(frame, math.floor(value), math.ceil(value))
        if frame.low == 1:
            frame.count = 0
            return
    if depth + 1 == len(lookahead.frames) and frame.count > 0:
        frame.high = 1
        frame.count = 0
