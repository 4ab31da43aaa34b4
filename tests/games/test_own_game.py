"""A game in a user's own file is loaded like a shipped one, and its faults are reported with file and line."""

from pathlib import Path

import pytest

from keima.config.own_modules import NAME
from keima.games import load_game
from tests.sources import ROOT

SHIPPED = (ROOT / "keima" / "games" / "tic_tac_toe.py").read_text(encoding="utf-8")
OWN = SHIPPED.replace("def tic_tac_toe() -> Game:", "def game(size: int = SIZE) -> Game:")


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_is_a_game_named_by_its_content_with_all_its_options(tmp_path: Path) -> None:
    game = load_game(written(tmp_path / "mine.py", OWN))
    assert NAME.fullmatch(game.name) and game.options == {"size": 3}
    again = load_game(game.name, **game.options)
    assert (again.name, again.options) == (game.name, game.options)
    state = game.initial_state()
    for move in (0, 3, 1, 4, 2):
        game.play(state, move)
    assert game.terminal(state) and game.returns(state).tolist() == [1, -1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("answer = 42\n", r"mine\.py: define a function game\(\)"),
        ("def game():\n    return 42\n", r"mine\.py: game\(\) must return a Game, and returns a int"),
        ("def game():\n    return size\n", r"mine\.py, line 2: NameError: name 'size' is not defined"),
        ("def game():\n    raise ValueError('too small')\n", r"mine\.py, line 2: too small"),
    ],
)
def test_a_file_without_a_game_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        load_game(written(tmp_path / "mine.py", text))


def test_an_unknown_option_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"game 'mine' has no option 'komi'; it takes size"):
        load_game(written(tmp_path / "mine.py", OWN), komi=7)


def test_a_game_missing_on_this_machine_is_named_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"this machine does not have it: name the file othello\.py"):
        load_game("othello-000000000000")
