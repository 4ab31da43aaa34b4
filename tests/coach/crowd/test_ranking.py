"""What games tell without being searched again."""

import numpy as np
import pytest

from keima.coach.crowd.ranking import (
    EARLIER_GAMES,
    LENGTH,
    RESIGNED,
    SURPRISE,
    count_repeated,
    find_rank,
    find_results,
    make_openings,
    measure_games,
)
from keima.data.records import FULL_SEARCH
from tests.small_run import GAME
from tests.synthetic import synthetic_batch


def test_results_are_those_of_the_player_to_move() -> None:
    batch = synthetic_batch(GAME, games=5)
    results, first = find_results(GAME, batch), 0
    for game in range(5):
        for ply in range(batch.lengths[game]):
            assert results[first + ply] == batch.returns[game, ply % 2]
        first += int(batch.lengths[game])


def test_games_are_measured_each_for_itself() -> None:
    batch = synthetic_batch(GAME, games=5, resign_share=0.5)
    found = measure_games(GAME, batch)
    assert found[:, LENGTH].tolist() == batch.lengths.tolist()
    assert found[:, RESIGNED].tolist() == (batch.resigned != 0).tolist()
    batch.root_values[:] = find_results(GAME, batch)
    batch.flags[:] = FULL_SEARCH
    assert measure_games(GAME, batch)[:, SURPRISE].tolist() == [0.0] * 5


def test_repeated_openings_are_counted_once_enough_games_are_there() -> None:
    earlier = make_openings()
    games = [np.array([number, 1, 2], np.int32) for number in range(EARLIER_GAMES)]
    assert all(np.isnan(count_repeated(game, earlier)) for game in games)
    assert count_repeated(np.array([5, 1, 3], np.int32), earlier) == 2
    assert count_repeated(np.array([99, 1, 3], np.int32), earlier) == 0
    assert count_repeated(np.array([99, 1, 3], np.int32), earlier) == 3


def test_ranks_of_honest_games_are_evenly_spread() -> None:
    rng = np.random.default_rng(1)
    ranks = [find_rank(float(rng.integers(3)), rng.integers(3, size=40).tolist(), rng.random()) for _ in range(2000)]
    assert np.mean(ranks) == pytest.approx(0.5, abs=0.02)
    assert np.histogram(ranks, 4, (0, 1))[0] == pytest.approx([500] * 4, abs=80)


def test_the_ends_of_the_ranks_are_reached() -> None:
    assert find_rank(-1.0, [0.0] * 9, 0.5) == pytest.approx(0.05)
    assert find_rank(1.0, [0.0] * 9, 0.5) == pytest.approx(0.95)
