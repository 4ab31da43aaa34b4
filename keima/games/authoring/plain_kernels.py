"""The kernels of a plain game (``keima.games.authoring.plain``), written once around the author's functions.

``compile_plain_kernels`` copies the kernels below. Each copy has the author's functions and the game's constants as its
globals, under the names of ``KernelGlobals``. So numba compiles every call into the kernel.

A state row is the player to move (1 or -1; with three and more players 1, 2, 3, ...), the number of plies, the phase
(whether the game is over, or chance is to move), the first player's return (a float64; with three and more players
everyone's), and the board.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array, populate_array
from numba.typed.typedobjectutils import _nonoptional
from numpy.typing import NDArray

from keima.compilation.decorators import compile_captured_kernel, compiled, inlined_by_llvm
from keima.compilation.parts import PART_OPTIONS
from keima.games.game import (
    CHANCE,
    CHANCE_OUTCOMES,
    LEGAL_ACTIONS,
    OBSERVE,
    QUERY,
    RETURNS,
    STEP,
    Actions,
    Floats,
    Planes,
    Returns,
    Rules,
    States,
    no_chance,
)

Board = NDArray[Any]

PLAYER, PLY, PHASE, RESULT = range(4)  # words; the board follows the results
TO_MOVE, OVER, CHANCE_TO_MOVE = range(3)  # phases
WORD = 8  # bytes
WRONG = "keima: "  # how errors of these functions begin, before what the author did and should do
MOVES = "legal_moves must yield or return move numbers"
NEXT = "play must return nothing, or the next player's number"
AFTER_CHANCE = "happen must return nothing, or the next player's number"
OUTCOME = "result must return None while the game goes on, and then a number, or one for each of three and more players"
CHANCES = "chance must return the probability of each outcome, or None where chance is not to move"
VIEW = "planes must return an array [C, H, W], or several of [H, W]"


class KernelGlobals(NamedTuple):
    """The globals of a game's kernels: the author's functions, compiled, and constants."""

    legal_moves: Callable[..., Any]
    play: Callable[..., Any]
    result: Callable[..., Any]
    planes: Callable[..., Any]
    chance: Callable[..., Any] | None  # None: there is no chance
    happen: Callable[..., Any] | None
    SHAPE: tuple[int, ...]  # of the board
    DTYPE: Any
    PLANES: tuple[int, int, int]
    ACTIONS: int
    PLAYERS: int
    RESULTS: tuple[int]  # the shape of the results
    BOARD: int  # the first word of the board
    MAX_PLIES: int


def count_results_in_state(players: int) -> int:
    """Return the number of returns in a state: with two players, the first player's determines the other's."""
    return players if players > 2 else 1


def first_board_word(players: int) -> int:
    """Return the first word of the board in a state."""
    return RESULT + count_results_in_state(players)


def player_number(index: int, players: int) -> int:
    """Return the number by which the author's functions call the player with this index from 0."""
    return index + 1 if players > 2 else (1, -1)[index]


def view_board_words(state: States, first: int, shape: tuple[int, ...], dtype: Any) -> Board:
    """Return a view ``shape`` of the numbers of ``dtype`` in ``state`` from word ``first``, without reference counts.

    It does not keep the memory alive, so it is for kernels, which borrow their arguments from their caller.
    """
    return state[first:].view(dtype)[: int(np.prod(shape))].reshape(shape)


@intrinsic
def _view_board_words(context: Any, state: Any, first: Any, shape: Any, dtype: Any) -> Any:
    view = types.Array(dtype.dtype, len(shape), "C")

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, offset, sides, _ = arguments
        words = make_array(signature.args[0])(context, builder, source).data
        item = context.get_data_type(view.dtype).as_pointer()
        width = context.get_constant(types.intp, view.dtype.bitwidth // 8)
        shape = cgutils.unpack_tuple(builder, sides)
        strides = [width]
        for side in shape[:0:-1]:
            strides.insert(0, builder.mul(strides[0], side))
        result = make_array(view)(context, builder)
        populate_array(
            result,
            data=builder.bitcast(builder.gep(words, [offset]), item),
            shape=shape,
            strides=strides,
            itemsize=width,
            meminfo=None,
        )
        return result._getvalue()

    return view(state, types.intp, shape, dtype), build


@inlined_by_llvm
def insert_move(out: Actions, count: int, move: int, actions: int) -> int:
    """Insert a move into ``count`` ascending ones, if it is new and from 0 to ``actions`` - 1; return their number."""
    at = count
    while at > 0 and out[at - 1] > move:
        at -= 1
    if move < 0 or move >= actions or (at > 0 and out[at - 1] == move):
        return count
    for later in range(count, at, -1):
        out[later] = out[later - 1]
    out[at] = move
    return count + 1


@inlined_by_llvm
def mix_bits(word: Any) -> Any:
    """Return 64 bits that all depend on all of ``word`` (SplitMix64)."""
    word = word * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def write_moves(moves: Any, out: Actions, actions: int) -> int:
    """Write the moves in ascending order: an array or generator of numbers, or an array with True at each legal one."""
    if isinstance(moves, np.ndarray) and moves.dtype == np.bool_:
        moves = np.flatnonzero(moves)
    count = 0
    for move in moves:
        count = insert_move(out, count, move, actions)
    return count


@overload(write_moves, strict=False, jit_options=PART_OPTIONS)
def _compiled_write_moves(moves: Any, out: Any, actions: Any) -> Any:
    if isinstance(moves, types.Array) and moves.dtype == types.boolean:

        def write_mask(moves: Any, out: Any, actions: Any) -> int:
            count = 0
            for move, legal in enumerate(moves.flat):
                if legal and move < actions:
                    out[count] = move
                    count += 1
            return count

        return write_mask

    if isinstance(getattr(moves, "yield_type", getattr(moves, "dtype", None)), types.Integer):

        def write_numbers(moves: Any, out: Any, actions: Any) -> int:
            count = 0
            for move in moves:
                count = insert_move(out, count, move, actions)
            return count

        return write_numbers
    raise TypingError(f"{WRONG}{MOVES}, and returns {moves}")


def has_any_move(moves: Any, actions: int) -> bool:
    """Return whether there is a legal move among the moves that ``write_moves`` takes."""
    if isinstance(moves, np.ndarray) and moves.dtype == np.bool_:
        return bool(moves.any())
    return any(0 <= move < actions for move in moves)


@overload(has_any_move, strict=False, jit_options=PART_OPTIONS)
def _compiled_has_any_move(moves: Any, actions: Any) -> Any:
    if isinstance(moves, types.Array) and moves.dtype == types.boolean:
        return lambda moves, actions: moves.any()

    def has_number(moves: Any, actions: Any) -> bool:
        for move in moves:
            if move >= 0 and move < actions:
                return True
        return False

    return has_number


def player_after_chance(value: Any, player: int, players: int) -> int:
    """Return the next player, where ``happen`` returned ``value``."""
    return player if value is None else nearest_player(value, players)


@overload(player_after_chance, strict=False, jit_options=PART_OPTIONS)
def _compiled_player_after_chance(value: Any, player: Any, players: Any) -> Any:
    if isinstance(value, types.NoneType):  # type: ignore[attr-defined]
        return lambda value, player, players: player
    if isinstance(value, types.Integer) or (
        isinstance(value, types.Optional) and isinstance(value.type, types.Integer)  # type: ignore[attr-defined]
    ):
        return lambda value, player, players: player if value is None else nearest_player(value, players)
    raise TypingError(f"{WRONG}{AFTER_CHANCE}, and returns {value}")


def next_player(value: Any, player: int, players: int) -> int:
    """Return the next player, where ``play`` returned ``value``."""
    if value is None:
        return player_after(player, players)
    return nearest_player(value, players)


@inlined_by_llvm
def player_after(player: int, players: int) -> int:
    """Return the player whose turn is next."""
    if players > 2:
        return player % players + 1
    return -player if players == 2 else player


@inlined_by_llvm
def nearest_player(value: int, players: int) -> int:
    """Return the player's number that is nearest to ``value``, since kernels cannot raise."""
    if players > 2:
        return min(max(value, 1), players)
    return 1 if value > 0 else -1


@overload(next_player, strict=False, jit_options=PART_OPTIONS)
def _compiled_next_player(value: Any, player: Any, players: Any) -> Any:
    if isinstance(value, types.NoneType):  # type: ignore[attr-defined]
        return lambda value, player, players: player_after(player, players)
    optional = isinstance(value, types.Optional)  # type: ignore[attr-defined]
    if optional and isinstance(value.type, types.Integer):
        return next_player
    if isinstance(value, types.Integer):
        return lambda value, player, players: nearest_player(value, players)
    raise TypingError(f"{WRONG}{NEXT}, and returns {value}")


@inlined_by_llvm
def write_likely_outcomes(chances: Any, outcomes: Actions, probabilities: Floats) -> int:
    """Write the outcomes that have a probability above 0, of an array or a tuple; return their number."""
    count = 0
    for outcome, probability in enumerate(chances):
        if probability > 0 and outcome < outcomes.size:
            outcomes[count], probabilities[count] = outcome, probability
            count += 1
    return count


def write_chances(value: Any, outcomes: Actions, probabilities: Floats) -> int:
    """Write the outcomes that may happen, where ``chance`` returned ``value``; return their number."""
    return 0 if value is None else write_likely_outcomes(value, outcomes, probabilities)


@overload(write_chances, strict=False, jit_options=PART_OPTIONS)
def _compiled_write_chances(value: Any, outcomes: Any, probabilities: Any) -> Any:
    if isinstance(value, types.NoneType):  # type: ignore[attr-defined]
        return lambda value, outcomes, probabilities: 0
    if isinstance(value, types.Optional):  # type: ignore[attr-defined]

        def write_if_any(value: Any, outcomes: Any, probabilities: Any) -> int:
            if value is None:
                return 0
            return write_chances(_nonoptional(value), outcomes, probabilities)

        return write_if_any
    if isinstance(value, types.UniTuple) or (isinstance(value, types.Array) and value.ndim == 1):  # type: ignore[attr-defined]
        return lambda value, outcomes, probabilities: write_likely_outcomes(value, outcomes, probabilities)
    raise TypingError(f"{WRONG}{CHANCES}, and returns {value}")


def has_chance(value: Any) -> bool:
    """Return whether there is an outcome with a probability above 0 among what ``write_chances`` takes."""
    return value is not None and any(probability > 0 for probability in value)


@overload(has_chance, strict=False, jit_options=PART_OPTIONS)
def _compiled_has_chance(value: Any) -> Any:
    if isinstance(value, types.NoneType):  # type: ignore[attr-defined]
        return lambda value: False
    if isinstance(value, types.Optional):  # type: ignore[attr-defined]
        return lambda value: False if value is None else has_chance(_nonoptional(value))

    def has_probability(value: Any) -> bool:
        for probability in value:
            if probability > 0:
                return True
        return False

    return has_probability


def write_outcome(value: Any, out: Returns) -> bool:
    """Return whether the game is over, where ``result`` returned ``value``; if so, ``out`` has the results."""
    if value is None:
        return False
    out[:] = value
    return True


@overload(write_outcome, strict=False, jit_options=PART_OPTIONS)
def _compiled_write_outcome(value: Any, out: Any) -> Any:
    if isinstance(value, types.NoneType):  # type: ignore[attr-defined]
        return lambda value, out: False
    optional = isinstance(value, types.Optional)  # type: ignore[attr-defined]
    if optional and isinstance(value.type, (types.Integer, types.Float)):

        def write_number_if_over(value: Any, out: Any) -> bool:
            if value is None:
                return False
            out[0] = 1.0 * value
            return True

        return write_number_if_over
    if optional:

        def write_if_over(value: Any, out: Any) -> bool:
            if value is None:
                return False
            return write_outcome(_nonoptional(value), out)

        return write_if_over
    if isinstance(value, (types.Integer, types.Float)):

        def write_number(value: Any, out: Any) -> bool:
            out[0] = float(value)
            return True

        return write_number
    if isinstance(value, types.BaseTuple) or (isinstance(value, types.Array) and value.ndim == 1):  # type: ignore[attr-defined]

        def write_numbers(value: Any, out: Any) -> bool:
            out[:] = np.nan  # kernels cannot raise; the contract finds it
            for at, number in enumerate(value):
                if at < out.size:
                    out[at] = float(number)
            return True

        return write_numbers
    raise TypingError(f"{WRONG}{OUTCOME}, and returns {value}")


def write_planes(value: Any, out: Planes) -> None:
    """Write what ``planes`` returned: an array ``[C, H, W]``, or a tuple of planes ``[H, W]`` and numbers."""
    for plane, part in enumerate(value):
        out[plane] = part
    out += np.float32(0.0)  # -0.0 becomes 0.0: equal planes must have equal bytes


@overload(write_planes, strict=False, jit_options=PART_OPTIONS)
def _compiled_write_planes(value: Any, out: Any) -> Any:
    if isinstance(value, types.Array) and value.ndim == 3:

        def write_array(value: Any, out: Any) -> None:
            for plane in range(out.shape[0]):
                write_plane(value[plane], out, plane)

        return write_array

    if isinstance(value, types.BaseTuple):  # type: ignore[attr-defined]
        return lambda value, out: write_planes_from(value, out, 0)
    raise TypingError(f"{WRONG}{VIEW}, and returns {value}")


def write_planes_from(value: Any, out: Planes, first: int) -> None:
    """Write a tuple of planes to the planes from number ``first``."""
    for plane, part in enumerate(value):
        write_plane(part, out, first + plane)


@overload(write_planes_from, strict=False, jit_options=PART_OPTIONS)
def _compiled_write_planes_from(value: Any, out: Any, first: Any) -> Any:
    if len(value) == 0:
        return lambda value, out, first: None

    def write_rest(value: Any, out: Any, first: Any) -> None:
        write_plane(value[0], out, first)
        write_planes_from(value[1:], out, first + 1)

    return write_rest


def write_plane(value: Any, out: Planes, plane: int) -> None:
    """Write one plane: an array ``[H, W]``, or a number for all points."""
    out[plane] = value


@overload(write_plane, strict=False, jit_options=PART_OPTIONS)
def _compiled_write_plane(value: Any, out: Any, plane: Any) -> Any:
    if isinstance(value, types.Array) and value.ndim == 2:

        def write_points(value: Any, out: Any, plane: Any) -> None:
            height, width = out.shape[1], out.shape[2]
            if value.shape[0] != height or value.shape[1] != width:
                out[plane] = np.nan  # kernels cannot raise; the contract finds it
                return
            for row in range(height):
                for column in range(width):
                    out[plane, row, column] = np.float32(value[row, column]) + np.float32(0.0)

        return write_points

    if isinstance(value, (types.Number, types.Boolean)):

        def write_number(value: Any, out: Any, plane: Any) -> None:
            out[plane] = np.float32(value) + np.float32(0.0)

        return write_number
    raise TypingError(f"{WRONG}{VIEW}, and one of them is {value}")


@compiled
def any_of(values: Any) -> bool:
    """Return Python's ``any`` of an array or a list."""
    for value in values:
        if value:
            return True
    return False


@compiled
def all_of(values: Any) -> bool:
    """Return Python's ``all`` of an array or a list."""
    for value in values:
        if not value:
            return False
    return True


def planes_of_stones(board: Board, player: int) -> Any:
    """Return the ``planes`` of a game that has none: the stones of the player to move, and those of the other."""
    return board == player, board == -player


def make_planes_by_seat(players: int) -> Callable[[Board, int], Any]:
    """Return the ``planes`` of a game for three and more players that has none: the stones of the player to move, of
    the next player, and so on.
    """

    def planes(board: Board, player: int) -> Any:
        seen = np.zeros((players, board.shape[0], board.shape[1]), np.float32)
        for seat in range(players):
            seen[seat] = board == (player - 1 + seat) % players + 1
        return seen

    return planes


def make_first_state(board: Board, players: int, *, is_chance: bool = False) -> States:
    """Return the state at the start, for the board at the start, where chance may be to move."""
    first = first_board_word(players)
    state = np.zeros(first + -(-board.nbytes // WORD), np.int64)
    state[PLAYER], state[PHASE] = 1, CHANCE_TO_MOVE if is_chance else TO_MOVE
    view_board_words(state, first, board.shape, board.dtype)[...] = board
    return state


# The kernels, and what stands here for the globals that a game's copies have instead.

legal_moves: Any = None
play: Any = None
result: Any = None
planes: Any = None
chance: Any = None
happen: Any = None
SHAPE: tuple[int, ...] = ()
DTYPE: Any = np.int8
PLANES: tuple[int, int, int] = (0, 0, 0)
RESULTS: tuple[int] = (0,)
ACTIONS = PLAYERS = MAX_PLIES = BOARD = 0


def legal_actions(state: States, out: Actions) -> int:
    """Return the kernel of this name in ``Rules``, as are the next ones."""
    if state[PHASE] != TO_MOVE:
        return 0
    return write_moves(legal_moves(view_board_words(state, BOARD, SHAPE, DTYPE), state[PLAYER]), out, ACTIONS)


def legal_actions_one_by_one(state: States, out: Actions) -> int:
    """Return the same for a function that is asked about each move."""
    if state[PHASE] != TO_MOVE:
        return 0
    board, player, count = view_board_words(state, BOARD, SHAPE, DTYPE), state[PLAYER], 0
    for move in range(ACTIONS):
        if legal_moves(board, player, move):
            out[count] = move
            count += 1
    return count


def step(state: States, action: int) -> None:
    """Play a move, and determine whether the game is over.

    Where the next player has no move although ``result`` says that the game goes on, it is over too: searches rely on a
    move. The checks of a game reject this, but may miss such a position.
    """
    board = view_board_words(state, BOARD, SHAPE, DTYPE)
    player = next_player(play(board, state[PLAYER], action), state[PLAYER], PLAYERS)
    state[PLAYER] = player
    state[PLY] += 1
    over = write_outcome(result_after(board, player, action), view_board_words(state, RESULT, RESULTS, np.float64))
    if over or state[PLY] >= MAX_PLIES or not has_move(board, player):
        state[PHASE] = OVER


def step_with_chance(state: States, action: int) -> None:
    """Step a game with chance, where the action is an outcome if chance is to move.

    The player to move stays the same while chance moves, unless ``happen`` says otherwise.
    """
    board, player = view_board_words(state, BOARD, SHAPE, DTYPE), state[PLAYER]
    if state[PHASE] == CHANCE_TO_MOVE:
        player = player_after_chance(happen(board, player, action), player, PLAYERS)
    else:
        player = next_player(play(board, player, action), player, PLAYERS)
    state[PLAYER], state[PHASE] = player, TO_MOVE
    state[PLY] += 1
    over = write_outcome(result_after(board, player, action), view_board_words(state, RESULT, RESULTS, np.float64))
    if over or state[PLY] >= MAX_PLIES:
        state[PHASE] = OVER
    elif has_chance(chance(board)):
        state[PHASE] = CHANCE_TO_MOVE
    elif not has_move(board, player):
        state[PHASE] = OVER


def has_move(board: Board, player: int) -> bool:
    """Return whether the player has a legal move."""
    return has_any_move(legal_moves(board, player), ACTIONS)


def has_move_one_by_one(board: Board, player: int) -> bool:
    """Return whether the player has a legal move, by a function that is asked about each move."""
    for move in range(ACTIONS):
        if legal_moves(board, player, move):
            return True
    return False


def result_after(board: Board, player: int, move: int) -> Any:
    """Return the ``result`` after a move, for a function without the parameter ``move``."""
    return result(board, player)


def result_with_move(board: Board, player: int, move: int) -> Any:
    """Return the same for a function that is told the move."""
    return result(board, player, move)


def current_player(state: States) -> int:
    """Player 1 is number 0, and player -1 is number 1; with three and more players, player 2 is number 1."""
    if state[PHASE] == CHANCE_TO_MOVE:
        return CHANCE
    if PLAYERS > 2:
        return state[PLAYER] - 1
    return 0 if state[PLAYER] > 0 else 1


def terminal(state: States) -> int:
    """Return whether the game is over."""
    return 1 if state[PHASE] == OVER else 0


def chance_outcomes(state: States, outcomes: Actions, probabilities: Floats) -> int:
    """Return the outcomes where chance is to move."""
    if state[PHASE] != CHANCE_TO_MOVE:
        return 0
    return write_chances(chance(view_board_words(state, BOARD, SHAPE, DTYPE)), outcomes, probabilities)


def returns(state: States, out: Returns) -> None:
    """Write the first player's return, and the opposite for the second; or every player's."""
    results = view_board_words(state, RESULT, RESULTS, np.float64)
    for player in range(results.size):
        out[player] = np.float32(results[player])
    if PLAYERS == 2:
        out[1] = np.float32(0.0) - out[0]


def observe(state: States, out: Planes) -> None:
    """Write the planes as the player to move sees them."""
    write_planes(planes(view_board_words(state, BOARD, SHAPE, DTYPE), state[PLAYER]), out)


def observe_stones(state: States, out: Planes) -> None:
    """Write the planes where there are only stones, 1 and -1."""
    board, player = view_board_words(state, BOARD, SHAPE, DTYPE), state[PLAYER]
    for row in range(SHAPE[0]):
        for column in range(SHAPE[1]):
            stone = board[row, column] * player
            out[0, row, column] = np.float32(stone == 1)
            out[1, row, column] = np.float32(stone == -1)


def position_hash(state: States) -> int:
    """Return a hash of the observation, by the number and the bits of every element that is not 0, and of whose turn it
    is: a board may look the same before and after an outcome of chance.
    """
    seen = np.empty(PLANES, np.float32)
    write_planes(planes(view_board_words(state, BOARD, SHAPE, DTYPE), state[PLAYER]), seen)
    bits = seen.reshape(-1).view(np.uint32)
    key = mix_bits(np.uint64(state[PHASE] == CHANCE_TO_MOVE))
    for at in range(bits.size):
        if bits[at] != 0:
            key ^= mix_bits(np.uint64(at + 1) << np.uint64(32) | np.uint64(bits[at]))
    return int(np.int64(key))


def hash_stones(state: States) -> int:
    """Return the same where there are only stones, 1 and -1."""
    board, player = view_board_words(state, BOARD, SHAPE, DTYPE), state[PLAYER]
    key = mix_bits(np.uint64(state[PHASE] == CHANCE_TO_MOVE))
    for row in range(SHAPE[0]):
        for column in range(SHAPE[1]):
            stone = board[row, column] * player
            if stone == 1 or stone == -1:
                key ^= mix_bits(np.uint64(2 * (row * SHAPE[1] + column) + (stone > 0) + 1))
    return int(np.int64(key))


def compile_plain_kernels(
    make_globals: Callable[[bool], KernelGlobals],
    module: str,
    *,
    one_by_one: bool,
    told_move: bool,
    stones: bool,
    with_chance: bool,
) -> Rules:
    """Compile the kernels around the functions of an author's ``module``, in whose cache they are kept.

    Args:
        make_globals: what they are written around, with functions that count references to arrays or not.
        one_by_one: whether ``legal_moves`` is asked about each move.
        told_move: whether ``result`` is told the move.
        stones: whether ``planes`` is ``planes_of_stones``.
        with_chance: whether there is ``chance``.

    Raises:
        NumbaError: numba cannot compile the author's functions.
    """

    def compile_one(kernel: Callable[..., Any], signature: Any, *, counted: bool = False) -> Any:
        given = {**globals(), **make_globals(counted)._asdict(), "__name__": module}
        if not numba.config.DISABLE_JIT:
            given["view_board_words"] = _view_board_words
        parts = {
            "has_move": has_move_one_by_one if one_by_one else has_move,
            "result_after": result_with_move if told_move else result_after,
        }
        for name, part in parts.items():
            asked = FunctionType(part.__code__, given, name)
            compile_part = numba.njit(nogil=True, _nrt=counted, forceinline=True)
            given[name] = asked if numba.config.DISABLE_JIT else compile_part(asked)
        function = FunctionType(kernel.__code__, given, kernel.__name__)
        try:
            return compile_captured_kernel(signature, function, counted=counted)
        except Exception:
            if counted:
                raise
            return compile_one(kernel, signature, counted=True)

    return Rules(
        legal_actions=compile_one(legal_actions_one_by_one if one_by_one else legal_actions, LEGAL_ACTIONS),
        step=compile_one(step_with_chance if with_chance else step, STEP),
        current_player=compile_one(current_player, QUERY),
        terminal=compile_one(terminal, QUERY),
        returns=compile_one(returns, RETURNS),
        observe=compile_one(observe_stones, OBSERVE) if stones else compile_one(observe, OBSERVE, counted=True),
        hash=compile_one(hash_stones, QUERY) if stones else compile_one(position_hash, QUERY, counted=True),
        chance_outcomes=compile_one(chance_outcomes, CHANCE_OUTCOMES, counted=True) if with_chance else no_chance,
    )
