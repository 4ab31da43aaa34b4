"""Keima as a chess engine that speaks the Universal Chess Interface (Stefan Meyer-Kahlen, 2004).

The engine does one thing at a time: it executes a line, or it thinks for one slice. So it reacts to ``stop`` after at
most one slice, and can continue the search where it stopped.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from keima.compilation.progress import report_compiling
from keima.games import Game
from keima.games.chess.notation import action_of_uci, continue_after_draw, position_from_fen
from keima.games.game import IllegalAction, States
from keima.networks.inference.evaluator import use_threads
from keima.play.thinking import Thinker
from keima.play.time_keeping import TimeKeeper
from keima.play.uci.options import Options, UciHandshake
from keima.play.uci.syntax import (
    BrokenCommand,
    GoArguments,
    format_score,
    moves_as_uci,
    parse_go,
    parse_position,
    parse_setoption,
)
from keima.search.analysis import MoveAnalysis, simulations_that_fit

FIRST_INFO, INFO_EVERY = 0.1, 1.0  # seconds
WARM_UP_GAME = "7k/P7/8/8/8/8/8/K7 w - - 0 1", "a7a8q"


@dataclass(kw_only=True)
class GoTask:
    """A ``go`` in progress. Times are from ``time.monotonic``."""

    go: GoArguments
    began: float
    visits: int  # of the tree before
    pondering: bool
    next_info: float
    deadline: float | None = None
    seconds: float | None = None  # for the move, from ``ponderhit`` on


class UciEngine:
    """Answers one line after the other; see ``keima.play.line_reader.ConversationPartner``.

    Args:
        game: chess.
        name: of the engine.
        think: makes a thinker whose tree is full at the given number of simulations; called when the first is needed.
        write: sends a line.
        simulations: of a ``go`` without limits, until the option says otherwise.
    """

    def __init__(
        self, game: Game, *, name: str, think: Callable[[int], Thinker], write: Callable[[str], None], simulations: int
    ) -> None:
        self._game, self._name, self._make_thinker, self._write = game, name, think, write
        self._options = Options(simulations=simulations)
        self._keeper = TimeKeeper(overhead=self._options.overhead)
        self._thinker: Thinker | None = None
        self._start: str | None = None  # the position of the last command, and the moves from there
        self._moves: tuple[str, ...] = ()
        self._state = game.initial_state()
        self._task: GoTask | None = None

    @property
    def has_work(self) -> bool:
        """Whether it is thinking."""
        return self._task is not None and not self._is_waiting_for_stop()

    def _is_waiting_for_stop(self) -> bool:
        """Return whether the search is finished and only ``stop`` or ``ponderhit`` is missing."""
        task = self._task
        return task is not None and (task.pondering or task.go.infinite) and self._get_thinker().analysis.is_finished

    def handle_line(self, line: str, arrived: float) -> bool:
        """Execute a line; returns False after ``quit``.

        As the protocol has it, words before the first command are ignored.
        """
        words = line.split()
        while words and words[0] not in self.COMMANDS:
            words = words[1:]
        if not words:
            if line:
                self._write_line(f"{line[:80]!r} is unknown and ignored")
            return True
        command, rest = words[0], words[1:]
        if self._task is not None and command not in ("isready", "ponderhit", "debug", "register", "uci"):
            self._answer_best_move()
        if command == "quit":
            return False
        try:
            self.COMMANDS[command](self, rest, arrived)
        except BrokenCommand as error:
            self._write_line(f"{error}")
        return True

    def close(self) -> None:
        """Answer: the input has ended."""
        if self._task is not None:
            self._answer_best_move()

    def advance(self) -> None:
        """Think for a slice, and answer if it is time."""
        task, thinker = self._task, self._get_thinker()
        if task is None:
            return
        if self._is_time_to_answer():
            self._answer_best_move()
            return
        now = time.monotonic()
        left = None if task.go.nodes is None or task.pondering else task.go.nodes - thinker.analysis.visits
        if task.deadline is None:
            thinker.think_slice(simulations=left)
        else:
            thinker.think_slice(seconds=task.deadline - now, simulations=left)
        if time.monotonic() >= task.next_info:
            self._report_search()

    def _is_time_to_answer(self) -> bool:
        """Return whether to answer now."""
        task, thinker = self._task, self._get_thinker()
        assert task is not None
        analysis, go = thinker.analysis, task.go
        if task.pondering or go.infinite:
            return False
        if analysis.is_finished:
            return True
        if not analysis.is_evaluated:
            return False
        if task.deadline is not None and (
            not thinker.can_think_within(task.deadline - time.monotonic()) or self._is_forced(go)
        ):
            return True
        if go.nodes is not None and analysis.visits >= go.nodes:
            return True
        return go.depth is not None and len(analysis.best_moves()[0].actions) >= go.depth

    def _is_forced(self, go: GoArguments) -> bool:
        """Return whether there is only one legal move, on a running clock."""
        return go.movetime is None and len(self._game.legal_actions(self._state)) == 1

    def _get_thinker(self) -> Thinker:
        """Return the thinker; the first call creates it, which takes seconds."""
        if self._thinker is None:
            use_threads(self._options.threads)
            with report_compiling(self._write_line):  # a GUI shows it: the first time takes long
                self._thinker = self._make_thinker_for(self._options.megabytes)
                self._thinker.analysis.begin(self._state)
                self._warm_up()
        return self._thinker

    def _make_thinker_for(self, megabytes: int) -> Thinker:
        """Return a thinker whose tree takes this much memory, or half of it if there is less, and so on."""
        try:
            return self._make_thinker(simulations_that_fit(megabytes))
        except MemoryError:
            if megabytes == 1:
                raise
            self._write_line(f"there is not enough memory for a Hash of {megabytes} megabytes: it is halved")
        return self._make_thinker_for(megabytes // 2)

    def _warm_up(self) -> None:
        """Read and write a position and a move, to compile that, too."""
        state = position_from_fen(self._game, WARM_UP_GAME[0])
        moves_as_uci(self._game, state, self._replay_moves(state, WARM_UP_GAME[1:])[1])
        self._game.returns(state)

    def _write_line(self, text: str) -> None:
        self._write(f"info string {text}")

    # The commands.

    def _uci(self, words: list[str], arrived: float) -> None:
        self._write(str(UciHandshake(self._name, self._options).answer_line("uci")).removesuffix("\n"))

    def _isready(self, words: list[str], arrived: float) -> None:
        self._get_thinker()
        self._write("readyok")

    def _ucinewgame(self, words: list[str], arrived: float) -> None:
        self._keeper.new_game()
        self._set_up(None, (), self._game.initial_state())

    def _setoption(self, words: list[str], arrived: float) -> None:
        before = self._options.megabytes, self._options.threads
        self._options.set_option(*parse_setoption(words))
        self._keeper.overhead = self._options.overhead
        if (self._options.megabytes, self._options.threads) != before:
            self._thinker = None

    def _position(self, words: list[str], arrived: float) -> None:
        start, moves = parse_position(words)
        goes_on = start == self._start and moves[: len(self._moves)] == self._moves
        try:
            if goes_on:
                self._advance_tree(moves[len(self._moves) :])
            else:
                beginning = (
                    self._game.initial_state()
                    if start is None
                    else position_from_fen(self._game, start, unclaimed=True)
                )
                self._set_up(start, moves, self._replay_moves(beginning, moves)[0])
        except ValueError as error:
            raise BrokenCommand(f"position rejected, the previous one stays: {error}") from error
        self._moves = moves

    def _advance_tree(self, moves: tuple[str, ...]) -> None:
        """Advance in the same tree by ``moves``, if Keima's rules continue the game."""
        state, actions = self._replay_moves(self._state, moves)
        follow = self._state.copy()
        for action in actions:
            if self._game.terminal(follow):
                break
            self._game.play(follow, action)
        if (follow != state).any():
            self._set_up(self._start, self._moves, state)
            return
        self._state = state
        if self._thinker is not None:
            for action in actions:
                self._thinker.analysis.play(action)

    def _replay_moves(self, state: States, moves: tuple[str, ...]) -> tuple[States, list[int]]:
        """Return the position after ``moves``, and their actions. An unclaimed draw does not end the game.

        Raises:
            ValueError: a move is illegal.
        """
        state, actions = continue_after_draw(state), []
        for number, move in enumerate(moves, 1):
            try:
                actions.append(action_of_uci(state, move))
            except IllegalAction as error:
                raise IllegalAction(f"move {number}: {error}") from error
            self._game.play(state, actions[-1])
            state = continue_after_draw(state)
        return state, actions

    def _set_up(self, start: str | None, moves: tuple[str, ...], state: States) -> None:
        self._start, self._moves, self._state = start, moves, state
        if self._thinker is not None:
            self._thinker.analysis.begin(state)

    def _go(self, words: list[str], arrived: float) -> None:
        go, analysis = parse_go(words), self._get_thinker().analysis
        for complaint in go.complaints:
            self._write_line(complaint)
        if not go.has_limit:
            go = replace(go, nodes=self._options.simulations)
        analysis.consider_only(self._allowed_actions(go))
        self._task = GoTask(
            go=go,
            began=arrived,
            visits=analysis.visits,
            pondering=go.ponder,
            next_info=arrived + FIRST_INFO,
            seconds=self._seconds_for_move(go),
        )
        if not go.ponder:
            self._start_clock(arrived)

    def _allowed_actions(self, go: GoArguments) -> list[int] | None:
        """Return the actions that ``searchmoves`` names, or None for all."""
        found = []
        for move in go.searchmoves:
            try:
                found.append(action_of_uci(self._state, move.lower()))
            except ValueError as error:
                self._write_line(f"searchmoves: {error}")
        return found or None

    def _seconds_for_move(self, go: GoArguments) -> float | None:
        """Return the seconds for the move, or None without a limit."""
        clock = go.clock(self._game.current_player(self._state))
        seconds = [] if clock is None else [self._keeper.seconds_for(clock)]
        if go.movetime is not None:
            seconds.append(max(go.movetime / 1000 - self._keeper.overhead, 0.0))
        return min(seconds, default=None)

    def _start_clock(self, arrived: float) -> None:
        """Start our clock."""
        assert self._task is not None
        self._keeper.note_started(arrived)
        if self._task.seconds is not None:
            self._task.deadline = arrived + self._task.seconds

    def _ponderhit(self, words: list[str], arrived: float) -> None:
        if self._task is None or not self._task.pondering:
            self._write_line("ponderhit without go ponder is ignored")
            return
        self._task.pondering = False
        self._start_clock(arrived)

    def _stop(self, words: list[str], arrived: float) -> None:
        """Do nothing: ``handle_line`` has answered already."""

    def _ignore_command(self, words: list[str], arrived: float) -> None:
        """Ignore the command."""

    COMMANDS: ClassVar[dict[str, Callable[["UciEngine", list[str], float], None]]] = {
        "uci": _uci,
        "isready": _isready,
        "ucinewgame": _ucinewgame,
        "setoption": _setoption,
        "position": _position,
        "go": _go,
        "ponderhit": _ponderhit,
        "stop": _stop,
        "quit": _stop,
        "debug": _ignore_command,
        "register": _ignore_command,
    }

    # Output.

    def _answer_best_move(self) -> None:
        """Stop thinking, and name the best move."""
        task, thinker = self._task, self._get_thinker()
        assert task is not None
        if not thinker.analysis.is_evaluated:
            thinker.think_slice(simulations=1)
        best = self._report_search()
        self._task = None
        self._write(
            " ".join(["bestmove", best[0] if best else "(none)", *(["ponder", best[1]] if len(best) > 1 else [])])
        )
        if not task.pondering:
            self._keeper.note_moved(time.monotonic())
        elif task.seconds is not None:
            self._keeper.new_game()

    def _report_search(self) -> list[str]:
        """Write the state of the search; returns the best line's moves, none if the game is over."""
        task, analysis = self._task, self._get_thinker().analysis
        assert task is not None
        now = time.monotonic()
        task.next_info = now + min(now - task.began, INFO_EVERY)
        lines = analysis.best_moves(self._options.multipv_lines)
        if not lines:
            mated = bool(self._game.returns(self._state).any())
            self._write(f"info depth 0 score {'mate 0' if mated else 'cp 0'}")
            return []
        reported = [moves_as_uci(self._game, self._state, line.actions) for line in lines]
        for number, (line, moves) in enumerate(zip(lines, reported, strict=True), 1):
            self._write(self._format_info(number, line, moves, now))
        return reported[0]

    def _format_info(self, number: int, line: MoveAnalysis, moves: list[str], now: float) -> str:
        """Return one line of play.

        Its depth is its length; nodes are all simulations of this position, nps what came in this search.
        """
        task, analysis = self._task, self._get_thinker().analysis
        assert task is not None
        seconds = max(now - task.began, 1e-3)
        words = [f"info depth {len(moves)}", *([f"multipv {number}"] if self._options.multipv_lines > 1 else [])]
        words += [
            f"score {format_score(line)}",
            f"nodes {analysis.visits}",
            f"nps {round((analysis.visits - task.visits) / seconds)}",
        ]
        return " ".join([*words, f"time {round(1000 * seconds)}", "pv", *moves])
