"""What is found out about a game, and that a game that does not answer is told from one that does."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keima.config.own_modules import keep_module
from keima.games import Game, load_game
from keima.games.authoring import check
from keima.games.authoring.check import (
    GameDoesNotAnswer,
    check_game_once,
    count_perft_by_depth,
    examine_game,
    examine_in_process,
    find_further_symmetries,
    measure_sudden_share,
)
from tests.sources import ROOT

PLAIN = """
import numpy as np
from keima.games.authoring.plain import plain_game

def start():
    return np.zeros((2, 2), np.int8)

def legal_moves(board, player):
    for move in range(4):
        if board[move // 2, move % 2] == 0:
            yield move

def play(board, player, move):
    board[move // 2, move % 2] = player

def result(board, player):
    {result}

def game():
    return plain_game(start=start, legal_moves=legal_moves, play=play, result=result, max_plies=4)
"""

KERNELS = """
from dataclasses import replace
from keima.games import load_game
from keima.games.game import {kernel}_kernel as kernel

@kernel
def mine(state, other):
    {body}

def game():
    shipped = load_game("tic_tac_toe")
    return replace(shipped, rules=shipped.rules._replace({kernel}=mine))
"""


def mine(folder: Path, text: str) -> str:
    """A user's file."""
    (folder / "mine.py").write_text(text)
    return str(folder / "mine.py")


def unturned(game: Game) -> Game:
    """The game without its symmetries."""
    points, actions = game.point_symmetries[:1], game.action_symmetries[:1]
    return replace(game, point_symmetries=points, action_symmetries=actions)


@pytest.fixture(autouse=True)
def speed_is_measured_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SPEED_SECONDS", 0.05)


@pytest.mark.medium
def test_random_games_say_what_a_game_is_like() -> None:
    report = examine_game("tic_tac_toe", {}, games=24)
    assert not report.broken
    assert report.perft[:4] == [9, 72, 504, 3024]
    assert 5 <= report.mean_plies <= report.longest == 9
    assert report.most_legal == 9
    assert report.first_wins + report.draws + report.second_wins == pytest.approx(1)
    assert report.first_wins > report.second_wins
    assert report.symmetries == 8
    assert report.moves_per_second > 1000
    assert "X" in "".join(report.sample)
    assert json.loads(json.dumps(report.__dict__)) == report.__dict__


@pytest.mark.medium
def test_games_of_chance_have_no_perft_and_a_score() -> None:
    report = examine_game("twenty48", {"height": 2, "width": 2}, games=4)
    assert report.perft == []
    assert report.players == 1
    assert report.mean_returns[0] > 0


def test_perft_goes_as_deep_as_is_counted_at_once() -> None:
    assert count_perft_by_depth(load_game("tic_tac_toe")) == [9, 72, 504, 3024, 15120, 54720, 148176]


@pytest.mark.medium
def test_symmetries_that_are_not_declared_are_found() -> None:
    assert find_further_symmetries(load_game("tic_tac_toe")) == []
    assert len(find_further_symmetries(unturned(load_game("tic_tac_toe")))) == 7
    assert find_further_symmetries(unturned(load_game("connect_four"))) == ["left and right exchanged"]


HIDDEN = """
import numpy as np
from keima.games.authoring.plain import plain_game

def start():
    return np.zeros((2, 3), np.int8)

def legal_moves(board, player):
    for move in range(6):
        if board[move // 3, move % 3] == 0 and (board != 0).sum() < 6:
            yield move

def play(board, player, move):
    board[move // 3, move % 3] = player * (3 if move == 5 else 1)

def result(board, player):
    return 0 if board.all() else None

def game():
    return plain_game(start=start, legal_moves=legal_moves, play=play, result=result, max_plies=6)
"""


@pytest.mark.medium
def test_what_the_planes_do_not_show_is_told(tmp_path: Path) -> None:
    report = examine_game(mine(tmp_path, HIDDEN), {})
    assert not report.broken, "a board may hold numbers that the default planes leave out"
    assert "look the same to the network, but have different legal moves: one" in report.notes[0]
    assert "let the planes show what differs" in report.notes[0]


def test_sudden_ends_are_where_only_some_moves_end_the_game() -> None:
    random = np.random.default_rng(0)
    assert 0.15 < measure_sudden_share(load_game("tic_tac_toe"), random) < 0.35
    assert 0.2 < measure_sudden_share(load_game("connect_four"), random) < 0.4


@pytest.mark.medium
def test_what_is_wrong_is_told_from_the_process_that_found_it(tmp_path: Path) -> None:
    file = mine(tmp_path, PLAIN.format(result="return board[2, 2]"))
    report = examine_in_process(file, {})
    assert "mine.py, line 17: result fails after the moves" in report.broken
    assert "IndexError" in report.broken


@pytest.mark.medium
def test_a_function_that_never_returns_is_told_with_its_line(tmp_path: Path) -> None:
    file = mine(tmp_path, PLAIN.format(result="while True: board[0, 0] += 0"))
    with pytest.raises(
        GameDoesNotAnswer, match=r"^mine.py, line 17: result does not end within 2 s; look for an endless loop"
    ):
        examine_in_process(file, {}, seconds=2)


@pytest.mark.slow
@pytest.mark.medium
def test_a_kernel_that_never_returns_is_named(tmp_path: Path) -> None:
    file = mine(tmp_path, KERNELS.format(kernel="step", body="while state[2] >= 0: state[2] += 0"))
    with pytest.raises(GameDoesNotAnswer, match=r"^the kernel step does not end within 15 s"):
        examine_in_process(file, {}, seconds=15)


@pytest.mark.medium
def test_a_kernel_that_ends_its_process_is_named(tmp_path: Path) -> None:
    file = mine(tmp_path, KERNELS.format(kernel="observe", body="other[-(2 ** 40), 0, 0] = 1"))
    with pytest.raises(GameDoesNotAnswer, match=r"^the kernel observe crashes with signal 11; look for an index"):
        examine_in_process(file, {})


@pytest.mark.medium
def test_an_error_of_a_function_that_is_not_compiled_is_told_with_its_line(tmp_path: Path) -> None:
    text = PLAIN.format(result="return 0 if board.all() else None").replace("max_plies=4", "max_plies=4, render=lost")
    file = mine(tmp_path, text + "\ndef lost(board):\n    return MARKS[board[0, 0]]\n")
    assert examine_game(file, {}).broken == "mine.py, line 23: NameError: name 'MARKS' is not defined; fix this line"


@pytest.mark.medium
def test_a_user_s_game_is_checked_once_on_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "CHECKED_FOLDER", tmp_path / "checked")
    said: list[str] = []
    name = keep_module(ROOT / "games" / "tic_tac_toe.py")
    check_game_once(name, {}, say=said.append)
    check_game_once(name, {}, say=said.append)
    assert said == ["checking the rules of tic_tac_toe, once on this machine"]


@pytest.mark.medium
def test_a_user_s_game_that_breaks_the_contract_is_refused_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "CHECKED_FOLDER", tmp_path / "checked")
    name = keep_module(Path(mine(tmp_path, PLAIN.format(result="return board[2, 2]"))))
    for _ in range(2):
        with pytest.raises(GameDoesNotAnswer, match=r"result fails after the moves"):
            check_game_once(name, {}, say=lambda text: None)
