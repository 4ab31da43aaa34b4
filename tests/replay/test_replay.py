"""The window contains the newest games, and its samples are the positions of these games with their targets."""

import gc
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from keima.config.sections.training import TrainingSettings
from keima.data.records import FULL_SEARCH, RANDOM_MOVE, GameBatch
from keima.games import load_game
from keima.games.game import Game
from keima.replay.ring_column import RingColumn
from keima.replay.window import Batch, ReplayWindow, sampling_weights
from tests.own_game import three_in_line
from tests.synthetic import synthetic_batch


@pytest.fixture(
    scope="module", params=[("tic_tac_toe", {}), ("connect_four", {}), ("go", {"size": 5})], ids=lambda param: param[0]
)
def game(request: pytest.FixtureRequest) -> Game:
    name, options = request.param
    return load_game(name, **options)


@pytest.fixture(scope="module")
def connect_four() -> Game:
    return load_game("connect_four")


def window_of(game: Game, *batches: GameBatch, capacity_positions: int = 10**6, **options: Any) -> ReplayWindow:
    window = ReplayWindow(game, capacity_positions=capacity_positions, training=TrainingSettings(**options))
    for batch in batches:
        window.add(batch)
    return window


def numbered(batch: GameBatch) -> GameBatch:
    """Return the same batch with root values that identify every position."""
    return replace(batch, root_values=np.linspace(-0.9, 0.9, batch.num_positions, dtype=np.float32))


def drawn_positions(window: ReplayWindow, batch: GameBatch, count: int) -> NDArray[np.int64]:
    """Return how often ``count`` draws hit each position of a numbered batch; the window must have a ``td_lambda`` of
    0.
    """
    values = window.sample(count, 5).values
    hits = np.abs(values[:, None] - batch.root_values[None, :]).argmin(axis=1)
    return np.bincount(hits, minlength=batch.num_positions)


Key = tuple[bytes, bytes, bytes, float, float]


def reference_samples(game: Game, batch: GameBatch, symmetries: NDArray[np.int64]) -> set[Key]:
    """Return every position with a full search, under every given symmetry, computed with the game's slow interface."""
    samples = set()
    for index in range(batch.num_games):
        record, state, entry = batch.game_record(index), game.initial_state(), 0
        for ply, action in enumerate(record.actions):
            entries = slice(entry, entry + int(record.policy_sizes[ply]))
            for y in symmetries if record.flags[ply] & FULL_SEARCH else []:
                moved = game.action_symmetries[y]
                planes = game.observe(state).reshape(game.observation_shape[0], -1)[:, game.point_symmetries[y]]
                policy, legal = np.zeros(game.num_actions, np.float32), np.zeros(game.num_actions, np.bool_)
                weights = record.policy_weights[entries]
                policy[moved[record.policy_actions[entries]]] = weights / weights.sum()
                legal[moved[game.legal_actions(state)]] = True
                samples.add(
                    (
                        planes.tobytes(),
                        policy.tobytes(),
                        legal.tobytes(),
                        float(record.returns[game.current_player(state)]),
                        1.0,
                    )
                )
            game.play(state, int(action))
            entry = entries.stop
    return samples


def keys(batch: Batch) -> list[Key]:
    rows = zip(batch.observations, batch.policies, batch.legal, batch.values, batch.policy_mask, strict=True)
    return [
        (planes.tobytes(), policy.tobytes(), legal.tobytes(), float(value), float(mask))
        for planes, policy, legal, value, mask in rows
    ]


def test_samples_are_exactly_the_positions_of_the_games(game: Game) -> None:
    batch = synthetic_batch(game, games=4, full_share=0.7, resign_share=0.5)
    expected = reference_samples(game, batch, np.array([0]))
    samples = keys(window_of(game, batch, symmetries=False).sample(3000, 1))
    assert set(samples) == expected


def test_samples_occur_under_every_symmetry(game: Game) -> None:
    batch = synthetic_batch(game, games=2)
    symmetries = np.arange(len(game.action_symmetries))
    assert set(keys(window_of(game, batch).sample(8000, 1))) == reference_samples(game, batch, symmetries)


def test_symmetries_are_equally_frequent(game: Game) -> None:
    """For a position whose images all differ."""
    batch = synthetic_batch(game, games=1, seed=4)
    only = np.arange(batch.num_positions) == 4
    batch = replace(
        batch,
        flags=np.where(only, FULL_SEARCH, 0).astype(np.uint8),
        policy_sizes=only.astype(np.int32),
        policy_actions=batch.actions[4:5],
        policy_weights=np.ones(1, np.uint16),
    )
    counts = Counter(keys(window_of(game, batch).sample(8000, 1)))
    images = len(game.action_symmetries)
    assert len(counts) == images
    assert all(abs(count - 8000 / images) < 5 * np.sqrt(8000 / images) for count in counts.values())


def test_values_are_those_of_the_player_to_move(connect_four: Game) -> None:
    """The first player wins in column 3; with one position searched at a time, the sign of its value is known."""
    moves = np.array([3, 2, 3, 2, 3, 2, 3], np.int32)
    template = synthetic_batch(connect_four, games=1)
    for ply in range(7):
        only = np.arange(7) == ply
        batch = replace(
            template,
            lengths=np.array([7], np.int32),
            returns=np.array([[1, -1]], np.float32),
            actions=moves,
            root_values=np.full(7, 0.5, np.float32),
            flags=only.astype(np.uint8),
            surprise=np.zeros(7, np.float32),
            policy_sizes=only.astype(np.int32),
            policy_actions=moves[:1],
            policy_weights=np.ones(1, np.uint16),
        )
        outcome = 1 if ply % 2 == 0 else -1
        assert window_of(connect_four, batch).sample(8, 1).values.tolist() == [outcome] * 8
        expected = 1.0  # the outcome for the player who made the last move
        for later in range(6, ply - 1, -1):
            expected = 0.25 * 0.5 + 0.75 * (expected if later == 6 else -expected)
        assert window_of(connect_four, batch, td_lambda=0.75).sample(8, 1).values.tolist() == [expected] * 8


@pytest.mark.medium
def test_among_three_players_the_values_are_their_returns_beginning_with_the_player_to_move() -> None:
    game = three_in_line()
    batch = synthetic_batch(game, games=20)
    targets = window_of(game, td_lambda=0.5).values_to_learn(batch)
    ends = np.cumsum(batch.lengths)
    for number, end in enumerate(ends):
        for ply in range(batch.lengths[number]):
            row = targets[end - batch.lengths[number] + ply]
            assert np.array_equal(row, np.roll(batch.returns[number], -(ply % 3)))
    assert len(np.unique(batch.returns)) > 1


@pytest.mark.parametrize(
    ("value_after", "expected"),
    [(0.9, {0: -0.05, 1: 0.1, 3: 0.4, 4: 0.0, 5: 0.7, 7: 1.0}), (0.2, {3: 0.4875, 4: -0.175, 5: 0.35, 7: 1.0})],
    ids=["a mistake", "no mistake"],
)
def test_the_result_of_a_random_mistake_is_not_a_target_before_it(
    connect_four: Game, value_after: float, expected: dict[int, float]
) -> None:
    """The second player, whom search favours before the fourth move, wins after the first one's random fifth move."""
    template = synthetic_batch(connect_four, games=1)
    for ply, value in expected.items():
        only = np.arange(8) == ply
        batch = replace(
            template,
            lengths=np.array([8], np.int32),
            returns=np.array([[-1, 1]], np.float32),
            actions=np.array([0, 6, 0, 6, 1, 6, 2, 6], np.int32),
            root_values=np.array([0, 0, 0, 0.8, 0, value_after, 0, 1], np.float32),
            flags=np.where(np.arange(8) == 4, RANDOM_MOVE, 0).astype(np.uint8) | only.astype(np.uint8),
            surprise=np.zeros(8, np.float32),
            policy_sizes=only.astype(np.int32),
            policy_actions=template.actions[:1],
            policy_weights=np.ones(1, np.uint16),
        )
        assert window_of(connect_four, batch, td_lambda=0.5).sample(8, 1).values == pytest.approx(value)


def test_the_largest_policy_weights_add_up(connect_four: Game) -> None:
    batch = synthetic_batch(connect_four, games=4)
    policies = window_of(connect_four, batch).sample(64, 1).policies
    scaled = replace(batch, policy_weights=(batch.policy_weights * (65535 // 16)).astype(np.uint16))
    assert np.allclose(window_of(connect_four, scaled).sample(64, 1).policies, policies)


def test_half_of_the_weight_is_even_and_half_follows_the_surprise_within_each_game() -> None:
    template = synthetic_batch(load_game("tic_tac_toe"), games=2)
    batch = replace(
        template,
        lengths=np.array([4, 3], np.int32),
        flags=np.array([1, 1, 0, 1, 1, 3, 2], np.uint8),
        surprise=np.array([0, 1, 5, 3, 0, 0, 7], np.float32),  # of cheap searches, too, which do not count
    )
    weights = sampling_weights(batch, policy_surprise_weight=0.5)
    assert weights.tolist() == [0.5, 0.5 + 0.5 * 3 / 4, 0, 0.5 + 0.5 * 9 / 4, 1, 1, 0]
    weights = sampling_weights(batch, policy_surprise_weight=0)
    assert weights.tolist() == [1, 1, 0, 1, 1, 1, 0]
    weights = sampling_weights(batch, policy_surprise_weight=1)
    assert weights.tolist() == [0, 0.75, 0, 2.25, 1, 1, 0]


@pytest.mark.medium
def test_positions_are_drawn_in_proportion_to_their_weights(connect_four: Game) -> None:
    batch = numbered(synthetic_batch(connect_four, games=20, full_share=0.5))
    weights = sampling_weights(batch, policy_surprise_weight=0.5)
    hits = drawn_positions(window_of(connect_four, batch, td_lambda=0.0), batch, 50_000)
    expected = weights / weights.sum() * 50_000
    assert (hits[weights == 0] == 0).all()
    assert (np.abs(hits - expected) <= 5 * np.sqrt(expected)).all()


def test_a_seed_gives_the_same_batch_and_another_seed_another_one(game: Game) -> None:
    window = window_of(game, synthetic_batch(game, games=20))
    assert keys(window.sample(64, 7)) == keys(window.sample(64, 7))
    assert keys(window.sample(64, 7)) != keys(window.sample(64, 8))


def test_a_returned_batch_can_be_overwritten(game: Game) -> None:
    window = window_of(game, synthetic_batch(game, games=20))
    used = window.sample(64, 1)
    arrays = [id(array) for array in vars(used).values()]
    again = window.sample(64, 2, out=used)
    assert again is used and [id(array) for array in vars(again).values()] == arrays
    assert keys(again) == keys(window.sample(64, 2))


def test_an_empty_window_is_reported(game: Game) -> None:
    with pytest.raises(ValueError, match="no training positions"):
        window_of(game).sample(1, 1)
    cheap = synthetic_batch(game, games=2, full_share=0.0)
    with pytest.raises(ValueError, match="no training positions"):
        window_of(game, cheap).sample(1, 1)


def test_only_the_oldest_games_are_forgotten_and_no_more_than_needed(connect_four: Game) -> None:
    batches = [synthetic_batch(connect_four, games=7, seed=seed, full_share=0.6) for seed in range(5)]
    searched = np.concatenate(
        [np.add.reduceat(batch.flags & FULL_SEARCH, np.cumsum(batch.lengths) - batch.lengths) for batch in batches]
    )
    for capacity in (1, 50, 100, 200, 10_000):
        window = window_of(connect_four, *batches, capacity_positions=capacity)
        kept = window.num_games
        assert window.num_positions == searched[-kept:].sum()
        assert window.num_positions <= capacity or kept == 1
        assert kept == len(searched) or searched[-kept - 1 :].sum() > capacity


def test_only_the_games_kept_are_drawn(connect_four: Game) -> None:
    old, new = synthetic_batch(connect_four, games=10, seed=1), synthetic_batch(connect_four, games=3, seed=2)
    window = window_of(connect_four, old, new, symmetries=False, capacity_positions=new.num_positions)
    assert window.num_games == 3
    assert set(keys(window.sample(2000, 1))) == reference_samples(connect_four, new, np.array([0]))


def test_adding_returns_the_number_of_new_positions_to_learn_from(connect_four: Game) -> None:
    batch = synthetic_batch(connect_four, games=10, full_share=0.3)
    assert window_of(connect_four).add(batch) == (batch.flags & FULL_SEARCH).sum() < batch.num_positions


def test_a_window_can_grow_and_shrink(connect_four: Game) -> None:
    batches = [synthetic_batch(connect_four, games=10, seed=seed) for seed in range(3)]
    window = window_of(connect_four, batches[0], batches[1], capacity_positions=batches[1].num_positions)
    assert window.num_games == 10
    window.resize(10**6)
    assert window.num_games == 10
    window.add(batches[2])
    assert window.num_games == 20
    window.resize(batches[2].num_positions)
    assert window.num_games == 10
    assert keys(window.sample(64, 1)) == keys(window_of(connect_four, batches[2]).sample(64, 1))


def test_a_rebuilt_window_draws_the_same_samples(game: Game) -> None:
    """From all batches, or only from those of which something is left; however the window came to be."""
    batches = [
        synthetic_batch(game, games=5 + seed % 3, seed=seed, full_share=0.8, resign_share=0.3) for seed in range(40)
    ]
    lived = window_of(game, capacity_positions=300)
    for batch in batches:
        lived.add(batch)
        lived.sample(16, 1)
    expected = keys(lived.sample(256, 9))
    assert keys(window_of(game, *batches, capacity_positions=300).sample(256, 9)) == expected
    recent = batches[-12:]
    assert sum((batch.flags & FULL_SEARCH).sum() for batch in recent) > 300
    assert keys(window_of(game, *recent, capacity_positions=300).sample(256, 9)) == expected


def test_a_window_that_grows_with_added_games_can_be_rebuilt_from_its_newest_batches(connect_four: Game) -> None:
    batches = [synthetic_batch(connect_four, games=5, seed=seed) for seed in range(30)]
    lived, added = window_of(connect_four, capacity_positions=50), 0
    for batch in batches:
        added += lived.add(batch)
        lived.resize(50 + added // 4)
    assert lived.num_games < 60
    rebuilt = window_of(connect_four, *batches[-15:], capacity_positions=50 + added // 4)
    assert rebuilt.num_games == lived.num_games
    assert keys(rebuilt.sample(256, 9)) == keys(lived.sample(256, 9))


@pytest.mark.medium
def test_memory_stays_constant_over_many_additions(connect_four: Game) -> None:
    batches = [synthetic_batch(connect_four, games=100, seed=seed) for seed in range(4)]
    window_of(connect_four, batches[0]).sample(16, 1)
    tracemalloc.start()
    try:
        window, held = ReplayWindow(connect_four, capacity_positions=5000), []
        for turn in range(300):
            window.add(batches[turn % 4])
            window.sample(16, turn)
            if turn in (99, 299):
                gc.collect()  # which also empties the interpreter's lists of free objects
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    added = 200 * sum(batch.num_positions for batch in batches) // 4
    assert held[1] - held[0] < added / 4, "a quarter of a byte for each position added"
    assert held[1] < 5000 * 150


def test_a_ring_column_behaves_like_a_list_that_is_cut_at_the_front() -> None:
    random = np.random.default_rng(1)
    tail, expected, number = RingColumn(np.int32, 2), np.empty((0, 2), np.int32), 0
    for _ in range(2000):
        rows = np.arange(number, number + 2 * random.integers(0, 30), dtype=np.int32).reshape(-1, 2)
        number += rows.size
        tail.append(rows)
        expected = np.concatenate([expected, rows])
        dropped = int(random.integers(0, min(40, len(expected)) + 1))
        tail.drop(dropped)
        expected = expected[dropped:]
        assert np.array_equal(tail.rows, expected)
