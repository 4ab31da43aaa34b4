"""2048 on boards from 2 x 2 to 5 x 5: the player slides all tiles, equal tiles merge, and a new tile appears at random.

A cell holds an exponent: 0 is empty, e a tile of 2**e. Actions slide up, right, down and left. Chance outcome ``2 *
cell`` puts a 2 on the cell (row by row from the top), ``2 * cell + 1`` a 4; the 2 has a probability of 0.9, and all
empty cells are equally likely. The score is the sum of all tiles made by merging (G. Cirulli, 2014). A game begins with
two such outcomes on an empty board.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import inlined_by_llvm
from keima.compilation.intrinsics import lowest_bit
from keima.games.game import (
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

UP, RIGHT, DOWN, LEFT = range(4)
ACTIONS = ("up", "right", "down", "left")
SMALLEST, LARGEST = 2, 5
FOUR = np.float32(0.1)  # the probability of a 4
MILESTONES = (512, 1024, 2048, 4096, 8192)  # tiles whose frequency is reported

# Words: the sides, the score, the number of new tiles due before the player may move, the legal actions as bits; then
# the rows of the board, always five, a byte per cell, the leftmost lowest. Cells outside the board are 0.
HEIGHT, WIDTH, SCORE, DUE, LEGAL, ROWS = range(6)
WORDS = ROWS + LARGEST

ONES, HIGH = 0x0101010101, 0x8080808080  # in each byte of a row: the lowest and the highest bit
LOW = HIGH - ONES

PackedRow = int
FiveRows = tuple[
    PackedRow, PackedRow, PackedRow, PackedRow, PackedRow
]  # byte k of all five is a line, which slides towards the first


@inlined_by_llvm
def nonzero_bytes(cells: PackedRow) -> int:
    """Return the highest bit of each nonzero byte."""
    return (cells + LOW) & HIGH


@inlined_by_llvm
def fill_bytes(high: int) -> int:
    """Return all bits of each byte whose highest bit is set in ``high``; other bits must be clear."""
    return (high - (high >> 7)) | high


@inlined_by_llvm
def pull_tiles_forward(front: PackedRow, back: PackedRow) -> tuple[PackedRow, PackedRow]:
    """Move tiles from the back to the front where the front is empty."""
    keep = fill_bytes(nonzero_bytes(front))
    return front | (back & ~keep), back & keep


@inlined_by_llvm
def merge_pair(front: PackedRow, back: PackedRow) -> tuple[PackedRow, PackedRow, int]:
    """Merge equal tiles into the front; also return the highest bits of the bytes where tiles merged."""
    equal = nonzero_bytes(front) & ~nonzero_bytes(front ^ back)
    return front + (equal >> 7), back & ~fill_bytes(equal), equal


@inlined_by_llvm
def sum_merged_tiles(cells: PackedRow, equal: int) -> int:
    """Return the sum of the tiles in the bytes of ``cells`` whose bits ``equal`` are set."""
    total = 0
    while equal != 0:
        total += 1 << ((cells >> (lowest_bit(equal) - 7)) & 0xFF)
        equal &= equal - 1
    return total


@inlined_by_llvm
def slide_lines(
    a: PackedRow, b: PackedRow, c: PackedRow, d: PackedRow, e: PackedRow
) -> tuple[PackedRow, PackedRow, PackedRow, PackedRow, PackedRow, int]:
    """Slide all lines from ``e`` towards ``a``; return the five words and the sum of the tiles made by merging."""
    a, b = pull_tiles_forward(a, b)
    b, c = pull_tiles_forward(b, c)
    c, d = pull_tiles_forward(c, d)
    d, e = pull_tiles_forward(d, e)
    a, b = pull_tiles_forward(a, b)
    b, c = pull_tiles_forward(b, c)
    c, d = pull_tiles_forward(c, d)
    a, b = pull_tiles_forward(a, b)
    b, c = pull_tiles_forward(b, c)
    a, b = pull_tiles_forward(a, b)
    a, b, first = merge_pair(a, b)
    b, c, second = merge_pair(b, c)
    c, d, third = merge_pair(c, d)
    d, e, fourth = merge_pair(d, e)
    made = (
        sum_merged_tiles(a, first)
        + sum_merged_tiles(b, second)
        + sum_merged_tiles(c, third)
        + sum_merged_tiles(d, fourth)
    )
    b, c = pull_tiles_forward(b, c)
    c, d = pull_tiles_forward(c, d)
    d, e = pull_tiles_forward(d, e)
    c, d = pull_tiles_forward(c, d)
    return a, b, c, d, e, made


@inlined_by_llvm
def extract_column(a: PackedRow, b: PackedRow, c: PackedRow, d: PackedRow, e: PackedRow, shift: int) -> PackedRow:
    """Return the bytes at this bit offset of five rows, as a row."""
    near = ((a >> shift) & 0xFF) | ((b >> shift) & 0xFF) << 8 | ((c >> shift) & 0xFF) << 16
    return near | ((d >> shift) & 0xFF) << 24 | ((e >> shift) & 0xFF) << 32


@inlined_by_llvm
def transpose_rows(a: PackedRow, b: PackedRow, c: PackedRow, d: PackedRow, e: PackedRow) -> FiveRows:
    """Return the transposed board."""
    return (
        extract_column(a, b, c, d, e, 0),
        extract_column(a, b, c, d, e, 8),
        extract_column(a, b, c, d, e, 16),
        extract_column(a, b, c, d, e, 24),
        extract_column(a, b, c, d, e, 32),
    )


@inlined_by_llvm
def reverse_rows(a: PackedRow, b: PackedRow, c: PackedRow, d: PackedRow, e: PackedRow, length: int) -> FiveRows:
    """Return the first ``length`` words in reverse order; the others are 0."""
    if length == 5:
        return e, d, c, b, a
    if length == 4:
        return d, c, b, a, e
    if length == 3:
        return c, b, a, d, e
    return b, a, c, d, e


@inlined_by_llvm
def find_slidable_tiles(front: PackedRow, back: PackedRow) -> tuple[int, int]:
    """Return the highest bits of the bytes where a tile can slide a step from front to back, and from back to front."""
    in_front, behind, unequal = nonzero_bytes(front), nonzero_bytes(back), nonzero_bytes(front ^ back)
    return in_front & ~(behind & unequal), behind & ~(in_front & unequal)


@inlined_by_llvm
def legal_action_bits(state: States) -> int:
    """Return the legal actions, those that change the board, as bits."""
    inner = (1 << 8 * (state[WIDTH] - 1)) - 1  # all columns but the last
    up = right = down = left = 0
    for row in range(ROWS, ROWS + state[HEIGHT]):
        rightwards, leftwards = find_slidable_tiles(state[row] & inner, state[row] >> 8)
        right |= rightwards
        left |= leftwards
    for row in range(ROWS + 1, ROWS + state[HEIGHT]):
        downwards, upwards = find_slidable_tiles(state[row - 1], state[row])
        down |= downwards
        up |= upwards
    return int(up != 0) << UP | int(right != 0) << RIGHT | int(down != 0) << DOWN | int(left != 0) << LEFT


@inlined_by_llvm
def slide_board(state: States, action: int) -> None:
    """Slide the board in the direction of ``action``."""
    sideways, backwards = action & 1 == 1, action == RIGHT or action == DOWN
    length = state[WIDTH] if sideways else state[HEIGHT]
    a, b, c, d, e = state[ROWS], state[ROWS + 1], state[ROWS + 2], state[ROWS + 3], state[ROWS + 4]
    if sideways:
        a, b, c, d, e = transpose_rows(a, b, c, d, e)
    if backwards:
        a, b, c, d, e = reverse_rows(a, b, c, d, e, length)
    a, b, c, d, e, made = slide_lines(a, b, c, d, e)
    if backwards:
        a, b, c, d, e = reverse_rows(a, b, c, d, e, length)
    if sideways:
        a, b, c, d, e = transpose_rows(a, b, c, d, e)
    state[ROWS], state[ROWS + 1], state[ROWS + 2], state[ROWS + 3], state[ROWS + 4] = a, b, c, d, e
    state[SCORE] += made


@inlined_by_llvm
def place_tile(state: States, outcome: int) -> None:
    """Add the new tile of a chance outcome."""
    cell, width = np.uint32(outcome >> 1), np.uint32(state[WIDTH])
    row = cell // width
    state[ROWS + row] |= (1 + (outcome & 1)) << 8 * np.int64(cell - row * width)


@legal_actions_kernel
def legal_actions(state: States, out: Actions) -> int:
    legal, count = state[LEGAL], 0
    for action in range(len(ACTIONS)):
        out[count] = action  # overwritten if it is not legal
        count += (legal >> action) & 1
    return count


@step_kernel
def step(state: States, action: int) -> None:
    if state[DUE] > 0:
        place_tile(state, action)
        state[DUE] -= 1
        if state[DUE] == 0:
            state[LEGAL] = legal_action_bits(state)
    else:
        slide_board(state, action)
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
    last = planes.shape[0] - 1
    planes[:] = np.float32(0.0)
    for row in range(state[HEIGHT]):
        for column in range(state[WIDTH]):
            exponent = (state[ROWS + row] >> 8 * column) & 0xFF
            if exponent != 0 or state[DUE] == 0:
                planes[min(exponent, last), row, column] = np.float32(1.0)


@query_kernel
def position_hash(state: States) -> int:
    key = np.uint64(state[DUE])
    for row in range(ROWS, ROWS + state[HEIGHT]):
        key = (key << np.uint64(40)) ^ (key >> np.uint64(24)) ^ np.uint64(state[row])
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        key ^= key >> np.uint64(31)
    return int(np.int64(key))


@chance_outcomes_kernel
def chance_outcomes(state: States, outcomes: Actions, probabilities: Floats) -> int:
    if state[DUE] == 0:
        return 0
    count, outcome = 0, 0
    for row in range(ROWS, ROWS + state[HEIGHT]):
        cells = state[row]
        for _ in range(state[WIDTH]):
            outcomes[count], outcomes[count + 1] = outcome, outcome + 1  # overwritten if the cell is taken
            count += 2 * int(cells & 0xFF == 0)
            outcome += 2
            cells >>= 8
    four = FOUR / np.float32(count >> 1)
    two = (np.float32(1.0) - FOUR) / np.float32(count >> 1)
    for i in range(0, count, 2):
        probabilities[i], probabilities[i + 1] = two, four
    return count


def render(state: States) -> str:
    """Return the tiles with coordinates, and the score."""
    height, width = int(state[HEIGHT]), int(state[WIDTH])
    rows = [[int(state[ROWS + row]) >> 8 * column & 0xFF for column in range(width)] for row in range(height)]
    size = max(4, len(str(1 << max(map(max, rows)))))
    lines = []
    for row, exponents in enumerate(rows):
        tiles = " ".join(str(1 << e if e else ".").rjust(size) for e in exponents)
        lines.append(f"{height - row} {tiles}")
    letters = " ".join("abcde"[column].rjust(size) for column in range(width))
    return "\n".join([*lines, f"  {letters}", f"score {int(state[SCORE])}"])


def tiles_on_board(state: States) -> NDArray[np.int64]:
    """Return the tiles on the board ``[H, W]``; 0 is an empty cell."""
    cells = state[ROWS : ROWS + state[HEIGHT], None] >> 8 * np.arange(state[WIDTH]) & 0xFF
    return np.where(cells > 0, np.int64(1) << cells, 0)


def parse_action(text: str) -> int:
    """Parse a direction or its first letter."""
    for action, name in enumerate(ACTIONS):
        if text.strip().lower() in (name, name[0]):
            return action
    raise ValueError(f"{text.strip()!r} is not a direction: type {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}")


def outcome_name(height: int, width: int, outcome: int) -> str:
    """Return the new tile and its cell, such as 2@b3: columns are letters from the left, rows numbers from below."""
    row, column = divmod(outcome // 2, width)
    return f"{2 + 2 * (outcome % 2)}@{'abcde'[column]}{height - row}"


def make_direction_table(points: NDArray[np.int32], *, width: int) -> NDArray[np.int32]:
    """Return the action symmetries ``[Y, 4]``: the direction of each step on the new board."""
    steps = {-width: UP, 1: RIGHT, width: DOWN, -1: LEFT}
    table = np.empty((len(points), len(ACTIONS)), np.int32)
    for y, old in enumerate(points):
        new = np.argsort(old)  # the new place of each old cell
        origin, right, below = int(new[0]), int(new[1]), int(new[width])
        table[y, [RIGHT, LEFT]] = steps[right - origin], steps[origin - right]
        table[y, [DOWN, UP]] = steps[below - origin], steps[origin - below]
    return table


def make_outcome_table(points: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the outcome symmetries ``[Y, 2 * cells]``."""
    new = np.argsort(points, axis=1)
    return np.stack([2 * new, 2 * new + 1], axis=2).reshape(len(points), -1).astype(np.int32)


def _require_whole(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {value}")


def twenty48(*, height: int = 4, width: int = 4, planes: int = 16) -> Game:
    """Build 2048 on a board of ``height`` x ``width`` cells, 2 to 5 each.

    Args:
        height: rows.
        width: columns.
        planes: of the observation. Plane e shows the tiles of 2**e, the last plane all larger tiles too. Plane 0 shows
            the empty cells where the player is to move, and nothing where chance is, so that an afterstate looks
            different from the position after it.

    No tile can be larger than 2 ** (cells + 1): making it takes two of its halves, the second made with one cell fewer,
    and with a single free cell only a 4 can appear. So the sum of all tiles is at most 4 + 8 + ... + 2 ** (cells + 1).
    Each new tile adds at least 2 to the sum, and at most one slide follows it: ``max_plies`` is that sum. A tile of
    2**e scores at most (e - 1) * 2**e points, if made of 2s alone: ``max_return`` is the score of all these tiles
    together.

    Raises:
        ValueError, TypeError: an option is out of range, or of the wrong type.
    """
    _require_whole("height", height, SMALLEST, LARGEST)
    _require_whole("width", width, SMALLEST, LARGEST)
    _require_whole("planes", planes, 2, 32)
    cells = height * width
    start = np.zeros(WORDS, np.int64)
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
        max_return=(cells - 1) * 2.0 ** (cells + 2) + 4,
        point_symmetries=points,
        action_symmetries=make_direction_table(points, width=width),
        action_name=lambda action: ACTIONS[action],
        parse_action=parse_action,
        render=render,
        cells=tiles_on_board,
        num_outcomes=2 * cells,
        outcome_symmetries=make_outcome_table(points),
        outcome_name=lambda outcome: outcome_name(height, width, outcome),
        milestones=tuple(tile for tile in MILESTONES if tile <= 2 ** (cells + 1)),
        milestone_of=lambda state: int(tiles_on_board(state).max()),
    )


def GameRules(height: int = 4, width: int = 4) -> Game:  # noqa: N802
    """Build 2048 under the name that the guide's programs use."""
    return twenty48(height=height, width=width)
