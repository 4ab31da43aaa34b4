"""Connect Four follows its rules: known positions, all 69 lines, exact counts, and two other implementations."""

from collections.abc import Iterator

import numpy as np
import pytest

from keima.games import Game, IllegalAction, load_game
from keima.games.connect_four.rules import has_four_in_line
from keima.games.game import Planes, States
from keima.games.perft import count_perft
from tests.games.twins import play_beside

DIRECTIONS = [(0, 1), (1, 0), (1, 1), (1, -1)]  # rows count from the bottom, columns from the left
LINES = [
    [(row + i * up, column + i * right) for i in range(4)]
    for row in range(6)
    for column in range(7)
    for up, right in DIRECTIONS
    if row + 3 * up < 6 and 0 <= column + 3 * right < 7
]


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("connect_four")


@pytest.fixture(scope="module")
def with_threats() -> Game:
    return load_game("connect_four", planes="threats")


def after(game: Game, columns: str) -> States:
    """Return the position after moves in the columns 1 to 7."""
    state = game.initial_state()
    for column in columns:
        game.play(state, game.parse_action(column))
    return state


def observations_of_random_games(game: Game, *, seed: int) -> Iterator[Planes]:
    """Return the observation of the player to move at every position of 60 games, the bottom row first."""
    random = np.random.default_rng(seed)
    for _ in range(60):
        state = game.initial_state()
        while not game.terminal(state):
            yield game.observe(state)[:, ::-1]
            game.play(state, int(random.choice(game.legal_actions(state))))


def bits(cells: list[tuple[int, int]]) -> int:
    return sum(1 << (7 * column + row) for row, column in set(cells))


def test_there_are_69_lines() -> None:
    assert len(LINES) == 69


def test_each_line_wins_whichever_stone_completes_it(game: Game) -> None:
    for line in LINES:
        upright = line[0][1] == line[1][1]
        for row, column in line[3:] if upright else line:
            mine = [cell for cell in line if cell != (row, column)]
            theirs = [(r, c) for top, c in line for r in range(top) if (r, c) not in line]  # the stones below the line
            state = np.array([bits(mine), bits(mine) | bits(theirs), 20, 0])
            game.play(state, column)
            assert game.terminal(state), line
            assert game.returns(state).tolist() == [1, -1], line


@pytest.mark.medium
def test_stones_form_a_line_exactly_if_they_contain_one_of_the_69() -> None:
    masks = [bits(line) for line in LINES]
    random = np.random.default_rng(3)
    found = 0
    for stones in random.random((20_000, 6, 7)) < random.uniform(0.2, 0.6, (20_000, 1, 1)):
        number = bits(list(zip(*(axis.tolist() for axis in np.nonzero(stones)), strict=True)))
        expected = any(number & mask == mask for mask in masks)
        assert has_four_in_line(number) == expected
        found += expected
    assert 4_000 < found < 16_000


def test_a_win_belongs_to_the_player_who_made_it(game: Game) -> None:
    assert game.returns(after(game, "1212121")).tolist() == [1, -1]
    assert game.returns(after(game, "71212121")).tolist() == [-1, 1]
    assert game.returns(after(game, "121212")).tolist() == [0, 0]


def test_a_full_board_without_a_line_is_a_draw(game: Game) -> None:
    state = after(game, "666165577462463234152541333211132724554777")
    assert game.terminal(state)
    assert game.returns(state).tolist() == [0, 0]
    assert (
        game.render(state)
        == """\
X X O X O O O
O X X O X X X
X O O X O X O
O X X O O X O
X O X X X O X
O O X O O X O
1 2 3 4 5 6 7"""
    )


def test_the_last_stone_can_complete_a_line(game: Game) -> None:
    state = after(game, "257317637535614666561535114371724437422224")
    assert game.terminal(state)
    assert game.returns(state).tolist() == [-1, 1]


def test_a_full_column_and_a_finished_game_accept_no_moves(game: Game) -> None:
    state = after(game, "111111")
    assert game.legal_actions(state).tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(IllegalAction, match="connect_four: action 0"):
        game.play(state, 0)
    with pytest.raises(IllegalAction):
        game.play(after(game, "1212121"), 3)


def test_the_observation_shows_the_movers_stones_first_and_the_top_row_first(game: Game) -> None:
    mine, theirs = game.observe(after(game, "447"))[:2]  # the second player is to move
    assert np.argwhere(mine).tolist() == [[4, 3]]
    assert np.argwhere(theirs).tolist() == [[5, 3], [5, 6]]
    mine, theirs = game.observe(after(game, "44"))[:2]
    assert np.argwhere(mine).tolist() == [[5, 3]]
    assert np.argwhere(theirs).tolist() == [[4, 3]]


def test_by_default_a_network_sees_the_stones_alone(game: Game, with_threats: Game) -> None:
    state = after(game, "44526")
    assert game.options == {"planes": "stones"}
    assert game.observe(state).shape == (2, 6, 7)
    assert (game.observe(state) == with_threats.observe(state)[:2]).all()
    with pytest.raises(ValueError, match="planes are 'all', not one of stones, threats"):
        load_game("connect_four", planes="all")


@pytest.mark.medium
def test_the_observation_shows_the_cells_that_would_complete_a_line_of_either_player(with_threats: Game) -> None:
    found = 0
    for planes in observations_of_random_games(with_threats, seed=5):
        empty = ~planes[:2].any(axis=0)
        for player in range(2):
            threats = {
                cell
                for line in LINES
                for cell in line
                if empty[cell] and sum(bool(planes[(player, *other)]) for other in line) == 3
            }
            assert {tuple(cell) for cell in np.argwhere(planes[2 + player]).tolist()} == threats
            found += len(threats)
    assert found > 1_000
    assert with_threats.observe(with_threats.initial_state())[4].tolist() == [[0] * 7, [1] * 7] * 3


@pytest.mark.medium
def test_the_observation_counts_each_player_s_open_lines_through_every_empty_cell(
    with_threats: Game,
) -> None:
    largest = 0.0
    for planes in observations_of_random_games(with_threats, seed=6):
        empty = ~planes[:2].any(axis=0)
        expected = np.zeros((2, 2, 6, 7))  # of each player, with two stones and with one
        for line in LINES:
            held = [sum(int(planes[(player, *cell)]) for cell in line) for player in range(2)]
            for player in range(2):
                if held[1 - player] == 0 and held[player] in {1, 2}:
                    for cell in line:
                        expected[(player, 2 - held[player], *cell)] += empty[cell]
        assert (planes[[5, 7]] == expected[:, 0] / 2).all()
        assert (planes[[6, 8]] == expected[:, 1] / 4).all()
        largest = max(largest, expected.max())
    assert largest > 4  # all of the first three binary digits occurred


def test_the_board_is_rendered_for_people(game: Game) -> None:
    assert game.render(after(game, "447")).splitlines()[-3:] == [". . . O . . .", ". . . X . . X", "1 2 3 4 5 6 7"]
    assert [game.action_name(action) for action in range(7)] == list("1234567")
    with pytest.raises(ValueError, match="'8' is not a column: type a number from 1 to 7"):
        game.parse_action("8")


def test_the_tree_has_exactly_the_known_number_of_positions_at_each_ply(game: Game) -> None:
    assert [count_perft(game, depth) for depth in range(1, 9)] == [7, 49, 343, 2401, 16807, 117649, 823536, 5673234]


class Naive:
    """The rules in the simplest form."""

    def __init__(self) -> None:
        self.columns: list[str] = [""] * 7
        self.ply = 0
        self.winner: str | None = None

    def at(self, row: int, column: int) -> str:
        return self.columns[column][row] if row < len(self.columns[column]) else "."

    def is_terminal(self) -> bool:
        return self.winner is not None or self.ply == 42

    def legal_actions(self) -> list[int]:
        return [] if self.is_terminal() else [column for column in range(7) if len(self.columns[column]) < 6]

    def current_player(self) -> int:
        return self.ply % 2

    def returns(self) -> list[float]:
        return {"x": [1.0, -1.0], "o": [-1.0, 1.0], None: [0.0, 0.0]}[self.winner]

    def apply_action(self, action: int) -> None:
        mark = "xo"[self.ply % 2]
        self.columns[action] += mark
        self.ply += 1
        if any(all(self.at(row, column) == mark for row, column in line) for line in LINES):
            self.winner = mark

    def __str__(self) -> str:
        return "\n".join("".join(self.at(row, column) for column in range(7)) for row in reversed(range(6)))


@pytest.mark.medium
def test_it_agrees_with_the_simplest_implementation(game: Game) -> None:
    play_beside(game, Naive, positions=4_000, seed=1)


@pytest.mark.medium
def test_it_agrees_with_open_spiel(game: Game) -> None:
    pyspiel = pytest.importorskip("pyspiel", reason="open_spiel is not installed")
    play_beside(game, pyspiel.load_game("connect_four").new_initial_state, positions=4_000, seed=2)
