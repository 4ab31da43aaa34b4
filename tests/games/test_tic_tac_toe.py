"""Tic-tac-toe follows its rules: known positions, exact counts, and two other implementations."""

import numpy as np
import pytest

from keima.games import Game, IllegalAction, load_game
from keima.games.game import States
from keima.games.perft import count_perft
from tests.games.endings import endings
from tests.games.twins import play_beside

LINES = ["123", "456", "789", "147", "258", "369", "159", "357"]


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("tic_tac_toe")


def after(game: Game, cells: str) -> States:
    """Return the position after moves in the cells 1 to 9."""
    state = game.initial_state()
    for cell in cells:
        game.play(state, game.parse_action(cell))
    return state


@pytest.mark.parametrize("line", LINES)
def test_each_line_wins_for_the_first_player(game: Game, line: str) -> None:
    others = next(f"{a}{b}" for a in "123456789" for b in "123456789" if a < b and a not in line and b not in line)
    state = after(game, line[0] + others[0] + line[1] + others[1])
    assert not game.terminal(state)
    game.play(state, int(line[2]) - 1)
    assert game.terminal(state)
    assert game.returns(state).tolist() == [1, -1]
    assert game.legal_actions(state).tolist() == []


@pytest.mark.parametrize("line", LINES)
def test_each_line_wins_for_the_second_player(game: Game, line: str) -> None:
    free = [cell for cell in "123456789" if cell not in line]
    first = next(a + b + c for a in free for b in free for c in free if a < b < c and a + b + c not in LINES)
    state = after(game, first[0] + line[0] + first[1] + line[1] + first[2] + line[2])
    assert game.terminal(state)
    assert game.returns(state).tolist() == [-1, 1]


def test_a_full_board_without_a_line_is_a_draw(game: Game) -> None:
    state = after(game, "123546879")
    assert game.terminal(state)
    assert game.returns(state).tolist() == [0, 0]
    assert game.render(state) == "X O X\nX O O\nO X X"


def test_the_last_cell_can_complete_a_line(game: Game) -> None:
    state = after(game, "124357869")
    assert game.terminal(state)
    assert game.returns(state).tolist() == [1, -1]


def test_an_occupied_cell_and_a_finished_game_accept_no_moves(game: Game) -> None:
    with pytest.raises(IllegalAction, match="tic_tac_toe: action 4"):
        game.play(after(game, "5"), 4)
    with pytest.raises(IllegalAction):
        game.play(after(game, "14253"), 8)


def test_the_observation_shows_the_movers_marks_first_and_the_first_row_on_top(game: Game) -> None:
    mine, theirs = game.observe(after(game, "13"))
    assert mine.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert theirs.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    mine, theirs = game.observe(after(game, "139"))
    assert mine.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert theirs.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_the_board_is_rendered_for_people(game: Game) -> None:
    assert game.render(after(game, "519")) == "O 2 3\n4 X 6\n7 8 X"
    assert [game.action_name(action) for action in range(9)] == list("123456789")
    with pytest.raises(ValueError, match="'0' is not a cell: type a number from 1 to 9"):
        game.parse_action("0")


def test_the_tree_has_exactly_the_known_number_of_positions_at_each_ply(game: Game) -> None:
    assert [count_perft(game, depth) for depth in range(11)] == [
        1,
        9,
        72,
        504,
        3024,
        15120,
        54720,
        148176,
        200448,
        127872,
        0,
    ]


def test_there_are_exactly_255168_games(game: Game) -> None:
    assert endings(game) == (77904, 46080, 131184)
    assert sum(endings(game)) == 255168


@pytest.mark.medium
def test_there_are_exactly_5478_positions(game: Game) -> None:
    found, waiting = {game.start.tobytes()}, [game.start]
    while waiting:
        state = waiting.pop()
        for action in game.legal_actions(state):
            child = state.copy()
            game.play(child, int(action))
            if child.tobytes() not in found:
                found.add(child.tobytes())
                waiting.append(child)
    assert len(found) == 5478
    assert len({game.hash(np.frombuffer(state, np.int64).copy()) for state in found}) == 5478


class Naive:
    """The rules as one would write them on a napkin."""

    def __init__(self) -> None:
        self.cells = "." * 9
        self.ply = 0

    def winner(self) -> str | None:
        marks = ["".join(self.cells[int(cell) - 1] for cell in line) for line in LINES]
        return "x" if "xxx" in marks else "o" if "ooo" in marks else None

    def is_terminal(self) -> bool:
        return self.winner() is not None or "." not in self.cells

    def legal_actions(self) -> list[int]:
        return [] if self.is_terminal() else [cell for cell in range(9) if self.cells[cell] == "."]

    def current_player(self) -> int:
        return self.ply % 2

    def returns(self) -> list[float]:
        return {"x": [1.0, -1.0], "o": [-1.0, 1.0], None: [0.0, 0.0]}[self.winner()]

    def apply_action(self, action: int) -> None:
        self.cells = self.cells[:action] + "xo"[self.ply % 2] + self.cells[action + 1 :]
        self.ply += 1

    def __str__(self) -> str:
        return "\n".join(self.cells[row : row + 3] for row in (0, 3, 6))


@pytest.mark.medium
def test_it_agrees_with_the_simplest_implementation(game: Game) -> None:
    play_beside(game, Naive, positions=4_000, seed=1)


@pytest.mark.medium
def test_it_agrees_with_open_spiel(game: Game) -> None:
    pyspiel = pytest.importorskip("pyspiel", reason="open_spiel is not installed")
    play_beside(game, pyspiel.load_game("tic_tac_toe").new_initial_state, positions=4_000, seed=2)
