"""Tests of NAME.py: python -m pytest test_NAME.py"""

from pathlib import Path

from keima import check_game, load_game

GAME = load_game(str(Path(__file__).with_name("NAME.py")))


def after(*moves):
    """The position after these moves from the start."""
    state = GAME.initial_state()
    for move in moves:
        GAME.play(state, GAME.parse_action(move))
    return state


def test_the_game_keeps_the_contract():
    check_game(GAME)


def test_four_in_a_row_win():
    state = after("a1", "a2", "b1", "b2", "c1", "c2", "d1")
    assert GAME.terminal(state)
    assert GAME.returns(state).tolist() == [1, -1]
    assert GAME.render(state).splitlines()[:2] == ["1 X X X X .", "2 O O O . ."]


def test_three_in_a_row_do_not():
    assert not GAME.terminal(after("a1", "a2", "b1", "b2", "c1", "c2", "e1"))
