"""Exhaustive search finds the known truths of tic-tac-toe."""

import pytest

from keima.games import load_game
from keima.games.exact import ILLEGAL, TooLarge, solve_all_positions


@pytest.fixture(scope="module")
def solved() -> dict[bytes, list[int]]:
    """The values of every position of tic-tac-toe."""
    return {state.tobytes(): values.tolist() for state, values in solve_all_positions(load_game("tic_tac_toe"))}


@pytest.mark.medium
def test_tic_tac_toe_is_drawn_whatever_the_first_move(solved: dict[bytes, list[int]]) -> None:
    assert solved[load_game("tic_tac_toe").initial_state().tobytes()] == [0] * 9


@pytest.mark.medium
def test_tic_tac_toe_has_4520_positions_with_a_move(solved: dict[bytes, list[int]]) -> None:
    assert len(solved) == 4520


def test_only_the_corners_answer_a_first_move_in_the_centre(solved: dict[bytes, list[int]]) -> None:
    game = load_game("tic_tac_toe")
    state = game.initial_state()
    game.play(state, 4)
    assert solved[state.tobytes()] == [0, -1, 0, -1, ILLEGAL, -1, 0, -1, 0]


def test_a_game_that_is_too_large_is_refused_by_name() -> None:
    with pytest.raises(TooLarge, match="connect_four has more than 1000 positions"):
        list(solve_all_positions(load_game("connect_four"), max_positions=1000))
