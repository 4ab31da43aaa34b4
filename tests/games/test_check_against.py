"""Comparing rules with OpenSpiel's: equal games pass, and the first difference is told with the moves and boards."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keima.games import Game, load_game
from keima.games.authoring.check_against import GamesDiffer, check_against, compare_named_game
from keima.games.game import Returns, States, returns_kernel, step_kernel
from tests.sources import ROOT

pytest.importorskip("pyspiel", reason="open_spiel is not installed")


@pytest.mark.parametrize(
    ("name", "options", "openspiel", "paired_by"),
    [
        ("connect_four", {}, "connect_four", "numbers"),
        ("tic_tac_toe", {}, "tic_tac_toe", "numbers"),
        ("openspiel", {"game": "pig(winscore=10,horizon=30)"}, "pig(winscore=10,horizon=30)", "names"),
    ],
)
def test_equal_games_pass(name: str, options: dict[str, Any], openspiel: str, paired_by: str) -> None:
    found = check_against(load_game(name, **options), openspiel, games=10)
    assert (found.games, found.paired_by) == (10, paired_by)
    assert found.positions > 50


@returns_kernel
def the_first_player_always_wins(state: States, out: Returns) -> None:
    out[0] = 1.0 if state[3] != 0 else 0.0
    out[1] = -out[0]


@step_kernel
def step_that_forgets_diagonals(state: States, action: int) -> None:
    mine = state[0] | (1 << action)
    state[1] |= 1 << action
    state[0] = state[1] ^ mine
    state[2] += 1
    for line in (0o007, 0o070, 0o700, 0o111, 0o222, 0o444):
        if mine & line == line:
            state[3] = 1
    if state[2] == 9 and state[3] == 0:
        state[3] = 2


def tic_tac_toe(**kernels: Any) -> Game:
    game = load_game("tic_tac_toe")
    return replace(game, rules=game.rules._replace(**kernels))


@pytest.mark.parametrize(
    ("kernels", "difference"),
    [
        ({"returns": the_first_player_always_wins}, r"the returns are \[1.0, -1.0\], OpenSpiel's"),
        ({"step": step_that_forgets_diagonals}, "the game goes on, OpenSpiel's is over"),
    ],
)
def test_the_first_difference_is_told_with_the_moves_and_both_boards(kernels: dict[str, Any], difference: str) -> None:
    with pytest.raises(GamesDiffer, match=difference) as told:
        check_against(tic_tac_toe(**kernels), "tic_tac_toe")
    first, *boards = str(told.value).splitlines()
    assert first.startswith("tic_tac_toe: after the moves ")
    assert boards[0] == "tic_tac_toe:" and boards[4] == "OpenSpiel:" and len(boards) == 8


def test_other_moves_are_listed() -> None:
    with pytest.raises(GamesDiffer, match=r"at the start, there are 9 legal moves, in OpenSpiel's game 7; .* 7, 8"):
        check_against(load_game("tic_tac_toe"), "connect_four")


def test_moves_that_are_numbered_otherwise_are_paired_by_the_users_function() -> None:
    game = load_game("tic_tac_toe")
    with pytest.raises(GamesDiffer, match=r"define openspiel_action\(number\)"):
        check_against(game, "tic_tac_toe", openspiel_action=lambda action: 9 - action)
    found = check_against(game, "tic_tac_toe", openspiel_action=lambda action: 8 - action, games=5)
    assert found.paired_by == "openspiel_action"


def test_another_number_of_players_is_told() -> None:
    with pytest.raises(GamesDiffer, match="tic_tac_toe has 2 players, OpenSpiel's catch 1"):
        check_against(load_game("tic_tac_toe"), "catch")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("file", "options", "openspiel", "passes"),
    [
        ("othello.py", {}, "othello", True),  # skips a player who cannot move; in OpenSpiel's, that player passes
        pytest.param("hex.py", {"size": 5}, "hex(board_size=5)", False, marks=pytest.mark.slow),
        pytest.param("gomoku.py", {"size": 9}, "gomoku(size=9)", False, marks=pytest.mark.slow),
        ("pig.py", {"goal": 20, "max_plies": 200}, "pig(winscore=20,horizon=200)", False),
        pytest.param("amazons.py", {}, "amazons(board_size=6)", False, marks=pytest.mark.slow),
        pytest.param("dots_and_boxes.py", {}, "dots_and_boxes(num_rows=4,num_cols=4)", False, marks=pytest.mark.slow),
    ],
)
def test_the_examples_have_openspiels_rules(file: str, options: dict[str, Any], openspiel: str, passes: bool) -> None:
    found = compare_named_game(str(ROOT / "games" / file), options, openspiel, games=8)
    assert (found.passes > 0) == passes


OWN = """
from keima.games import load_game

def openspiel_action(action):
    return {}

def game():
    return load_game("tic_tac_toe")
"""


def test_a_users_file_says_how_its_moves_are_numbered(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN.format("8 - action"))
    assert compare_named_game(str(file), {}, "tic_tac_toe", games=2).paired_by == "openspiel_action"


@pytest.mark.parametrize(
    ("mapping", "error", "text"),
    [
        ("9 - action", GamesDiffer, "^mine: at the start, there are 9 legal moves"),
        ("1 // 0", ValueError, r"mine.py, line 5: .*zero"),
    ],
)
def test_what_is_wrong_in_a_users_file_is_told(tmp_path: Path, mapping: str, error: Any, text: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN.format(mapping))
    with pytest.raises(error, match=text):
        compare_named_game(str(file), {}, "tic_tac_toe", games=2)
