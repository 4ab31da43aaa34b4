"""A game in progress between a person and a network."""

import pytest

from keima.games import CHANCE, load_game
from keima.games.game import IllegalAction
from keima.play.session import GameSession
from tests.one_player import SMALL
from tests.own_game import three_in_line

TIC_TAC_TOE = load_game("tic_tac_toe")


def test_undo_takes_the_person_s_last_move_back_with_the_answer() -> None:
    session = GameSession(TIC_TAC_TOE, person=0)
    for action in (4, 0, 8):
        session.play(action)
    session.undo()
    assert (session.actions, session.moves) == ([4, 0], ["5", "1"])
    session.undo()
    session.undo()
    assert session.actions == [] and session.previous_state is None


def test_a_game_goes_on_from_its_actions() -> None:
    first = GameSession(SMALL, person=0, seed=1)
    for _ in range(5):
        assert SMALL.current_player(first.state) != CHANCE
        first.play(int(SMALL.legal_actions(first.state)[0]))
    again = GameSession(SMALL, person=0, actions=first.actions, seed=2)
    assert (again.state == first.state).all() and again.moves == first.moves
    again.undo()
    assert len(again.moves) == 4 and SMALL.current_player(again.state) != CHANCE
    with pytest.raises(IllegalAction):
        GameSession(TIC_TAC_TOE, person=0, actions=[4, 4])


def test_the_result_is_told_from_the_person_s_view() -> None:
    won = [0, 3, 1, 4, 2]
    assert [GameSession(TIC_TAC_TOE, person=who, actions=won).result() for who in (0, 1, None)] == [
        "You win!",
        "You lose.",
        "Player 1 wins.",
    ]
    given_up = GameSession(TIC_TAC_TOE, person=1, actions=[0], resigned=1)
    assert given_up.is_over and given_up.result() == "You resign: it wins."
    given_up.undo()
    assert not given_up.is_over and given_up.actions == [0]
    assert "your return is" in GameSession(three_in_line(), person=2).result()
