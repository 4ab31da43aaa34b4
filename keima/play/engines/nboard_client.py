"""The controller's side of the NBoard protocol, version 2 (C. Welty): NTest and Edax as players of Othello.

One process plays all parallel games: before each move it receives the whole game again.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keima.games import Game
from keima.games.game import Actions, States
from keima.play.engines.engine_process import ANSWER_SECONDS, EngineFailed, EngineProcess
from keima.play.engines.external_player import ExternalPlayer
from keima.play.engines.gtp_client import find_movers

START = "8 ---------------------------O*------*O--------------------------- *"  # Black (*) moves first
COLORS = "BW"
AFTER_MOVE = re.compile(r"[/\s]")


class NboardClient(EngineProcess):
    """An engine that is ready to play.

    Args:
        command: the program and its arguments.
        setup: lines that it gets before it plays, such as ``set depth 6``.
        seconds: for an answer, beyond the time that it is given to think.
        start_seconds: more for its first answers: it may load a network, or fit it to the machine.

    Raises:
        EngineFailed: it cannot be started, or does not speak the protocol.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        setup: Sequence[str] = (),
        *,
        seconds: float = ANSWER_SECONDS,
        start_seconds: float = 0.0,
    ) -> None:
        super().__init__(command, language="NBoard", seconds=seconds)
        self._pings = 0
        try:
            self._send_lines("nboard 2", *setup)
            self._synchronize(start_seconds)
        except BaseException:
            self.close()
            raise

    def best_move(self, game: str, *, seconds: float = 0.0) -> str:
        """Return the engine's move in a game, such as ``F5``, or ``PA`` for a pass.

        Args:
            game: as GGF (Generic Game Format, M. Buro).
            seconds: the most for thinking.

        Raises:
            EngineFailed: it does not answer in time.
        """
        self._send_lines(f"set game {game}")
        self._synchronize()
        self._send_lines("go")
        deadline = self._deadline(seconds)
        while True:
            line = self._read_line("go", "===", deadline)
            if line.startswith("==="):
                # "=== F5/1.25/0.3", and by Edax "=== F5 1.25 0.3": the move; its value and the seconds, or neither
                return AFTER_MOVE.split(line.removeprefix("===").strip())[0]

    def _synchronize(self, seconds: float = 0.0) -> None:
        """Wait until it has read everything."""
        self._pings += 1
        awaited, deadline = f"pong {self._pings}", self._deadline(seconds)
        self._send_lines(f"ping {self._pings}")
        while self._read_line(f"ping {self._pings}", awaited, deadline) != awaited:
            pass


class NboardPlayer(ExternalPlayer):
    """An NBoard engine as a player of Othello on 8 x 8, where Keima plays no passes: who cannot move is left out.

    Args:
        game: Othello.
        engine: the engine.
        seconds: the most for a move.
    """

    def __init__(self, game: Game, engine: NboardClient, *, seconds: float) -> None:
        self._game, self._engine, self._seconds = game, engine, seconds

    def choose_with_history(self, states: States, starts: States, moves: Sequence[Sequence[int]]) -> Actions:
        """Return the engine's moves in ``states``, which came from ``starts``, where the game begins, by ``moves``.

        Raises:
            EngineFailed: it does not answer, or its move is illegal.
            ValueError: one of ``starts`` is not the start of the game.
        """
        if not (starts == self._game.start).all():
            raise ValueError("the moves of these games from their first one on are needed")
        return np.array([self._choose(state, played) for state, played in zip(states, moves, strict=True)], np.int32)

    def _choose(self, state: States, moves: Sequence[int]) -> int:
        text = self._engine.best_move(game_as_ggf(self._game, moves), seconds=self._seconds)
        legal = {self._game.action_name(action).upper(): action for action in self._game.legal_actions(state).tolist()}
        if text.upper() not in legal:
            raise EngineFailed(f"{self._engine.name} answered {text!r}, which is not a legal move there")
        return legal[text.upper()]


def game_as_ggf(game: Game, moves: Sequence[int]) -> str:
    """Return a game of Othello with its passes as GGF."""
    movers, text, expected = find_movers(game, moves), "", 0
    for action, mover in zip(moves, movers, strict=False):
        text += f"{COLORS[expected]}[PA]" if mover != expected else ""
        text += f"{COLORS[mover]}[{game.action_name(action).upper()}]"
        expected = 1 - mover
    text += f"{COLORS[expected]}[PA]" if movers[-1] != expected else ""
    return f"(;GM[Othello]PC[Keima]PB[Black]PW[White]RE[?]TI[0]TY[8]BO[{START}]{text};)"
