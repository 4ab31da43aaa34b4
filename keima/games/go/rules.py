"""Go by the Tromp-Taylor rules (https://tromp.github.io/go.html) on square boards from 5 x 5 to 19 x 19.

Area scoring of the final board, so dead stones must be captured; positional superko, which forbids plays that repeat
any earlier position of the game, but never a pass; two passes in a row end the game. There are two deviations: suicide
is illegal by default, and a game ends after ``max_plies`` plies and is scored like any other.

An action is a point, row by row from the upper left corner, or the pass, which comes last. The observation has 14
planes, ``[14, size, size]``, where 1 marks a point unless stated otherwise:

- 0, 1: its own stones; its opponent's.
- 2, 3, 4: stones of both colors in chains with 1, 2, 3 liberties.
- 5: points on which superko alone forbids it to play.
- 6 to 10: the last five plays, the newest first; no point for a pass.
- 11: every point if the last action was a pass.
- 12: komi / 20 at every point, positive if the komi is for the player to move, else negative.
- 13: every point, so that the edge is visible where planes are padded with 0.

The kernels that play are in ``keima.games.go.board``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.compilation.decorators import compiled, inlined_by_llvm
from keima.compilation.intrinsics import lowest_bit, view_as
from keima.games.game import (
    Actions,
    Game,
    Planes,
    Returns,
    Rules,
    States,
    action_table,
    board_symmetries,
    final_score_kernel,
    no_chance,
    observe_kernel,
    query_kernel,
    returns_kernel,
)
from keima.games.go.board import (
    ACTION_BITS,
    BLACK,
    BOARD,
    CELLS,
    EMPTY,
    HALF_KOMI,
    HASH,
    HISTORY,
    LAST,
    MAX_PLIES,
    PASSES,
    PLY,
    REPEATS,
    SIZE,
    SUICIDE,
    WHITE,
    ZOBRIST,
    BoardView,
    judge_play,
    legal_actions,
    make_start_row,
    step,
    view_board,
)
from keima.games.go.setup import stones_on_board

SMALLEST, LARGEST = 5, 19
COLUMN_LETTERS = "ABCDEFGHJKLMNOPQRST"  # columns have no I
MARKS = {EMPTY: ".", BLACK: "X", WHITE: "O"}
LIBERTY_PLANE, FORBIDDEN_PLANE, RECENT_PLANE, PASS_PLANE, KOMI_PLANE, ONES_PLANE, PLANES = 2, 5, 6, 11, 12, 13, 14
KOMI_SCALE = np.float32(2 * 20)  # half points per unit of the komi plane: KataGo's scale


@query_kernel
def current_player(state: States) -> int:
    return state[PLY] & 1


@query_kernel
def terminal(state: States) -> int:
    return int(state[PASSES] == 2 or state[PLY] >= state[MAX_PLIES])


@compiled
def points_reached_by_color(board: BoardView) -> NDArray[np.int64]:
    """Return the stones of each color and the empty points connected to them: masks ``[color, row]``, padded by a row
    on either side.
    """
    size = board.size
    reached = np.zeros((2, size + 2), np.int64)
    for row in range(1, size + 1):
        for column in range(size):
            color = board.color[row * board.stride + column + 1]
            if color != EMPTY:
                reached[color - 1, row] |= 1 << column
    growing = True
    while growing:
        growing = False
        for color in range(2):
            for row in range(1, size + 1):
                before = reached[color, row]
                beside = before << 1 | before >> 1 | reached[color, row - 1] | reached[color, row + 1]
                reached[color, row] = before | (beside & board.rows[row])
                growing |= reached[color, row] != before
    return reached


@inlined_by_llvm
def point_owner(reached: NDArray[np.int64], row: int, column: int) -> int:
    """Return 1 where a point is Black's, -1 where it is White's, else 0."""
    return (reached[0, row] >> column & 1) - (reached[1, row] >> column & 1)


@compiled
def area_difference(state: States) -> int:
    """Return Black's area minus White's: stones, and empty points connected to stones of one color only."""
    board = view_board(state)
    reached = points_reached_by_color(board)
    difference = 0
    for row in range(1, board.size + 1):
        for column in range(board.size):
            difference += point_owner(reached, row, column)
    return difference


@final_score_kernel
def final_score(state: States, ownership: Actions) -> int:
    board = view_board(state)
    reached = points_reached_by_color(board)
    difference, point = 0, 0
    for row in range(1, board.size + 1):
        for column in range(board.size):
            ownership[point] = point_owner(reached, row, column)
            difference += ownership[point]
            point += 1
    return 2 * difference - state[HALF_KOMI]


def score_lead(state: States) -> float:
    """Return Black's area minus White's area and komi on the current board, in points."""
    return area_difference(state) - int(state[HALF_KOMI]) / 2


@returns_kernel
def returns(state: States, out: Returns) -> None:
    lead = 0
    if state[PASSES] == 2 or state[PLY] >= state[MAX_PLIES]:
        lead = 2 * area_difference(state) - state[HALF_KOMI]
    won = np.float32(lead > 0) - np.float32(lead < 0)
    out[0] = won
    out[1] = -won


@inlined_by_llvm
def superko_mask(board: BoardView, row: int, mine: int) -> int:
    """Return the mask of a row's points on which superko alone forbids ``mine`` to play."""
    suspects = board.rows[row + 1] & (board.rows[mine * board.size + 2 + row] | -board.header[SUICIDE])
    forbidden = 0
    while suspects != 0:
        column = lowest_bit(suspects)
        suspects &= suspects - 1
        if judge_play(board, (row + 1) * board.stride + column + 1, mine, 1) == REPEATS:
            forbidden |= 1 << column
    return forbidden


@observe_kernel
def observe(state: States, planes: Planes) -> None:
    board = view_board(state)
    size, points = board.size, board.size * board.size
    mine = 1 + (state[PLY] & 1)
    flat = view_as(planes, 0, PLANES * points, np.float32)
    flat[: KOMI_PLANE * points] = 0
    for row in range(size):
        stones = ((1 << size) - 1) & ~board.rows[row + 1]
        while stones != 0:
            column = lowest_bit(stones)
            stones &= stones - 1
            cell, point = (row + 1) * board.stride + column + 1, row * size + column
            side, liberties = int(board.color[cell] != mine), board.liberties[board.head[cell]]
            flat[side * points + point] = 1
            plane = LIBERTY_PLANE - 1 + liberties if liberties <= 3 else side  # written twice, without a branch
            flat[plane * points + point] = 1
        forbidden = superko_mask(board, row, mine)
        if forbidden != 0:
            for column in range(size):
                flat[FORBIDDEN_PLANE * points + row * size + column] = forbidden >> column & 1
    for age in range(HISTORY):
        action = (state[LAST] >> ACTION_BITS * age & (1 << ACTION_BITS) - 1) - 1
        if 0 <= action < points:
            flat[(RECENT_PLANE + age) * points + action] = 1
    if state[PASSES] > 0:
        flat[PASS_PLANE * points : KOMI_PLANE * points] = 1
    flat[KOMI_PLANE * points : ONES_PLANE * points] = (
        np.float32(state[HALF_KOMI] if mine == WHITE else -state[HALF_KOMI]) / KOMI_SCALE
    )
    flat[ONES_PLANE * points :] = 1


@query_kernel
def position_hash(state: States) -> int:
    board = view_board(state)
    mine = 1 + (state[PLY] & 1)
    key = np.uint64(state[HASH])
    for row in range(board.size):
        key += np.uint64(superko_mask(board, row, mine)) * np.uint64(ZOBRIST[EMPTY, row + 1])
    key += np.uint64(2 * state[LAST] + mine) * np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int(np.int64(key ^ (key >> np.uint64(31))))


def vertex_name(size: int, action: int) -> str:
    """Return the vertex of an action as in GTP, such as D4; the pass is ``pass``."""
    if action == size * size:
        return "pass"
    return f"{COLUMN_LETTERS[action % size]}{size - action // size}"


def parse_vertex(size: int, text: str) -> int:
    """Return the action of a vertex, in upper or lower case."""
    word = text.strip().upper()
    if word == "PASS":
        return size * size
    column, row = word[:1], word[1:]
    if column not in set(COLUMN_LETTERS[:size]) or row not in {str(number) for number in range(1, size + 1)}:
        raise ValueError(
            f"{text.strip()!r} is not a point: type a letter from A to {COLUMN_LETTERS[size - 1]} (there is no I) and "
            f"a number from 1 to {size}, such as {COLUMN_LETTERS[2]}3, or pass"
        )
    return (size - int(row)) * size + COLUMN_LETTERS.index(column)


def render(state: States) -> str:
    """Return the board with coordinates: X for Black, O for White, the last play in parentheses, and a line below after
    a pass.
    """
    size = int(state[SIZE])
    last = int(state[LAST]) & (1 << ACTION_BITS) - 1
    cells = view_as(state, int(state[BOARD]), int(state[CELLS]), np.int16)
    color = cells[size + 1 : (size + 1) ** 2].reshape(size, size + 1)[:, 1:]
    letters = "   " + " ".join(COLUMN_LETTERS[:size])
    lines = [letters]
    for row in range(size):
        marks = " ".join(MARKS[int(cell)] for cell in color[row])
        line = f"{size - row:2} {marks} {size - row}"
        if (last - 1) // size == row:
            at = 2 + 2 * ((last - 1) % size)
            line = f"{line[:at]}({line[at + 1]}){line[at + 3 :]}"
        lines.append(line)
    lines.append(letters)
    if last == size * size + 1:
        lines.append(f"{'White' if state[PLY] % 2 == 0 else 'Black'} passed")
    return "\n".join(lines)


def cells(state: States) -> NDArray[np.int64]:
    """Return the stones ``[size, size]``: 1 is black, -1 white."""
    return np.where(stones_on_board(state) == 2, -1, stones_on_board(state)).astype(np.int64)


def _require_whole(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {value}")


def _require_komi(komi: Any, limit: int) -> None:
    if not isinstance(komi, int | float) or isinstance(komi, bool):
        raise TypeError(f"komi must be a number, not {komi!r}")
    if not (-limit <= komi <= limit and float(2 * komi).is_integer()):
        raise ValueError(f"komi must be a multiple of 0.5 from {-limit} to {limit}, not {komi}")


def go(*, size: int = 9, komi: float = 7.0, suicide: bool = False, max_plies: int | None = None) -> Game:
    """Build Go on a board of ``size`` x ``size`` points, 5 to 19.

    Args:
        size: points on a side.
        komi: points for White, a multiple of 0.5; a whole number allows draws. By KataGo's opening books
            (https://katagobooks.org) 7 is fair on 9 x 9 under these rules, hence the default, 10 on 8 x 8 and 9 on
            7 x 7. With half a point more White wins with best play, and strong networks learn less from results.
        suicide: whether a play may remove the mover's own stones. A single stone never may, because that would repeat
            the position.
        max_plies: plies after which the game ends and is scored as it stands; by default two per point, as in AlphaGo
            Zero.

    Raises:
        ValueError, TypeError: an option is out of range, or of the wrong type.
    """
    _require_whole("size", size, SMALLEST, LARGEST)
    _require_komi(komi, size * size)
    if not isinstance(suicide, bool):
        raise TypeError(f"suicide must be true or false, not {suicide!r}")
    max_plies = 2 * size * size if max_plies is None else max_plies
    _require_whole("max_plies", max_plies, 1, 10 * size * size)
    points = board_symmetries(size)
    return Game(
        name="go",
        options={"size": size, "komi": float(komi), "suicide": suicide, "max_plies": max_plies},
        rules_version=1,
        rules=Rules(legal_actions, step, current_player, terminal, returns, observe, position_hash, no_chance),
        start=make_start_row(size=size, half_komi=int(2 * komi), suicide=suicide, max_plies=max_plies),
        num_players=2,
        num_actions=size * size + 1,
        observation_shape=(PLANES, size, size),
        policy_planes=1,
        piece_planes=1,
        max_plies=max_plies,
        point_symmetries=points,
        action_symmetries=action_table(points, planes=1, extra=1),
        action_name=lambda action: vertex_name(size, action),
        parse_action=lambda text: parse_vertex(size, text),
        render=render,
        final_score=final_score,
        won_by_area=True,
        cells=cells,
    )
