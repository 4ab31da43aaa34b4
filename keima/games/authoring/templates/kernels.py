"""NAME: four in a row on a board of 5 x 5, written as kernels. Change it into your game.

Kernels are the fastest way, and the way of games with chance; `keima.Game` says what each must do. A state is
a row of 64-bit words. Here, each player's stones are the bits of one word: bit 5 * row + column is a cell, and so is
its action. Kernels cannot raise errors and do not notice an index beyond an array:
`keima check-game NAME.py` finds most of what can be wrong.
"""

import numpy as np

from keima import (
    Game,
    Rules,
    action_table,
    board_symmetries,
    inlined,
    legal_actions_kernel,
    no_chance,
    observe_kernel,
    query_kernel,
    returns_kernel,
    step_kernel,
)

SIZE, LENGTH = 5, 4
CELLS = SIZE * SIZE
MINE, THEIRS, PLY, OVER = range(4)  # words: stones of the player to move, of the other, plies, how the game ended
RUNNING, WON, DRAWN = range(3)  # it has not; by the player who moved last; by a full board
WORDS = 4
LINES = np.array(
    [
        sum(1 << (SIZE * (row + down * step) + column + right * step) for step in range(LENGTH))
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
        for row in range(SIZE)
        for column in range(SIZE)
        if row + down * (LENGTH - 1) < SIZE and 0 <= column + right * (LENGTH - 1) < SIZE
    ]
)


@inlined
def has_line(stones: int) -> bool:
    """Whether four of these stones are in a row."""
    for line in LINES:
        if stones & line == line:
            return True
    return False


@legal_actions_kernel
def legal_actions(state, out):
    if state[OVER] != RUNNING:
        return 0
    count, taken = 0, state[MINE] | state[THEIRS]
    for cell in range(CELLS):
        if (taken >> cell) & 1 == 0:
            out[count] = cell
            count += 1
    return count


@step_kernel
def step(state, action):
    mine = state[MINE] | (1 << action)
    state[MINE], state[THEIRS] = state[THEIRS], mine
    state[PLY] += 1
    if has_line(mine):
        state[OVER] = WON
    elif state[PLY] == CELLS:
        state[OVER] = DRAWN


@query_kernel
def current_player(state):
    return state[PLY] & 1


@query_kernel
def terminal(state):
    return int(state[OVER] != RUNNING)


@returns_kernel
def returns(state, out):
    won = np.float32(1.0) if state[OVER] == WON else np.float32(0.0)
    loser = state[PLY] & 1  # the player to move has just lost
    out[loser] = -won
    out[1 - loser] = won


@observe_kernel
def observe(state, planes):
    for cell in range(CELLS):
        planes[0, cell // SIZE, cell % SIZE] = (state[MINE] >> cell) & 1
        planes[1, cell // SIZE, cell % SIZE] = (state[THEIRS] >> cell) & 1


@query_kernel
def position_hash(state):
    return state[MINE] | (state[THEIRS] << CELLS)


def action_name(action: int) -> str:
    """The name of a cell, such as c4."""
    return f"{'abcde'[action % SIZE]}{action // SIZE + 1}"


def parse_action(text: str) -> int:
    """Parse a cell such as c4."""
    for action in range(CELLS):
        if action_name(action) == text.strip().lower():
            return action
    raise ValueError(f"{text.strip()!r} is not a cell: type one such as c4")


def render(state) -> str:
    """The board with X for the first player and O for the second."""
    first, second = (MINE, THEIRS) if state[PLY] % 2 == 0 else (THEIRS, MINE)
    marks = ["X" if state[first] >> cell & 1 else "O" if state[second] >> cell & 1 else "." for cell in range(CELLS)]
    rows = [f"{row + 1} {' '.join(marks[row * SIZE : (row + 1) * SIZE])}" for row in range(SIZE)]
    return "\n".join([*rows, "  a b c d e"])


def game() -> Game:
    """Your game. Options of your own become arguments here."""
    points = board_symmetries(SIZE)
    return Game(
        name="NAME",
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
    )
