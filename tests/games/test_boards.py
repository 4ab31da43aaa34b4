"""Lines on boards are found where they are, on small boards and large ones."""

import numpy as np
import pytest

from keima.games.boards import has_line, has_line_through, is_full


def has_line_by_slices(board: np.ndarray, stone: int, length: int) -> bool:  # type: ignore[type-arg]
    """The same from numpy's views: rows, columns, diagonals."""
    height, width = board.shape
    views = [*board, *board.T]
    for turned in (board, board[:, ::-1]):
        views += [turned.diagonal(offset) for offset in range(-height + 1, width)]
    return any(
        (view[first : first + length] == stone).all() for view in views for first in range(len(view) - length + 1)
    )


@pytest.mark.medium
@pytest.mark.parametrize("dtype", [np.int8, np.int64])
@pytest.mark.parametrize(
    ("height", "width", "length"),
    [(3, 3, 3), (6, 7, 4), (5, 5, 4), (9, 9, 5), (2, 8, 3), (2, 3, 2), (4, 9, 3), (7, 8, 1)],
)
def test_lines_are_found_as_numpy_finds_them(height: int, width: int, length: int, dtype: type) -> None:
    random, found = np.random.default_rng(1), 0
    for _ in range(150):
        board = random.choice([0, 0, 1, -1], size=(height, width)).astype(dtype)
        for stone in (1, -1):
            assert has_line(board, stone, length) == has_line_by_slices(board, stone, length)
            found += has_line(board, stone, length)
    assert found > 0


@pytest.mark.medium
@pytest.mark.parametrize(("height", "width", "length"), [(3, 3, 3), (6, 7, 4), (9, 9, 5), (2, 8, 3)])
def test_a_board_has_a_line_if_there_is_one_through_a_stone(height: int, width: int, length: int) -> None:
    random, found = np.random.default_rng(2), 0
    for _ in range(150):
        board = random.choice([0, 1, -1], size=(height, width)).astype(np.int8)
        for stone in (1, -1):
            stones = np.argwhere(board == stone)
            through = any(has_line_through(board, int(row), int(column), length) for row, column in stones)
            assert through == has_line_by_slices(board, stone, length)
            found += through
    assert found > 0


@pytest.mark.medium
def test_a_part_of_a_board_is_looked_at_like_a_board() -> None:
    board = np.ones((6, 7), np.int8)
    board[2, 2] = 0
    assert has_line(board[:, ::2], 1, 4)
    assert not is_full(board)
    assert is_full(board[3:])
    assert is_full(board[:, 3:])
