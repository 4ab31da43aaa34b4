"""What the rules alone force within a few plies of a new position, found by exhaustive search before the network is
asked.

A position that is decided so soon needs no evaluation, and its exact value goes up the tree at once: simulations see
tactics that lie some plies deeper than they get themselves (H. Baier and M. Winands, "Monte-Carlo Tree Search and
Minimax Hybrids", CIG 2013). Every position is bounded from both sides, and only moves that can still decide something
are followed.
"""

from typing import Any, NamedTuple

import numpy as np

from configs.schema import SearchSettings
from games.compiled import inlined, lean
from games.game import Actions, Game, Returns, Rules, States
from training.search.tree import DRAW, UNPROVEN

FRAME = np.dtype(
    [
        ("count", np.int32),  # moves after which the game goes on
        ("next", np.int32),  # the first of them that has not been followed
        ("player", np.int32),  # to move
        ("low", np.int8),  # what the player to move can force for certain: -1, 0 or 1
        ("high", np.int8),  # and cannot hope to surpass; of the moves that have been looked at
    ],
    align=True,
)


class Ahead(NamedTuple):
    """Scratch space to look D plies ahead."""

    frames: Any  # [D] of FRAME
    states: States  # [D + 1, S]
    actions: Actions  # [D, A] after which the game goes on
    returns: Returns  # [players]


def plies_ahead(settings: SearchSettings, game: Game) -> int:
    """How far to look ahead: only where what is forced counts, in games of two without chance."""
    return (
        settings.lookahead_plies if settings.proven_results and game.num_players == 2 and not game.num_outcomes else 0
    )


def make_ahead(game: Game, plies: int) -> Ahead:
    """Space to look ``plies`` ahead."""
    return Ahead(
        frames=np.zeros(plies, FRAME).view(np.recarray),
        states=game.initial_states(plies + 1),
        actions=np.zeros((plies, game.num_actions), np.int32),
        returns=np.zeros(game.num_players, np.float32),
    )


@lean
def look_ahead(rules: Rules, ahead: Ahead, state: States) -> int:
    """What the player to move can force in a ``state`` ``[S]`` that is not over: LOSS, DRAW, WIN, or UNPROVEN if that
    takes more plies.
    """
    copy(state, ahead.states[0])
    depth = 0
    enter(rules, ahead, depth)
    while True:
        frame = ahead.frames[depth]
        left = frame.next < frame.count
        if left and not (frame.low == 1 or (depth > 0 and is_vain(ahead.frames[depth - 1], frame))):
            copy(ahead.states[depth], ahead.states[depth + 1])
            rules.step(ahead.states[depth + 1], np.int64(ahead.actions[depth, frame.next]))
            frame.next += 1
            depth += 1
            enter(rules, ahead, depth)
            continue
        high = 1 if left else frame.high
        if depth == 0:
            return DRAW + high if frame.low == high else UNPROVEN
        depth -= 1
        above = ahead.frames[depth]
        if above.player == frame.player:
            bound(above, frame.low, high)
        else:
            bound(above, -high, -frame.low)


@inlined
def is_vain(above: Any, frame: Any) -> bool:
    """Whether more moves cannot matter: above, a move is unknown already, so that only a win counts there, and this is
    no loss.
    """
    return above.high == 1 and above.player != frame.player and frame.high > -1


@inlined
def bound(frame: Any, low: int, high: int) -> None:
    """Take in the bounds of one more move, as the player to move sees them."""
    frame.low = max(frame.low, low)
    frame.high = max(frame.high, high)


@inlined
def copy(source: States, target: States) -> None:
    """Copy a state, word by word, which is faster for a few words than numpy's way."""
    for word in range(len(source)):
        target[word] = source[word]


@lean
def enter(rules: Rules, ahead: Ahead, depth: int) -> None:
    """Play each move of the position ``depth`` plies ahead: take in those that end the game, and note the others."""
    legal_actions, step, terminal, returns = rules.legal_actions, rules.step, rules.terminal, rules.returns
    frame, state, next_state, actions = (
        ahead.frames[depth],
        ahead.states[depth],
        ahead.states[depth + 1],
        ahead.actions[depth],
    )
    frame.player = rules.current_player(state)
    frame.low = frame.high = -1
    frame.next = frame.count = 0
    for i in range(legal_actions(state, actions)):
        copy(state, next_state)
        step(next_state, np.int64(actions[i]))
        if terminal(next_state) == 0:
            actions[frame.count] = actions[i]
            frame.count += 1
            continue
        returns(next_state, ahead.returns)
        value = np.sign(ahead.returns[frame.player])
        bound(frame, int(value), int(value))
        if frame.low == 1:
            frame.count = 0
            return
    if depth + 1 == len(ahead.frames) and frame.count > 0:
        frame.high = 1
        frame.count = 0
