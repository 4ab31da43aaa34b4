"""A reference player for 2048 on 4 x 4: expectimax to a fixed depth, without learning.

The value of a board is a sum over its rows and columns from one table: empty cells and pairs raise it, large tiles and
lines that are not monotonic lower it. The idea and the weights are R. Xiao's (nneonneo's answer of 2014 to "What is the
optimal algorithm for the game 2048?", https://stackoverflow.com/a/22498940). Depth 1 tries every action and every
chance outcome after it, then the next actions and the values of the boards after them; each further depth adds a chance
outcome and an action.

A cell is a 4-bit digit here, so all tiles from 32768 on look the same to this player, and it assumes that two of them
do not merge.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled, inlined_by_llvm
from keima.games.game import States
from keima.games.twenty48.rules import DUE, HEIGHT, LEGAL, ROWS, WIDTH

PackedBoard = tuple[int, int, int, int]  # a board: four rows of four digits, the leftmost digit lowest

SIZE, LINES = 4, 1 << 16
EMPTY_WEIGHT, MERGE_WEIGHT, RISE_WEIGHT, SUM_WEIGHT, LOST_WEIGHT = (
    270.0,
    700.0,
    47.0,
    11.0,
    200_000.0,
)  # R. Xiao's weights
RISE_POWER, SUM_POWER = 4.0, 3.5
TWO_SHARE, FOUR_SHARE = 0.9, 0.1
IMPOSSIBLE = -1.0  # less than any board is worth
UNLIKELY = 1e-4  # less likely boards are evaluated without further search


class Tables(NamedTuple):
    """The player's lookup tables."""

    leftwards: NDArray[np.int64]  # [65536] a row after sliding to its lowest digit
    rightwards: NDArray[np.int64]  # [65536] ... to its highest
    values: NDArray[np.float64]  # [65536] the value of a row or column


@inlined_by_llvm
def row_digit(row: int, place: int) -> int:
    """Return the exponent at this place of a row."""
    return (row >> 4 * place) & 15


@compiled
def slide_row(row: int) -> int:
    """Return the row after sliding to its lowest digit."""
    made, end, mergeable = 0, 0, False
    for place in range(SIZE):
        exponent = row_digit(row, place)
        if exponent == 0:
            continue
        if mergeable and row_digit(made, end - 1) == exponent and exponent < 15:
            made += 1 << 4 * (end - 1)
            mergeable = False
        else:
            made |= exponent << 4 * end
            end += 1
            mergeable = True
    return made


@compiled
def row_value(row: int) -> float:
    """Return the value of a row or column."""
    empty = total = rising = falling = 0.0
    merges = run = previous = 0
    for place in range(SIZE):
        exponent = row_digit(row, place)
        total += math.pow(exponent, SUM_POWER)
        if exponent == 0:
            empty += 1
            continue
        if exponent == previous:
            run += 1
        elif run > 0:
            merges += 1 + run
            run = 0
        previous = exponent
    if run > 0:
        merges += 1 + run
    for place in range(1, SIZE):
        before, after = math.pow(row_digit(row, place - 1), RISE_POWER), math.pow(row_digit(row, place), RISE_POWER)
        falling += max(0.0, before - after)
        rising += max(0.0, after - before)
    return (
        LOST_WEIGHT
        + EMPTY_WEIGHT * empty
        + MERGE_WEIGHT * merges
        - RISE_WEIGHT * min(rising, falling)
        - SUM_WEIGHT * total
    )


@inlined_by_llvm
def reverse_row(row: int) -> int:
    """Return the digits in reverse order."""
    return row_digit(row, 0) << 12 | row_digit(row, 1) << 8 | row_digit(row, 2) << 4 | row_digit(row, 3)


@compiled
def fill_tables(tables: Tables) -> None:
    """Fill the tables for all possible rows."""
    for row in range(LINES):
        tables.leftwards[row], tables.values[row] = slide_row(row), row_value(row)
        tables.rightwards[row] = reverse_row(slide_row(reverse_row(row)))


@functools.cache
def shared_tables() -> Tables:
    """Return the tables, computed on first use."""
    tables = Tables(np.empty(LINES, np.int64), np.empty(LINES, np.int64), np.empty(LINES))
    fill_tables(tables)
    return tables


@inlined_by_llvm
def packed_column(board: PackedBoard, place: int) -> int:
    """Return a column as a row, the top digit lowest."""
    a, b, c, d = board
    return row_digit(a, place) | row_digit(b, place) << 4 | row_digit(c, place) << 8 | row_digit(d, place) << 12


@inlined_by_llvm
def packed_transpose(board: PackedBoard) -> PackedBoard:
    """Return the transposed board."""
    return packed_column(board, 0), packed_column(board, 1), packed_column(board, 2), packed_column(board, 3)


@inlined_by_llvm
def look_up_rows(table: NDArray[np.int64], board: PackedBoard) -> PackedBoard:
    """Look up each row of the board in the table."""
    a, b, c, d = board
    return table[a], table[b], table[c], table[d]


@inlined_by_llvm
def board_value(board: PackedBoard, values: NDArray[np.float64]) -> float:
    """Return the value of a board: the sum over its rows and columns."""
    a, b, c, d = board
    e, f, g, h = packed_transpose(board)
    return values[a] + values[b] + values[c] + values[d] + values[e] + values[f] + values[g] + values[h]


@inlined_by_llvm
def place_tile_bits(board: PackedBoard, row: int, bits: int) -> PackedBoard:
    """Return the board with these bits set in one row."""
    a, b, c, d = board
    return (
        a | bits if row == 0 else a,
        b | bits if row == 1 else b,
        c | bits if row == 2 else c,
        d | bits if row == 3 else d,
    )


@compiled
def afterstate_value(board: PackedBoard, depth: int, likely: float, tables: Tables) -> float:
    """Return the value of a board with chance to move, searched through ``depth`` chance outcomes.

    ``likely`` is the probability of reaching the board.
    """
    if depth == 0 or likely < UNLIKELY:
        return board_value(board, tables.values)
    empty, total = 0, 0.0
    for row in range(SIZE):
        for place in range(SIZE):
            empty += int(row_digit(board[row], place) == 0)
    # One function that calls itself: two that call each other crash when numba loads them from its cache.
    for option in range(2 * SIZE * SIZE):
        row, place, exponent = option >> 3, (option >> 1) & 3, 1 + (option & 1)
        if row_digit(board[row], place) == 0:
            share = (TWO_SHARE if exponent == 1 else FOUR_SHARE) / empty
            spawned = place_tile_bits(board, row, exponent << 4 * place)
            turned, best = packed_transpose(spawned), 0.0  # the value of a lost board is 0
            for action in range(4):
                before = spawned if action & 1 else turned
                after = look_up_rows(tables.leftwards if action == 0 or action == 3 else tables.rightwards, before)
                if after != before:  # a transposed board has the same value, so it is not transposed back
                    best = max(best, afterstate_value(after, depth - 1, likely * share, tables))
            total += share * best
    return total


@compiled
def find_best_action(state: States, depth: int, tables: Tables) -> int:
    """Return the action of the largest value, the lowest of equal ones; -1 if no action is legal."""
    board, chosen, best = packed_board(state), -1, IMPOSSIBLE
    turned = packed_transpose(board)
    for action in range(4):
        if (state[LEGAL] >> action) & 1:
            before = board if action & 1 else turned
            after = look_up_rows(tables.leftwards if action == 0 or action == 3 else tables.rightwards, before)
            value = afterstate_value(after, depth, 1.0, tables)
            if value > best:
                chosen, best = action, value
    return chosen


@inlined_by_llvm
def packed_row(row: int) -> int:
    """Return a row of the state as digits."""
    return (
        min(row & 0xFF, 15)
        | min(row >> 8 & 0xFF, 15) << 4
        | min(row >> 16 & 0xFF, 15) << 8
        | min(row >> 24 & 0xFF, 15) << 12
    )


@inlined_by_llvm
def packed_board(state: States) -> PackedBoard:
    """Return the board of a state."""
    return (
        packed_row(state[ROWS]),
        packed_row(state[ROWS + 1]),
        packed_row(state[ROWS + 2]),
        packed_row(state[ROWS + 3]),
    )


def choose_expectimax_move(state: States, *, depth: int) -> int:
    """Return the best action by expectimax, searched through ``depth`` chance outcomes; deterministic.

    Raises:
        ValueError: the board is not 4 x 4, the player is not to move, or ``depth`` is negative.
    """
    if (state[HEIGHT], state[WIDTH]) != (SIZE, SIZE):
        raise ValueError(f"expectimax plays on 4 x 4, not on {state[HEIGHT]} x {state[WIDTH]}")
    if state[DUE] > 0 or state[LEGAL] == 0:
        raise ValueError("the player is not to move here")
    if depth < 0:
        raise ValueError(f"depth must not be negative, not {depth}")
    return int(find_best_action(state, depth, shared_tables()))
