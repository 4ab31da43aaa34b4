"""What numba says about a function becomes one sentence: the line, what is wrong there, and what to do."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import types

from keima.games.authoring.numba_errors import explain_numba_error
from keima.games.authoring.plain import make_compilable

Board = Any
NAMES = {1: "X", -1: "O"}
BOARD = types.Array(types.int8, 2, "C")


class Thing:
    size = 3


THING = Thing()


def dict_of_constants(board: Board, player: int) -> Any:
    return NAMES[player]


def text(board: Board, player: int) -> Any:
    return f"{player:2d}"


def two_types(board: Board, player: int) -> Any:
    if player == 1:
        return (1, 2)
    return 1


def empty_list(board: Board, player: int) -> Any:
    moves: list[int] = []
    return moves


def caught_error(board: Board, player: int) -> Any:
    try:
        return board[5, 5]
    except IndexError:
        return 0


def python_method(board: Board, player: int) -> Any:
    return board.tolist()


def unknown_argument(board: Board, player: int) -> Any:
    return np.any(board == 1, axis=0)[0]


def stacked_list(board: Board, player: int) -> Any:
    return np.stack([board == 1, board == -1])


def list_index(board: Board, player: int) -> Any:
    return board[[0, 1], [0, 1]].sum()


def mask_index(board: Board, player: int) -> Any:
    return board[board != 0].sum()


def unknown_function(board: Board, player: int) -> Any:
    return np.pad(board, 1)[0, 0]


def padded(board: Board) -> Any:
    return np.pad(board, 1)


def in_a_helper(board: Board, player: int) -> Any:
    return padded(board)[0, 0]


def generator_in_a_call(board: Board, player: int) -> Any:
    return sum(board[0, column] for column in range(3))


def object_of_a_class(board: Board, player: int) -> Any:
    return THING.size


def late_import(board: Board, player: int) -> Any:
    import math

    return math.floor(1.5)


def two_kinds(board: Board, player: int) -> Any:
    row = board[0] if player == 1 else 3
    return row


TOLD: list[tuple[Callable[..., Any], int, str, str]] = [  # the function, the line in it, what is wrong, and the remedy
    (dict_of_constants, 1, "NAMES is a dict", "use a tuple or a numpy array"),
    (text, 1, "it converts numbers to text", "leave text to move_names and render"),
    (empty_list, 1, "it cannot know what the list moves will hold", "yield the moves"),
    (caught_error, 3, "it catches an error", "test with if before"),
    (python_method, 1, "has no tolist in numba", "write a loop over the board"),
    (unknown_argument, 1, "any does not take these arguments", "use fewer arguments"),
    (stacked_list, 1, "np.stack takes a tuple here", r"write np.stack\(\(a, b\)\)"),
    (list_index, 1, "this index is unknown", "index with whole numbers and slices"),
    (mask_index, 0, r"an index such as board\[board != 0\]", "write it with numbers"),
    (unknown_function, 1, "numba has no np.pad", "write a loop over the board"),
    (generator_in_a_call, 1, "it has a generator within a call", r"put \[...\] around it"),
    (object_of_a_class, 1, "THING, of type .*Thing, is not supported by numba", "use numbers, tuples"),
    (late_import, 1, "it imports", "import at the top of the file"),
    (two_kinds, 1, "a value is sometimes .* and sometimes int", "give every variable one type"),
]


def told(function: Callable[..., Any]) -> str:
    with pytest.raises(Exception) as caught:
        make_compilable(function, {}).compile((BOARD, types.int64))
    return explain_numba_error(caught.value, [function], function)


@pytest.mark.medium
@pytest.mark.parametrize(("function", "line", "what", "remedy"), TOLD, ids=[function.__name__ for function, *_ in TOLD])
def test_an_error_is_told_with_its_line_and_a_remedy(
    function: Callable[..., Any], line: int, what: str, remedy: str
) -> None:
    place = f"test_numba_errors.py, line {function.__code__.co_firstlineno + line}: "
    sentence = told(function)
    assert sentence.startswith(f"{place}numba cannot compile {function.__name__}: ")
    assert "\n" not in sentence
    assert re.search(f"{what}.*; {remedy}", sentence)


@pytest.mark.medium
def test_the_innermost_line_is_named() -> None:
    assert told(in_a_helper).startswith(f"test_numba_errors.py, line {padded.__code__.co_firstlineno + 1}: ")


@pytest.mark.medium
def test_types_that_cannot_be_one_are_listed() -> None:
    assert "it returns different types, " in told(two_types)
    assert "return numbers of one type everywhere" in told(two_types)
