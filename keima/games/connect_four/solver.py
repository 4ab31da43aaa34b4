"""An exact solver of Connect Four, for tests and for measuring strength; self-play and training never use it.

The value of a position follows from two questions: can the player to move win, and can they at least draw? A
depth-first search with a transposition table answers one of them at a time. The methods are published:

- J. Tromp, "John's Connect Four Playground": bitboards with a spare bit per column, a 49-bit key, the table.
- P. Pons, "Solving Connect 4: how to build a perfect AI": never play below a cell that the opponent needs, play forced
  moves at once, try first the moves that make most threats, and the center before the edge.
- V. Allis, "A Knowledge-based Approach of Connect-Four" (1988): follow-up (claimeven) and baseinverse, as bounds.

Threats and row numbers are as in ``keima.games.connect_four.rules``: a second player who always answers in the same
column gets the even rows.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled, inlined_by_llvm
from keima.games.connect_four.rules import (
    BOARD,
    BOTTOM,
    COLUMNS,
    LINE,
    MOVER,
    ODD_ROWS,
    OVER,
    STONES,
    find_completing_cells,
    has_four_in_line,
)
from keima.games.exact import ILLEGAL, ActionValues
from keima.games.game import States

# [slots], each 0 or key << 4 | (upper bound for the player to move + 1) << 2 | (lower bound + 1)
Table = NDArray[np.int64]

EVEN_ROWS = BOTTOM * 0b101010
COLUMN = 0b1111111
ORDER_BITS = 8  # of one move in an order: its number of threats, and 3 bits for its column, from 1


def new_table(*, slots: int = 4_194_301) -> Table:
    """Return an empty transposition table, 8 bytes per slot; a prime number of ``slots`` spreads positions evenly."""
    return np.zeros(slots, np.int64)


@functools.cache
def _shared_table() -> Table:
    return new_table()


def solve_position(state: States, *, table: Table | None = None) -> int:
    """Return the value of ``state`` ``[S]`` for the player to move under perfect play: 1 won, 0 drawn, -1 lost.

    Takes microseconds late in the game, tenths of a second after eight plies, and seconds to minutes earlier. For many
    early positions pass a larger ``table`` than the shared one of 32 MiB, and one per thread.
    """
    if state[OVER]:
        return -1 if state[OVER] == LINE else 0
    return int(_search_value(state[MOVER], state[STONES], _shared_table() if table is None else table))


def solve_action_values(state: States, *, table: Table | None = None) -> ActionValues:
    """Return the value of each action for the player to move, ``[7]``: 1, 0, -1 or ``ILLEGAL``.

    Times and ``table`` are as for ``solve_position``.
    """
    values = np.full(COLUMNS, ILLEGAL, np.int8)
    if not state[OVER]:
        _fill_action_values(state[MOVER], state[STONES], _shared_table() if table is None else table, values)
    return values


@inlined_by_llvm
def _count_bits(cells: int) -> int:
    """Return the number of set bits."""
    pairs = cells - ((cells >> 1) & 0x5555555555555555)
    fours = (pairs & 0x3333333333333333) + ((pairs >> 2) & 0x3333333333333333)
    return (((fours + (fours >> 4)) & 0x0F0F0F0F0F0F0F0F) * 0x0101010101010101) >> 56


@inlined_by_llvm
def _mirror_cells(cells: int) -> int:
    """Return the mirror image of these cells."""
    swapped = cells & (COLUMN << 21)
    for column in range(3):
        across = 42 - 14 * column
        swapped |= ((cells >> across) & (COLUMN << 7 * column)) | ((cells & (COLUMN << 7 * column)) << across)
    return swapped


@inlined_by_llvm
def _position_key(mover: int, stones: int) -> int:
    """Return a number from 1 to 2**49 that identifies a position up to reflection."""
    return min(mover + stones, _mirror_cells(mover) + _mirror_cells(stones)) + 1


@inlined_by_llvm
def _guaranteed_to_second(first: int, second: int, empty: int, possible: int) -> int:
    """Return the result that a simple pairing strategy guarantees the second player: 0 nothing, 1 a draw, 2 a win.

    The second player answers each move in the same column, and a move in the lowest empty cell of a column with an odd
    number of stones in the lowest empty cell of another such column. This works when the first player is to move;
    otherwise there is one such cell more, which the second player takes first. The second player gets every even row,
    except these lowest cells, each of which may go to either player.
    """
    contested = possible & EVEN_ROWS
    if has_four_in_line(first | (empty & ODD_ROWS) | contested):
        return 0
    return 2 if has_four_in_line(second | (empty & EVEN_ROWS & ~contested)) else 1


@inlined_by_llvm
def _order_moves(mover: int, moves: int, possible: int, empty: int) -> int:
    """Return the columns of ``moves`` from the lowest bits on, best first; -1 if one of them wins by force.

    A winning move is one with two winning cells next, or one and then the cell above it.
    """
    order = count = 0
    for rank in range(COLUMNS):
        column = 3 + (1 - 2 * (rank & 1)) * ((rank + 1) >> 1)  # 3, 2, 4, 1, 5, 0, 6
        move = moves & (COLUMN << 7 * column)
        if not move:
            continue
        threats = find_completing_cells(mover | move) & (empty ^ move)
        wins = threats & ((possible ^ move) | (move << 1))
        if wins & (wins - 1) or (wins << 1) & threats:
            return -1
        score = _count_bits(threats)
        place = 0
        while place < count and (order >> (place + 3)) & 31 >= score:
            place += ORDER_BITS
        before = order & ((1 << place) - 1)
        order = before | (((score << 3) | (column + 1)) << place) | ((order ^ before) << ORDER_BITS)
        count += ORDER_BITS
    return order


@compiled
def _can_reach(mover: int, stones: int, goal: int, table: Table) -> bool:
    """Return whether the player to move, who cannot win at once, reaches at least ``goal``: 1 a win, 0 a draw."""
    opponent, empty, possible = stones ^ mover, BOARD & ~stones, (stones + BOTTOM) & BOARD
    threats = find_completing_cells(opponent) & empty
    forced = possible & threats
    moves = (forced if forced else possible) & ~(threats >> 1)  # never below a threat
    if forced & (forced - 1) or not moves:
        return goal == 0 and not empty
    first_to_move = _count_bits(empty) & 1 == 0
    if first_to_move and _guaranteed_to_second(mover, opponent, empty, possible) >= 2 - goal:
        return False
    if not first_to_move and _guaranteed_to_second(opponent, mover, empty, possible) >= 1 + goal:
        return True
    key = _position_key(mover, stones)
    slot = key % table.size
    if table[slot] >> 4 == key:
        if table[slot] & 3 > goal:
            return True
        if (table[slot] >> 2) & 3 <= goal:
            return False
    order = _order_moves(mover, moves, possible, empty)
    result = order == -1
    while order > 0 and not result:
        move = moves & (COLUMN << 7 * ((order & 7) - 1))
        result = not _can_reach(opponent, stones | move, 1 - goal, table)
        order >>= ORDER_BITS
    known = table[slot] & 15 if table[slot] >> 4 == key else 0b1000
    known = (known & 0b1100) | (goal + 1) if result else (known & 0b0011) | (goal << 2)
    table[slot] = (key << 4) | known
    return result


@compiled
def _search_value(mover: int, stones: int, table: Table) -> int:
    """Return the value for the player to move, where the other has no line yet."""
    if find_completing_cells(mover) & (stones + BOTTOM) & BOARD:
        return 1
    # Test first whether the first player wins: the likelier answer, yes, decides the value alone. (As literals the
    # goals would be compiled in, and such copies of a recursive function crash when loaded from numba's cache.)
    win, draw = int(np.int64(1)), int(np.int64(0))
    if _count_bits(stones) & 1 == 0:
        if _can_reach(mover, stones, win, table):
            return 1
        return 0 if _can_reach(mover, stones, draw, table) else -1
    if not _can_reach(mover, stones, draw, table):
        return -1
    return 1 if _can_reach(mover, stones, win, table) else 0


@compiled
def _fill_action_values(mover: int, stones: int, table: Table, out: ActionValues) -> None:
    for column in range(COLUMNS):
        move = (stones + BOTTOM) & BOARD & (COLUMN << 7 * column)
        if move:
            out[column] = 1 if has_four_in_line(mover | move) else -_search_value(stones ^ mover, stones | move, table)
