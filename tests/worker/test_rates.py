"""A worker's speed, whether it is busy or idles on purpose."""

import random

import pytest

from keima.worker.rates import FullLoadSpeed, Rates


def measure(
    *, slots: int, granted_at_once: int, pause: float, seconds: float, evaluations_per_game: int = 40
) -> tuple[float, float]:
    """Let a worker make 200 evaluations per second with this grant, then pause. Return its speed and its rate."""
    rng, now, finished, games = random.Random(1), 0.0, 0, list[int]()
    speed, rates, left, playing = FullLoadSpeed(now), Rates(now), granted_at_once, 0
    while now < seconds:
        if not games and left == 0:
            now += pause
            left = granted_at_once
            speed.add(now, progress=0.0, evaluations=0, full=False)
        while len(games) < slots and left > 0:
            games.append(round(evaluations_per_game * rng.uniform(0.5, 1.5)))
            left -= 1
        full, evaluations = len(games) == slots, len(games)
        now += evaluations / 200
        games = [left_over - 1 for left_over in games]
        done = sum(left_over == 0 for left_over in games)
        games = [left_over for left_over in games if left_over > 0]
        finished += done
        rates.games = finished
        speed.add(now, progress=done + (len(games) - playing) / 2, evaluations=evaluations, full=full)
        playing = len(games)
    return speed.games_per_second(), finished / seconds


@pytest.mark.parametrize("pause", [0.0, 5.0, 50.0])
def test_the_speed_of_a_worker_is_that_at_full_load_however_long_it_idles(pause: float) -> None:
    speed, rate = measure(slots=8, granted_at_once=30, pause=pause, seconds=300.0)
    assert speed == pytest.approx(200 / 40, rel=0.08)
    assert rate < 5.2 if pause == 0 else rate < 4.0


def test_the_pause_before_a_step_does_not_count_as_play() -> None:
    speed, now = FullLoadSpeed(0.0), 0.0
    for _ in range(100):
        for seconds, evaluations in ((5.0, 0), (5.0, 8), *[(0.1, 8)] * 20):
            now += seconds
            speed.add(now, progress=evaluations / 80, evaluations=evaluations, full=evaluations > 0)
    assert speed.games_per_second() == pytest.approx(1.0)


def test_the_speed_is_known_before_the_first_game_is_finished() -> None:
    assert measure(slots=64, granted_at_once=1000, pause=0.0, seconds=6.0)[0] == pytest.approx(5.0, rel=0.25)


def test_a_worker_that_was_never_at_full_load_reports_no_speed() -> None:
    assert measure(slots=8, granted_at_once=4, pause=1.0, seconds=60.0)[0] == 0.0


def test_a_worker_that_becomes_slower_reports_it_within_a_minute() -> None:
    speed, now = FullLoadSpeed(0.0), 0.0
    for cost in [0.01] * 6000 + [0.04] * 1500:
        now += cost
        speed.add(now, progress=0.1, evaluations=1, full=True)
    assert speed.games_per_second() == pytest.approx(2.5, rel=0.25)


def test_rates_are_those_of_the_last_seconds() -> None:
    rates = Rates(0.0)
    for second in range(1, 31):
        rates.games += 4 if second <= 15 else 2
        measured = rates.measure(float(second), evaluations=100 * second)
    assert measured == pytest.approx((2.0, 100.0))
