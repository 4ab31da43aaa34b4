"""Errors against perfect play: the shipped positions are correct, and lost value is counted correctly."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from keima.base.reports.intervals import wilson_interval
from keima.evaluation.perfect_play import (
    POSITIONS_FILE,
    PlayErrors,
    SolvedPositions,
    choose_policy_actions,
    count_errors,
    load_positions,
    read_positions,
)
from keima.games import IllegalAction, load_game
from keima.games.connect_four.solver import solve_action_values
from keima.games.exact import ILLEGAL
from keima.games.game import Planes


@cache
def loaded(name: str, *, count: int | None = None) -> SolvedPositions:
    positions = load_positions(load_game(name), count=count)
    assert positions is not None
    return positions


@pytest.fixture
def connect_four() -> SolvedPositions:
    return loaded("connect_four")


def made_up(*rows: list[int]) -> SolvedPositions:
    """Return positions of which only the values matter."""
    return SolvedPositions(
        np.zeros((len(rows), 4), np.int64), np.zeros((len(rows), 9, 6, 7), np.float32), np.array(rows, np.int8)
    )


def something_to_lose(positions: SolvedPositions) -> NDArray[np.bool_]:
    """Whether a legal action throws away value, ``[N]``."""
    return ((positions.values != ILLEGAL) & (positions.values < positions.best_values[:, None])).any(1)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["connect_four", "tic_tac_toe"])
def test_a_move_has_a_value_exactly_if_it_is_legal(name: str) -> None:
    game = load_game(name)
    positions = loaded(name)
    for state, observation, values in zip(positions.states, positions.observations, positions.values, strict=True):
        assert np.flatnonzero(values != ILLEGAL).tolist() == game.legal_actions(state).tolist() != []
        assert (observation == game.observe(state)).all()
        assert set(values.tolist()) <= {ILLEGAL, -1, 0, 1}


@pytest.mark.medium
def test_the_shipped_values_are_those_of_the_solver(connect_four: SolvedPositions) -> None:
    plies = connect_four.states[:, 2]
    sample = np.flatnonzero(plies >= 13)[::4]
    assert len(sample) > 100
    assert all((solve_action_values(connect_four.states[i]) == connect_four.values[i]).all() for i in sample)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_shipped_values_are_those_of_the_solver(connect_four: SolvedPositions) -> None:
    assert all(
        (solve_action_values(state) == values).all()
        for state, values in zip(connect_four.states, connect_four.values, strict=True)
    )


@pytest.mark.medium
def test_no_shipped_position_occurs_twice_or_with_its_mirror_image(connect_four: SolvedPositions) -> None:
    seen = connect_four.observations
    assert len({min(board.tobytes(), board[..., ::-1].tobytes()) for board in seen}) == len(seen)


def test_the_shipped_file_is_small_and_describes_its_content(connect_four: SolvedPositions) -> None:
    assert POSITIONS_FILE.stat().st_size < 200_000
    with np.load(POSITIONS_FILE, allow_pickle=False) as file:
        assert file["positions_per_ply"].tolist() == np.bincount(connect_four.states[:, 2], minlength=42).tolist()
        assert file["share_with_something_to_lose"] == something_to_lose(connect_four).mean()


def test_a_user_s_file_of_positions_is_read_like_the_shipped_one(connect_four: SolvedPositions, tmp_path: Path) -> None:
    with np.load(POSITIONS_FILE, allow_pickle=False) as file:
        first = file["plies"][:3]
        own = {"actions": file["actions"][: first.sum()], "plies": first, "values": file["values"][:3]}
    np.savez(tmp_path / "own.npz", **own)
    positions = read_positions(load_game("connect_four"), tmp_path / "own.npz")
    assert (positions.states == connect_four.states[:3]).all()
    assert (positions.observations == connect_four.observations[:3]).all()
    assert (positions.values == connect_four.values[:3]).all()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: b"",
        lambda whole: b"no archive at all",
        lambda whole: whole.replace(b"plies.npy", b"place.npy"),
    ],
    ids=["cut", "empty", "no archive", "a column is missing"],
)
def test_a_damaged_file_of_positions_is_refused_by_its_name(spoil: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    path.write_bytes(spoil(POSITIONS_FILE.read_bytes()))
    with pytest.raises(ValueError, match=r"own\.npz is not a file of solved positions of connect_four"):
        read_positions(load_game("connect_four"), path)


def test_a_file_whose_moves_or_values_are_impossible_is_refused(tmp_path: Path) -> None:
    path, values = tmp_path / "own.npz", np.zeros((1, 7), np.int8)
    full_column = np.array([[ILLEGAL, 0, 0, 0, 0, 0, 0]], np.int8)
    for moves, spoilt in (
        (7, full_column),
        (6, values),
        (6, full_column[:, :3]),
        (6, full_column.repeat(2, 0)),
        (6, full_column + 9),
    ):
        np.savez(path, actions=np.zeros(moves, np.uint8), plies=np.array([moves], np.uint8), values=spoilt)
        with pytest.raises(ValueError, match=r"own\.npz is not a file of solved positions"):
            read_positions(load_game("connect_four"), path)


@pytest.mark.medium
def test_tic_tac_toe_has_its_627_positions() -> None:
    assert len(loaded("tic_tac_toe").states) == 627


def test_other_games_have_no_solved_positions() -> None:
    assert load_positions(load_game("go", size=9)) is None


@pytest.mark.medium
def test_a_smaller_number_of_positions_is_always_the_same_subset(connect_four: SolvedPositions) -> None:
    part = loaded("connect_four", count=50)
    assert len(part.states) == len(part.values) == len(part.observations) == 50
    again = load_positions(load_game("connect_four"), count=50)
    assert again is not None
    assert (again.states == part.states).all()
    whole = {
        state.tobytes(): values.tolist() for state, values in zip(connect_four.states, connect_four.values, strict=True)
    }
    assert all(
        whole[state.tobytes()] == values.tolist() for state, values in zip(part.states, part.values, strict=True)
    )


@pytest.mark.parametrize("name", ["connect_four", "tic_tac_toe"])
def test_the_best_moves_are_no_errors_and_the_worst_are_all_possible_ones(name: str) -> None:
    positions = loaded(name)
    assert count_errors(positions, positions.values.argmax(1)).num_errors == 0
    worst = count_errors(positions, np.where(positions.values == ILLEGAL, 2, positions.values).argmin(1))
    assert worst.num_errors == something_to_lose(positions).sum() > 0


def test_each_kind_of_error_is_counted_where_it_belongs() -> None:
    positions = made_up(
        [1, 0, -1, ILLEGAL, 1, 1, 1],
        [1, 0, -1, ILLEGAL, 1, 1, 1],
        [0, 0, -1, ILLEGAL, 0, 0, 0],
        [0, 0, -1, ILLEGAL, 0, 0, 0],
        [-1, -1, -1, ILLEGAL, -1, -1, -1],  # nothing to lose
    )
    found = count_errors(positions, np.array([1, 2, 2, 1, 0], np.int32))
    assert found == PlayErrors(positions=5, win_to_draw=1, win_to_loss=1, draw_to_loss=1)
    assert (found.num_errors, found.share) == (3, 0.6)
    assert found.interval == wilson_interval(3, 5)
    assert found.margin == pytest.approx((wilson_interval(3, 5)[1] - wilson_interval(3, 5)[0]) / 2)


def test_an_illegal_choice_is_refused_with_its_position() -> None:
    with pytest.raises(IllegalAction, match="position 1: action 3"):
        count_errors(made_up([1] * 7, [0, 0, 0, ILLEGAL, 0, 0, 0]), np.array([3, 3]))


def test_intervals_are_wilson_s() -> None:
    assert wilson_interval(0, 0) == (0, 1)
    assert wilson_interval(0, 10) == pytest.approx((0, 0.2775), abs=1e-4)
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1), abs=1e-4)
    assert wilson_interval(81, 263) == pytest.approx(
        (0.2553, 0.3662), abs=1e-4
    )  # R. G. Newcombe, Statistics in Medicine 17 (1998)


def test_the_policy_chooses_the_largest_legal_logit_of_its_own_position(connect_four: SolvedPositions) -> None:
    sizes = []

    def prefers_full_columns(observations: Planes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A network for which more stones in a column are better, the leftmost first."""
        sizes.append(len(observations))
        return observations[:, :2].sum((1, 2)), np.zeros(len(observations), np.float32)

    actions = choose_policy_actions(connect_four, prefers_full_columns, batch_size=48)
    heights = connect_four.observations[:, :2].sum((1, 2))
    expected = [max((h, -a) for a, h in enumerate(row) if h < 6)[1] for row in heights.tolist()]
    assert actions.tolist() == [-action for action in expected]
    assert max(sizes) == 48
    assert sum(sizes) == len(connect_four.states)
