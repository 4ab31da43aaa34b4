"""Keima as a Go engine that speaks the Go Text Protocol, version 2.

A command is finished before the next one is read, except for an analysis, which continues until the next line. The
network knows one size of board. The rules are those of ``keima.games.go.rules``: the board is counted as it stands, so
all stones count as alive, and superko forbids to repeat a position. So the engine captures what is dead before it
passes, and with kgs-genmove_cleanup at once. By rules under which players agree on dead stones (``gtp_rules``) it need
not, and takes them away when it counts, and before it passes.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from keima.games.game import Game, States
from keima.games.go.setup import make_position
from keima.networks.predictions import Predict
from keima.play.gtp.board import GtpBoard, handicap_points
from keima.play.gtp.clock import PlayerClock, TimeSettings, parse_kgs_time_settings, parse_time_settings
from keima.play.gtp.predictions import PositionPredictions
from keima.play.gtp.raw_evaluation import format_raw_evaluation, parse_symmetries
from keima.play.gtp.resignation import Resignation
from keima.play.gtp.rules import GtpRules, parse_rules
from keima.play.gtp.syntax import (
    COMMANDS,
    PLAYERS,
    AnalysisOptions,
    GtpCommand,
    GtpError,
    GtpHandshake,
    format_failure,
    format_info,
    format_success,
    parse_analysis_options,
    parse_command,
    parse_decimal,
    parse_player,
    parse_vertex,
    parse_whole,
)
from keima.play.thinking import Thinker
from keima.play.time_keeping import allot_seconds
from keima.search.analysis import MoveAnalysis, simulations_that_fit

MEGABYTES = 256  # the most for the tree
OVERHEAD = 0.05  # seconds per move reserved for transmission
HANDICAP_MOVES = 9  # a free handicap takes at most the simulations of this many moves, for any number of stones
CAPTURE_COST = 0.1  # of value, from -1 to 1, that a capture before a pass may cost: values are no more exact
RESIGN = "resign"
# KataGo's parameters that it shares with this engine only in that they change nothing
NEUTRAL_PARAMETERS = {"playoutDoublingAdvantage": 0.0, "analysisWideRootNoise": 0.0}


@dataclass(kw_only=True)
class LiveAnalysis:
    """An analysis in progress, which reports at intervals."""

    wanted: AnalysisOptions
    due: float  # the next time, of ``time.monotonic``


@dataclass(kw_only=True)
class HandicapPlacement:
    """A free handicap in progress."""

    identity: str  # of the command
    count: int  # of stones
    simulations: int  # for each
    points: list[int] = field(default_factory=list)


class GtpEngine:
    """Answers one line after the other; see ``keima.play.line_reader.ConversationPartner``.

    Args:
        game: Go, of the size that the network knows.
        name: of the engine.
        version: of the engine.
        think: makes a thinker with room for this many simulations, when the first is needed.
        write: sends a line.
        simulations: of a move without a clock.
        predict: what the network says of the end of the game, if it does.
        resign_below: it resigns when its winning chance stays below this; see ``Resignation``.
        rules: at the start; default: those of the network's training.
    """

    def __init__(
        self,
        game: Game,
        *,
        name: str,
        version: str,
        think: Callable[[int], Thinker],
        write: Callable[[str], None],
        simulations: int,
        predict: Predict | None = None,
        resign_below: float = 0.0,
        rules: GtpRules | None = None,
    ) -> None:
        self._game, self._write, self._make_thinker, self._simulations = game, write, think, simulations
        self._greeting = GtpHandshake(name=name, version=version)
        self._board = GtpBoard(game)
        self._board.set_rules(rules or self._board.rules)
        self._predict, self._predictions = predict, PositionPredictions(game, predict) if predict else None
        self._thinker: Thinker | None = None
        self._settings: TimeSettings | None = None
        self._clocks: list[PlayerClock] = []  # empty without time settings
        self._live: LiveAnalysis | None = None
        self._placing: HandicapPlacement | None = None
        self._resign_below = resign_below
        self._resignations = self._new_resignations()

    @property
    def has_work(self) -> bool:
        """Whether it is placing a handicap, or has an unfinished analysis."""
        return self._placing is not None or (self._live is not None and not self._get_thinker().analysis.is_finished)

    def handle_line(self, line: str, arrived: float) -> bool:
        """Execute a line; returns False after ``quit``."""
        command = parse_command(line)
        while self._placing is not None and command is not None and command.name != "quit":
            self.advance()
        self.close()
        if command is None:
            return True
        try:
            if command.name not in COMMANDS:
                raise GtpError("unknown command")
            answer = getattr(self, f"_{COMMANDS[command.name]}")(command, arrived)
            if answer is not None:
                self._write(format_success(command, answer))
        except GtpError as error:
            self._write(format_failure(command, error))
        return command.name != "quit"

    def close(self) -> None:
        """End the current analysis, and place the rest of a handicap without thinking: a line has arrived, or the input
        has ended.
        """
        while self._placing is not None:
            self._advance_placement(self._placing, 1)
        if self._live is not None:
            self._live = None
            self._write("")

    def advance(self) -> None:
        """Analyse for a slice, or think about the next stone of the handicap."""
        if self._placing is not None:
            self._advance_placement(self._placing, self._placing.simulations)
        elif self._live is not None:
            self._get_thinker().think_slice()
            self._report_analysis(self._live)

    # Thinking.

    def _get_thinker(self) -> Thinker:
        """Return the thinker; the first call creates it, which takes seconds."""
        if self._thinker is None:
            self._thinker = self._make_thinker(simulations_that_fit(MEGABYTES))
        return self._thinker

    def _set_position(self, state: States, allowed: Sequence[int] | None = None) -> Thinker:
        """Return the thinker, set to this position and restricted to these moves."""
        thinker = self._get_thinker()
        if not np.array_equal(thinker.analysis.state, state):
            thinker.analysis.begin(state)
        thinker.analysis.consider_only(allowed or None)
        return thinker

    def _find_best(self, thinker: Thinker, deadline: float | None, live: LiveAnalysis | None = None) -> MoveAnalysis:
        """Return the best move after thinking until the deadline, or without one for the engine's number of
        simulations.
        """
        analysis = thinker.analysis
        while not analysis.is_evaluated or not analysis.is_finished:
            if deadline is None:
                left = self._simulations - analysis.visits
                if analysis.is_evaluated and left <= 0:
                    break
                thinker.think_slice(simulations=max(left, 1))
            else:
                seconds = deadline - time.monotonic()
                if analysis.is_evaluated and not thinker.can_think_within(seconds):
                    break
                thinker.think_slice(seconds=seconds)
            if live is not None:
                self._report_analysis(live)
        return analysis.best_moves(1)[0]

    def _choose_move(
        self, player: int, thinker: Thinker, arrived: float | None, live: LiveAnalysis | None = None
    ) -> MoveAnalysis:
        """Return the move to play: the best one, but no pass while something is left to capture or to play for.

        Args:
            arrived: when the command did, from which on time is shared out; None: there is no clock.
        """
        best = self._find_best(thinker, self._deadline(player, arrived), live)
        if best.action != self._board.size**2 or (live is not None and live.wanted.allowed is not None):
            return best
        if self._board.rules.agree_on_dead:
            return self._choose_settling_move(player, best, arrived)
        captures = self._board.liberties_of_dead(player)
        if not captures:
            return best
        capture = self._find_best(
            self._set_position(self._board.state_with_player_to_move(player), captures), self._deadline(player, arrived)
        )
        return capture if capture.value >= best.value - CAPTURE_COST else best

    def _choose_settling_move(self, player: int, best: MoveAnalysis, arrived: float | None) -> MoveAnalysis:
        """Return ``best``, a pass, if players agree on dead stones; unless the dead stones lose the game and something
        is left to play for.
        """
        if not self._board.removed_chains() or self._board.is_ahead(player):
            return best
        found = self._find_best(
            self._set_position(self._board.state_without_dead_stones(player)), self._deadline(player, arrived)
        )
        return (
            found if found.action in self._game.legal_actions(self._board.state_with_player_to_move(player)) else best
        )

    def _deadline(self, player: int, arrived: float | None) -> float | None:
        """Return the deadline for a move that was requested at ``arrived``; None without a clock."""
        if not self._clocks or arrived is None:
            return None
        clock, now = self._clocks[player].clock, time.monotonic()
        return now + allot_seconds(replace(clock, remaining=max(clock.remaining - (now - arrived), 0.0)), OVERHEAD)

    def _new_resignations(self) -> list[Resignation]:
        return [Resignation(self._resign_below), Resignation(self._resign_below)]

    def _advance_placement(self, placing: HandicapPlacement, simulations: int) -> None:
        """Think for a slice about a handicap stone, as if White passed in between; then place it, or answer after the
        last one.
        """
        state = make_position(self._game, placing.points, [], player=0)
        plays = self._game.legal_actions(state)[:-1].tolist()
        if len(placing.points) == placing.count or not plays:
            self._placing = None
            self._write(f"={placing.identity} {self._set_handicap(placing.points)}\n")
            return
        thinker = self._set_position(state, plays)
        left = simulations - thinker.analysis.visits
        if not thinker.analysis.is_evaluated or (left > 0 and not thinker.analysis.is_finished):
            thinker.think_slice(simulations=max(left, 1))
        else:
            placing.points.append(thinker.analysis.best_moves(1)[0].action)

    def _report_analysis(self, live: LiveAnalysis) -> None:
        """Write the analysis if a report is due."""
        now, wanted, analysis = time.monotonic(), live.wanted, self._get_thinker().analysis
        if wanted.seconds is None or not analysis.is_evaluated or not (now >= live.due or analysis.is_finished):
            return
        live.due = now + wanted.seconds
        lines = [
            line
            for place, line in enumerate(analysis.best_moves(wanted.max_moves))
            if line.visits or place < max(wanted.min_moves, 1)
        ]
        if not lines:
            return
        if self._predictions is None or not wanted.kata:
            self._write(format_info(self._game, lines, kata=wanted.kata, score_leads={}))
            return
        self._predictions.update(analysis.state, [line.action for line in lines])
        ownership = self._predictions.ownership if wanted.ownership else None
        self._write(
            format_info(self._game, lines, kata=True, score_leads=self._predictions.score_leads, ownership=ownership)
        )

    def _make_move(self, player: int, action: int) -> str:
        """Make a move on the board, keeping the search tree; returns the move's name."""
        before = self._board.state_with_player_to_move(player)
        self._board.play(player, action)
        if self._thinker is not None and np.array_equal(self._thinker.analysis.state, before):
            self._thinker.analysis.play(action)
        return self._game.action_name(action)

    def _move_on_the_clock(
        self,
        player: int,
        thinker: Thinker,
        arrived: float,
        live: LiveAnalysis | None = None,
        *,
        may_resign: bool = True,
    ) -> str:
        """Think as long as the clock allows, and play the best move or resign; returns the move's name."""
        best = self._choose_move(player, thinker, arrived, live)
        if may_resign and self._resignations[player].should_resign(best.value):
            self._board.resign(player)
            answer = RESIGN
        else:
            answer = self._make_move(player, best.action)
        if self._clocks:
            self._clocks[player].subtract_move_time(time.monotonic() - arrived)
        return answer

    def _begin_clocks(self, settings: TimeSettings | None) -> None:
        self._clocks = [PlayerClock(settings), PlayerClock(settings)] if settings else []

    # The commands of ``COMMANDS``: each returns its answer, or None if it has answered itself.

    def _hello(self, command: GtpCommand, arrived: float) -> str | None:
        return self._greeting.answer(command)

    def _boardsize(self, command: GtpCommand, arrived: float) -> str:
        if parse_whole(command.require_one_word()) != self._board.size:
            raise GtpError("unacceptable size")
        return self._clear_board(command, arrived)

    def _clear_board(self, command: GtpCommand, arrived: float) -> str:
        self._get_thinker()
        self._board.begin()
        self._begin_game()
        return ""

    def _begin_game(self) -> None:
        self._begin_clocks(self._settings)
        self._resignations = self._new_resignations()

    def _game_over(self, command: GtpCommand, arrived: float) -> str:
        self._begin_game()
        return ""

    def _komi(self, command: GtpCommand, arrived: float) -> str:
        self._board.set_komi(parse_decimal(command.require_one_word()))
        return ""

    def _get_komi(self, command: GtpCommand, arrived: float) -> str:
        return f"{self._board.komi:.1f}"

    def _get_rules(self, command: GtpCommand, arrived: float) -> str:
        return self._board.rules.text()

    def _set_rules(self, command: GtpCommand, arrived: float) -> str:
        self._board.set_rules(*parse_rules(command.words, self._board.rules))
        return ""

    def _list_params(self, command: GtpCommand, arrived: float) -> str:
        return "\n".join(self._parameters())

    def _get_param(self, command: GtpCommand, arrived: float) -> str:
        name, parameters = command.require_one_word(), self._parameters()
        if name not in parameters:
            raise GtpError(f"unknown parameter {name[:80]!r}: there are {', '.join(parameters)}")
        return str(parameters[name])

    def _parameters(self) -> dict[str, int | float]:
        """KataGo's parameters that programs ask for, as they are here."""
        return {"maxVisits": self._simulations, **NEUTRAL_PARAMETERS}

    def _raw_evaluation(self, command: GtpCommand, arrived: float) -> str:
        words = list(command.words)
        player = parse_player(words.pop(0)) if words and words[0].lower() in PLAYERS else self._board.player
        if len(words) not in (1, 2):  # the second is KataGo's optimism
            raise GtpError(f"syntax error: {command.name} takes an optional color, and a symmetry from 0 to 7 or all")
        state = self._board.state_with_player_to_move(player)
        return "\n".join(
            format_raw_evaluation(self._game, state, symmetry, self._get_thinker().evaluate, self._predict)
            for symmetry in parse_symmetries(self._game, words[0])
        )

    def _play(self, command: GtpCommand, arrived: float) -> str:
        player, vertex = command.require_words(2)
        if vertex.lower() == RESIGN:
            self._board.resign(parse_player(player))
        else:
            self._make_move(parse_player(player), parse_vertex(self._game, vertex))
        return ""

    def _undo(self, command: GtpCommand, arrived: float) -> str:
        self._board.undo()
        return ""

    def _genmove(self, command: GtpCommand, arrived: float) -> str:
        player, cleanup = parse_player(command.require_one_word()), command.name == "kgs-genmove_cleanup"
        allowed = self._board.liberties_of_dead(player) if cleanup else None
        thinker = self._set_position(self._board.state_with_player_to_move(player), allowed)
        return self._move_on_the_clock(player, thinker, arrived, may_resign=not cleanup)

    def _reg_genmove(self, command: GtpCommand, arrived: float) -> str:
        player = parse_player(command.require_one_word())
        return self._game.action_name(
            self._choose_move(player, self._set_position(self._board.state_with_player_to_move(player)), None).action
        )

    def _analyze(self, command: GtpCommand, arrived: float) -> None:
        self._live, _ = self._begin_analysis(command, arrived)

    def _genmove_analyze(self, command: GtpCommand, arrived: float) -> None:
        live, thinker = self._begin_analysis(command, arrived)
        self._write(f"play {self._move_on_the_clock(live.wanted.player, thinker, arrived, live)}\n")

    def _search_analyze(self, command: GtpCommand, arrived: float) -> None:
        live, thinker = self._begin_analysis(command, arrived)
        best = self._choose_move(live.wanted.player, thinker, arrived, live)
        self._write(f"play {self._game.action_name(best.action)}\n")

    def _begin_analysis(self, command: GtpCommand, arrived: float) -> tuple[LiveAnalysis, Thinker]:
        kata = not command.name.startswith("lz")
        wanted = parse_analysis_options(self._game, command.words, player=self._board.player, kata=kata)
        state = self._board.state_with_player_to_move(wanted.player)
        legal = self._game.legal_actions(state).tolist()
        allowed = None if wanted.allowed is None else [action for action in legal if action in wanted.allowed]
        thinker = self._set_position(state, allowed)
        self._write(f"={command.identity}")
        return LiveAnalysis(wanted=wanted, due=arrived + (wanted.seconds or 0.0)), thinker

    def _fixed_handicap(self, command: GtpCommand, arrived: float) -> str:
        self._board.require_empty()
        return self._set_handicap(handicap_points(self._board.size, parse_whole(command.require_one_word())))

    def _place_free_handicap(self, command: GtpCommand, arrived: float) -> None:
        """Place the handicap that the network prefers. An empty line or ``quit`` ends it; other lines wait."""
        self._board.require_empty()
        count = parse_whole(command.require_one_word())
        if not 2 <= count < self._board.size**2:
            raise GtpError("invalid number of stones")
        simulations = max(self._simulations * min(HANDICAP_MOVES, count) // count, 1)
        self._placing = HandicapPlacement(identity=command.identity, count=count, simulations=simulations)

    def _set_free_handicap(self, command: GtpCommand, arrived: float) -> str:
        self._board.require_empty()
        points = [parse_vertex(self._game, word) for word in command.words]
        if not 2 <= len(points) == len(set(points)) or self._board.size**2 in points:
            raise GtpError("bad vertex list")
        self._set_handicap(points)
        return ""

    def _set_handicap(self, points: Sequence[int]) -> str:
        self._board.place_handicap(points)
        return self._name_points(points)

    def _name_points(self, points: Sequence[int]) -> str:
        return " ".join(self._game.action_name(point) for point in points)

    def _time_settings(self, command: GtpCommand, arrived: float) -> str:
        parse = parse_kgs_time_settings if command.name.startswith("kgs") else parse_time_settings
        self._settings = parse(command)
        self._begin_clocks(self._settings)
        return ""

    def _time_left(self, command: GtpCommand, arrived: float) -> str:
        player, seconds, moves = command.require_words(3)
        left, count = parse_decimal(seconds), parse_whole(moves)
        if not self._clocks:
            self._begin_clocks(TimeSettings(main=left))
        self._clocks[parse_player(player)].set_remaining(max(left, 0.0), count)
        return ""

    def _final_score(self, command: GtpCommand, arrived: float) -> str:
        return self._board.final_score()

    def _final_status_list(self, command: GtpCommand, arrived: float) -> str:
        status = command.require_one_word()
        if status not in ("alive", "dead", "seki"):
            raise GtpError(f"syntax error: {status!r} is not alive, dead or seki")
        dead = self._board.removed_chains()
        listed = {
            "alive": [chain for chain in self._board.find_chains() if chain not in dead],
            "dead": dead,
            "seki": [],
        }[status]
        return "\n".join(self._name_points(chain) for chain in listed)

    def _loadsgf(self, command: GtpCommand, arrived: float) -> str:
        words = command.words
        before = parse_whole(words[-1], least=1) if len(words) > 1 and words[-1].isdigit() else None
        if not words:
            raise GtpError("syntax error: it needs a file")
        self._board.load(Path(" ".join(words if before is None else words[:-1])), before)
        return ""

    def _showboard(self, command: GtpCommand, arrived: float) -> str:
        return "\n" + self._game.render(self._board.state)
