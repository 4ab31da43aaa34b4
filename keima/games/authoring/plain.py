"""Games from ordinary Python functions over a small numpy board.

    def game(size=3):
        return plain_game(start=start, legal_moves=legal_moves, play=play, result=result, max_plies=9)

Keima compiles the functions and puts them into the kernels of ``keima.games.game``, so a plain game trains, plays and
travels like any other. They need no decorator, may call each other, and may use what numba can compile: numbers,
tuples, loops and most of numpy. Loops are fast; functions that make no arrays and no lists are several times as fast as
others. The first player is 1 and the second is -1, which also mark their stones well:

- ``start()`` returns the board: an array of whole numbers, of any small shape. Put there whatever the rules must
  remember; player 1 moves first.
- ``legal_moves(board, player)`` yields the numbers of the legal moves, or returns them as an array; or an array with
  True at each legal move. The order does not matter. It is asked only while the game goes on, and then must find one.
- ``is_legal(board, player, move)`` may be given instead: whether the move is legal. It is the faster way unless there
  are many more moves than legal ones.
- ``play(board, player, move)`` changes the board in place. It returns nothing, and the other player moves; or it
  returns the player who moves next.
- ``result(board, player)`` returns None while the game goes on, and then the first player's return: 1, 0, -1, or
  between; in a game for one player, the score. ``player`` is to move. With a third parameter, ``result(board, player,
  move)``, it is told the move that has just been made, so that it need not search the whole board.
- ``planes(board, player)`` returns what the network sees, from the view of the player to move: an array ``[C, H, W]``,
  or a tuple of planes ``[H, W]`` and of numbers that fill a plane. By default, the stones of the player and of the
  other.

Three and more players are 1, 2, 3, and so on, and move in this order unless ``play`` says otherwise; ``result`` returns
each player's return, from -1 to 1, in a tuple or an array.

A game of chance has two more functions, and numbers its outcomes from 0, such as the sides of a die:

- ``chance(board)`` returns the probability of each outcome, in an array or a tuple; or None, or zeros, where chance is
  not to move. It is asked at the start, and after each move and each outcome with which the game goes on.
- ``happen(board, player, outcome)`` changes the board in place, so that ``chance`` sees that it has happened. The same
  player moves then, unless it returns another.

``planes`` is also asked where chance is to move, and shows the player for whom it does.

Games with the fastest rules are written as kernels (``keima.games.game``).
"""

import functools
import inspect
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CellType, CodeType, FunctionType
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from keima.games.authoring.numba_errors import explain_numba_error
from keima.games.authoring.plain_kernels import (
    AFTER_CHANCE,
    CHANCES,
    MOVES,
    NEXT,
    OUTCOME,
    PLAYER,
    VIEW,
    KernelGlobals,
    all_of,
    any_of,
    compile_plain_kernels,
    count_results_in_state,
    first_board_word,
    has_chance,
    make_first_state,
    make_planes_by_seat,
    planes_of_stones,
)
from keima.games.authoring.plain_reference import (
    Board,
    Functions,
    PlainGameError,
    PlainRules,
    ReferenceGame,
    board_of_state,
    call_result,
    check_functions,
    source_line_of,
)
from keima.games.game import (
    MOST_PLAYERS,
    Game,
    Rules,
    States,
    action_table,
    board_symmetries,
    mirror_symmetries,
)

__all__ = ["PlainGame", "PlainGameError", "board_symmetries", "mirror_symmetries", "plain_game"]

Table = NDArray[np.int32]

POSITIONS_AT_LOAD = 40  # in which the functions are tried, in Python and compiled, whenever the game is loaded
RETURNS_WRONG = {  # by numba error
    **{MOVES: "legal_moves", NEXT: "play", OUTCOME: "result", VIEW: "planes"},
    **{CHANCES: "chance", AFTER_CHANCE: "happen"},
}
LONGEST_TUPLE = 100  # a list among an author's constants that is longer stays a list
BUILTINS = {"any": any_of, "all": all_of}  # of Python, that numba lacks
MARKS = {0: ".", 1: "X", -1: "O"}


@dataclass(frozen=True, kw_only=True)
class PlainGame(Game):
    """A game made of an author's functions, with these functions."""

    plain: PlainRules


def plain_game(
    *,
    start: Callable[[], Any],
    legal_moves: Callable[[Any, int], Any] | None = None,
    is_legal: Callable[[Any, int, int], Any] | None = None,
    play: Callable[[Any, int, int], Any],
    result: Callable[..., Any],
    planes: Callable[[Any, int], Any] = planes_of_stones,
    max_plies: int,
    moves: int | None = None,
    players: int = 2,
    chance: Callable[[Any], Any] | None = None,
    happen: Callable[[Any, int, int], Any] | None = None,
    outcomes: int = 0,
    outcome_names: Sequence[str] | Callable[[int], str] | None = None,
    symmetries: Any = None,
    policy_planes: int | None = None,
    move_names: Sequence[str] | Callable[[int], str] | None = None,
    render: Callable[[Any], str] | None = None,
    svg: Callable[[Any], str] | None = None,
    max_return: float = 1.0,
    most_legal_moves: int = 0,
    rules_version: int = 1,
) -> PlainGame:
    """Build a game from the functions that the module describes.

    Args:
        start, legal_moves or is_legal, play, result, planes: the rules.
        max_plies: the most moves of a game; one that is not over by then is drawn, and so is one in which nobody can
            move.
        moves: the number of moves, which are numbered from 0; by default one for each point of the board.
        players: 2; or 1 for a game with a score; or more.
        chance, happen: the rules of chance, in a game that has any.
        outcomes: the number of outcomes.
        outcome_names: their names, or a function that names one; by default their numbers.
        symmetries: point tables ``[Y, H * W]`` such as ``board_symmetries(8)``. What they do to moves is derived where
            moves are points, (plane, point) pairs, columns, or pairs of points (from and to), and may be followed by
            moves that belong to no point. Other games give a pair of tables, of points and of moves ``[Y, moves]``, and
            with a third table, of outcomes ``[Y, outcomes]``, if a symmetry changes those. A table of points has the
            old point that each new one shows; the others have where each move or outcome goes. The symmetry that
            changes nothing may be left out.
        policy_planes: how many times the moves go through the points before those that belong to none.
        move_names: the names of the moves, or a function that names one; by default ``c4`` for a point, else numbers.
        render: the text for a board; by default rows of ``.XO``.
        svg: the drawing of a board for pages, as ``Game.svg`` says; by default a grid with its stones and numbers.
        max_return: in a game for one player, the highest score.
        most_legal_moves: in any position, for which searches reserve memory.
        rules_version: for games of the project; a file of one's own is named by its content.

    Raises:
        PlainGameError: a function fails, returns something else than it should, or cannot be compiled; the text says
            in which file and line, and what to do.
    """
    caller = inspect.stack(0)[1]
    has_own_planes = planes is not planes_of_stones
    with _report_errors_at(caller):
        legal = _choose_legal_moves_function(legal_moves, is_legal)
        if not has_own_planes and players > 2:
            planes = make_planes_by_seat(players)
        functions = Functions(*(_python_function(function) for function in (start, legal, play, result, planes)))
        if (chance is None) != (happen is None) or (chance is None) != (outcomes == 0):
            raise PlainGameError("a game of chance needs chance, happen and outcomes; give all three, or none")
        if chance is not None:
            functions = functions._replace(chance=_python_function(chance), happen=_python_function(happen))
    board = _make_first_board(functions)
    if board.ndim != 2 and not has_own_planes:
        with _report_errors_at(caller):
            raise PlainGameError(
                f"start returns a board of shape {board.shape}; give planes(board, player), which returns arrays "
                "[H, W], such as (board == player).reshape(1, -1); only a board [H, W] has them by default"
            )
    num_moves = board.size if moves is None else moves
    told_move = functions.result.__code__.co_argcount > 2
    rules = PlainRules(
        functions, board, num_moves, players, max_plies, max_return, str, is_legal is not None, told_move, outcomes
    )
    with _report_errors_at(caller):
        _check_plain_constants(rules)
    shape = ReferenceGame(rules).planes().shape
    with _report_errors_at(caller):
        names = _make_move_names(move_names, num_moves, shape)
        named_outcomes = _make_outcome_names(outcome_names, outcomes)
        points, actions, outcome_tables = _make_symmetry_tables(symmetries, num_moves, shape, outcomes)
    rules = rules._replace(move_name=names.__getitem__, outcome_name=named_outcomes.__getitem__)
    check_functions(rules, None, positions=POSITIONS_AT_LOAD)

    def first_state(board: Board) -> States:
        return make_first_state(board, players, is_chance=chance is not None and has_chance(chance(board)))

    game = PlainGame(
        name=Path(functions.start.__code__.co_filename).stem,
        options={},
        rules_version=rules_version,
        rules=_compile_kernels(rules, shape, caller.frame.f_globals["__name__"]),
        start=first_state(board),
        symmetric_starts=np.stack([first_state(permute_board(board, table)) for table in points]),
        num_players=players,
        num_actions=num_moves,
        observation_shape=shape,
        policy_planes=num_moves // (shape[1] * shape[2]) if policy_planes is None else policy_planes,
        piece_planes=1 if planes is planes_of_stones else 0,
        max_plies=max_plies,
        point_symmetries=points,
        action_symmetries=actions,
        num_outcomes=outcomes,
        outcome_symmetries=outcome_tables,
        outcome_name=named_outcomes.__getitem__,
        action_name=names.__getitem__,
        parse_action=partial(_parse_move, {name.casefold(): move for move, name in enumerate(names)}),
        render=lambda state: (render or draw_board)(board_of_state(rules, state).copy()),
        cells=(lambda state: board_of_state(rules, state).copy()) if board.shape == shape[1:] else None,
        svg=(lambda state: svg(board_of_state(rules, state).copy())) if svg else None,
        most_legal_actions=most_legal_moves,
        max_return=max_return,
        plain=rules,
    )
    check_functions(rules, game, positions=POSITIONS_AT_LOAD)
    return game


def is_end_by_result(game: PlainGame, state: States, move: int) -> bool:
    """Return whether ``result`` says that the game is over after ``move``, rather than ``max_plies``."""
    return call_result(game.plain, board_of_state(game.plain, state).copy(), int(state[PLAYER]), move) is not None


@contextmanager
def _report_errors_at(caller: inspect.FrameInfo) -> Iterator[None]:
    """Report errors about the arguments of ``plain_game`` with the line that calls it."""
    try:
        yield
    except PlainGameError as error:
        raise PlainGameError(f"{Path(caller.filename).name}, line {caller.lineno}: {error}") from None


def _choose_legal_moves_function(legal_moves: Any, is_legal: Any) -> Any:
    if (legal_moves is None) == (is_legal is None):
        raise PlainGameError("plain_game takes legal_moves or is_legal; give one of them")
    return is_legal if legal_moves is None else legal_moves


def _python_function(function: Any) -> Any:
    """Return the Python function, which the author may have compiled."""
    function = getattr(function, "py_func", function)
    if not isinstance(function, FunctionType):
        raise PlainGameError(f"plain_game takes functions, and one is {function!r}; write it with def")
    return function


def _make_first_board(functions: Functions) -> Board:
    where = source_line_of(functions.start)
    try:
        board = functions.start()
    except Exception as error:
        raise PlainGameError(
            f"{source_line_of(functions.start, error)}: start fails with {type(error).__name__}: {error}; fix this line"
        ) from error
    if not isinstance(board, np.ndarray) or board.dtype.kind not in "iu" or board.ndim == 0 or board.size == 0:
        raise PlainGameError(
            f"{where}: start must return an array of whole numbers; return a board such as np.zeros((3, 3), np.int8)"
        )
    return np.ascontiguousarray(board)


def _check_plain_constants(rules: PlainRules) -> None:
    if not 1 <= rules.players <= MOST_PLAYERS:
        raise PlainGameError(f"players is {rules.players}; give the number of players, from 1 to {MOST_PLAYERS}")
    if not 1 <= rules.num_moves <= 2**16:
        raise PlainGameError(f"moves is {rules.num_moves}; number the moves from 0 and give their number, up to 65536")
    if rules.max_plies < 1:
        raise PlainGameError(f"max_plies is {rules.max_plies}; give the most moves that a game can have")


def _compile_kernels(rules: PlainRules, shape: tuple[int, int, int], module: str) -> Rules:
    def make_globals(counted: bool) -> KernelGlobals:
        memo: dict[int, Any] = {}
        functions: list[Any] = [
            function and make_compilable(function, memo, counted=counted) for function in rules.functions[1:]
        ]
        legal_moves, play, result, planes, chance, happen = functions
        return KernelGlobals(
            legal_moves=legal_moves,
            play=play,
            result=result,
            planes=planes,
            chance=chance,
            happen=happen,
            SHAPE=rules.board.shape,
            DTYPE=rules.board.dtype.type,
            PLANES=shape,
            ACTIONS=rules.num_moves,
            PLAYERS=rules.players,
            RESULTS=(count_results_in_state(rules.players),),
            BOARD=first_board_word(rules.players),
            MAX_PLIES=rules.max_plies,
        )

    stones = rules.functions.planes is planes_of_stones
    try:
        return compile_plain_kernels(
            functools.cache(make_globals),
            module,
            one_by_one=rules.one_by_one,
            told_move=rules.told_move,
            stones=stones,
            with_chance=rules.functions.chance is not None,
        )
    except Exception as error:  # numba's own, and those of its assertions
        raise PlainGameError(_explain_compile_error(error, rules, list(make_globals(True)[:6]))) from error


def _explain_compile_error(error: Exception, rules: PlainRules, functions: list[Any]) -> str:
    """Return why the kernels could not be compiled: the error of the first function that cannot be compiled alone."""
    board = types.Array(numba.from_dtype(rules.board.dtype), rules.board.ndim, "C")
    originals: tuple[Callable[..., Any] | None, ...] = rules.functions[1:]
    written = [function for function in rules.functions if function is not None]
    for function, original in zip(functions, originals, strict=True):
        if original is None:
            continue
        asked = original is rules.functions.legal_moves and rules.one_by_one
        told = original is rules.functions.result and rules.told_move
        moves = original in (rules.functions.play, rules.functions.happen) or asked or told
        numbers = 0 if original is rules.functions.chance else 2 if moves else 1
        try:
            function.compile((board, *[types.int64] * numbers))
        except Exception as alone:
            return explain_numba_error(alone, written, original)
    returned = next((name for text, name in RETURNS_WRONG.items() if text in str(error)), "planes")
    return explain_numba_error(error, written, getattr(rules.functions, returned))


def make_compilable(function: Any, memo: dict[int, Any], *, counted: bool = True) -> Any:
    """Return the function as numba can compile it: the author's functions that it calls are compiled too, and lists
    among the constants that it refers to are tuples.

    Args:
        memo: what was made before, by identity.
        counted: whether it counts references to arrays; without, it cannot allocate any.
    """
    if numba.config.DISABLE_JIT:
        return function
    if id(function) in memo:
        return memo[id(function)]
    given = memo.setdefault(id(function.__globals__), dict(function.__globals__))
    cells = tuple(CellType() for _ in function.__closure__ or ())
    copy = FunctionType(function.__code__, given, function.__name__, function.__defaults__, cells)
    copy.__qualname__, copy.__kwdefaults__ = function.__qualname__, function.__kwdefaults__
    memo[id(function)] = dispatcher = numba.njit(
        nogil=True, error_model="numpy", _nrt=counted, forceinline=not counted
    )(copy)
    for cell, original in zip(cells, function.__closure__ or (), strict=True):
        cell.cell_contents = _make_constant_compilable(original.cell_contents, function.__globals__, memo, counted)
    names = _names_in(function.__code__)
    for name in names & function.__globals__.keys():
        given[name] = _make_constant_compilable(function.__globals__[name], function.__globals__, memo, counted)
    for name in names & BUILTINS.keys() - function.__globals__.keys():
        given[name] = BUILTINS[name]
    return dispatcher


def _names_in(code: CodeType) -> set[str]:
    inner = (_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _make_constant_compilable(value: Any, module: dict[str, Any], memo: dict[int, Any], counted: bool) -> Any:
    if isinstance(value, FunctionType) and value.__globals__ is module:
        return make_compilable(value, memo, counted=counted)
    return _lists_to_tuples(value) if isinstance(value, list) and len(value) <= LONGEST_TUPLE else value


def _lists_to_tuples(value: Any) -> Any:
    return tuple(_lists_to_tuples(part) for part in value) if isinstance(value, (list, tuple)) else value


def permute_board(board: Board, table: Table) -> Board:
    """Return the board under a symmetry, if its last axes are the points."""
    if table.size not in (board.shape[-1], int(np.prod(board.shape[-2:]))):
        return board
    return board.reshape(-1, table.size)[:, table].reshape(board.shape)


def _make_symmetry_tables(
    symmetries: Any, num_moves: int, shape: tuple[int, int, int], num_outcomes: int
) -> tuple[Table, Table, Table]:
    """Return the tables of points, moves and outcomes; the symmetry that changes nothing comes first, given or not."""
    size = shape[1] * shape[2]
    same = [np.arange(count, dtype=np.int32)[None] for count in (size, num_moves, num_outcomes)]
    if symmetries is None:
        return same[0], same[1], same[2]
    given = symmetries if isinstance(symmetries, tuple) and len(symmetries) in (2, 3) else (symmetries,)
    points = np.asarray(given[0], np.int32)
    if not _has_permutations(points, size):
        raise PlainGameError(
            f"symmetries is no table of the {shape[1]} x {shape[2]} points of planes; give one such as "
            f"board_symmetries({shape[1]}, {shape[2]})"
        )
    moves = np.asarray(given[1], np.int32) if len(given) > 1 else make_move_table(points, num_moves, shape)
    outcomes = np.asarray(given[2], np.int32) if len(given) > 2 else np.tile(same[2], (len(points), 1))
    _check_table("second", "move", moves, (len(points), num_moves))
    _check_table("third", "outcome", outcomes, (len(points), num_outcomes))
    tables = (points, moves, outcomes)
    others = ~np.all([(table == first).all(1) for table, first in zip(tables, same, strict=True)], axis=0)
    with_same = [np.vstack([first, table[others]]) for table, first in zip(tables, same, strict=True)]
    return with_same[0], with_same[1], with_same[2]


def _check_table(which: str, what: str, table: Table, shape: tuple[int, int]) -> None:
    if not _has_permutations(table, shape[1]) or len(table) != shape[0]:
        raise PlainGameError(
            f"symmetries: the {which} table must have {shape[0]} rows, as the first, each with every {what} from 0 to "
            f"{shape[1] - 1} once"
        )


def _has_permutations(table: Table, size: int) -> bool:
    """Return whether every row has each number below ``size`` once."""
    return table.ndim == 2 and table.shape[1] == size and bool((np.sort(table, axis=1) == np.arange(size)).all())


def make_move_table(points: Table, num_moves: int, shape: tuple[int, int, int]) -> Table:
    """Return what symmetries ``[Y, H * W]`` do to moves, ``[Y, moves]``: to points of planes, pairs of points, or
    columns.

    Raises:
        PlainGameError: the moves are nothing of these.
    """
    size, width = shape[1] * shape[2], shape[2]
    planes, extra = divmod(num_moves, size)
    targets = np.argsort(points, axis=1).astype(np.int32)  # [Y, P] where an old point goes
    if planes == size > 1:
        pairs = (targets[:, :, None] * size + targets[:, None, :]).reshape(len(points), -1)
        rest = np.arange(size * size, num_moves, dtype=np.int32)
        return np.hstack([pairs, np.tile(rest, (len(points), 1))]).astype(np.int32)
    if planes > 0:
        return action_table(points, planes=planes, extra=extra)
    columns = targets.reshape(len(points), shape[1], width) % width
    if num_moves == width and (columns == columns[:, :1]).all():
        return np.ascontiguousarray(columns[:, 0])
    raise PlainGameError(
        f"symmetries: what they do to {num_moves} moves on {shape[1]} x {width} points is not known; give a pair "
        "(points, moves), where moves[y, a] is what move a becomes under symmetry y"
    )


def _make_move_names(given: Any, num_moves: int, shape: tuple[int, int, int]) -> list[str]:
    if given is not None:
        names = [given(move) for move in range(num_moves)] if callable(given) else list(given)
        if len(names) != num_moves or len({name.casefold() for name in names}) != num_moves:
            raise PlainGameError(f"move_names must have {num_moves} names, all different; give one for each move")
        return names
    size, width = shape[1] * shape[2], shape[2]
    points = [f"{_column_letters(point % width)}{point // width + 1}" for point in range(size)]
    planes, extra = divmod(num_moves, size)
    if planes not in (1, size):
        return [str(move) for move in range(num_moves)]
    named = points if planes == 1 else [origin + target for origin in points for target in points]
    return named + (["pass"] if extra == 1 else [str(move) for move in range(num_moves - extra, num_moves)])


def _make_outcome_names(given: Any, count: int) -> list[str]:
    names = [given(number) for number in range(count)] if callable(given) else list(given or map(str, range(count)))
    if len(names) != count or len(set(names)) != count:
        raise PlainGameError(f"outcome_names must have {count} names, all different; give one for each outcome")
    return names


def _column_letters(column: int) -> str:
    first, last = divmod(column, len(string.ascii_lowercase))
    return (string.ascii_lowercase[first - 1] if first else "") + string.ascii_lowercase[last]


def _parse_move(numbers: dict[str, int], text: str) -> int:
    move = numbers.get(text.strip().casefold())
    if move is None:
        first, last = next(iter(numbers)), next(reversed(numbers))
        raise ValueError(f"{text.strip()!r} is not a move: type one such as {first} or {last}")
    return move


def draw_board(board: Board) -> str:
    """Return a board of two axes as rows of ``.XO``, or of numbers, with the names of rows and columns; any other as
    numpy.
    """
    if board.ndim != 2:
        return str(board)
    marked = set(np.unique(board).tolist()) <= MARKS.keys()
    cells = [[MARKS[value] if marked else str(value or ".") for value in row] for row in board.tolist()]
    letters = [_column_letters(column) for column in range(board.shape[1])]
    wide = max(len(text) for row in [*cells, letters] for text in row)
    head = len(str(board.shape[0]))
    lines = [f"{row + 1:>{head}} " + " ".join(f"{text:>{wide}}" for text in line) for row, line in enumerate(cells)]
    return "\n".join([*lines, " " * (head + 1) + " ".join(f"{text:>{wide}}" for text in letters)])
