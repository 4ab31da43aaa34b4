"""Each way in which a plain game can be wrong is told in one sentence: where, what, and what to do."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from keima.games.authoring.contract import ContractBroken, check_game
from keima.games.authoring.plain import PlainGame, PlainGameError, board_symmetries, plain_game

Board = Any
SCORES = {1: 1.0, -1: -1.0}


def start() -> Board:
    return np.zeros((3, 3), np.int8)


def legal_moves(board: Board, player: int) -> Any:
    return np.flatnonzero(board == 0)


def play(board: Board, player: int, move: int) -> None:
    board[move // 3, move % 3] = player


def result(board: Board, player: int) -> int | None:
    """The game goes to the player who has the middle of a full board."""
    if (board != 0).all():
        return int(board[1, 1])
    return None


def small(**changes: Any) -> PlainGame:
    rules: dict[str, Any] = dict(start=start, legal_moves=legal_moves, play=play, result=result, max_plies=9)
    return plain_game(**{**rules, **changes})


def two_returns(board: Board, player: int) -> Any:
    return (1.0, -1.0) if (board != 0).all() else None


def too_large(board: Board, player: int) -> Any:
    return (2.0, -1.0, -1.0) if (board != 0).all() else None


def list_as_board() -> Board:
    return [[0, 0], [0, 0]]


def start_that_fails() -> Board:
    return np.zeros((3, 3), np.int8)[3, 3]


def every_cell(board: Board, player: int) -> Any:
    return np.arange(9)


def careful_play(board: Board, player: int, move: int) -> None:
    assert board[move // 3, move % 3] == 0
    board[move // 3, move % 3] = player


def moves_from_one(board: Board, player: int) -> Any:
    return np.flatnonzero(board == 0) + 1


def moves_without_end(board: Board, player: int) -> Iterator[int]:
    while True:
        yield 0


def halves(board: Board, player: int) -> Iterator[float]:
    yield 0.5


def only_the_middle(board: Board, player: int) -> Any:
    return np.array([4]) if board[1, 1] == 0 else np.array([0])[:0]


def play_a_copy(board: Board, player: int, move: int) -> int:
    board = board.copy()
    board[move // 3, move % 3] = player
    return player


def play_for_a_third(board: Board, player: int, move: int) -> int:
    board[move // 3, move % 3] = player
    return 2


def points(board: Board, player: int) -> int | None:
    return int((board == 1).sum()) if (board != 0).all() else None


def yes(board: Board, player: int) -> bool | None:
    return True if (board != 0).all() else None


def beyond_the_edge(board: Board, player: int) -> int | None:
    for row in range(3):
        if board[row, 0] != 0 and board[row + 1, 0] == board[row, 0]:
            return player
    return None


def never(board: Board, player: int) -> None:
    return None


def result_that_plays(board: Board, player: int) -> None:
    board[0, 0] = 1


def one_plane(board: Board, player: int) -> Any:
    return board == player


def listed_planes(board: Board, player: int) -> Any:
    return [board == player, board == -player]


def growing_planes(board: Board, player: int) -> Any:
    stones = (board != 0).sum()
    return (board == player, board == -player) if stones < 2 else (board == player, board == -player, stones)


def divided_planes(board: Board, player: int) -> Any:
    return board == player, 1 / np.float64((board == 0).sum() - 8)


def overflowing_planes(board: Board, player: int) -> Any:
    return board * 100 * 2, board == player


def from_a_dict(board: Board, player: int) -> float | None:
    if (board != 0).all():
        return SCORES[player]
    return None


def lopsided(board: Board, player: int) -> int | None:
    """The player who has the first corner wins."""
    return int(board[0, 0]) if (board != 0).all() else None


def line_of(function: Callable[..., Any], further: int = 0) -> str:
    return f"test_broken_games.py, line {function.__code__.co_firstlineno + further}: "


BROKEN: list[tuple[dict[str, Any], str, str, str]] = [  # what is changed, where it is told, what, and the remedy
    ({"start": list_as_board}, line_of(list_as_board), "start must return an array", "np.zeros"),
    ({"start": start_that_fails}, line_of(start_that_fails, 1), "start fails with IndexError", "fix this line"),
    (
        {"legal_moves": every_cell, "play": careful_play},
        line_of(careful_play, 1),
        "play refuses the move [abc][123], which legal_moves gives, after the moves",
        "let legal_moves leave it out",
    ),
    ({"legal_moves": moves_from_one}, line_of(moves_from_one), "gives move 9, at the start", "moves from 0 to 8"),
    ({"legal_moves": moves_without_end}, line_of(moves_without_end), "gives 136 moves and more", "let it end"),
    ({"legal_moves": halves}, line_of(halves), "gives 0.5, which is not a move number", "whole numbers"),
    ({"legal_moves": never}, line_of(never), "gives no move numbers", "yield them"),
    (
        {"legal_moves": only_the_middle},
        line_of(only_the_middle),
        "gives no move, and the game is not over, after the moves b2",
        "let result tell",
    ),
    ({"play": play_a_copy}, line_of(play_a_copy), "leaves board and player as they were", "in place"),
    ({"play": play_for_a_third}, line_of(play_for_a_third), "play_for_a_third returns 2", "1 or -1"),
    ({"result": points}, line_of(points), "points returns [45]", "the first player's"),
    ({"result": yes}, line_of(yes), "yes returns True", "and then a number"),
    (
        {"result": beyond_the_edge},
        line_of(beyond_the_edge, 2),
        "beyond_the_edge fails after the moves .* IndexError",
        "on the board",
    ),
    ({"result": result_that_plays}, line_of(result_that_plays), "result_that_plays changes the board", "board.copy()"),
    ({"planes": one_plane}, line_of(one_plane), r"one_plane returns an array of shape \(3, 3\)", "a tuple of arrays"),
    ({"planes": listed_planes}, line_of(listed_planes), "listed_planes returns a list", "a tuple of arrays"),
    (
        {"planes": growing_planes},
        line_of(growing_planes),
        r"growing_planes gives \(3, 3, 3\)",
        "always return the same shape",
    ),
    ({"planes": divided_planes}, line_of(divided_planes), "not finite, after the moves", "do not divide by 0"),
    (
        {"symmetries": board_symmetries(4)},
        "",
        "symmetries is no table of the 3 x 3 points",
        r"board_symmetries\(3, 3\)",
    ),
    ({"move_names": ["here", "there"]}, line_of(small, 2), "move_names must have 9 names", "one for each move"),
    ({"players": 17}, line_of(small, 2), "players is 17", "from 1 to 16"),
    ({"players": 3}, line_of(result), "result returns 1", "a tuple of 3 numbers"),
    ({"players": 3, "result": two_returns}, line_of(two_returns), "two_returns returns", "a tuple of 3 numbers"),
    ({"players": 3, "result": too_large}, line_of(too_large), "too_large returns", "numbers from -1 to 1"),
    ({"is_legal": every_cell}, line_of(small, 2), "takes legal_moves or is_legal", "give one of them"),
    ({"max_plies": 0}, line_of(small, 2), "max_plies is 0", "the most moves"),
]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(("changes", "where", "what", "remedy"), BROKEN, ids=[what for _, _, what, _ in BROKEN])
def test_python_finds_what_is_wrong_when_the_game_is_loaded(
    changes: dict[str, Any], where: str, what: str, remedy: str
) -> None:
    with pytest.raises(PlainGameError, match=f"^{re.escape(where)}.*{what}.*; .*{remedy}"):
        small(**changes)


@pytest.mark.medium
def test_what_numba_cannot_compile_is_told_with_its_line() -> None:
    told = f"^{re.escape(line_of(from_a_dict, 2))}numba cannot compile from_a_dict: SCORES is a dict; use a tuple or"
    with pytest.raises(PlainGameError, match=told):
        small(result=from_a_dict)


@pytest.mark.medium
def test_compiled_code_that_does_something_else_than_python_is_found() -> None:
    told = f"^{re.escape(line_of(overflowing_planes))}overflowing_planes does not do the same in Python and compiled"
    with pytest.raises(PlainGameError, match=told):
        small(planes=overflowing_planes)


@pytest.mark.medium
def test_a_game_that_no_rule_ends_is_found() -> None:
    game = small(result=never)
    told = r"never reports no end in 24 random games within max_plies = 9.*; let it return a number"
    with pytest.raises(ContractBroken, match=told):
        check_game(game)


@pytest.mark.medium
def test_a_symmetry_that_is_none_of_the_rules_is_found() -> None:
    game = small(result=lopsided, symmetries=board_symmetries(3))
    with pytest.raises(
        ContractBroken, match=r"a symmetric game ends differently: symmetry \d does not hold in the rules after"
    ):
        check_game(game)


@pytest.mark.medium
def test_the_symmetry_that_changes_nothing_need_not_be_given() -> None:
    every = board_symmetries(3)
    assert np.array_equal(small(symmetries=every[1:]).point_symmetries, every)
    last = small(symmetries=np.roll(every, -1, axis=0))
    assert np.array_equal(last.point_symmetries, every) and np.array_equal(
        last.action_symmetries, small(symmetries=every).action_symmetries
    )


@pytest.mark.parametrize("moves", [np.zeros((8, 9), int), np.arange(9)[None], np.arange(9)])
def test_a_second_table_of_symmetries_that_fits_no_moves_is_refused(moves: np.ndarray) -> None:
    with pytest.raises(PlainGameError, match="symmetries: the second table must have 8 rows"):
        small(symmetries=(board_symmetries(3), moves))


@pytest.mark.medium
def test_errors_about_a_plain_game_name_what_its_author_typed() -> None:
    quarter = board_symmetries(3)[1:2]
    for changes in ({"symmetries": quarter}, {"policy_planes": 2}, {"most_legal_moves": 12}):
        with pytest.raises(ContractBroken) as broken:
            check_game(small(**changes))
        assert not re.search("num_actions|_symmetries|action|observation", str(broken.value))


# Chance.


def coin(board: Any) -> Any:
    return (0.5, 0.5) if board[0, 2] == 0 else None


def toss(board: Any, player: int, outcome: int) -> None:
    board[0, 2] = outcome + 1


def with_chance(**changes: Any) -> PlainGame:
    return small(**{"chance": coin, "happen": toss, "outcomes": 2, **changes})


def loaded_coin(board: Any) -> Any:
    return (0.5, 0.6) if board[0, 2] == 0 else None


def long_coin(board: Any) -> Any:
    return (0.5, 0.25, 0.25) if board[0, 2] == 0 else None


def coin_in_words(board: Any) -> Any:
    return "heads or tails"


def toss_into_the_air(board: Any, player: int, outcome: int) -> None:
    pass


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"happen": None}, "a game of chance needs chance, happen and outcomes", "give all three"),
        ({"outcomes": 0}, "a game of chance needs chance, happen and outcomes", "give all three"),
        ({"outcome_names": ["heads"]}, "outcome_names must have 2 names", "one for each outcome"),
        ({"chance": loaded_coin}, r"loaded_coin returns probabilities whose sum is 1\.1", "let their sum be 1"),
        ({"chance": long_coin}, "long_coin returns", "a probability for each of the 2 outcomes"),
        ({"chance": coin_in_words}, "coin_in_words returns 'heads or tails'", "or None"),
        ({"happen": toss_into_the_air}, "toss_into_the_air leaves the board as it was", "note it on the board"),
    ],
)
def test_what_is_wrong_with_chance_is_found_when_the_game_is_loaded(
    changes: dict[str, Any], what: str, remedy: str
) -> None:
    with pytest.raises(PlainGameError, match=f"{what}.*; .*{remedy}"):
        with_chance(**changes)
