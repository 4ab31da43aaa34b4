"""Positions as pages draw them."""

import numpy as np
import pytest

from keima.games import Game, load_game
from keima.games.game import States
from keima.play.session import move_name
from keima.report.games.drawn_board import board_kind, draw_board, points_of_move, read_cells, read_stones
from tests.one_player import SMALL
from tests.own_game import example, three_in_line

TIC_TAC_TOE, CONNECT_FOUR, GO = load_game("tic_tac_toe"), load_game("connect_four"), load_game("go", size=5)


def after(game: Game, *moves: str) -> States:
    state = game.initial_state()
    for move in moves:
        game.play(state, game.parse_action(move))
    return state


def test_the_first_player_s_stones_are_1_and_the_second_s_minus_1() -> None:
    assert draw_board(TIC_TAC_TOE, after(TIC_TAC_TOE, "1", "5")).cells == ((1, 0, 0), (0, -1, 0), (0, 0, 0))
    assert draw_board(CONNECT_FOUR, after(CONNECT_FOUR, "3", "3")).cells[-2:] == (
        (0, 0, -1, 0, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0),
    )
    assert draw_board(GO, after(GO, "A5", "E1")).cells[0] == (1, 0, 0, 0, 0)
    assert draw_board(GO, after(GO, "A5", "E1")).cells[-1] == (0, 0, 0, 0, -1)


@pytest.mark.parametrize("game", [TIC_TAC_TOE, GO], ids=["tic_tac_toe", "go"])
def test_stones_are_found_in_the_planes_of_a_game_that_gives_no_cells(game: Game) -> None:
    state = game.initial_state()
    for action in (0, 3, 4):
        game.play(state, action)
        assert np.array_equal(read_stones(game, state), read_cells(game, state))


def test_a_move_is_made_on_its_point_or_on_the_cell_that_it_fills() -> None:
    assert points_of_move(GO, GO.initial_state(), GO.parse_action("A5")) == (0,)
    assert points_of_move(GO, GO.initial_state(), GO.parse_action("pass")) == ()
    assert points_of_move(CONNECT_FOUR, after(CONNECT_FOUR, "3"), 2) == (4 * 7 + 2,)
    three = three_in_line()
    assert points_of_move(three, three.initial_state(), 1) == (3 * 4 + 1,)
    assert points_of_move(SMALL, SMALL.initial_state(), 0) == ()


@pytest.mark.medium
def test_moves_of_chess_lead_from_square_to_square_as_white_sees_them() -> None:
    chess = load_game("chess")
    state = chess.initial_state()
    for text, points in (("e2e4", (52, 36)), ("e7e5", (12, 28))):
        action = next(each for each in chess.legal_actions(state).tolist() if move_name(chess, state, each) == text)
        assert points_of_move(chess, state, action) == points
        chess.play(state, action)
    cells = np.array(draw_board(chess, state).cells)
    assert cells[0].tolist() == [-4, -2, -3, -5, -6, -3, -2, -4] and cells[7].tolist() == [4, 2, 3, 5, 6, 3, 2, 4]
    assert (cells[4, 4], cells[3, 4], cells[6, 4], cells[1, 4]) == (1, -1, 0, 0)


def test_tiles_are_numbers() -> None:
    assert board_kind(SMALL) == "twenty48"
    assert np.array(draw_board(SMALL, SMALL.initial_state()).cells).shape == (3, 3)


@pytest.mark.medium
def test_a_game_s_own_drawing_has_all_its_points() -> None:
    hexagonal = example("hex", size=3, swap=True)
    drawn = draw_board(hexagonal, after(hexagonal, "a1"))
    assert not drawn.cells and drawn.svg.count("data-move=") == 9 and 'fill="#c0392b" stroke="#555"' in drawn.svg
    assert read_cells(hexagonal, after(hexagonal, "a1"))[0].tolist() == [1, 0, 0]  # type: ignore[index]
