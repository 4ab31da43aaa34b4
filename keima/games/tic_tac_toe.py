"""Tic-tac-toe, small enough to be solved in a test.

Bit ``3 * row + column`` is a cell. An action is a cell, 0 to 8.
"""

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
    action_table,
    board_symmetries,
    legal_actions_kernel,
    no_chance,
    observe_kernel,
    query_kernel,
    returns_kernel,
    step_kernel,
)

SIZE, CELLS = 3, 9
MOVER, STONES, PLY, OVER = range(4)  # words: the mover's marks, all marks, plies played, how the game ended
RUNNING, LINE, FULL = range(3)  # it has not; by a line of the player who moved last; by a full board
WORDS = 4


@inlined_by_llvm
def has_three_in_line(marks: int) -> bool:
    """Return whether three of these marks are in a line."""
    for line in (0o007, 0o070, 0o700, 0o111, 0o222, 0o444, 0o421, 0o124):
        if marks & line == line:
            return True
    return False


@legal_actions_kernel
def legal_actions(state: States, out: Actions) -> int:
    if state[OVER] != RUNNING:
        return 0
    count = 0
    for cell in range(CELLS):
        if (state[STONES] >> cell) & 1 == 0:
            out[count] = cell
            count += 1
    return count


@step_kernel
def step(state: States, action: int) -> None:
    mine = state[MOVER] | (1 << action)
    state[STONES] |= 1 << action
    state[MOVER] = state[STONES] ^ mine
    state[PLY] += 1
    if has_three_in_line(mine):
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


@observe_kernel
def observe(state: States, planes: Planes) -> None:
    mine, theirs = state[MOVER], state[STONES] ^ state[MOVER]
    for cell in range(CELLS):
        planes[0, cell // SIZE, cell % SIZE] = (mine >> cell) & 1
        planes[1, cell // SIZE, cell % SIZE] = (theirs >> cell) & 1


@query_kernel
def position_hash(state: States) -> int:
    return state[MOVER] | (state[STONES] << CELLS)


def render(state: States) -> str:
    """Return the board with X for the first player, O for the second, and the numbers of the free cells."""
    mover, other = ("X", "O") if state[PLY] % 2 == 0 else ("O", "X")
    cells = []
    for cell in range(CELLS):
        taken, mine = (int(state[STONES]) >> cell) & 1, (int(state[MOVER]) >> cell) & 1
        cells.append((mover if mine else other) if taken else str(cell + 1))
    return "\n".join(" ".join(cells[row * SIZE : (row + 1) * SIZE]) for row in range(SIZE))


def cells(state: States) -> NDArray[np.int64]:
    """Return the marks ``[3, 3]``; see ``Game.cells``."""
    bits = np.arange(CELLS)
    mine, taken = state[MOVER] >> bits & 1, state[STONES] >> bits & 1
    return ((2 * mine - taken) * (1 - 2 * (state[PLY] & 1))).reshape(SIZE, SIZE)


def parse_action(text: str) -> int:
    """Parse a cell from 1 to 9, row by row."""
    if text.strip() not in {str(cell + 1) for cell in range(CELLS)}:
        raise ValueError(f"{text.strip()!r} is not a cell: type a number from 1 to {CELLS}")
    return int(text) - 1


def action_name(action: int) -> str:
    """Return the number of the cell, from 1."""
    return str(action + 1)


def tic_tac_toe() -> Game:
    """Build tic-tac-toe, 3 x 3."""
    points = board_symmetries(SIZE)
    return Game(
        name="tic_tac_toe",
        options={},
        rules_version=1,
        rules=Rules(legal_actions, step, current_player, terminal, returns, observe, position_hash, no_chance),
        start=np.zeros(WORDS, np.int64),
        num_players=2,
        num_actions=CELLS,
        observation_shape=(2, SIZE, SIZE),
        policy_planes=1,
        piece_planes=1,
        max_plies=CELLS,
        point_symmetries=points,
        action_symmetries=action_table(points, planes=1, extra=0),
        action_name=action_name,
        parse_action=parse_action,
        render=render,
        cells=cells,
    )
