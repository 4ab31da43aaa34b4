"""Trained networks: load one, evaluate positions, analyse a position, or let it play."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keima.api.playing import state_after
from keima.base.named import find_network
from keima.config.sections.search import SearchSettings
from keima.evaluation.match import Player, SearchPlayer
from keima.evaluation.match_worker import make_match_search
from keima.games import Game
from keima.games.game import CHANCE, Planes
from keima.networks.architectures.auxiliary_heads import add_score_to_value
from keima.networks.files.model import Model
from keima.networks.inference.evaluator import Evaluator
from keima.play.network_loader import load_network_from_model, load_network_from_run
from keima.search.analysis import Analysis, AnalysisTrees, make_analysis_settings

LEAVES = 8  # the most positions in a call of the network during an analysis


@dataclass(frozen=True, kw_only=True)
class Line:
    """A move and the search's statistics of it."""

    move: str  # in the game's notation, such as "E5" or "e2e4"
    action: int
    visits: int
    prior: float  # the network's probability, in [0, 1]
    value: float  # for the player to move, in [-1, 1]
    principal_line: tuple[str, ...]  # the expected moves, this one first


class LoadedNetwork:
    """A trained network with its game.

    Attributes:
        game: the game.
        model_version: its number among the models of its run.
    """

    def __init__(self, game: Game, model: Model, search: SearchSettings, *, device: str = "auto") -> None:
        self.game, self.model_version = game, model.model_version
        self._model, self._search, self._device = model, search, device
        self._evaluator = self._analyst = Evaluator(model.build(game), game, device=device)
        scoring, self._score_utility = add_score_to_value(model.build(game), game, search.match_score_utility)
        if self._score_utility:
            self._analyst = Evaluator(scoring, game, device=device, max_batch=LEAVES)

    def evaluate(self, observations: Planes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Evaluate observations ``[N, C, H, W]`` (``game.observe``), N <= 256; returns policy logits ``[N, A]`` and
        values ``[N]``.
        """
        return self._evaluator(observations)

    def analyse(self, moves: Sequence[str | int] = (), *, simulations: int = 400, most: int = 5) -> list[Line]:
        """Return the best moves after ``moves`` from the start of a two-player game, best first.

        Args:
            moves: of the game so far, as text or action numbers.
            simulations: of the search (PUCT, without noise).
            most: the number of moves to return.

        Raises:
            IllegalAction, ValueError: a move is illegal or unreadable, or nobody is to move after them.
        """
        state = state_after(self.game, moves)
        if self.game.terminal(state) or self.game.current_player(state) == CHANCE:
            raise ValueError("the game is over" if self.game.terminal(state) else "chance is to move: add its outcome")
        analysis = Analysis(
            AnalysisTrees(
                self.game,
                self._analyst,
                make_analysis_settings(self._search, leaves=LEAVES),
                max_simulations=simulations,
                score_utility=self._score_utility,
            )
        )
        analysis.begin(state)
        while not analysis.is_finished:
            analysis.run_simulations(min(LEAVES, simulations - analysis.visits))
        name = self.game.action_name
        return [
            Line(
                move=name(line.action),
                action=line.action,
                visits=line.visits,
                prior=line.prior,
                value=line.value,
                principal_line=tuple(name(action) for action in line.actions),
            )
            for line in analysis.best_moves(most)
        ]

    def player(self, *, simulations: int = 400) -> Player:
        """Return a player for ``play_game`` that makes ``simulations`` before each move."""
        return SearchPlayer(
            make_match_search(self.game, self._model, self._search, num_simulations=simulations, device=self._device)
        )


def load_network(source: str | Path, *, version: int | None = None, device: str = "auto") -> LoadedNetwork:
    """Load the network in a model's file, or the newest network of a run.

    Args:
        source: a ``.safetensors`` or ``.model`` file, a folder of a run, or the name of a run or of a shipped network.
        version: of a run's model; None: its newest accepted model.
        device: "auto" (a CUDA device if there is one), "cpu", "cuda", ...

    Raises:
        ValueError, OSError: there is no such network, or it cannot be read; the message names the file.
    """
    path = find_network(str(source))
    if version is not None and not path.is_dir():
        raise ValueError(f"{path} is one network: version selects a model of a run")
    found = load_network_from_run(path, version) if path.is_dir() else load_network_from_model(path)
    return LoadedNetwork(found.game, found.model, found.search, device=device)
