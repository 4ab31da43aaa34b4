"""The rules of Go as compiled kernels over one row of 64-bit words, for any board from 5 x 5 to 19 x 19.

A *cell* is a point of the board with a wall around it: ``(row + 1) * (size + 1) + column + 1``, so that the four
neighbors of a point are always cells; one column of wall serves both sides. Connected stones form a *chain*. It is
named by one of its cells, its *head*, and its stones form a ring through FOLLOWING. The head of a wall or an empty cell
is 0, a wall cell without liberties. Every chain stores its number of liberties, so that a play is judged without being
played.

Superko compares positions by 64-bit Zobrist hashes, so it is exact up to hash collisions. A play of a color on a point
can only repeat a position in which that color stood there and was removed since. So only plays on such VACATED points
are looked up, and suicides, which leave their point empty.
"""

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import inlined, inlined_by_llvm
from keima.compilation.intrinsics import lowest_bit, view_as
from keima.games.game import Actions, States, legal_actions_kernel, step_kernel

EMPTY, BLACK, WHITE, WALL = range(4)  # colors of cells; player 0 is Black
ILLEGAL, REPEATS, LEGAL = range(3)  # verdicts on a play; REPEATS: illegal by superko alone

# The words at the start of a row. First the constants: HALF_KOMI is in half points, BOARD the start of the arrays of
# cells (in 16-bit numbers), CELLS the length of each, TABLE the start of the table of positions (in words).
SIZE, HALF_KOMI, SUICIDE, MAX_PLIES, BOARD, CELLS, TABLE = range(7)
# Then the variables: plies played, passes in a row, the hash of the stones, and the last actions + 1, the newest in the
# lowest bits.
PLY, PASSES, HASH, LAST, HEADER = range(7, 12)
ACTION_BITS = 9
HISTORY = 5  # actions in LAST, as many as KataGo's network sees
LAST_MASK = (1 << ACTION_BITS * HISTORY) - 1

# After the header: rows of the board as 32-bit masks (bit = column): the EMPTY points with a zero row above and below,
# then the points vacated by Black, then by White. Then the arrays of cells, 16-bit numbers; LIBERTIES and STONES hold
# at heads only.
COLOR, HEAD, FOLLOWING, LIBERTIES, STONES = range(5)
# Then the table of positions, a hash table with linear probing. Its size is a power of two; 0 is a free slot.

_MOST_CELLS = 20 * 21 + 1
# [color, cell]
ZOBRIST = np.frombuffer(hashlib.shake_256(b"keima go").digest(8 * 3 * _MOST_CELLS), np.int64).reshape(3, -1)


def make_start_row(*, size: int, half_komi: int, suicide: bool, max_plies: int) -> States:
    """Make the row of an empty board. Its table of positions never gets more than three quarters full."""
    board_word = HEADER + (3 * size + 3) // 2
    num_cells = (size + 1) * (size + 2) + 1
    table = board_word + (5 * num_cells + 3) // 4
    capacity = 1 << (4 * (max_plies + 1) // 3).bit_length()
    row = np.zeros(table + capacity, np.int64)
    row[:PLY] = size, half_komi, suicide, max_plies, 4 * board_word, num_cells, table
    row[HASH] = ZOBRIST[EMPTY, 0]  # not 0, so that the empty board can be in the table
    row[table + (row[HASH] & (capacity - 1))] = row[HASH]
    row[HEADER:board_word].view(np.int32)[1 : size + 1] = (1 << size) - 1
    color = view_as(row, 4 * board_word, num_cells, np.int16)
    color[:] = WALL
    color[size + 1 : (size + 1) ** 2].reshape(size, size + 1)[:, 1:] = EMPTY
    return row


class BoardView(NamedTuple):
    """Views of a row for compiled code, made once per kernel call."""

    size: int
    stride: int
    header: States
    # Masks of rows: EMPTY from 0 to size + 1, vacated by Black from size + 2, by White from 2 * size + 2.
    rows: NDArray[np.int32]
    color: NDArray[np.int16]
    head: NDArray[np.int16]
    following: NDArray[np.int16]
    liberties: NDArray[np.int16]
    stones: NDArray[np.int16]
    table: States  # every position of the game so far


@inlined
def view_board(state: States) -> BoardView:
    """Return the views of a row."""
    board, count, table = state[BOARD], state[CELLS], state[TABLE]
    return BoardView(
        state[SIZE],
        state[SIZE] + 1,
        view_as(state, 0, HEADER, np.int64),
        view_as(state, 2 * HEADER, 3 * state[SIZE] + 2, np.int32),
        view_as(state, board, count, np.int16),
        view_as(state, board + count, count, np.int16),
        view_as(state, board + 2 * count, count, np.int16),
        view_as(state, board + 3 * count, count, np.int16),
        view_as(state, board + 4 * count, count, np.int16),
        view_as(state, table, len(state) - table, np.int64),
    )


@inlined_by_llvm
def find_slot(table: States, position: int) -> int:
    """Return the slot of the position in the table, or the free slot where it belongs."""
    slot = position & (len(table) - 1)
    while table[slot] != 0 and table[slot] != position:
        slot = (slot + 1) & (len(table) - 1)
    return slot


@inlined_by_llvm
def chains_around(head: NDArray[np.int16], cell: int, stride: int) -> tuple[int, int, int, int]:
    """Return the chains next to ``cell``; 0 in place of walls, empty cells and repeated chains."""
    none, above, left, right, below = head[0], head[cell - stride], head[cell - 1], head[cell + 1], head[cell + stride]
    return (
        above,
        left if left != above else none,
        right if right not in (above, left) else none,
        below if below not in (above, left, right) else none,
    )


@inlined_by_llvm
def hash_of_removed(board: BoardView, cell: int, owner: int) -> int:
    """Return the hash of the stones of ``owner`` that a play on ``cell`` removes: adjacent chains without another
    liberty.
    """
    removed = 0
    for chain in chains_around(board.head, cell, board.stride):
        if board.color[chain] == owner and board.liberties[chain] == 1:
            stone = chain
            while True:
                removed ^= ZOBRIST[owner, stone]
                stone = board.following[stone]
                if stone == chain:
                    break
    return removed


@inlined_by_llvm
def judge_play(board: BoardView, cell: int, mine: int, vacated: int) -> int:
    """Judge a play of color ``mine`` on an empty cell; return the verdict.

    Superko is checked if the cell is ``vacated``, or for a suicide.
    """
    connects, breathes, captures = False, False, False
    for neighbor in (cell - board.stride, cell - 1, cell + 1, cell + board.stride):
        color, liberties = board.color[neighbor], board.liberties[board.head[neighbor]]
        connects |= color == mine
        breathes |= (color == EMPTY) | ((color == mine) & (liberties > 1))
        captures |= (color == 3 - mine) & (liberties == 1)
    survives = breathes | captures
    if not survives and not (connects and board.header[SUICIDE]):  # the suicide of one stone repeats a position
        return ILLEGAL
    if survives and not vacated:
        return LEGAL
    position = board.header[HASH]
    if survives:
        position ^= ZOBRIST[mine, cell]
    if captures or not survives:
        position ^= hash_of_removed(board, cell, mine if not survives else 3 - mine)
    return LEGAL if board.table[find_slot(board.table, position)] == 0 else REPEATS


@legal_actions_kernel
def legal_actions(state: States, out: Actions) -> int:
    if state[PASSES] == 2 or state[PLY] >= state[MAX_PLIES]:
        return 0
    board = view_board(state)
    size, rows = board.size, board.rows
    player = state[PLY] & 1
    count, action = 0, 0
    for row in range(size):
        empty = int(rows[row + 1])
        beside_empty = (empty << 1) | (empty >> 1) | rows[row] | rows[row + 2]
        vacated = int(rows[(player + 1) * size + 2 + row])
        doubtful = empty & (vacated | ~beside_empty)
        legal = empty
        while doubtful != 0:
            column = lowest_bit(doubtful)
            doubtful &= doubtful - 1
            if judge_play(board, (row + 1) * (size + 1) + column + 1, player + 1, (vacated >> column) & 1) != LEGAL:
                legal ^= 1 << column
        for column in range(size):
            out[count] = action  # overwritten unless this action is legal, without a branch
            count += (legal >> column) & 1
            action += 1
    out[count] = action
    return count + 1


@inlined_by_llvm
def add_to_chain(board: BoardView, cell: int, chain: int) -> None:
    """Make ``cell`` a stone of ``chain`` and count the chain's new liberties.

    The caller updates FOLLOWING.
    """
    for point in (cell - board.stride, cell - 1, cell + 1, cell + board.stride):
        if board.color[point] != EMPTY:
            continue
        known = (
            (board.head[point - board.stride] == chain)
            | (board.head[point - 1] == chain)
            | (board.head[point + 1] == chain)
            | (board.head[point + board.stride] == chain)
        )
        board.liberties[chain] += not known
    board.head[cell] = chain
    board.stones[chain] += 1


@inlined_by_llvm
def remove_chain(board: BoardView, chain: int) -> None:
    """Remove the stones of ``chain``; adjacent chains gain liberties."""
    owner = int(board.color[chain])
    cell = chain
    while True:
        board.color[cell] = EMPTY
        board.head[cell] = 0
        board.header[HASH] ^= ZOBRIST[owner, cell]
        row = cell // board.stride
        bit = np.int32(1 << (cell - row * board.stride - 1))
        board.rows[row] |= bit
        board.rows[owner * board.size + 1 + row] |= bit
        for other in chains_around(board.head, cell, board.stride):
            board.liberties[other] += 1
        cell = board.following[cell]
        if cell == chain:
            break
    board.liberties[0] = 0  # head 0 stands for walls and empty cells


@inlined_by_llvm
def join_rings(board: BoardView, one: int, other: int) -> None:
    """Join the rings of two chains."""
    board.following[one], board.following[other] = board.following[other], board.following[one]


@inlined_by_llvm
def place_stone(board: BoardView, cell: int, mine: int) -> None:
    """Put a stone on an empty cell. Own chains join; opposing chains, then its own, are removed without liberties."""
    chains = chains_around(board.head, cell, board.stride)
    board.color[cell] = mine
    board.following[cell] = cell
    board.liberties[cell] = 0
    board.stones[cell] = 0
    grown = cell  # the largest adjacent chain of its color, which absorbs the stone and the other chains
    for chain in chains:
        if chain != 0 and board.color[chain] == mine and board.stones[chain] > board.stones[grown]:
            grown = chain
    if grown != cell:
        board.liberties[grown] -= 1
        join_rings(board, cell, grown)
    add_to_chain(board, cell, grown)
    for chain in chains:
        if chain == 0 or chain == grown:
            continue
        if board.color[chain] != mine:
            board.liberties[chain] -= 1
            if board.liberties[chain] == 0:
                remove_chain(board, chain)
            continue
        stone = chain
        while True:
            add_to_chain(board, stone, grown)
            stone = board.following[stone]
            if stone == chain:
                break
        join_rings(board, chain, grown)
    if board.liberties[grown] == 0:
        remove_chain(board, grown)


@step_kernel
def step(state: States, action: int) -> None:
    size, mine = state[SIZE], 1 + (state[PLY] & 1)
    state[PLY] += 1
    state[LAST] = (state[LAST] << ACTION_BITS | (action + 1)) & LAST_MASK
    if action == size * size:
        state[PASSES] += 1
        return
    state[PASSES] = 0
    board = view_board(state)
    row = action // size
    column = action - row * size
    cell = (row + 1) * board.stride + column + 1
    board.rows[row + 1] ^= np.int32(1 << column)
    state[HASH] ^= ZOBRIST[mine, cell]
    place_stone(board, cell, mine)
    board.table[find_slot(board.table, state[HASH])] = state[HASH]
