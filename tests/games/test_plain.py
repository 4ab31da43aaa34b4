"""Games from ordinary Python functions play as those from kernels do."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from games.tic_tac_toe import game as tic_tac_toe
from keima.games import Game, load_game
from keima.games.authoring.contract import ContractBroken, check_game
from keima.games.authoring.plain import PlainGameError, draw_board, make_move_table, permute_board, plain_game
from keima.games.game import States, board_symmetries, mirror_symmetries
from keima.games.perft import count_perft
from tests.compilation.compiling import run_code
from tests.games.endings import endings
from tests.games.plain_connect_four import connect_four
from tests.own_game import example
from tests.sources import ROOT

Board = Any


@pytest.fixture(scope="module")
def game() -> Game:
    return tic_tac_toe()


def after(game: Game, moves: str) -> States:
    state = game.initial_state()
    for move in moves.split():
        game.play(state, game.parse_action(move))
    return state


def check(game: Game) -> None:
    """The contract, but for the last rule: that ``load_game`` knows the game."""
    with pytest.raises(ContractBroken, match="load_game does not build it again: there is no game called"):
        check_game(game)


@pytest.mark.medium
def test_plain_tic_tac_toe_has_the_tree_of_the_one_in_kernels(game: Game) -> None:
    ours = load_game("tic_tac_toe")
    assert [count_perft(game, depth) for depth in range(11)] == [count_perft(ours, depth) for depth in range(11)]
    assert endings(game) == endings(ours)


@pytest.mark.medium
def test_its_positions_look_the_same(game: Game) -> None:
    ours, state, twin = load_game("tic_tac_toe"), game.initial_state(), load_game("tic_tac_toe").initial_state()
    for move in (4, 0, 8, 2, 1, 7, 5, 3):
        assert np.array_equal(game.observe(state), ours.observe(twin))
        assert game.legal_actions(state).tolist() == ours.legal_actions(twin).tolist()
        assert game.current_player(state) == ours.current_player(twin)
        game.play(state, move)
        ours.play(twin, move)


@pytest.mark.medium
def test_a_plain_game_of_a_file_keeps_the_contract() -> None:
    check_game(load_game(str(ROOT / "games" / "tic_tac_toe.py")))


@pytest.mark.slow
def test_a_larger_plain_game_keeps_the_contract() -> None:
    check(connect_four())


@pytest.mark.medium
def test_the_game_tells_its_author_s_result(game: Game) -> None:
    state = after(game, "a1 b1 a2 b2 a3")
    assert game.terminal(state)
    assert game.returns(state).tolist() == [1, -1]
    assert game.returns(after(game, "c3 a1 b1 a2 b2 a3")).tolist() == [-1, 1]


@pytest.mark.medium
def test_a_board_is_drawn_with_the_names_of_its_points(game: Game) -> None:
    assert game.render(after(game, "b1 c3")) == "1 . X .\n2 . . .\n3 . . O\n  a b c"
    assert [game.action_name(move) for move in (0, 2, 6)] == ["a1", "c1", "a3"]
    with pytest.raises(ValueError, match="'d4' is not a move: type one such as a1 or c3"):
        game.parse_action("d4")


def test_boards_of_other_numbers_are_drawn_as_numbers() -> None:
    assert draw_board(np.array([[0, 12], [-1, 0]])) == "1  . 12\n2 -1  .\n   a  b"


def start() -> Board:
    return np.array([[3, 4, 5]], np.int16)


def takings(board: Board, player: int) -> Any:
    """Nim: move 3 * count + heap takes count + 1 from a heap; given as a mask."""
    moves = np.zeros(15, np.bool_)
    for move in range(15):
        moves[move] = board[0, move % 3] > move // 3
    return moves


def take(board: Board, player: int, move: int) -> None:
    board[0, move % 3] -= move // 3 + 1


def last_one_wins(board: Board, player: int) -> int | None:
    return None if board.any() else -player


def heaps(board: Board, player: int) -> Any:
    return board, board % 2 == 1, 1.0


@pytest.fixture(scope="module")
def nim() -> Game:
    return plain_game(
        start=start, legal_moves=takings, play=take, result=last_one_wins, planes=heaps, moves=15, max_plies=12
    )


@pytest.mark.medium
def test_moves_may_be_a_mask_and_planes_numbers(nim: Game) -> None:
    state = nim.initial_state()
    assert nim.legal_actions(state).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 14]
    assert nim.observe(state).tolist() == [[[3, 4, 5]], [[1, 0, 1]], [[1, 1, 1]]]
    assert nim.policy_planes == 5
    check(nim)


def empty_row() -> Board:
    return np.zeros(4, np.int64)


def free_cells(board: Board, player: int) -> Any:
    for cell in range(3, -1, -1):
        if board[cell] == 0:
            yield cell
            yield cell  # once too often


def move_again_on_an_edge(board: Board, player: int, move: int) -> int | None:
    board[move] = player
    if move in (0, 3):
        return player
    return None


def most_cells(board: Board, player: int) -> float | None:
    return float(np.sign(board.sum())) / 2 if np.all(board != 0) else None


def row_as_plane(board: Board, player: int) -> Any:
    return (board * player).reshape(1, 1, 4)


@pytest.mark.medium
@pytest.mark.slow
def test_a_player_may_move_again_and_moves_come_in_any_order() -> None:
    game = plain_game(
        start=empty_row,
        legal_moves=free_cells,
        play=move_again_on_an_edge,
        result=most_cells,
        planes=row_as_plane,
        max_plies=4,
        symmetries=mirror_symmetries(1, 4),
    )
    state = after(game, "a1")
    assert game.current_player(state) == 0
    assert game.legal_actions(state).tolist() == [1, 2, 3]
    game.play(state, 1)
    assert game.current_player(state) == 1
    assert game.returns(after(game, "a1 d1 b1 c1")).tolist() == [0.5, -0.5]
    check(game)


def test_a_board_that_is_a_row_needs_planes_of_its_own() -> None:
    with pytest.raises(PlainGameError, match=r"start returns a board of shape \(4,\); give planes\(board, player\)"):
        plain_game(start=empty_row, legal_moves=free_cells, play=move_again_on_an_edge, result=most_cells, max_plies=4)


def steps(board: Board, player: int) -> Any:
    return np.arange(2)


def walk(board: Board, player: int, move: int) -> None:
    board[0, 0] += move
    board[0, 1] += 1


def distance(board: Board, player: int) -> int | None:
    return int(board[0, 0]) if board[0, 1] == 5 else None


def where(board: Board, player: int) -> Any:
    return (board / 5,)


@pytest.mark.medium
@pytest.mark.slow
def test_a_game_for_one_player_has_a_score() -> None:
    game = plain_game(
        start=lambda: np.zeros((1, 2), np.int8),
        legal_moves=steps,
        play=walk,
        result=distance,
        planes=where,
        players=1,
        moves=2,
        max_plies=5,
        max_return=5.0,
    )
    state = after(game, "b1 b1 a1 b1 b1")
    assert game.terminal(state)
    assert game.returns(state).tolist() == [4]
    check(game)


def sized(size: int) -> Game:
    """A game whose functions refer to its option, to each other, and to a list."""
    corners = [0, size - 1]

    def first() -> Board:
        return np.zeros((size, size), np.int8)

    def corner(move: int) -> bool:
        return any([move == number for number in corners])  # noqa: C419  # numba compiles no generator in a call

    def corners_only(board: Board, player: int) -> Any:
        for move in range(size * size):
            if corner(move) and board[move // size, move % size] == 0:
                yield move

    def put(board: Board, player: int, move: int) -> None:
        board[move // size, move % size] = player

    def full(board: Board, player: int) -> int | None:
        return int(board[0, 0]) if (board != 0).sum() == len(corners) else None

    return plain_game(start=first, legal_moves=corners_only, play=put, result=full, max_plies=2)


@pytest.mark.slow
def test_options_make_games_of_their_own() -> None:
    small, large = sized(2), sized(4)
    assert small.legal_actions(small.initial_state()).tolist() == [0, 1]
    assert large.legal_actions(large.initial_state()).tolist() == [0, 3]


def test_what_a_mirror_does_to_columns_and_to_moves_from_point_to_point() -> None:
    mirror = mirror_symmetries(2, 3)
    assert make_move_table(mirror, 3, (1, 2, 3)).tolist() == [[0, 1, 2], [2, 1, 0]]
    pairs = make_move_table(mirror, 37, (1, 2, 3))[1]
    assert pairs[6 * 0 + 4] == 6 * 2 + 4
    assert pairs[36] == 36
    with pytest.raises(PlainGameError, match=r"give a pair \(points, moves\)"):
        make_move_table(mirror, 4, (1, 2, 3))
    with pytest.raises(PlainGameError, match=r"give a pair \(points, moves\)"):
        make_move_table(board_symmetries(3), 3, (1, 3, 3))


def test_a_start_is_turned_as_its_points_are() -> None:
    board, mirror = np.arange(6, dtype=np.int8), mirror_symmetries(2, 3)[1]
    assert permute_board(board.reshape(2, 3), mirror).tolist() == [[2, 1, 0], [5, 4, 3]]
    assert permute_board(np.stack([board, board]).reshape(2, 2, 3), mirror)[1].tolist() == [[2, 1, 0], [5, 4, 3]]
    assert permute_board(board[:4], mirror).tolist() == [0, 1, 2, 3]


def lopsided_start() -> Board:
    board = np.zeros((3, 3), np.int8)
    board[0, 0] = 1
    return board


def empty_cells(board: Board, player: int) -> Any:
    return np.flatnonzero(board == 0)


def put_stone(board: Board, player: int, move: int) -> None:
    board[move // 3, move % 3] = player


def middle(board: Board, player: int) -> int | None:
    return int(board[1, 1]) if np.all(board != 0) else None


@pytest.mark.medium
def test_a_start_that_is_not_its_own_mirror_image_keeps_the_contract() -> None:
    game = plain_game(
        start=lopsided_start,
        legal_moves=empty_cells,
        play=put_stone,
        result=middle,
        max_plies=8,
        symmetries=board_symmetries(3),
    )
    check(game)
    with pytest.raises(ContractBroken, match="does not show the symmetric board at the start; correct the tables"):
        check_game(replace(game, symmetric_starts=np.empty((0, 0), np.int64)))


COUNTING = """
import json, sys
from keima.games import load_game
from keima.games.authoring.contract import check_game
from tests.compilation.compiling import watch_compiling

compiled = watch_compiling()
name, *options = json.loads(sys.argv[1])
for given in options:
    game = load_game(name, **given)
    check_game(game, games=4)
    print(*[kernel.cache_hits for kernel in game.rules[:-1]])
print(len(compiled), *compiled)
"""


def compiled_for(file: Path, cache: Path, *options: dict[str, int]) -> list[str]:
    """Which kernels a new process finds in the cache for each of the options, and what it compiles."""
    return run_code(COUNTING, cache, json.dumps([str(file), *options]))


@pytest.mark.slow
@pytest.mark.medium
def test_a_game_is_compiled_once_a_machine_for_each_of_its_options(tmp_path: Path) -> None:
    here, there = tmp_path / "here" / "mine.py", tmp_path / "there" / "mine.py"
    text = (ROOT / "games" / "tic_tac_toe.py").read_text(encoding="utf-8")
    for file in (here, there):
        file.parent.mkdir()
        file.write_text(text.replace("def game():", "def game(longest=9):").replace("max_plies=9", "max_plies=longest"))
    assert compiled_for(here, tmp_path / "cache", {})[0] == "0 0 0 0 0 0 0"
    assert compiled_for(there, tmp_path / "cache", {}) == ["1 1 1 1 1 1 1", "0"]
    assert compiled_for(there, tmp_path / "cache", {"longest": 8}, {})[:2] == ["1 0 1 1 1 1 1", "1 1 1 1 1 1 1"]


def nobody_wins(board: Board, player: int) -> None:
    return None


@pytest.mark.medium
def test_a_position_without_a_move_that_no_check_has_found_ends_the_game(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keima.games.authoring.plain.check_functions", lambda *_, **__: None)
    game = plain_game(start=lopsided_start, legal_moves=empty_cells, play=put_stone, result=nobody_wins, max_plies=100)
    state = after(game, "b1 c1 a2 b2 c2 a3 b3")
    assert not game.terminal(state)
    game.play(state, game.parse_action("c3"))
    assert game.terminal(state)
    assert game.returns(state).tolist() == [0, 0]


# Chance.


@pytest.mark.slow
def test_2048_in_plain_functions_is_the_one_in_kernels() -> None:
    ours, theirs = example("plain_2048", size=3), load_game("twenty48", height=3, width=3)
    random = np.random.default_rng(5)
    for _ in range(3):
        state, other = ours.initial_state(), theirs.initial_state()
        while not theirs.terminal(other):
            assert not ours.terminal(state) and ours.current_player(state) == theirs.current_player(other)
            outcomes, probabilities = ours.chance_outcomes(state)
            expected, likely = theirs.chance_outcomes(other)
            assert outcomes.tolist() == expected.tolist() and probabilities == pytest.approx(likely)
            assert ours.legal_actions(state).tolist() == theirs.legal_actions(other).tolist()
            choices = expected if len(expected) else theirs.legal_actions(other)
            action = int(random.choice(choices))
            ours.play(state, action)
            theirs.play(other, action)
        assert ours.terminal(state) and ours.returns(state).tolist() == theirs.returns(other).tolist()


@pytest.mark.slow
def test_2048_in_plain_functions_keeps_the_contract_under_symmetries_of_moves_and_outcomes() -> None:
    game = example("plain_2048", size=3)
    assert len(game.outcome_symmetries) == 8 and (game.outcome_symmetries[1] != np.arange(18)).any()
    check_game(game, games=4)
