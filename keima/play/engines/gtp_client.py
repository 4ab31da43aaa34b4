"""The controller's side of the Go Text Protocol, version 2 (G. Farnebäck, 2002): an engine such as GNU Go as a player.

One process of the engine plays all parallel games of a benchmark: before each move it receives the whole game again.
The commands are sent at once, so this takes little time compared with thinking. Its move depends only on the game and
the seed, not on the other games.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keima.base.random import seed_stream
from keima.games import Game
from keima.games.game import Actions, States
from keima.play.engines.engine_process import ANSWER_SECONDS, EngineFailed, EngineProcess
from keima.play.engines.external_player import ExternalPlayer

COLORS = ("black", "white")
NEW_GAME = "clear_board"
SEED, FORGET = "set_random_seed", "clear_cache"  # GNU Go's commands that make its play reproducible
SEEDS = 2**31
RESIGNED = "it resigned; games are played to their end, so switch its resignation off"


def find_movers(game: Game, moves: Sequence[int]) -> list[int]:
    """Return the player who made each of ``moves`` from the start of ``game``, and who moves next."""
    state = game.initial_state()
    found = [game.current_player(state)]
    for move in moves:
        game.play(state, move)
        found.append(game.current_player(state))
    return found


class GtpClient(EngineProcess):
    """An engine that is ready to play.

    Args:
        command: the program and its arguments.
        seconds: for an answer, beyond the time that it is given to think.
        start_seconds: more for its first answers: it may load a network, or fit it to the machine.

    Attributes:
        commands: that it knows.

    Raises:
        EngineFailed: it cannot be started, or does not speak GTP.
    """

    def __init__(
        self, command: Sequence[str | Path], *, seconds: float = ANSWER_SECONDS, start_seconds: float = 0.0
    ) -> None:
        super().__init__(command, language="GTP", seconds=seconds)
        try:
            name, version, commands = self.ask("name", "version", "list_commands", seconds=start_seconds)
        except BaseException:
            self.close()
            raise
        self.name = f"{name} {version}".strip()
        self.commands = frozenset(commands.split())

    def ask(self, *commands: str, seconds: float = 0.0) -> list[str]:
        """Send commands and return their answers, which may have several lines.

        Args:
            commands: at most 64 KiB, the capacity of a pipe.
            seconds: the most for thinking about all of them.

        Raises:
            EngineFailed: it refuses one, or does not answer in time.
        """
        self._send_lines(*commands)
        deadline = self._deadline(seconds)
        return [self._read_answer(command, deadline) for command in commands]

    def _read_answer(self, command: str, deadline: float) -> str:
        lines = list[str]()
        while True:
            line = self._read_line(command, "=", deadline)
            if line:
                lines.append(line)
            elif lines:  # an empty line ends an answer; leading empty lines mean nothing
                break
        first = lines[0]
        if not first.startswith("="):
            refused = first.startswith("?")
            raise EngineFailed(
                f"{self.name} refuses {command!r}: {first}"
                if refused
                else f"{self.name} answers {command!r} with {first}"
            )
        return "\n".join([first.removeprefix("=").strip(), *lines[1:]]).strip()


class GtpPlayer(ExternalPlayer):
    """A GTP engine as a player of Go, or of another game whose actions both sides name alike.

    Black is the first player. An action that Keima leaves out because the game leaves no choice, such as a pass in
    Othello, is not sent either.

    Args:
        game: the game.
        engine: started with its rules.
        setup: commands that choose the game; by default the size and komi of Go.
        seed: of its random choices, if it has any.
        seconds: the most for a move.

    Raises:
        EngineFailed: it does not play this game, or not on such a board.
    """

    def __init__(
        self, game: Game, engine: GtpClient, *, setup: Sequence[str] | None = None, seed: int, seconds: float
    ) -> None:
        self._game, self._engine, self._seed, self._seconds = game, engine, seed, seconds
        go = (f"boardsize {game.options['size']}", f"komi {game.options['komi']:g}") if setup is None else setup
        engine.ask(*go)

    def choose_with_history(self, states: States, starts: States, moves: Sequence[Sequence[int]]) -> Actions:
        """Return the engine's moves in ``states``, which came from ``starts``, where the game begins, by ``moves``.

        Raises:
            EngineFailed: it does not answer, or its move is illegal.
            ValueError: one of ``starts`` is not the start of the game: superko depends on all earlier positions.
        """
        if not (starts == self._game.start).all():
            raise ValueError("GTP can describe games only from their first move on")
        return np.array([self._choose(state, played) for state, played in zip(states, moves, strict=True)], np.int32)

    def _choose(self, state: States, moves: Sequence[int]) -> int:
        texts = [self._game.action_name(action) for action in moves]
        *colors, color = (COLORS[mover] for mover in find_movers(self._game, moves))
        asked = f"{self._engine.name}, asked for move {len(texts) + 1} of the game {' '.join(texts)}".rstrip()
        try:
            text = self._engine.ask(
                *self._setup_commands(moves, texts, colors), f"genmove {color}", seconds=self._seconds
            )[-1]
        except EngineFailed as error:
            raise EngineFailed(f"{asked}: {error}") from error
        if text.lower() == "resign":
            raise EngineFailed(f"{asked}: {RESIGNED}")
        legal = {self._game.action_name(action).upper(): action for action in self._game.legal_actions(state).tolist()}
        if text.upper() not in legal:
            raise EngineFailed(f"{asked}: it answered {text!r}, which is not a legal move there")
        return legal[text.upper()]

    def _setup_commands(self, moves: Sequence[int], texts: Sequence[str], colors: Sequence[str]) -> list[str]:
        """Return the commands that lead from an empty board to a position."""
        forget = [FORGET] if FORGET in self._engine.commands else []
        seed = [f"{SEED} {seed_stream(self._seed, *map(int, moves)) % SEEDS}"] if SEED in self._engine.commands else []
        played = (f"play {color} {text}" for color, text in zip(colors, texts, strict=True))
        return [NEW_GAME, *forget, *seed, *played]
