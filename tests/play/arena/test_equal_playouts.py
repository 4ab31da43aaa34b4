"""How many playouts of MCTS a network is worth, from games against more and more of them."""

import math

import numpy as np
import pytest

from keima.play.arena.equal_playouts import (
    EqualPlayouts,
    PlayoutScore,
    equal_playouts_text,
    estimate_equal_playouts,
    find_equal_playouts,
)


@pytest.mark.parametrize("true", [30, 1_000, 50_000])
def test_the_playouts_of_an_even_score_lie_in_the_interval(true: int) -> None:
    """By a player who gains 90 Elo with each doubling."""
    random, hits, factors = np.random.default_rng(1), 0, []

    def play(playouts: int, games: int) -> float:
        return float(random.binomial(games, 1 / (1 + 10 ** (90 * math.log2(playouts / true) / 400))))

    for _ in range(60):
        found = find_equal_playouts(play, games=20, most=10**6, seconds=1e9)
        hits += found.low <= true <= found.high
        factors.append(found.playouts / true)
    assert hits >= 54
    assert 0.8 < np.median(factors) < 1.25


def test_a_network_that_beats_the_most_playouts_is_stronger_than_they_are() -> None:
    asked = list[tuple[int, int]]()

    def play(playouts: int, games: int) -> float:
        asked.append((playouts, games))
        return float(games)

    found = find_equal_playouts(play, games=20, most=10_000, seconds=1e9)
    assert found.is_bound and equal_playouts_text(found) == "stronger than MCTS with 8,192 playouts a move"
    assert asked == [(64, 4), (256, 4), (1024, 4), (4096, 4), (4096, 20), (8192, 20)]


@pytest.mark.parametrize(
    "scores",
    [
        [(64, 4, 4), (256, 4, 4), (1024, 2.5, 4), (256, 14, 20), (512, 8, 20)],
        [(64, 3, 4)],  # the time was up
        [(64, 4, 4), (256, 4, 4)],
    ],
)
def test_a_few_lucky_games_are_no_bound(scores: list[tuple[int, float, int]]) -> None:
    found = estimate_equal_playouts(
        [PlayoutScore(playouts=n, points=points, games=games) for n, points, games in scores]
    )
    assert not found.is_bound and equal_playouts_text(found).startswith("as strong as MCTS with")


def test_a_network_that_loses_all_games_has_an_interval_that_ends_below() -> None:
    found = find_equal_playouts(lambda playouts, games: 0.0, games=20, most=10_000, seconds=1e9)
    assert not found.is_bound and found.high < 64


def test_more_games_make_the_interval_narrower() -> None:
    few, many = (
        estimate_equal_playouts([PlayoutScore(playouts=1_000, points=games / 2, games=games)]) for games in (10, 1_000)
    )
    assert few.playouts == pytest.approx(1_000, rel=0.1) and many.playouts == pytest.approx(1_000, rel=0.05)
    assert many.high / many.low < 2 < few.high / few.low


def win_all_within(seconds: float) -> tuple[EqualPlayouts, float]:
    """Return what is found by a network that wins all games, of a millisecond a playout, and how long they took."""
    now = 0.0

    def play(playouts: int, games: int) -> float:
        nonlocal now
        now += 0.001 * playouts * games
        return float(games)

    found = find_equal_playouts(play, games=20, most=10**6, seconds=seconds, clock=lambda: now)
    return found, now


def test_the_search_ends_before_games_for_which_the_time_is_not_enough() -> None:
    found, now = win_all_within(300.0)
    assert found.surely_beaten == 16_384 and now <= 300.0


def test_games_for_which_the_time_is_enough_are_played_where_many_are_not() -> None:
    found, now = win_all_within(18.0)
    assert [(score.playouts, score.games) for score in found.scores[-3:]] == [(1024, 4), (1024, 4), (2048, 4)]
    assert now <= 18.0 and found.surely_beaten == 1024, "by 8 of 8 games"
