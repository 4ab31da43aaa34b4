"""A bet against a bound on a mean: seldom won by chance, soon won against lies, early and late ones."""

import random
from collections.abc import Callable

import pytest

from keima.coach.crowd.betting import Bet, observe
from keima.coach.crowd.limits import CHECK_LIMITS

LIMITS = CHECK_LIMITS


def bet_on(draw: Callable[[int], float], games: int, *, stop_at: float = float("inf")) -> Bet:
    """Return the bet on scores after so many games, or as soon as its capital is enough."""
    bet = Bet()
    for number in range(games):
        bet = LIMITS.observe_score(bet, draw(number))
        if bet.capital >= stop_at:
            break
    return bet


def test_the_capital_begins_at_one_and_shrinks_while_all_is_well() -> None:
    assert Bet().capital == 1.0
    bet = bet_on(lambda number: 0.0, 100)
    assert bet.observations == 100 and bet.average == 0.0
    assert 0 < bet.capital < 0.1


def test_the_expected_capital_stays_one_at_the_bound() -> None:
    """For observations of 0 and 1 the mean over all sequences is known."""
    mean, sizes = 0.25, (0.3, 0.9)
    sequences: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for _ in range(6):
        sequences = [
            ((*values, value), chance * share)
            for values, chance in sequences
            for value, share in ((0, 0.75), (1, 0.25))
        ]
    total = 0.0
    for values, chance in sequences:
        bet = Bet()
        for value in values:
            bet = observe(bet, value, mean=mean, sizes=sizes)
        total += chance * bet.capital
    assert abs(total - 1.0) < 1e-12


def test_fewer_than_one_honest_worker_in_a_thousand_is_ever_distrusted() -> None:
    """Workers at the very bound, with scores as rough as they can be: 0 or 1."""
    rng, alarms, workers = random.Random(1), 0, 3000
    enough = LIMITS.evidence / LIMITS.score_weight
    for _ in range(workers):
        bet = bet_on(lambda number: float(rng.random() < LIMITS.mean_score), 150, stop_at=enough)
        alarms += bet.capital >= enough
    assert alarms / workers < 1 / LIMITS.evidence + 0.001


def test_a_few_games_of_another_search_among_many_good_ones_are_enough() -> None:
    bet, enough = Bet(), LIMITS.evidence / LIMITS.gross_weight
    for number in range(100):
        bet = LIMITS.observe_gross(bet, 0.9 if number % 10 == 9 else 0.3)
        if bet.capital >= enough:
            break
    assert bet.total <= 8


def test_the_weights_of_all_bets_sum_to_one() -> None:
    ranks = [(Bet(), Bet())] * 4
    assert LIMITS.weigh(Bet(), Bet(), ranks) == pytest.approx(1.0)


@pytest.mark.slow
def test_honest_ranks_seldom_raise_an_alarm() -> None:
    rng, workers = random.Random(2), 1000
    enough = LIMITS.evidence / LIMITS.rank_weight
    alarms = 0
    for _ in range(workers):
        bets = (Bet(), Bet())
        for _ in range(200):
            bets = LIMITS.observe_rank(bets, rng.random())
            alarms += max(bet.capital for bet in bets) >= enough
    assert alarms == 0


def test_games_that_differ_by_half_are_enough_after_a_few() -> None:
    enough = LIMITS.evidence / LIMITS.score_weight
    assert bet_on(lambda number: 0.5, 50, stop_at=enough).observations <= 8
    assert bet_on(lambda number: 0.15, 200, stop_at=enough).observations <= 40


def test_who_begins_to_lie_late_is_found_as_well() -> None:
    enough = LIMITS.evidence / LIMITS.score_weight
    bet = bet_on(lambda number: 0.0 if number < 300 else 0.5, 400, stop_at=enough)
    assert 300 < bet.observations <= 312


def test_ranks_at_one_end_are_enough_within_a_hundred_games() -> None:
    enough = LIMITS.evidence / LIMITS.rank_weight
    for rank, way in ((0.97, 1), (0.03, 0)):
        bets = (Bet(), Bet())
        while bets[way].capital < enough:
            bets = LIMITS.observe_rank(bets, rank)
        assert bets[way].observations <= 100
        reason = LIMITS.give_reason(Bet(), Bet(), [bets, (Bet(), Bet()), (Bet(), Bet()), (Bet(), Bet())])
        assert "length" in reason and f"{rank:.2f}" in reason


def test_all_first_games_are_checked_then_a_tenth_then_the_share() -> None:
    checked = [LIMITS.games_to_check(received, 0.02) for received in (0, 5, 8, 108, 200, 1200)]
    assert checked == pytest.approx([0, 5, 8, 18, 27.2, 47.2])
    assert LIMITS.games_to_check(1000, 0.0) == 0, "nothing is checked where the share is 0"
