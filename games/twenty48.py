"""2048 on boards from 2 x 2 to 5 x 5: one player slides all tiles, equal ones merge, and chance puts a new tile on an empty cell.

A cell holds an exponent: 0 is empty, e a tile of 2**e. Actions slide up, right, down and left. Chance outcome ``2 * cell`` puts a 2 on
the cell (row by row from the top), ``2 * cell + 1`` a 4; nine in ten are a 2, and all empty cells are equally likely. The score is
the sum of all tiles made by merging (G. Cirulli's game of 2014). A game begins with two such outcomes on an empty board.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from games.compiled import inlined
from games.game import (
    CHANCE,
    Actions,
    Floats,
    Game,
    Planes,
    Returns,
    Rules,
    States,
    board_symmetries,
    chance_outcomes_kernel,
    legal_actions_kernel,
    observe_kernel,
    query_kernel,
    returns_kernel,
    step_kernel,
)
from games.intrinsics import fields

UP, RIGHT, DOWN, LEFT = range(4)
ACTIONS = ("up", "right", "down", "left")
SMALLEST, LARGEST = 2, 5
FOUR = np.float32(0.1)  # how likely a new tile is a 4

# Words: the sides, the score, how many new tiles are due before the player may move, the legal actions as bits; then the cells in bytes.
HEIGHT, WIDTH, SCORE, DUE, LEGAL, HEADER = range(6)


@inlined
def cells_of(state: States) -> NDArray[np.uint8]:
    """The exponents, row by row, ``[height * width]``."""
    return fields(state, 8 * HEADER, state[HEIGHT] * state[WIDTH], np.uint8)


@inlined
def slide_line(cells: NDArray[np.uint8], first: int, stride: int, length: int) -> int:
    """Slide a line towards its first cell, in place; returns the tiles made by merging, added up."""
    made, end, mergeable = 0, first, False
    for i in range(length):
        cell = first + i * stride
        exponent = cells[cell]
        if exponent == 0:
            continue
        cells[cell] = 0
        if mergeable and cells[end - stride] == exponent:
            cells[end - stride] = exponent + 1
            made += 2 << int(exponent)
            mergeable = False
        else:
            cells[end] = exponent
            end += stride
            mergeable = True
    return made


@inlined
def legal_bits(cells: NDArray[np.uint8], height: int, width: int) -> int:
    """The actions that change the board, as bits."""
    bits = 0
    for row in range(height):
        for column in range(width):
            cell = cells[row * width + column]
            if column + 1 < width:
                right = cells[row * width + column + 1]
                if cell != 0 and (right == 0 or right == cell):
                    bits |= 1 << RIGHT
                if right != 0 and (cell == 0 or right == cell):
                    bits |= 1 << LEFT
            if row + 1 < height:
                below = cells[row * width + width + column]
                if cell != 0 and (below == 0 or below == cell):
                    bits |= 1 << DOWN
                if below != 0 and (cell == 0 or below == cell):
                    bits |= 1 << UP
    return bits


@legal_actions_kernel
def legal_actions(state: States, out: Actions) -> int:
    count = 0
    for action in range(len(ACTIONS)):
        if (state[LEGAL] >> action) & 1:
            out[count] = action
            count += 1
    return count


@step_kernel
def step(state: States, action: int) -> None:
    height, width, cells = state[HEIGHT], state[WIDTH], cells_of(state)
    if state[DUE] > 0:
        cells[action >> 1] = 1 + (action & 1)
        state[DUE] -= 1
        if state[DUE] == 0:
            state[LEGAL] = legal_bits(cells, height, width)
        return
    if action == UP or action == DOWN:
        lines, length, apart, stride = width, height, 1, width
    else:
        lines, length, apart, stride = height, width, width, 1
    backwards = action == DOWN or action == RIGHT
    for line in range(lines):
        first = line * apart + ((length - 1) * stride if backwards else 0)
        state[SCORE] += slide_line(cells, first, -stride if backwards else stride, length)
    state[DUE], state[LEGAL] = 1, 0


@query_kernel
def current_player(state: States) -> int:
    return CHANCE if state[DUE] > 0 else 0


@query_kernel
def terminal(state: States) -> int:
    return int(state[DUE] == 0 and state[LEGAL] == 0)


@returns_kernel
def returns(state: States, out: Returns) -> None:
    out[0] = np.float32(state[SCORE])


@observe_kernel
def observe(state: States, planes: Planes) -> None:
    cells, width, last = cells_of(state), state[WIDTH], planes.shape[0] - 1
    planes[:] = np.float32(0.0)
    for cell in range(len(cells)):
        if cells[cell] != 0:
            planes[min(np.int64(cells[cell]) - 1, last), cell // width, cell % width] = np.float32(1.0)


@query_kernel
def position_hash(state: States) -> int:
    key = np.uint64(state[DUE])
    for word in range(HEADER, len(state)):
        key = (key ^ np.uint64(state[word])) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
        key ^= key >> np.uint64(30)
    return int(np.int64(key))


@chance_outcomes_kernel
def chance_outcomes(state: States, outcomes: Actions, probabilities: Floats) -> int:
    if state[DUE] == 0:
        return 0
    cells = cells_of(state)
    count = 0
    for cell in range(len(cells)):
        if cells[cell] == 0:
            outcomes[count], outcomes[count + 1] = 2 * cell, 2 * cell + 1
            count += 2
    four = FOUR / np.float32(count // 2)
    two = (np.float32(1.0) - FOUR) / np.float32(count // 2)
    for i in range(0, count, 2):
        probabilities[i], probabilities[i + 1] = two, four
    return count


def render(state: States) -> str:
    """The tiles with coordinates, and the score."""
    height, width = int(state[HEIGHT]), int(state[WIDTH])
    rows = cells_of(state).reshape(height, width).tolist()
    size = max(4, len(str(1 << max(map(max, rows)))))
    lines = []
    for row, exponents in enumerate(rows):
        tiles = " ".join(str(1 << e if e else ".").rjust(size) for e in exponents)
        lines.append(f"{height - row} {tiles}")
    letters = " ".join("abcde"[column].rjust(size) for column in range(width))
    return "\n".join([*lines, f"  {letters}", f"score {int(state[SCORE])}"])


def parse_action(text: str) -> int:
    """A direction, or its first letter."""
    for action, name in enumerate(ACTIONS):
        if text.strip().lower() in (name, name[0]):
            return action
    raise ValueError(f"{text.strip()!r} is not a direction: type {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}")


def outcome_name(height: int, width: int, outcome: int) -> str:
    """The new tile and its cell, as in 2@b3; columns are letters from the left, rows numbers from the bottom."""
    row, column = divmod(outcome // 2, width)
    return f"{2 + 2 * (outcome % 2)}@{'abcde'[column]}{height - row}"


def direction_table(points: NDArray[np.int32], *, width: int) -> NDArray[np.int32]:
    """The action symmetries ``[Y, 4]`` of directions: where a step from one cell to the next leads on the new board."""
    steps = {-width: UP, 1: RIGHT, width: DOWN, -1: LEFT}
    table = np.empty((len(points), len(ACTIONS)), np.int32)
    for y, old in enumerate(points):
        new = np.argsort(old)  # where each old cell is shown
        origin, right, below = int(new[0]), int(new[1]), int(new[width])
        table[y, [RIGHT, LEFT]] = steps[right - origin], steps[origin - right]
        table[y, [DOWN, UP]] = steps[below - origin], steps[origin - below]
    return table


def outcome_table(points: NDArray[np.int32]) -> NDArray[np.int32]:
    """The symmetries ``[Y, 2 * cells]`` of outcomes."""
    new = np.argsort(points, axis=1)
    return np.stack([2 * new, 2 * new + 1], axis=2).reshape(len(points), -1).astype(np.int32)


def _require_whole(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {value}")


def twenty48(*, height: int = 4, width: int = 4, planes: int = 16) -> Game:
    """2048 on a board of ``height`` x ``width`` cells, 2 to 5 each.

    Args:
        height: rows.
        width: columns.
        planes: of the observation; plane ``e - 1`` shows the tiles of 2**e, and the last all larger ones too.

    No tile can be larger than 2 ** (cells + 1): to make it, its half must stand beside the same again made on one cell fewer, and on a
    single free cell no more than a 4 can appear. So all tiles together are at most 4 + 8 + ... + 2 ** (cells + 1), each new tile adds at
    least 2 to that sum, and at most one slide follows each: ``max_plies`` is the sum.

    Raises:
        ValueError, TypeError: an option is out of range, or of the wrong type.
    """
    _require_whole("height", height, SMALLEST, LARGEST)
    _require_whole("width", width, SMALLEST, LARGEST)
    _require_whole("planes", planes, 1, 32)
    cells = height * width
    start = np.zeros(HEADER + (cells + 7) // 8, np.int64)
    start[HEIGHT], start[WIDTH], start[DUE] = height, width, 2
    points = board_symmetries(height, width)
    return Game(
        name="twenty48",
        options={"height": height, "width": width, "planes": planes},
        rules_version=1,
        rules=Rules(legal_actions, step, current_player, terminal, returns, observe, position_hash, chance_outcomes),
        start=start,
        num_players=1,
        num_actions=len(ACTIONS),
        observation_shape=(planes, height, width),
        policy_planes=0,
        max_plies=2 ** (cells + 2) - 4,
        point_symmetries=points,
        action_symmetries=direction_table(points, width=width),
        action_name=lambda action: ACTIONS[action],
        parse_action=parse_action,
        render=render,
        num_outcomes=2 * cells,
        outcome_symmetries=outcome_table(points),
        outcome_name=lambda outcome: outcome_name(height, width, outcome),
    )


def GameRules(height: int = 4, width: int = 4) -> Game:  # noqa: N802
    """2048 under the name by which the guide's programs know it."""
    return twenty48(height=height, width=width)
