"""Time management: no game is lost on time, and the available time is used."""

import numpy as np
import pytest

from keima.play.time_keeping import EXPECTED_MOVES, Clock, TimeKeeper, allot_seconds


def play(
    remaining: float, increment: float, *, moves: int, lag: float, overhead: float, least: float = 0.0, seed: int = 0
) -> list[float]:
    """Return the clock after each of ``moves``, each of which costs ``lag`` and at least ``least`` in addition to its
    allotted time.
    """
    keeper, random, left = TimeKeeper(overhead=overhead), np.random.default_rng(seed), []
    now = 0.0
    for _ in range(moves):
        seconds = keeper.seconds_for(Clock(remaining=remaining, increment=increment))
        keeper.note_started(now)
        now += max(seconds, least)
        keeper.note_moved(now)
        remaining -= max(seconds, least) + lag * random.uniform(0.5, 1)
        left.append(remaining)
        remaining += increment
    return left


@pytest.mark.parametrize(
    ("remaining", "increment"),
    [(0.5, 0.01), (1.0, 0.01), (1.0, 0.0), (60.0, 0.0), (60.0, 1.0), (0.05, 2.0), (3600.0, 30.0)],
)
def test_no_game_is_lost_on_time(remaining: float, increment: float) -> None:
    moves = 300 if increment >= 0.01 else 100
    assert min(play(remaining, increment, moves=moves, lag=0.005, overhead=0.01, least=0.001)) > 0


def test_an_overhead_larger_than_expected_is_measured_and_respected() -> None:
    left = play(10.0, 0.1, moves=300, lag=0.05, overhead=0.02)
    assert min(left) > 0
    assert left[-1] > 0.4, "the reserve grows back"


def test_most_of_the_time_is_used() -> None:
    assert play(60.0, 0.0, moves=60, lag=0.001, overhead=0.01)[-1] < 15
    assert play(10.0, 1.0, moves=100, lag=0.001, overhead=0.01)[-1] < 3


def test_the_last_move_before_a_time_control_may_take_most_of_the_remaining_time() -> None:
    assert allot_seconds(Clock(remaining=10.0, moves_to_go=1), 0.01) == pytest.approx(0.6 * 9.99)
    assert allot_seconds(Clock(remaining=10.0, moves_to_go=10), 0.01) == pytest.approx(0.99)


def test_without_time_there_is_no_thinking() -> None:
    for remaining in (0.0, 0.005, -1.0):
        assert allot_seconds(Clock(remaining=remaining), 0.01) == 0


def test_more_time_never_means_less_thinking() -> None:
    shares = [allot_seconds(Clock(remaining=remaining, increment=0.1), 0.01) for remaining in np.linspace(0, 100, 1000)]
    assert (np.diff(shares) >= 0).all()
    assert shares[-1] == pytest.approx((100 + (EXPECTED_MOVES - 1) * 0.1) / EXPECTED_MOVES - 0.01)


def test_a_reset_clock_is_no_overhead() -> None:
    keeper = TimeKeeper(overhead=0.01)
    for remaining in (100.0, 10.0, 100.0):
        assert keeper.seconds_for(Clock(remaining=remaining)) == allot_seconds(Clock(remaining=remaining), 0.01)
        keeper.note_started(0.0)
        keeper.note_moved(1.0)
    keeper.new_game()
    assert keeper.seconds_for(Clock(remaining=98.0)) == allot_seconds(Clock(remaining=98.0), 0.01)
