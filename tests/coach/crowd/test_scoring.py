"""Each position of a game is compared with the model that searched it."""

import numpy as np
import pytest

from keima.coach.crowd.scoring import assign_models, choose_models, score_game
from keima.self_play.follow import Differences
from tests.small_run import GAME
from tests.synthetic import synthetic_batch

NAN = float("nan")


def differences(policies: list[float], *, values: list[float] | None = None, end: float = 0.0) -> Differences:
    return Differences(
        policies=np.array(policies),
        values=np.array(values or [0.0] * len(policies)),
        moves=np.zeros(len(policies)),
        end=end,
    )


def test_one_model_is_compared_everywhere() -> None:
    assert assign_models(np.array([[0.5, 0.0, 1.0]])).tolist() == [0, 0, 0]
    assert score_game({1: differences([0.2, NAN, 0.4])}) == pytest.approx(0.3)


def test_the_largest_of_the_differences_counts() -> None:
    assert score_game({1: differences([0.1, 0.1], values=[0.5, 0.7])}) == pytest.approx(0.6)
    assert score_game({1: differences([0.1, 0.1], end=0.9)}) == 0.9
    assert score_game({1: differences([NAN, NAN])}) == 0.0


def test_models_follow_each_other_and_the_change_is_left_out() -> None:
    first = [0.0, 0.0, 0.0, 0.0, 0.6, 0.9, 1.0, 1.0, 1.0]
    last = [1.0, 1.0, 1.0, 1.0, 0.7, 0.5, 0.0, 0.0, 0.0]
    assert assign_models(np.array([first, last])).tolist() == [0, 0, 0, 0, -1, -1, 1, 1, 1]
    assert score_game({3: differences(first), 4: differences(last)}) == 0.0


def test_a_model_between_may_have_been_skipped() -> None:
    costs = np.array([[0.0] * 5 + [1.0] * 7, [1.0] * 12, [1.0] * 6 + [0.0] * 6])
    assert assign_models(costs).tolist() == [0] * 5 + [-1] + [2] * 6


def test_the_change_may_come_in_the_first_or_in_the_last_position() -> None:
    assert assign_models(np.array([[1.0] * 6, [0.7] + [0.0] * 5])).tolist() == [-1, 1, 1, 1, 1, 1]
    assert assign_models(np.array([[0.0] * 5 + [0.7], [1.0] * 6])).tolist() == [0, 0, 0, 0, 0, -1]


def test_a_game_that_no_model_has_searched_is_not_explained_by_changes() -> None:
    costs = np.full((4, 20), 0.6)
    chosen = assign_models(costs)
    assert (chosen == -1).sum() <= 20 / 3
    assert score_game({version: differences([0.6] * 20) for version in range(1, 5)}) == pytest.approx(0.6)


def test_games_of_many_models_are_searched_with_some_of_them() -> None:
    record = synthetic_batch(GAME, games=1).game_record(0)  # by models 7 and 8
    assert choose_models(record, [1, 7, 8, 9]) == [7, 8]
    assert choose_models(record, [1, 2]) == []
