"""Compiled queries about a board ``[H, W]`` for the functions of plain games."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled_part, compiled_without_refcounts, inlined_by_llvm

BITS = 63  # of a word that are used


@compiled_without_refcounts
def has_line(board: NDArray[Any], stone: int, length: int) -> bool:
    """Return whether ``length`` cells in a row, column or diagonal hold ``stone``."""
    height, width = board.shape
    if height * (width + 1) > BITS:
        return _large_board_has_line(board, stone, length)
    stones = _stones_as_bits(board, stone)
    for step in (1, width, width + 1, width + 2):
        line, found = stones, 1
        while found < length:
            more = min(found, length - found)
            line &= line >> np.uint64(more * step)
            found += more
        if line != 0:
            return True
    return False


@compiled_without_refcounts
def has_line_through(board: NDArray[Any], row: int, column: int, length: int) -> bool:
    """Return whether the stone of a cell is one of ``length`` equal ones in a row, column or diagonal."""
    height, width, stone = board.shape[0], board.shape[1], board[row, column]
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        count = 1
        for way in (1, -1):
            at_row, at_column = row + way * down, column + way * right
            while 0 <= at_row < height and 0 <= at_column < width and board[at_row, at_column] == stone:
                count += 1
                at_row += way * down
                at_column += way * right
        if count >= length:
            return True
    return False


@compiled_without_refcounts
def is_full(board: NDArray[Any]) -> bool:
    """Return whether no number of the board is 0."""
    for row in range(board.shape[0]):
        for column in range(board.shape[1]):
            if board[row, column] == 0:
                return False
    return True


@inlined_by_llvm
def _stones_as_bits(board: NDArray[Any], stone: int) -> Any:
    """Return a word with a bit for each cell, row by row, and an empty column on the right that no line can cross."""
    height, width = board.shape
    stones = np.uint64(0)
    for row in range(height):
        cells = np.uint64(0)
        for column in range(width):
            cells |= np.uint64(board[row, column] == stone) << np.uint64(column)
        stones |= cells << np.uint64(row * (width + 1))
    return stones


@compiled_part
def _large_board_has_line(board: NDArray[Any], stone: int, length: int) -> bool:
    height, width = board.shape
    for row in range(height):
        for column in range(width):
            if board[row, column] == stone:
                for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                    last_row, last_column = row + down * (length - 1), column + right * (length - 1)
                    if last_row >= height or last_column < 0 or last_column >= width:
                        continue
                    count = 1
                    while count < length and board[row + down * count, column + right * count] == stone:
                        count += 1
                    if count == length:
                        return True
    return False
