"""The predictions of a Go network about the end of the game: made only when a program asks for them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from keima.games.game import Game, States
from keima.games.go.rules import score_lead
from keima.networks.predictions import Predict, Predictions

MOVES_PER_UPDATE = 8  # the most moves whose positions the network evaluates, so that an update takes little time


class PositionPredictions:
    """The predictions of one position at a time, kept until there is another position.

    Args:
        game: Go.
        predict: the network.
    """

    def __init__(self, game: Game, predict: Predict) -> None:
        self._game, self._predict = game, predict
        self._state = game.initial_state()
        self._here: Predictions | None = None
        self._score_leads: dict[int, float] = {}
        self._moves_ownership: dict[int, NDArray[np.float32]] = {}
        self._asked: set[int] = set()  # actions

    @property
    def ownership(self) -> NDArray[np.float32] | None:
        """Whose each point will be, ``[H * W]`` from 1, the mover's, to -1; None if the network does not predict it."""
        return None if self._here is None or self._here.ownership is None else self._here.ownership[0]

    @property
    def score_lead(self) -> float | None:
        """By how many points the player to move will win; None if the network does not predict it."""
        return None if self._here is None or self._here.score_leads is None else float(self._here.score_leads[0])

    @property
    def moves_ownership(self) -> dict[int, NDArray[np.float32]]:
        """``ownership`` after a move, for the player to move in the current position, by action."""
        return self._moves_ownership

    @property
    def score_leads(self) -> dict[int, float]:
        """By how many points the player to move will win, by action; empty if the network does not predict it."""
        return self._score_leads

    def update(
        self,
        state: States,
        actions: Sequence[int],
        *,
        most: int = MOVES_PER_UPDATE,
        moves_ownership: bool = False,
    ) -> None:
        """Predict a position, and what follows the first ``most`` of these actions without a prediction.

        Args:
            moves_ownership: whether the moves' ownership is wanted; their points always are.
        """
        if self._here is None or not np.array_equal(state, self._state):
            self._state, self._score_leads, self._moves_ownership, self._asked = state.copy(), {}, {}, set()
            self._here = self._predict(self._game.observe(state)[None])
        if self._here.score_leads is None and not moves_ownership:
            return
        fresh = [action for action in actions if action not in self._asked][:most]
        if fresh:
            self._asked.update(fresh)
            self._predict_moves(fresh)

    def _predict_moves(self, actions: Sequence[int]) -> None:
        after = [self._state_after(action) for action in actions]
        found = self._predict(np.stack([self._game.observe(each) for each in after]))
        for row, (action, each) in enumerate(zip(actions, after, strict=True)):
            if found.score_leads is not None:
                over = self._game.terminal(each)
                self._score_leads[action] = self._final_result(each) if over else -float(found.score_leads[row])
            if found.ownership is not None:
                self._moves_ownership[action] = -found.ownership[row]

    def _state_after(self, action: int) -> States:
        state = self._state.copy()
        self._game.play(state, action)
        return state

    def _final_result(self, end: States) -> float:
        """Return the result of a finished game for the player to move in the current position."""
        return score_lead(end) * (1 - 2 * self._game.current_player(self._state))
