"""A plain game played in Python by its author's functions, to find their errors and to check compiled code.

Compiled code cannot raise errors, and neither notices an index beyond the board nor a number too large for its type.
Python does, and names the line.
"""

import traceback
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from keima.games.authoring.plain_kernels import (
    count_results_in_state,
    first_board_word,
    player_number,
    view_board_words,
)
from keima.games.game import Game, Planes, States

Board = NDArray[Any]

REMEDIES: dict[type[Exception], str] = {
    IndexError: "check that a row and a column are on the board before you look there",
    OverflowError: "give the board a type that holds the number, such as np.int64",
}


class PlainGameError(ValueError):
    """An author's function is wrong; the text says where, and what to do."""


class Functions(NamedTuple):
    """The author's functions; ``keima.games.authoring.plain`` describes each."""

    start: Callable[[], Any]
    legal_moves: Callable[..., Any]
    play: Callable[[Any, int, int], Any]
    result: Callable[..., Any]
    planes: Callable[[Any, int], Any]
    chance: Callable[[Any], Any] | None = None
    happen: Callable[[Any, int, int], Any] | None = None


class PlainRules(NamedTuple):
    """The functions and constants of a plain game."""

    functions: Functions
    board: Board  # at the start
    num_moves: int
    players: int
    max_plies: int
    max_return: float
    move_name: Callable[[int], str]
    one_by_one: bool  # whether legal_moves is asked about each move
    told_move: bool  # whether result is told the move
    num_outcomes: int = 0  # of chance
    outcome_name: Callable[[int], str] = str


def board_of_state(rules: PlainRules, state: States) -> Board:
    """Return the board in a state of the game, in its memory."""
    return view_board_words(state, first_board_word(rules.players), rules.board.shape, rules.board.dtype)


def call_result(rules: PlainRules, board: Board, player: int, move: int) -> Any:
    """Return the author's ``result`` after ``move``."""
    return rules.functions.result(board, player, *((move,) if rules.told_move else ()))


def source_line_of(function: Callable[..., Any], error: BaseException | None = None) -> str:
    """Return file and line of a function, or of the line in its file at which it raised ``error``."""
    code = function.__code__
    frames = traceback.walk_tb(error.__traceback__) if error is not None else ()
    lines = [line for frame, line in frames if frame.f_code.co_filename == code.co_filename]
    return f"{Path(code.co_filename).name}, line {lines[-1] if lines else code.co_firstlineno}"


class ReferenceGame:
    """A game in progress, played by the author's functions."""

    def __init__(self, rules: PlainRules) -> None:
        """Begin at the start."""
        self.rules = rules
        self.board: Board = rules.board.copy()
        self.player = 1
        self.over = self.told = False  # whether the game is over, and whether result said so
        self.won: tuple[float, ...] = (0.0,) * count_results_in_state(rules.players)  # the results
        self.moves: list[str] = []  # and outcomes, by their names
        self.chances = self._find_chances()  # by outcome; empty: a player is to move

    @property
    def moves_in_words(self) -> str:
        """The moves so far, as text."""
        return f"after the moves {' '.join(self.moves)}" if self.moves else "at the start"

    def legal_moves(self) -> list[int]:
        """Return the legal moves, ascending; there is one until the game is over.

        Raises:
            PlainGameError: the author's function is wrong.
        """
        limit = 4 * self.rules.num_moves + 100
        function = self.rules.functions.legal_moves
        if self.rules.one_by_one:
            numbers = range(self.rules.num_moves)
            found = self._call_author(
                function, lambda board, player: [move for move in numbers if function(board, player, move)]
            )
        else:
            found = self._call_author(function, lambda board, player: _move_numbers(function(board, player), limit))
        if found is None:
            self.raise_error(function, "gives no move numbers", "yield them, or return an array of them")
        if len(found) == limit:
            self.raise_error(function, f"gives {limit} moves and more", "let it end, and give each move once")
        odd = next((move for move in found if not isinstance(move, (int, np.integer)) or isinstance(move, bool)), None)
        if odd is not None:
            self.raise_error(function, f"gives {odd!r}, which is not a move number", "yield whole numbers")
        for move in found:
            if not 0 <= move < self.rules.num_moves:
                last = self.rules.num_moves - 1
                self.raise_error(
                    function, f"gives move {move}", f"give moves from 0 to {last}, or tell plain_game more `moves`"
                )
        if not found:
            remedy = "let result tell how the game ends there, or give a move that passes"
            self.raise_error(function, "gives no move, and the game is not over", remedy)
        return sorted({int(move) for move in found})

    def play(self, move: int) -> None:
        """Play a legal move, and determine whether the game is over.

        Raises:
            PlainGameError: the author's function is wrong.
        """
        function, before, player = self.rules.functions.play, self.board.copy(), self.player
        name = self.rules.move_name(move)
        try:
            answer = function(self.board, player, move)
        except AssertionError as error:
            raise PlainGameError(
                f"{source_line_of(function, error)}: play refuses the move {name}, which legal_moves gives, "
                f"{self.moves_in_words}; let legal_moves leave it out"
            ) from error
        except Exception as error:
            raise self._error_in(function, error) from error
        self.player = self._next_player(answer)
        if np.array_equal(self.board, before) and self.player == player:
            remedy = "change the board in place, such as board[row, column] = player"
            self.raise_error(function, f"leaves board and player as they were with the move {name}", remedy)
        self.moves.append(name)
        self._update_result(move)

    def happen(self, outcome: int) -> None:
        """Let an outcome of chance happen, and see whether the game is over.

        Raises:
            PlainGameError: the author's function is wrong.
        """
        function = self.rules.functions.happen
        assert function is not None
        before = self.board.copy()
        try:
            answer = function(self.board, self.player, outcome)
        except Exception as error:
            raise self._error_in(function, error) from error
        name = self.rules.outcome_name(outcome)
        if np.array_equal(self.board, before):
            remedy = "note it on the board, so that chance sees that it has happened"
            self.raise_error(function, f"leaves the board as it was with the outcome {name}", remedy)
        self.player = self.player if answer is None else self._check_player(answer, function)
        self.moves.append(name)
        self._update_result(outcome)

    def _find_chances(self) -> dict[int, float]:
        function, count = self.rules.functions.chance, self.rules.num_outcomes
        if function is None or self.over:
            return {}
        found = self._call_author(function, lambda board, player: function(board))
        if found is None:
            return {}
        odd = np.ndim(found) != 1 or np.asarray(found).dtype.kind not in "iuf"
        if odd or len(found) > count or not np.isfinite(found).all() or min(found, default=0.0) < 0:
            remedy = f"return an array with a probability for each of the {count} outcomes, or None"
            self.raise_error(function, f"returns {found!r}", remedy)
        chances = {outcome: float(probability) for outcome, probability in enumerate(found) if probability > 0}
        if chances and abs(sum(chances.values()) - 1) > 1e-5:
            self.raise_error(
                function, f"returns probabilities whose sum is {sum(chances.values()):g}", "let their sum be 1"
            )
        return chances

    def _next_player(self, answer: Any) -> int:
        if answer is not None:
            return self._check_player(answer, self.rules.functions.play)
        allowed = [player_number(index, self.rules.players) for index in range(self.rules.players)]
        return allowed[(allowed.index(self.player) + 1) % self.rules.players]

    def _check_player(self, answer: Any, function: Callable[..., Any]) -> int:
        allowed = [player_number(index, self.rules.players) for index in range(self.rules.players)]
        if isinstance(answer, (bool, np.bool_)) or answer not in allowed:
            text = " or ".join(map(str, allowed))
            self.raise_error(
                function,
                f"returns {answer!r}",
                f"return nothing, or the player who moves next, {text}",
            )
        return int(answer)

    def _update_result(self, move: int) -> None:
        function = self.rules.functions.result
        won = self._call_author(function, lambda board, player: call_result(self.rules, board, player, move))
        if won is None:
            self.over = len(self.moves) >= self.rules.max_plies
            self.chances = self._find_chances()
            return
        self.chances = {}
        players = self.rules.players
        numbers = (won,) if players <= 2 else tuple(won) if isinstance(won, (tuple, np.ndarray)) else ()
        odd = any(isinstance(one, (bool, np.bool_)) or not isinstance(one, (int, float, np.number)) for one in numbers)
        if odd or len(numbers) != count_results_in_state(players):
            wanted = "a number" if players <= 2 else f"a tuple of {players} numbers, one for each player"
            self.raise_error(function, f"returns {won!r}", f"return None while the game goes on, and then {wanted}")
        least, most = (-1.0, 1.0) if players > 1 else (-np.inf, self.rules.max_return)
        if not all(least <= one <= most and np.isfinite(one) for one in numbers):
            remedy = "return the first player's: 1 if that player has won, -1 if the other has, 0 for a draw"
            if players == 1:
                remedy = "tell plain_game the highest score as `max_return`"
            elif players > 2:
                remedy = "return numbers from -1 to 1"
            self.raise_error(function, f"returns {won!r}", remedy)
        self.over, self.told, self.won = True, True, tuple(float(one) for one in numbers)

    def planes(self) -> Planes:
        """Return what the player to move sees, ``[C, H, W]``.

        Raises:
            PlainGameError: the author's function is wrong.
        """
        function = self.rules.functions.planes
        seen = self._call_author(function, function)
        parts = [seen] if isinstance(seen, np.ndarray) and seen.ndim == 3 else seen
        shapes = (
            {part.shape[-2:] for part in parts if np.ndim(part) >= 2} if isinstance(parts, (tuple, list)) else set()
        )
        fits = len(shapes) == 1 and not isinstance(seen, list)
        if not fits or (isinstance(seen, tuple) and any(np.ndim(part) not in (0, 2) for part in parts)):
            remedy = (
                "return a tuple of arrays [H, W] such as (board == player, board == -player), or an array [C, H, W]"
            )
            self.raise_error(function, f"returns {_shape_in_words(seen)}", remedy)
        shape = shapes.pop()
        if isinstance(seen, tuple):
            seen = np.stack([np.broadcast_to(part, shape) for part in seen])
        planes = np.ascontiguousarray(seen, np.float32) + np.float32(0.0)
        if not np.isfinite(planes).all():
            self.raise_error(function, "returns a number that is not finite", "do not divide by 0")
        return planes

    def _call_author(self, function: Callable[..., Any], ask: Callable[..., Any]) -> Any:
        """Call a function that must leave the board as it is."""
        before = self.board.copy()
        try:
            answer = ask(self.board, self.player)
        except Exception as error:
            raise self._error_in(function, error) from error
        if not np.array_equal(before, self.board):
            self.raise_error(function, "changes the board", "let it work on board.copy()")
        return answer

    def _error_in(self, function: Callable[..., Any], error: Exception) -> PlainGameError:
        remedy = next((text for kind, text in REMEDIES.items() if isinstance(error, kind)), "fix this line")
        return PlainGameError(
            f"{source_line_of(function, error)}: {function.__name__} fails {self.moves_in_words} with "
            f"{type(error).__name__}: {error}; {remedy}"
        )

    def raise_error(self, function: Callable[..., Any], what: str, remedy: str) -> NoReturn:
        """Raise an error about what a function does wrong."""
        raise PlainGameError(f"{source_line_of(function)}: {function.__name__} {what}, {self.moves_in_words}; {remedy}")


def _move_numbers(moves: Any, limit: int) -> list[Any] | None:
    if isinstance(moves, np.ndarray) and moves.dtype == np.bool_:
        moves = np.flatnonzero(moves)
    return list(islice(moves, limit)) if hasattr(moves, "__iter__") else None


def _shape_in_words(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of shapes {', '.join(str(np.shape(part)) for part in value)}"
    return repr(value)


def check_functions(rules: PlainRules, game: Game | None, *, positions: int) -> None:
    """Play random games in Python and in the compiled ``game``, side by side, until they have had so many positions.

    Raises:
        PlainGameError: a function is wrong, or Python and compiled code differ.
    """
    random = np.random.default_rng(0)
    while positions > 0:
        positions -= len(_play_checked_game(rules, game, random, positions).moves)


def check_playouts(rules: PlainRules, game: Game, *, games: int, seed: int) -> None:
    """Play so many random games to the end, in Python and in the compiled ``game``.

    Raises:
        PlainGameError: a function is wrong, Python and compiled code differ, or no game ends by the rules.
    """
    random = np.random.default_rng(seed)
    playouts = [_play_checked_game(rules, game, random, rules.max_plies) for _ in range(games)]
    if not any(playout.told for playout in playouts):
        playouts[0].raise_error(
            rules.functions.result,
            f"reports no end in {games} random games within max_plies = {rules.max_plies}",
            "let it return a number when the game is over, or give plain_game a higher max_plies",
        )


def _play_checked_game(
    rules: PlainRules, game: Game | None, random: np.random.Generator, positions: int
) -> ReferenceGame:
    """Play a random game of at most so many positions."""
    playout, state = ReferenceGame(rules), None if game is None else game.initial_state()
    shape = playout.planes().shape
    while not playout.over and len(playout.moves) < positions:
        if playout.chances:
            outcome = int(random.choice(list(playout.chances)))
            if game is not None and state is not None:
                _compare_chances(game, state, playout)
                game.play(state, outcome)
            playout.happen(outcome)
            continue
        legal, planes = playout.legal_moves(), playout.planes()
        if planes.shape != shape:
            playout.raise_error(
                rules.functions.planes, f"gives {planes.shape}, not {shape}", "always return the same shape"
            )
        move = int(random.choice(legal))
        if game is not None and state is not None:
            _compare_position(game, state, playout, legal, planes)
            game.play(state, move)
        playout.play(move)
    if game is not None and state is not None and playout.over:
        _compare_end(game, state, playout)
    return playout


def _compare_position(
    game: Game, state: NDArray[np.int64], playout: ReferenceGame, legal: list[int], planes: Planes
) -> None:
    functions, board, players = playout.rules.functions, playout.board, playout.rules.players
    compiled = game.legal_actions(state).tolist()
    pairs = (
        (functions.play, "board", board_of_state(playout.rules, state).tolist(), board.tolist()),
        (functions.play, "player", player_number(game.current_player(state), players), playout.player),
        (functions.result, "game is over", game.terminal(state), playout.over),
        (functions.legal_moves, "moves", _name_moves(compiled, game), _name_moves(legal, game)),
        (functions.planes, "planes", game.observe(state).tolist(), planes.tolist()),
    )
    for function, what, ours, theirs in pairs:
        _raise_difference(function, what, ours, theirs, playout)


def _compare_chances(game: Game, state: NDArray[np.int64], playout: ReferenceGame) -> None:
    functions = playout.rules.functions
    assert functions.chance is not None and functions.happen is not None
    outcomes, probabilities = game.chance_outcomes(state)
    theirs = {outcome: float(np.float32(probability)) for outcome, probability in playout.chances.items()}
    ours = dict(zip(outcomes.tolist(), probabilities.tolist(), strict=True))
    board = board_of_state(playout.rules, state).tolist()
    _raise_difference(functions.happen, "board", board, playout.board.tolist(), playout)
    _raise_difference(functions.chance, "chances", ours, theirs, playout)


def _compare_end(game: Game, state: NDArray[np.int64], playout: ReferenceGame) -> None:
    function = playout.rules.functions.result
    _raise_difference(function, "game is over", game.terminal(state), playout.over, playout)
    ours, theirs = game.returns(state)[: len(playout.won)].tolist(), np.array(playout.won, np.float32).tolist()
    _raise_difference(function, "return", ours, theirs, playout)


def _name_moves(moves: list[int], game: Game) -> str:
    return " ".join(game.action_name(move) for move in moves)


def _raise_difference(function: Callable[..., Any], what: str, ours: Any, theirs: Any, playout: ReferenceGame) -> None:
    if ours != theirs:
        shown = f": {theirs} and {ours}" if what not in ("planes", "board") else ""
        playout.raise_error(
            function,
            f"does not do the same in Python and compiled, the {what} differ{shown}",
            "compute with int(...) of the board's numbers, which do not overflow, and stay within the board",
        )
