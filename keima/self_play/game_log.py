"""The log of games in progress, as arrays that compiled code fills."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.games.game import Actions, Game

Floats = NDArray[np.float32]

IDLE, PLAYING, FINISHED = range(3)  # of a slot

SLOT = np.dtype(
    [
        ("seed", np.uint64),
        ("status", np.int32),
        ("ply", np.int32),
        ("policy_entries", np.int32),  # of the policy targets so far
        ("random_plies", np.int32),  # drawn from the bare policy at the start
        ("random_move_share", np.float32),  # of the moves after these
        ("first_model", np.int32),  # the lowest version of those that have played
        ("last_model", np.int32),  # the highest
        ("resigned", np.int8),  # 1 + the player who did
        ("may_resign", np.bool_),  # whether the game may be resigned
        ("hopeless_moves", np.int16, (2,)),  # consecutive moves that each player found lost
    ],
    align=True,
)


class GameLog(NamedTuple):
    """The records of B games in progress, of at most T plies with at most E policy entries."""

    slots: Any  # [B] of SLOT
    actions: Actions  # [B, T]
    root_values: Floats  # [B, T]
    flags: NDArray[np.uint8]  # [B, T]
    surprise: Floats  # [B, T]
    policy_sizes: NDArray[np.int32]  # [B, T]
    policy_actions: Actions  # [B, E]
    policy_weights: NDArray[np.uint16]  # [B, E]


def make_game_log(game: Game, count: int) -> GameLog:
    """Allocate space for ``count`` games. The arrays use memory only as games grow."""
    plies, entries = game.max_plies, game.max_plies * game.num_actions
    return GameLog(
        slots=np.zeros(count, SLOT).view(np.recarray),
        actions=np.zeros((count, plies), np.int32),
        root_values=np.zeros((count, plies), np.float32),
        flags=np.zeros((count, plies), np.uint8),
        surprise=np.zeros((count, plies), np.float32),
        policy_sizes=np.zeros((count, plies), np.int32),
        policy_actions=np.zeros((count, entries), np.int32),
        policy_weights=np.zeros((count, entries), np.uint16),
    )
