"""The replay window: the newest games, and the batches of positions that a learner samples from them.

Positions are not stored. Compiled code replays the moves of a game up to a sampled position. A window of 500,000
positions of 9x9 Go takes well under 100 MB.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.base.random import Streams, random_below, seed_stream, uniform
from keima.compilation.decorators import compiled
from keima.config.sections.network import NetworkSettings
from keima.config.sections.search import SearchSettings
from keima.config.sections.training import TrainingSettings
from keima.data.records import CHANCE_OUTCOME, FULL_SEARCH, RANDOM_MOVE, GameBatch
from keima.games.authoring.kept_errors import raise_kept_error
from keima.games.game import Game, Planes, Rules, States
from keima.replay.auxiliary_targets import (
    Draws,
    FinalScores,
    FinalScoreTargets,
    FutureBoardTargets,
    compute_final_scores,
    fill_final_scores,
    fill_futures,
    fill_replies,
    replay_to_position,
    write_policy_target,
)
from keima.replay.ring_column import RingColumn
from keima.replay.value_targets import ReturnParams, SearchedGames, write_value_targets

ALL_ROWS = slice(None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """The input of one step of a learner: N positions, from the view of the player to move."""

    observations: Planes  # [N, C, H, W]
    policies: NDArray[np.float32]  # [N, A] sums to 1, or all zero where policy_mask is 0
    legal: NDArray[np.bool_]  # [N, A]
    values: NDArray[np.float32]  # [N], or [N, V] where V > 1 (Game.num_values): in [-1, 1], or the points to come
    policy_mask: NDArray[np.float32]  # [N] 1 where the policy is a target, else 0
    # For auxiliary heads (keima/networks/architectures/auxiliary_heads.py), without columns where there are none:
    replies: NDArray[np.float32]  # [N, A] the policy of the next position, or zero where there is none
    # [N, H * W] 1 where a point will be the mover's, -1 where it will be the opponent's, else 0
    ownership: NDArray[np.float32]
    score_leads: NDArray[np.float32]  # [N] points by which the mover will win; NaN where the end is unknown
    # [N, 2 * H * W] 1 where a piece of the mover will stand some plies later, then where one of the opponent's will
    futures: NDArray[np.float32]

    @staticmethod
    def empty(
        game: Game, count: int, *, replies: bool = False, ownership: bool = False, futures: bool = False
    ) -> "Batch":
        """Allocate space for ``count`` samples, with or without the targets of auxiliary heads."""
        return Batch(
            observations=np.empty((count, *game.observation_shape), np.float32),
            policies=np.empty((count, game.num_actions), np.float32),
            legal=np.empty((count, game.num_actions), np.bool_),
            values=np.empty((count, game.num_values) if game.num_values > 1 else count, np.float32),
            policy_mask=np.empty(count, np.float32),
            replies=np.zeros((count, game.num_actions if replies else 0), np.float32),
            ownership=np.zeros((count, game.point_symmetries.shape[1] if ownership else 0), np.float32),
            score_leads=np.full(count, np.nan, np.float32),
            futures=np.zeros((count, 2 * game.point_symmetries.shape[1] if futures else 0), np.float32),
        )


class WindowColumns(NamedTuple):
    """The window for kernels: G games, M positions, E policy entries."""

    game_starts: NDArray[np.int64]  # [G] the first position of each game
    actions: NDArray[np.uint16]  # [M]
    values: NDArray[np.float32]  # [M, V] value targets
    entry_starts: NDArray[np.int64]  # [M + 1] the first policy entry of each position
    policy_actions: NDArray[np.uint16]  # [E]
    policy_weights: NDArray[np.uint16]  # [E]
    cumulative: NDArray[np.float64]  # [M] cumulative sampling weights


class SampleArrays(NamedTuple):
    """The symmetry tables by which N samples are made, and the arrays to write them to."""

    point_table: NDArray[np.int32]  # [Y, H * W]
    action_table: NDArray[np.int32]  # [Y, A]
    observations: Planes  # [N, C, H, W]
    policies: NDArray[np.float32]  # [N, A]
    legal: NDArray[np.bool_]  # [N, A]
    values: NDArray[np.float32]  # [N, V]
    policy_mask: NDArray[np.float32]  # [N]
    movers: NDArray[np.int64]  # [N] the player to move


class ReplayWindow:
    """The newest games, up to ``capacity_positions`` training positions.

    Its content, and its samples for a seed, depend only on the batches added and the capacity: a resumed run adds the
    same batches in the same order. Batches that have left the window may be omitted, as long as the capacity never grew
    by more positions than were added. The oldest games are dropped at the next access, so that a capacity that grows
    with the batches may be set right after adding one.
    """

    def __init__(
        self,
        game: Game,
        *,
        capacity_positions: int,
        training: TrainingSettings = TrainingSettings(),
        search: SearchSettings = SearchSettings(),
        network: NetworkSettings = NetworkSettings(),
    ) -> None:
        """Make an empty window.

        Args:
            game: the game of all batches.
            capacity_positions: largest number of training positions. The newest game stays in any case.
            training: ``policy_surprise_weight``, ``td_lambda``, ``symmetries`` and ``future_plies``.
            search: ``evaluate_afterstates`` adds the positions where nature moves; ``discount`` is of points.
            network: whose auxiliary heads decide which targets are made.
        """
        self._game = game
        self._capacity = capacity_positions
        self._policy_surprise_weight = training.policy_surprise_weight
        self._train_on_afterstates = game.num_outcomes > 0 and search.evaluate_afterstates
        self._td_lambda = training.td_lambda
        self._discount = search.discount if game.num_players == 1 else 1.0
        self._num_symmetries = len(game.action_symmetries) if training.symmetries else 1
        self._replies = network.predict_reply
        self._has_final_scores = network.predict_ownership or network.predict_score
        self._futures, self._future_plies = network.predict_future, training.future_plies
        self._lengths, self._sampled = RingColumn(np.int32), RingColumn(np.int32)
        self._actions, self._policy_sizes = RingColumn(np.uint16), RingColumn(np.int32)
        self._values, self._weights = RingColumn(np.float32, game.num_values), RingColumn(np.float32)
        self._policy_actions, self._policy_weights = RingColumn(np.uint16), RingColumn(np.uint16)
        self._ownership = RingColumn(np.int8, game.point_symmetries.shape[1] if self._has_final_scores else 0)
        self._score_leads = RingColumn(np.float32)
        self._columns: WindowColumns | None = None

    @property
    def num_games(self) -> int:
        """The number of games in the window."""
        self._drop_oldest_games()
        return len(self._lengths.rows)

    @property
    def num_positions(self) -> int:
        """The number of training positions in the window."""
        self._drop_oldest_games()
        return int(self._sampled.rows.sum(dtype=np.int64))

    def add(self, batch: GameBatch) -> int:
        """Add a verified batch.

        Returns:
            The number of its training positions.
        """
        self._drop_oldest_games()
        self._columns = None
        weights = sampling_weights(
            batch,
            policy_surprise_weight=self._policy_surprise_weight,
            train_on_afterstates=self._train_on_afterstates,
        )
        sampled = np.add.reduceat((weights > 0).astype(np.int32), np.cumsum(batch.lengths) - batch.lengths)
        ownership, score_leads = np.empty((batch.num_games, 0), np.int8), np.empty(batch.num_games, np.float32)
        if self._has_final_scores:
            ownership, score_leads = compute_final_scores(self._game, batch)
        for column, rows in (
            (self._ownership, ownership),
            (self._score_leads, score_leads),
            (self._lengths, batch.lengths),
            (self._sampled, sampled),
            (self._actions, batch.actions),
            (self._values, self.values_to_learn(batch)),
            (self._weights, weights),
            (self._policy_sizes, batch.policy_sizes),
            (self._policy_actions, batch.policy_actions),
            (self._policy_weights, batch.policy_weights),
        ):
            column.append(rows)
        return int(sampled.sum())

    def values_to_learn(self, batch: GameBatch) -> NDArray[np.float32]:
        """Return the value targets of a batch ``[M, V]``."""
        game, targets = self._game, np.empty((batch.num_positions, self._game.num_values), np.float32)
        games = SearchedGames(
            lengths=batch.lengths,
            returns=batch.returns,
            actions=batch.actions,
            root_values=batch.root_values,
            random=(batch.flags & RANDOM_MOVE) != 0,
        )
        params = ReturnParams(td_lambda=self._td_lambda, discount=self._discount)
        write_value_targets(game.rules, game.start, games, params, targets)
        raise_kept_error()
        return targets

    def clear(self) -> None:
        """Remove all games; the capacity stays."""
        self._columns = None
        for column in (
            self._lengths,
            self._sampled,
            self._ownership,
            self._score_leads,
            self._actions,
            self._values,
            self._weights,
            self._policy_sizes,
            self._policy_actions,
            self._policy_weights,
        ):
            column.drop(len(column.rows))

    def resize(self, capacity_positions: int) -> None:
        """Change the capacity; dropped games do not come back."""
        self._capacity, self._columns = capacity_positions, None
        self._drop_oldest_games()

    def _drop_oldest_games(self) -> None:
        """Drop the oldest games that exceed the capacity."""
        newest_first = np.cumsum(self._sampled.rows[::-1], dtype=np.int64)
        games = len(newest_first) - max(1, int(np.searchsorted(newest_first, self._capacity, side="right")))
        if games <= 0:
            return
        positions = int(self._lengths.rows[:games].sum(dtype=np.int64))
        entries = int(self._policy_sizes.rows[:positions].sum(dtype=np.int64))
        for column in (self._lengths, self._sampled, self._ownership, self._score_leads):
            column.drop(games)
        for column in (self._actions, self._values, self._weights, self._policy_sizes):
            column.drop(positions)
        for column in (self._policy_actions, self._policy_weights):
            column.drop(entries)

    def sample(self, count: int, rng_seed: int, *, rows: slice = ALL_ROWS, out: Batch | None = None) -> Batch:
        """Sample ``count`` positions with replacement, in proportion to their weights.

        Args:
            count: N.
            rng_seed: a window gives the same batch for the same seed.
            rows: the part of the batch to make, such as the share of a rank.
            out: a batch of the same size to overwrite.

        Raises:
            ValueError: the window has no training positions.
        """
        columns = self._columns = self._columns or self._make_columns()
        if len(columns.cumulative) == 0 or columns.cumulative[-1] <= 0:
            raise ValueError("the replay window has no training positions")
        draws = Draws(positions=np.empty(count, np.int64), symmetries=np.empty(count, np.int64))
        draw_positions(np.array([seed_stream(rng_seed)], np.uint64), columns.cumulative, self._num_symmetries, draws)
        return self.take(draws.positions[rows], draws.symmetries[rows], out=out)

    def to_learn_from(self) -> NDArray[np.int64]:
        """Return the indices of all training positions, ascending."""
        self._drop_oldest_games()
        return np.flatnonzero(self._weights.rows > 0)

    def take(self, positions: NDArray[np.int64], symmetries: NDArray[np.int64], *, out: Batch | None = None) -> Batch:
        """Return the samples at these indices ``[N]`` of the window, each under a symmetry ``[N]`` of the game."""
        columns = self._columns = self._columns or self._make_columns()
        batch = out or Batch.empty(
            self._game, len(positions), replies=self._replies, ownership=self._has_final_scores, futures=self._futures
        )
        draws = Draws(positions=np.ascontiguousarray(positions), symmetries=np.ascontiguousarray(symmetries))
        game = self._game
        samples = SampleArrays(
            point_table=game.point_symmetries,
            action_table=game.action_symmetries,
            observations=batch.observations,
            policies=batch.policies,
            legal=batch.legal,
            values=batch.values.reshape(len(positions), game.num_values),
            policy_mask=batch.policy_mask,
            movers=np.empty(len(positions), np.int64),
        )
        fill_samples(game.rules, game.start, columns, draws, samples)
        raise_kept_error()
        if self._replies:
            fill_replies(columns, draws, game.action_symmetries, batch.replies)
        if self._has_final_scores:
            scores = FinalScores(ownership=self._ownership.rows, score_leads=self._score_leads.rows)
            targets = FinalScoreTargets(
                movers=samples.movers,
                point_table=game.point_symmetries,
                ownership=batch.ownership,
                score_leads=batch.score_leads,
            )
            fill_final_scores(columns.game_starts, draws, scores, targets)
        if self._futures:
            futures = FutureBoardTargets(
                observation_shape=game.observation_shape,
                piece_planes=game.piece_planes,
                plies=self._future_plies,
                point_table=game.point_symmetries,
                targets=batch.futures,
            )
            fill_futures(game.rules, game.start, columns, draws, futures)
            raise_kept_error()
        return batch

    def _make_columns(self) -> WindowColumns:
        """Return the columns for kernels, valid until the next change."""
        self._drop_oldest_games()
        lengths = self._lengths.rows
        return WindowColumns(
            game_starts=np.cumsum(lengths, dtype=np.int64) - lengths,
            actions=self._actions.rows,
            values=self._values.rows,
            entry_starts=np.concatenate(([0], np.cumsum(self._policy_sizes.rows, dtype=np.int64))),
            policy_actions=self._policy_actions.rows,
            policy_weights=self._policy_weights.rows,
            cumulative=np.cumsum(self._weights.rows, dtype=np.float64),
        )


def sampling_weights(
    batch: GameBatch, *, policy_surprise_weight: float, train_on_afterstates: bool = False
) -> NDArray[np.float32]:
    """Return the sampling weights ``[M]``: on average 1 for the positions of a game with a full search, 0 for the
    others.

    Policy surprise weighting as in KataGo (docs/KataGoMethods.md there).
    """
    full = (batch.flags & FULL_SEARCH) != 0
    starts = np.cumsum(batch.lengths) - batch.lengths
    surprise = np.where(full, batch.surprise, 0).astype(np.float64)
    totals = np.repeat(np.add.reduceat(surprise, starts), batch.lengths)
    counts = np.repeat(np.add.reduceat(full.astype(np.int64), starts), batch.lengths)
    shares = np.divide(surprise * counts, totals, out=np.ones_like(surprise), where=totals > 0)
    # weight(i) = 1 - w + w * surprise(i) * count / sum of surprise, over the full searches of a game (KataGo)
    weights = np.where(full, 1 - policy_surprise_weight + policy_surprise_weight * shares, 0)
    if train_on_afterstates:
        weights[(batch.flags & CHANCE_OUTCOME) != 0] = 1
    return weights.astype(np.float32)


@compiled
def draw_positions(
    streams: Streams,
    cumulative: NDArray[np.float64],
    num_symmetries: int,
    draws: Draws,
) -> None:
    """Sample positions by weight, and a symmetry for each."""
    for n in range(draws.positions.size):
        # Inverse transform sampling: a position is drawn with probability weight / sum of weights
        target = uniform(streams, 0) * cumulative[-1]
        # The first position whose sum exceeds the target, which has a weight.
        draws.positions[n] = np.searchsorted(cumulative, target, side="right")
        draws.symmetries[n] = random_below(streams, 0, num_symmetries)


@compiled
def fill_samples(rules: Rules, start: States, columns: WindowColumns, draws: Draws, samples: SampleArrays) -> None:
    """Make the samples of the drawn positions, each under its symmetry."""
    legal_actions, step, observe, current_player = rules.legal_actions, rules.step, rules.observe, rules.current_player
    state, planes = start.copy(), np.empty(samples.observations.shape[1:], np.float32)
    legal = np.empty(samples.legal.shape[1], np.int32)
    samples.policies[:] = 0
    samples.legal[:] = False
    for n in range(draws.positions.size):
        position, symmetry = draws.positions[n], draws.symmetries[n]
        replay_to_position(step, start, columns, position, state)
        samples.movers[n] = current_player(state)
        observe(state, planes)
        permute_planes(planes, samples.point_table[symmetry], samples.observations[n])
        moved = samples.action_table[symmetry]
        for i in range(legal_actions(state, legal)):
            samples.legal[n, moved[legal[i]]] = True
        samples.policy_mask[n] = write_policy_target(columns, position, moved, samples.policies[n])
        for player in range(samples.values.shape[1]):
            samples.values[n, player] = columns.values[position, player]


@compiled
def permute_planes(planes: Planes, points: NDArray[np.int32], out: Planes) -> None:
    """Permute the points of planes: ``out[point] = planes[points[point]]``."""
    channels, height, width = planes.shape
    flat, turned = planes.reshape(channels, height * width), out.reshape(channels, height * width)
    for channel in range(channels):
        for point in range(height * width):
            turned[channel, point] = flat[channel, points[point]]
