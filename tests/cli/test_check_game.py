"""The check of a game prints what its author should know, and settings that can be trained with."""

from pathlib import Path

import pytest

from keima.cli import check_game
from keima.config.load import load_settings
from tests.programs import printed

BROKEN = """
import numpy as np
from keima.games.authoring.plain import plain_game

def start():
    return np.zeros((2, 2), np.int8)

def legal_moves(board, player):
    return np.arange(5)

def play(board, player, move):
    board[0, 0] += 1

def result(board, player):
    return 0 if board[0, 0] == 4 else None

def game(size=2):
    return plain_game(start=start, legal_moves=legal_moves, play=play, result=result, max_plies=4)
"""


@pytest.mark.medium
@pytest.mark.slow
def test_a_shipped_game_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_game.main(["tic_tac_toe", "--rules-only"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("tic_tac_toe keeps the contract.")
    for part in (
        "perft          9, 72, 504",
        "symmetries     8",
        "longest 9 (max_plies 9",
        "the first player wins",
        "X",
    ):
        assert part in said


@pytest.mark.medium
def test_a_broken_game_is_told_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BROKEN)
    assert check_game.main([str(file), "--options", '{"size": 3}']) == 1
    said = capsys.readouterr().out.strip()
    assert "\n" not in said
    assert "mine.py, line 8: legal_moves gives move 4, at the start; give moves from 0 to 3, or tell plain_game" in said


@pytest.mark.medium
def test_the_proposed_settings_are_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_game.main(["tic_tac_toe", "--games", "8"]) == 0
    said = capsys.readouterr().out
    text = said.partition("train FILE.yaml:\n\n")[2].partition("\nHere, on")[0]
    (tmp_path / "proposed.yaml").write_text(text)
    settings = load_settings(tmp_path / "proposed.yaml")
    assert settings.game.name == "tic_tac_toe"
    assert settings.search.full_search_probability == 1.0
    assert "games/s" in said and "to a first network that plays sensibly" in said


def test_a_game_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected one of chess, .* or a file such as my_game.py, found othelo"):
        check_game.check_inputs(check_game.parse(["othelo"]))
    with pytest.raises(ValueError, match="no_such_game"):
        check_game.check_inputs(check_game.parse(["no_such_game.py"]))


@pytest.mark.parametrize("options", ["size=6", "[6]"])
def test_options_are_json(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check_game.parse(["go", "--options", options])
    assert "expected JSON such as '{\"size\": 6}'" in capsys.readouterr().err


@pytest.mark.medium
def test_help_comes_without_loading() -> None:
    assert "a config to train it" in printed("check-game", "--help")


@pytest.mark.slow
def test_rules_are_compared_with_openspiels(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspiel", reason="open_spiel is not installed")
    words = ["tic_tac_toe", "--rules-only", "--games", "5", "--against"]
    assert check_game.main([*words, "openspiel:tic_tac_toe"]) == 0
    assert "The rules agree with OpenSpiel's tic_tac_toe in 5 random games" in capsys.readouterr().out
    assert check_game.main([*words, "openspiel:connect_four"]) == 1
    assert "tic_tac_toe: at the start, there are 9 legal moves, in OpenSpiel's game 7" in capsys.readouterr().out


def test_only_openspiels_games_can_be_compared_with(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        check_game.main(["tic_tac_toe", "--against", "gnugo:9"])
    assert "expected openspiel:NAME, such as openspiel:hex(board_size=5), found gnugo:9" in capsys.readouterr().err
