"""The targets of auxiliary heads: the opponent's reply, ownership and score lead at the end of the game, and the pieces
on the board some plies later.

Records hold none of them. The reply is the next position's policy; boards are found by replaying the game.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled, inlined, inlined_by_llvm
from keima.data.records import GameBatch
from keima.games.game import Actions, Game, Rules, States


class Draws(NamedTuple):
    """N positions of a window, each drawn under a symmetry of the game."""

    positions: NDArray[np.int64]  # [N]
    symmetries: NDArray[np.int64]  # [N]


class PlayedGames(NamedTuple):
    """The columns of G games of M positions by which their ends are found again."""

    lengths: NDArray[np.int32]  # [G]
    actions: Actions  # [M]
    resigned: NDArray[np.uint8]  # [G]


class FinalScores(NamedTuple):
    """The ends of G games."""

    ownership: NDArray[np.int8]  # [G, H * W] 1 where a point is player 0's, -1 where it is player 1's, else 0
    score_leads: NDArray[np.float32]  # [G] player 0's lead in points; NaN for games that were resigned


class FinalScoreTargets(NamedTuple):
    """By what final scores are turned to the view of N positions, and where they are written to."""

    movers: NDArray[np.int64]  # [N] the player to move
    point_table: NDArray[np.int32]  # [Y, H * W]
    ownership: NDArray[np.float32]  # [N, H * W]
    score_leads: NDArray[np.float32]  # [N]


def compute_final_scores(game: Game, batch: GameBatch) -> FinalScores:
    """Return ownership and score lead at the end of each game of a batch.

    Raises:
        ValueError: the game has no ``final_score``.
    """
    if game.final_score is None:
        raise ValueError(f"{game.name} has no final score of its board")
    found = FinalScores(
        ownership=np.zeros((batch.num_games, game.point_symmetries.shape[1]), np.int8),
        score_leads=np.full(batch.num_games, np.nan, np.float32),
    )
    games = PlayedGames(lengths=batch.lengths, actions=batch.actions, resigned=batch.resigned)
    write_final_scores(game.rules.step, game.final_score, game.start, games, found)
    return found


@compiled
def write_final_scores(step: Any, final_score: Any, start: States, games: PlayedGames, found: FinalScores) -> None:
    """Replay the games that were not resigned and write their final ownership and score lead."""
    state, board, last = start.copy(), np.empty(found.ownership.shape[1], np.int32), 0
    for game in range(games.lengths.size):
        first, last = last, last + games.lengths[game]
        if games.resigned[game] == 0:
            state[:] = start
            for ply in range(first, last):
                step(state, np.int64(games.actions[ply]))
            found.score_leads[game] = final_score(state, board) / 2
            for point in range(board.size):
                found.ownership[game, point] = board[point]


class FutureBoardTargets(NamedTuple):
    """How targets are made from future boards, and where they are written."""

    observation_shape: tuple[int, int, int]  # this and the next as ``Game`` has them
    piece_planes: int
    plies: int
    point_table: NDArray[np.int32]  # [Y, H * W]
    targets: NDArray[np.float32]  # [N, 2 * H * W]


@inlined
def replay_to_position(step: Any, start: States, columns: Any, position: int, state: States) -> int:
    """Set ``state`` to a position of the window by replaying its game, whose number is returned."""
    game = int(np.searchsorted(columns.game_starts, position, side="right")) - 1
    state[:] = start
    for ply in range(columns.game_starts[game], position):
        step(state, np.int64(columns.actions[ply]))
    return game


@inlined_by_llvm
def write_policy_target(columns: Any, position: int, moved: NDArray[np.int32], policy: NDArray[np.float32]) -> bool:
    """Write the policy of a position ``[A]`` under its symmetry; return False if it has none."""
    first, last = columns.entry_starts[position], columns.entry_starts[position + 1]
    total = columns.policy_weights[first:last].sum()
    for entry in range(first, last):
        # pi(a) = w(a) / sum of w
        policy[moved[columns.policy_actions[entry]]] = columns.policy_weights[entry] / total
    return last > first


@compiled
def fill_replies(columns: Any, draws: Draws, table: NDArray[np.int32], replies: NDArray[np.float32]) -> None:
    """Write the policy of the opponent's next search, or the opponent's move if there was no full search."""
    replies[:] = 0
    for n in range(draws.positions.size):
        following = draws.positions[n] + 1
        game = np.searchsorted(columns.game_starts, following, side="right") - 1
        if following == columns.actions.size or columns.game_starts[game] == following:
            continue  # the last position of a game
        moved = table[draws.symmetries[n]]
        if not write_policy_target(columns, following, moved, replies[n]):
            replies[n, moved[columns.actions[following]]] = 1


@compiled
def fill_final_scores(
    game_starts: NDArray[np.int64], draws: Draws, scores: FinalScores, targets: FinalScoreTargets
) -> None:
    """Write final ownership and score lead to the targets of the drawn positions, each for its player to move."""
    for n in range(draws.positions.size):
        game = np.searchsorted(game_starts, draws.positions[n], side="right") - 1
        # Ownership and lead are for the first player: the sign is 1 where that player is to move, else -1
        sign = np.float32(1 - 2 * targets.movers[n])
        points = targets.point_table[draws.symmetries[n]]
        targets.score_leads[n] = sign * scores.score_leads[game]
        for point in range(points.size):
            targets.ownership[n, point] = sign * np.float32(scores.ownership[game, points[point]])


@compiled
def fill_futures(rules: Rules, start: States, columns: Any, draws: Draws, futures: FutureBoardTargets) -> None:
    """Write where the pieces stand in a later position of the same game, as the player to move sees it.

    It is the last position in which the same player is to move, at most ``plies`` later; at the end of a game it may be
    the position itself.
    """
    step, observe, current_player = rules.step, rules.observe, rules.current_player
    state, later, planes = start.copy(), start.copy(), np.empty(futures.observation_shape, np.float32)
    flat = planes.reshape(planes.shape[0], -1)
    points = flat.shape[1]
    for n in range(draws.positions.size):
        position = draws.positions[n]
        game = replay_to_position(step, start, columns, position, state)
        end = columns.game_starts[game + 1] if game + 1 < columns.game_starts.size else columns.actions.size
        mover, later[:] = current_player(state), state
        for ply in range(position, min(position + futures.plies, end - 1)):
            step(state, np.int64(columns.actions[ply]))
            if current_player(state) == mover:
                later[:] = state
        observe(later, planes)
        moved = futures.point_table[draws.symmetries[n]]
        for side in range(2):
            first = side * futures.piece_planes
            for point in range(points):
                there = flat[first : first + futures.piece_planes, moved[point]].max()
                futures.targets[n, side * points + point] = there
