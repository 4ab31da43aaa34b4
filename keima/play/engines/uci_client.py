"""The user's side of the Universal Chess Interface (S. Meyer-Kahlen, 2004): an engine such as Stockfish as a player.

The engine is a process that reads commands from its standard input and answers on its standard output; every answer has
a time limit. One process plays all parallel games of a benchmark, so each move is a separate search: the engine
receives the game so far and keeps nothing.
"""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from keima.games import Game, IllegalAction
from keima.games.game import Actions, States
from keima.play.engines.engine_process import ANSWER_SECONDS, EngineFailed, EngineProcess
from keima.play.engines.external_player import ExternalPlayer

OPTION = re.compile(r"option name (.+?) type \w+")
SPIN_OPTION = re.compile(r"option name (.+) type spin default (-?\d+) min (-?\d+) max (-?\d+)")
SET_OPTION = re.compile(r"setoption name (.+?)(?: value (.*))?$")
ENGINE_NAME = re.compile(r"id name (.+)")


class UciClient(EngineProcess):
    """An engine that is ready to play.

    Args:
        command: the program and its arguments.
        setup: lines that it gets before it plays, such as ``setoption name Hash value 4``.
        seconds: for an answer, beyond the time that it is given to think.
        start_seconds: more for its first answers: it may load a network, or fit it to the machine.

    Attributes:
        options: that it has, in lower case.
        ranges: the least and the greatest value of each of these that is a number.

    Raises:
        EngineFailed: it cannot be started, does not speak UCI, or lacks an option or a number that ``setup`` sets: it
            would ignore the line, and play with another strength.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        setup: Sequence[str] = (),
        *,
        seconds: float = ANSWER_SECONDS,
        start_seconds: float = 0.0,
    ) -> None:
        super().__init__(command, language="UCI", seconds=seconds)
        self.options, self.ranges = set[str](), dict[str, tuple[int, int]]()
        try:
            self.ask("uci", until="uciok", heed=self._read_identity, seconds=start_seconds)
            for line in setup:
                self._check_option(line)
                self._send_lines(line)
            self.ask("isready", until="readyok", seconds=start_seconds)
        except BaseException:
            self.close()
            raise

    def best_move(self, fen: str, moves: Sequence[str], go: str, *, seconds: float = 0.0) -> str:
        """Return the engine's move in the position after ``moves`` from ``fen``, in UCI notation.

        Args:
            go: the limit of its search, such as ``nodes 20000``.
            seconds: the most that a search with this limit may take.

        Raises:
            EngineFailed: it does not answer.
        """
        self._send_lines("ucinewgame")
        self._send_lines(f"position fen {fen} moves {' '.join(moves)}".removesuffix(" moves "))
        words = self.ask(f"go {go}", until="bestmove", seconds=seconds).split()
        if len(words) < 2:
            raise EngineFailed(
                f"{self._path} answered {' '.join(words)!r} without a move in {fen} after "
                f"{' '.join(moves) or 'no moves'}"
            )
        return words[1]

    def ask(
        self, command: str, *, until: str, seconds: float = 0.0, heed: Callable[[str], None] = lambda line: None
    ) -> str:
        """Send commands and return the line whose first word is ``until``; lines before it go to ``heed``.

        Raises:
            EngineFailed: it does not come in time.
        """
        self._send_lines(command)
        deadline = self._deadline(seconds)
        while True:
            line = self._read_line(command, until, deadline)
            if line.split()[:1] == [until]:
                return line
            heed(line)

    def _check_option(self, line: str) -> None:
        found = SET_OPTION.match(line)
        if not found:
            return
        name, value = found[1], found[2] or ""
        if name.lower() not in self.options:
            raise EngineFailed(f"{self.name} has no option {name}, so {line!r} would do nothing")
        least, greatest = self.ranges.get(name.lower(), (-math.inf, math.inf))
        if value.lstrip("-").isdigit() and not least <= int(value) <= greatest:
            raise EngineFailed(f"{self.name} has {name} from {least} to {greatest}, so {line!r} would do nothing")

    def _read_identity(self, line: str) -> None:
        if found := OPTION.match(line):
            self.options.add(found[1].lower())
        if found := ENGINE_NAME.match(line):
            self.name = found[1].strip()
        elif found := SPIN_OPTION.match(line):
            self.ranges[found[1].lower()] = int(found[3]), int(found[4])


class UciPlayer(ExternalPlayer):
    """A UCI engine as a player.

    Args:
        game: chess.
        engine: the engine.
        go: the limit of its search.
        seconds: the most that a search with this limit may take.
    """

    def __init__(self, game: Game, engine: UciClient, go: str, *, seconds: float = 0.0) -> None:
        self._game, self._engine, self._go, self._seconds = game, engine, go, seconds

    def choose_with_history(self, states: States, starts: States, moves: Sequence[Sequence[int]]) -> Actions:
        """Return the engine's moves in ``states``, which came from ``starts`` by ``moves``, so that it knows
        repetitions.

        Raises:
            EngineFailed: it does not answer, or its move is not legal.
        """
        chosen = [self._choose(*known) for known in zip(states, starts, moves, strict=True)]
        return np.array(chosen, np.int32)

    def _choose(self, state: States, start: States, moves: Sequence[int]) -> int:
        from keima.games.chess.notation import action_of_uci, fen_of  # imported here, because it compiles chess

        text = self._engine.best_move(fen_of(start), self._moves_as_uci(start, moves), self._go, seconds=self._seconds)
        try:
            return action_of_uci(state, text)
        except (ValueError, IllegalAction) as error:
            raise EngineFailed(f"{self._engine.name} answered bestmove {text}: {error}") from error

    def _moves_as_uci(self, start: States, moves: Sequence[int]) -> list[str]:
        from keima.games.chess.notation import uci_of

        state, texts = start.copy(), []
        for action in moves:
            texts.append(uci_of(state, action))
            self._game.play(state, action)
        return texts
