"""Counting the games of an iteration."""

from dataclasses import replace

import numpy as np
import pytest

from keima.coach.tally import IterationTally
from keima.config.sections.search import ResignationSettings
from keima.data.records import RANDOM_MOVE, GameBatch
from keima.games import load_game
from tests.one_player import SMALL, random_batch
from tests.own_game import example
from tests.synthetic import synthetic_batch

GAME = load_game("connect_four")
RESIGNATION = ResignationSettings(enabled=True, threshold=0.9, consecutive=2)


def batch_of(values: list[list[float]], returns: list[tuple[float, float]], resigned: list[int]) -> GameBatch:
    """Return games that consist of their root values and their ends."""
    lengths = np.array([len(game) for game in values], np.int32)
    some = synthetic_batch(GAME, games=len(values))
    changes = {
        "lengths": lengths,
        "root_values": np.concatenate([np.array(game, np.float32) for game in values]),
        "returns": np.array(returns, np.float32),
        "resigned": np.array(resigned, np.uint8),
        "flags": np.zeros(lengths.sum(), some.flags.dtype),
        "actions": np.concatenate([np.arange(length, dtype=np.int32) % 7 for length in lengths]),
    }
    return GameBatch(**(vars(some) | changes))


def tally(batch: GameBatch, resignation: ResignationSettings = RESIGNATION) -> IterationTally:
    counted = IterationTally(GAME, resignation, since=10.0)
    counted.add(batch, 1000)
    return counted


def test_games_positions_and_results_are_counted() -> None:
    values = [[0.0] * 7, [0.0] * 8, [0.0] * 9, [0.0] * 8]
    report = tally(batch_of(values, [(1, -1), (0, 0), (-1, 1), (1, -1)], [0, 0, 1, 0])).report(14.0)
    assert (report.games, report.positions, report.games_per_second, report.mean_plies) == (4, 32, 1.0, 8.0)
    assert (report.first_player_wins, report.draws, report.resigned, report.bytes_per_game) == (0.5, 0.25, 0.25, 250.0)


LOST, WON, DRAWN = (-1.0, 1.0), (1.0, -1.0), (0.0, 0.0)  # for the player who begins
FIRST_DESPAIRS = [0.0, 0.0, -0.95, 0.95, -0.95, 0.9, 0.0]
SECOND_DESPAIRS = [0.0, -0.95, 0.0, -0.95, 0.0]


@pytest.mark.parametrize(
    ("values", "returns", "would", "false"),
    [
        (FIRST_DESPAIRS, LOST, 1, 0),
        (FIRST_DESPAIRS, WON, 1, 1),
        (FIRST_DESPAIRS, DRAWN, 1, 1),
        (SECOND_DESPAIRS, LOST, 1, 1),
        (SECOND_DESPAIRS, WON, 1, 0),
        ([-0.95, 0.0, 0.0, 0.0, -0.95, 0.0], WON, 0, 0),  # not in a row
        ([-0.95, -0.95, 0.0, 0.0], WON, 0, 0),  # one move of each player
        ([-0.85, 0.0, -0.85, 0.0], WON, 0, 0),  # not hopeless enough
    ],
)
def test_a_resignation_would_have_been_false_where_the_player_did_not_lose(
    values: list[float], returns: tuple[float, float], would: int, false: int
) -> None:
    counted = tally(batch_of([values], [returns], [0]))
    assert (counted.would_resign, counted.false_resignations) == (would, false)


def test_a_random_opening_which_no_search_has_judged_does_not_count() -> None:
    batch = batch_of([FIRST_DESPAIRS], [WON], [0])
    batch.flags[:3] = RANDOM_MOVE
    assert tally(batch).would_resign == 0
    batch.flags[:] = 0
    batch.flags[2] = RANDOM_MOVE  # after a search
    assert tally(batch).would_resign == 1


@pytest.mark.medium
def test_players_need_not_alternate() -> None:
    game = example("kalah")
    batch = replace(batch_of([[-0.95, -0.95, 0.0]], [WON], [0]), actions=np.array([2, 5, 0], np.int32))
    state = game.initial_state()
    game.play(state, 2)
    assert game.current_player(state) == 0, "the last seed fell into the player's store"
    counted = IterationTally(game, RESIGNATION, since=10.0)
    counted.add(batch, 1000)
    assert (counted.would_resign, counted.false_resignations) == (1, 1)


def test_resigned_games_say_nothing_about_false_resignations() -> None:
    assert tally(batch_of([FIRST_DESPAIRS], [LOST], [1])).would_resign == 0


def test_nothing_is_counted_if_resignation_is_off() -> None:
    assert tally(batch_of([FIRST_DESPAIRS], [WON], [0]), ResignationSettings()).would_resign == 0


def test_the_share_of_false_resignations_is_relative_to_players_who_would_have_resigned() -> None:
    batch = batch_of([FIRST_DESPAIRS] * 3 + [[0.0, 0.0]], [LOST, WON, LOST, WON], [0] * 4)
    assert tally(batch).report(11.0).false_resignations == pytest.approx(1 / 3)


def test_an_iteration_without_games_has_a_report() -> None:
    report = IterationTally(GAME, RESIGNATION, since=0.0).report(0.0)
    assert (report.games, report.games_per_second, report.mean_plies) == (0, 0.0, 0.0)


def test_the_games_of_an_earlier_session_do_not_count_for_the_rate() -> None:
    counted = IterationTally(GAME, RESIGNATION, since=10.0)
    counted.games, counted.earlier = 50, 30
    assert counted.report(20.0).games == 50
    assert counted.report(20.0).games_per_second == 2.0


def test_one_player_games_have_scores_and_no_winners() -> None:
    batch = random_batch(games=12)
    counted = IterationTally(SMALL, ResignationSettings(), since=0.0)
    counted.add(batch, 1000)
    counted.add(batch, 1000)
    report = counted.report(1.0)
    assert (report.games, report.positions) == (24, 2 * batch.num_positions)
    assert (report.first_player_wins, report.draws, report.resigned, report.false_resignations) == (
        None,
        None,
        None,
        None,
    )
    assert report.score is not None
    assert (report.score.games, report.score.best) == (24, batch.returns.max())
    assert report.score.mean == pytest.approx(batch.returns.mean())
    assert [part.milestone for part in report.score.milestones] == [512, 1024]


def test_an_iteration_without_one_player_games_has_no_score() -> None:
    assert IterationTally(SMALL, ResignationSettings(), since=0.0).report(0.0).score is None


def test_two_player_games_have_no_score() -> None:
    assert tally(batch_of([[0.0, 0.0]], [WON], [0])).report(11.0).score is None
