"""The solver is correct: compared with exhaustive search, published scores, and itself."""

from dataclasses import replace

import numpy as np
import pytest

from keima.games import Game, load_game
from keima.games.connect_four.solver import new_table, solve_action_values, solve_position
from keima.games.exact import ILLEGAL, solve_all_positions
from keima.games.game import States

# Columns played, and the sign of the published score for the player to move: from the sets with which P. Pons measures
# solvers.
PUBLISHED = [
    ("2252576253462244111563365343671351441", -1),
    ("7422341735647741166133573473242566", 1),
    ("23163416124767223154467471272416755633", 0),
    ("52677675164321472411331752454", 0),
    ("6763525635134453444361412671365712", -1),
    ("67152117737262713366376314254", 1),
    ("3575316255751336464276636772271112", -1),
    ("5554224333234511764415115", 1),
    ("32164625", 1),
    ("265756512", -1),
    ("51756773145177", -1),
    ("75734233473735", 0),
    ("16634734375517", 0),
    ("12675471354133", 0),
    ("157564142155", -1),
    ("1616621455211", 1),
    ("2541266355551", -1),
]


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("connect_four")


def after(game: Game, columns: str) -> States:
    """Return the position after moves in the columns 1 to 7."""
    state = game.initial_state()
    for column in columns:
        game.play(state, game.parse_action(column))
    return state


def random_columns(game: Game, plies: int, *, count: int, seed: int) -> list[str]:
    """Return the moves of ``count`` random games that are not over after ``plies``."""
    random = np.random.default_rng(seed)
    found: list[str] = []
    while len(found) < count:
        state, columns = game.initial_state(), ""
        while len(columns) < plies and not game.terminal(state):
            action = int(random.choice(game.legal_actions(state)))
            game.play(state, action)
            columns += game.action_name(action)
        if not game.terminal(state):
            found.append(columns)
    return found


def test_published_scores_are_found(game: Game) -> None:
    assert [solve_position(after(game, columns)) for columns, _ in PUBLISHED] == [value for _, value in PUBLISHED]


@pytest.mark.medium
def test_every_position_of_an_endgame_has_the_values_of_exhaustive_search(game: Game) -> None:
    compared = 0
    for columns in random_columns(game, 32, count=12, seed=1):
        for state, values in solve_all_positions(replace(game, start=after(game, columns))):
            assert solve_action_values(state).tolist() == values.tolist()
            assert solve_position(state) == values.max()
            compared += 1
    assert compared > 1000


@pytest.mark.medium
def test_a_position_is_worth_its_best_move_and_a_move_minus_the_opponent_s_position(game: Game) -> None:
    for columns in random_columns(game, 16, count=25, seed=2):
        state = after(game, columns)
        values = solve_action_values(state)
        assert solve_position(state, table=new_table(slots=65_537)) == values.max()
        for action in game.legal_actions(state):
            left = after(game, columns + game.action_name(int(action)))
            assert values[action] == -solve_position(left, table=new_table(slots=65_537))


def test_a_position_and_its_mirror_image_have_mirrored_values(game: Game) -> None:
    for columns in random_columns(game, 14, count=10, seed=3):
        mirrored = "".join(str(8 - int(column)) for column in columns)
        values = solve_action_values(after(game, columns), table=new_table(slots=65_537))
        assert (
            solve_action_values(after(game, mirrored), table=new_table(slots=65_537)).tolist() == values[::-1].tolist()
        )


def test_a_table_that_forgets_almost_everything_changes_no_answer(game: Game) -> None:
    for columns in random_columns(game, 20, count=25, seed=4):
        state = after(game, columns)
        assert solve_action_values(state, table=new_table(slots=3)).tolist() == solve_action_values(state).tolist()


@pytest.mark.medium
def test_a_full_column_is_marked_illegal(game: Game) -> None:
    state = after(game, "11111122222")
    assert solve_action_values(state)[0] == ILLEGAL
    assert ILLEGAL not in solve_action_values(state)[1:]


def test_a_player_to_move_who_faces_a_complete_line_has_lost(game: Game) -> None:
    state = after(game, "1213141")
    assert solve_position(state) == -1
    assert solve_action_values(state).tolist() == [ILLEGAL] * 7


def test_a_full_board_without_a_line_is_drawn(game: Game) -> None:
    state = after(game, "1" * 6 + "2" * 6 + "3" * 6 + "5" + "4" * 6 + "5" * 5 + "6" * 6 + "7" * 6)
    assert game.terminal(state)
    assert solve_position(state) == 0
    assert solve_action_values(state).tolist() == [ILLEGAL] * 7


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_first_player_wins_in_the_centre_draws_next_to_it_and_loses_elsewhere(game: Game) -> None:
    values = solve_action_values(game.initial_state(), table=new_table(slots=134_217_689))  # 1 GiB
    assert values.tolist() == [-1, -1, 0, 1, 0, -1, -1]
