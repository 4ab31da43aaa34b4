"""What a network's auxiliary heads learn: the opponent's reply, and how the board is shared out at the end of the game.

Records hold neither. The reply is the next position's policy; the last board is found by replaying the game.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from games.compiled import compiled, inlined
from games.game import Actions, Game, States
from training.data.records import GameBatch

Owners = NDArray[np.int8]  # [G, H * W] 1 where a point is player 0's at the end, -1 where it is player 1's, else 0
Leads = NDArray[
    np.float32
]  # [G] points by which player 0 wins; NaN where the game was given up before its board was settled


def areas_of(game: Game, batch: GameBatch) -> tuple[Owners, Leads]:
    """How each game of a batch ended on the board.

    Raises:
        ValueError: the last board of the game is not counted.
    """
    if game.settle is None:
        raise ValueError(f"the last board of {game.name} is not counted: nobody owns its points")
    owners = np.zeros((batch.num_games, game.point_symmetries.shape[1]), np.int8)
    leads = np.full(batch.num_games, np.nan, np.float32)
    scratch = np.empty(owners.shape[1], np.int32)
    settle_games(
        game.rules.step,
        game.settle,
        game.initial_state(),
        game.start,
        scratch,
        batch.lengths,
        batch.actions,
        batch.resigned,
        owners,
        leads,
    )
    return owners, leads


@compiled
def settle_games(
    step: Any,
    settle: Any,
    state: States,
    start: States,
    scratch: Actions,
    lengths: NDArray[np.int32],
    actions: Actions,
    resigned: NDArray[np.uint8],
    owners: Owners,
    leads: Leads,
) -> None:
    """Write who owns what at the end of each game that was played out, and who wins by how much.

    ``state`` and ``scratch`` are space.
    """
    ply = 0
    for game in range(lengths.size):
        end = ply + lengths[game]
        if resigned[game] == 0:
            state[:] = start
            for each in range(ply, end):
                step(state, np.int64(actions[each]))
            leads[game] = settle(state, scratch) / 2
            for point in range(scratch.size):
                owners[game, point] = scratch[point]
        ply = end


@inlined
def write_policy(columns: Any, position: int, moved: NDArray[np.int32], policy: NDArray[np.float32]) -> bool:
    """Write the policy of a position ``[A]`` as its symmetry moves it; False where it has none."""
    first, last = columns.entry_starts[position], columns.entry_starts[position + 1]
    total = columns.policy_weights[first:last].sum()
    for entry in range(first, last):
        policy[moved[columns.policy_actions[entry]]] = columns.policy_weights[entry] / total
    return last > first


@compiled
def fill_replies(
    columns: Any,
    positions: NDArray[np.int64],
    symmetries: NDArray[np.int64],
    table: NDArray[np.int32],
    replies: NDArray[np.float32],
) -> None:
    """Write what search found for the opponent in the next position, or what the opponent played where there was no
    full search.
    """
    replies[:] = 0
    for n in range(positions.size):
        following = positions[n] + 1
        game = np.searchsorted(columns.game_starts, following, side="right") - 1
        if following == columns.actions.size or columns.game_starts[game] == following:
            continue  # nobody moved after it
        moved = table[symmetries[n]]
        if not write_policy(columns, following, moved, replies[n]):
            replies[n, moved[columns.actions[following]]] = 1


@compiled
def fill_areas(
    game_starts: NDArray[np.int64],
    positions: NDArray[np.int64],
    symmetries: NDArray[np.int64],
    movers: NDArray[np.int64],
    table: NDArray[np.int32],
    owners: Owners,
    leads: Leads,
    ownership: NDArray[np.float32],
    targets: NDArray[np.float32],
) -> None:
    """Write how the games of these positions end, each as its player to move sees it."""
    for n in range(positions.size):
        game = np.searchsorted(game_starts, positions[n], side="right") - 1
        sign = np.float32(1 - 2 * movers[n])
        points = table[symmetries[n]]
        targets[n] = sign * leads[game]
        for point in range(points.size):
            ownership[n, point] = sign * np.float32(owners[game, points[point]])
