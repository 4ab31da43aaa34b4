"""Connect Four on the usual board of 7 columns and 6 rows, as bitboards.

Bit ``7 * column + row`` is a cell, row 0 at the bottom; each column has one spare bit on top, so that shifted boards
never wrap around (J. Tromp's layout). An action is a column, 0 to 6.

The observation ``[2, 6, 7]``, the bottom row last, marks the stones of the player to move, and the opponent's.

With the option ``planes: threats`` it has 7 planes more, which tell a network what it would otherwise have to learn. A
player's *threat* is an empty cell that would complete their line of four. Rows count from 1 at the bottom: whether a
threat's row is odd or even decides who will fill it in the end (V. Allis, "A Knowledge-based Approach of Connect-Four",
1988). In these planes, 1 marks a cell:

- 2, 3: its own threats; its opponent's.
- 4: the odd rows.

The others count, for each empty cell, the lines of four through it that hold no stone of the other player:

- 5, 7: lines with two stones of the player to move, of the opponent; in units of 1/2.
- 6, 8: lines with one stone; in units of 1/4.
"""

from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import inlined_by_llvm
from keima.games.game import (
    Actions,
    Game,
    Planes,
    Returns,
    Rules,
    States,
    final_score_kernel,
    legal_actions_kernel,
    no_chance,
    observe_kernel,
    query_kernel,
    returns_kernel,
    step_kernel,
)

ROWS, COLUMNS = 6, 7
CELLS = ROWS * COLUMNS
Observed = Literal["stones", "threats"]
PLANES: dict[Observed, int] = {"stones": 2, "threats": 9}
MOVER, STONES, PLY, OVER = range(4)  # words: the mover's stones, all stones, plies played, how the game ended
RUNNING, LINE, FULL = range(3)  # it has not; by a line of the player who moved last; by a full board
WORDS = 4
BOTTOM = sum(1 << 7 * column for column in range(COLUMNS))
BOARD = BOTTOM * 0b111111
ODD_ROWS = BOTTOM * 0b010101
DIRECTIONS = (1, 6, 7, 8)  # from bit to bit along a line: up, falling, level, rising


class BitCounts(NamedTuple):
    """A number from 0 to 15 for each cell, as the boards of its binary digits."""

    ones: int
    twos: int
    fours: int
    eights: int


NO_COUNTS = BitCounts(0, 0, 0, 0)
HALF, QUARTER = np.float32(0.5), np.float32(0.25)
# [42] the bit of each cell, in the order of the planes
BITS = np.array([7 * column + row for row in reversed(range(ROWS)) for column in range(COLUMNS)])


@inlined_by_llvm
def has_four_in_line(stones: int) -> bool:
    """Return whether four of these stones are in a line."""
    vertical = stones & (stones >> 1)
    level = stones & (stones >> 7)
    rising = stones & (stones >> 8)
    falling = stones & (stones >> 6)
    return (
        vertical & (vertical >> 2) | level & (level >> 14) | rising & (rising >> 16) | falling & (falling >> 12)
    ) != 0


@inlined_by_llvm
def find_completing_cells(stones: int) -> int:
    """Return all cells, on the board or not, that complete a line with three of these stones."""
    cells = (stones << 1) & (stones << 2) & (stones << 3)
    for step in (6, 7, 8):
        above = (stones << step) & (stones << 2 * step)
        below = (stones >> step) & (stones >> 2 * step)
        cells |= above & ((stones << 3 * step) | (stones >> step)) | below & ((stones >> 3 * step) | (stones << step))
    return cells


@inlined_by_llvm
def increment_counts(counts: BitCounts, cells: int) -> BitCounts:
    """Return ``counts``, incremented on these cells."""
    twos = counts.ones & cells
    fours = counts.twos & twos
    return BitCounts(
        counts.ones ^ cells, counts.twos ^ twos, counts.fours ^ fours, counts.eights | (counts.fours & fours)
    )


@inlined_by_llvm
def write_counts(plane: NDArray[np.float32], counts: BitCounts, unit: np.float32) -> None:
    """Write the counts, times ``unit``, to ``plane`` ``[42]``, without a branch, so that the loop is vectorized."""
    ones, twos, fours, eights = counts
    for cell in range(CELLS):
        bit = BITS[cell]
        count = (ones >> bit & 1) | (twos >> bit & 1) << 1 | (fours >> bit & 1) << 2 | (eights >> bit & 1) << 3
        plane[cell] = unit * np.float32(count)


@inlined_by_llvm
def write_bits(plane: NDArray[np.float32], board: int) -> None:
    """Write a bitboard to ``plane`` ``[42]``."""
    for cell in range(CELLS):
        plane[cell] = np.float32(board >> BITS[cell] & 1)


@inlined_by_llvm
def count_open_lines(mine: int, theirs: int, empty: int) -> tuple[BitCounts, BitCounts]:
    """Count, for each of the cells ``empty``, the lines through it without ``theirs`` that hold two of ``mine``, and
    those that hold one.
    """
    free = BOARD & ~theirs
    with_two, with_one = NO_COUNTS, NO_COUNTS
    for step in DIRECTIONS:
        # A line is identified by its first cell; the others are step, 2 * step and 3 * step bits away.
        lines = free & free >> step & free >> 2 * step & free >> 3 * step
        first, second, third, fourth = mine, mine >> step, mine >> 2 * step, mine >> 3 * step
        odd_before, odd_after, both_before, both_after = first ^ second, third ^ fourth, first & second, third & fourth
        two = lines & ((odd_before & odd_after) | ((both_before ^ both_after) & ~(odd_before | odd_after)))
        one = lines & (odd_before ^ odd_after) & ~(both_before | both_after)
        for _ in range(4):
            with_two, with_one = increment_counts(with_two, two & empty), increment_counts(with_one, one & empty)
            two, one = two << step, one << step
    return with_two, with_one


@legal_actions_kernel
def legal_actions(state: States, out: Actions) -> int:
    if state[OVER] != RUNNING:
        return 0
    count = 0
    for column in range(COLUMNS):
        if (state[STONES] >> (7 * column + ROWS - 1)) & 1 == 0:
            out[count] = column
            count += 1
    return count


@step_kernel
def step(state: States, action: int) -> None:
    stones = state[STONES]
    placed = (stones + (1 << (7 * action))) & (63 << (7 * action))
    mine = state[MOVER] | placed
    stones |= placed
    state[MOVER] = stones ^ mine
    state[STONES] = stones
    state[PLY] += 1
    if has_four_in_line(mine):
        state[OVER] = LINE
    elif state[PLY] == CELLS:
        state[OVER] = FULL


@query_kernel
def current_player(state: States) -> int:
    return state[PLY] & 1


@query_kernel
def terminal(state: States) -> int:
    return int(state[OVER] != RUNNING)


@returns_kernel
def returns(state: States, out: Returns) -> None:
    won = np.float32(1.0) if state[OVER] == LINE else np.float32(0.0)
    loser = state[PLY] & 1  # the player to move has just lost
    out[loser] = -won
    out[1 - loser] = won


@final_score_kernel
def final_score(state: States, ownership: Actions) -> int:
    # The score of solvers: the number of 22 stones that the winner has left.
    mine, theirs = state[MOVER], state[STONES] ^ state[MOVER]
    sign = 1 - 2 * (state[PLY] & 1)
    for cell in range(CELLS):
        ownership[cell] = sign * ((mine >> BITS[cell] & 1) - (theirs >> BITS[cell] & 1))
    if state[OVER] != LINE:
        return 0
    return -2 * sign * (22 - (state[PLY] + 1) // 2)


@inlined_by_llvm
def write_stones(state: States, cells: NDArray[np.float32]) -> None:
    """Write both players' stones to the first of the planes ``[C, 42]``."""
    write_bits(cells[0], state[MOVER])
    write_bits(cells[1], state[STONES] ^ state[MOVER])


@observe_kernel
def observe_stones(state: States, planes: Planes) -> None:
    write_stones(state, planes.reshape(2, CELLS))


@observe_kernel
def observe_threats(state: States, planes: Planes) -> None:
    mine, theirs, empty = state[MOVER], state[STONES] ^ state[MOVER], BOARD & ~state[STONES]
    my_two, my_one = count_open_lines(mine, theirs, empty)
    their_two, their_one = count_open_lines(theirs, mine, empty)
    cells = planes.reshape(9, CELLS)
    write_stones(state, cells)
    write_bits(cells[2], find_completing_cells(mine) & empty)
    write_bits(cells[3], find_completing_cells(theirs) & empty)
    write_bits(cells[4], ODD_ROWS)
    write_counts(cells[5], my_two, HALF)
    write_counts(cells[6], my_one, QUARTER)
    write_counts(cells[7], their_two, HALF)
    write_counts(cells[8], their_one, QUARTER)


@query_kernel
def position_hash(state: States) -> int:
    # The mover's stones plus a one above each column's highest stone identify a position (Tromp); then mix the bits.
    key = np.uint64(state[MOVER] + state[STONES] + 0x1020408102041)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int(np.int64(key ^ (key >> np.uint64(31))))


def render(state: States) -> str:
    """Return the board with X for the first player, O for the second, and the numbers of the columns."""
    mover, other = ("X", "O") if state[PLY] % 2 == 0 else ("O", "X")
    lines = []
    for row in reversed(range(ROWS)):
        cells = []
        for column in range(COLUMNS):
            bit = 7 * column + row
            taken, mine = (int(state[STONES]) >> bit) & 1, (int(state[MOVER]) >> bit) & 1
            cells.append((mover if mine else other) if taken else ".")
        lines.append(" ".join(cells))
    return "\n".join([*lines, " ".join(str(column + 1) for column in range(COLUMNS))])


def discs_on_board(state: States) -> NDArray[np.int64]:
    """Return the discs ``[6, 7]``, the bottom row last; see ``Game.cells``."""
    mine, taken = state[MOVER] >> BITS & 1, state[STONES] >> BITS & 1
    return ((2 * mine - taken) * (1 - 2 * (state[PLY] & 1))).reshape(ROWS, COLUMNS)


def parse_action(text: str) -> int:
    """Parse a column from 1 to 7."""
    if text.strip() not in {"1", "2", "3", "4", "5", "6", "7"}:
        raise ValueError(f"{text.strip()!r} is not a column: type a number from 1 to {COLUMNS}")
    return int(text) - 1


def action_name(action: int) -> str:
    """Return the number of the column, from 1."""
    return str(action + 1)


def connect_four(planes: Observed = "stones") -> Game:
    """Build Connect Four, 7 x 6.

    Args:
        planes: what the network sees: "stones", the board alone; or "threats", also where lines can be completed.

    Raises:
        ValueError: ``planes`` is neither.
    """
    if planes not in PLANES:
        raise ValueError(f"planes are {planes!r}, not one of {', '.join(get_args(Observed))}")
    observe = observe_stones if planes == "stones" else observe_threats
    cells = np.arange(CELLS, dtype=np.int32).reshape(ROWS, COLUMNS)
    columns = np.arange(COLUMNS, dtype=np.int32)
    return Game(
        name="connect_four",
        options={"planes": planes},
        rules_version=2,
        rules=Rules(legal_actions, step, current_player, terminal, returns, observe, position_hash, no_chance),
        start=np.zeros(WORDS, np.int64),
        num_players=2,
        num_actions=COLUMNS,
        observation_shape=(PLANES[planes], ROWS, COLUMNS),
        policy_planes=0,
        piece_planes=1,
        max_plies=CELLS,
        point_symmetries=np.stack([cells.ravel(), cells[:, ::-1].ravel()]),
        action_symmetries=np.stack([columns, columns[::-1]]),
        action_name=action_name,
        parse_action=parse_action,
        render=render,
        final_score=final_score,
        cells=discs_on_board,
    )
