"""Lines on boards are found where they are, on small boards and large ones."""

import numpy as np
import pytest

from games.boards import has_line


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
@pytest.mark.parametrize(("height", "width", "length"), [(3, 3, 3), (6, 7, 4), (5, 5, 4), (9, 9, 5), (2, 8, 3)])
def test_lines_are_found_as_numpy_finds_them(height: int, width: int, length: int) -> None:
    random, found = np.random.default_rng(1), 0
    for _ in range(300):
        board = random.choice([0, 0, 1, -1], size=(height, width)).astype(np.int8)
        for stone in (1, -1):
            assert has_line(board, stone, length) == has_line_by_slices(board, stone, length)
            found += has_line(board, stone, length)
    assert found > 0
