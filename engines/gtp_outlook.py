"""What the Go engine's network foresees of the end of the game, beside what search finds: asked for only when somebody
wants to know.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from games.game import Game, States
from games.go.rules import score
from training.networks.predictions import Predict, Predictions

AT_ONCE = 8  # moves whose positions the network is asked about at each look, for nobody waits gladly


class Outlook:
    """Of one position after the other; what is known of a position is kept until there is another.

    Args:
        game: Go.
        foresee: what the network says.
    """

    def __init__(self, game: Game, predict: Predict) -> None:
        self._game, self._foresee = game, predict
        self._state = game.initial_state()
        self._here: Predictions | None = None
        self._leads: dict[int, float] = {}

    @property
    def ownership(self) -> NDArray[np.float32] | None:
        """Whose each point will be, ``[H * W]`` from 1, the mover's, to -1; None where the network does not say."""
        return None if self._here is None or self._here.ownership is None else self._here.ownership[0]

    @property
    def leads(self) -> dict[int, float]:
        """By how many points the player to move will win after some of his actions; none where the network does not
        say.
        """
        return self._leads

    def look(self, state: States, actions: Sequence[int]) -> None:
        """Look at a position, and at the first of these actions that were not looked at yet."""
        if self._here is None or not np.array_equal(state, self._state):
            self._state, self._leads = state.copy(), {}
            self._here = self._foresee(self._game.observe(state)[None])
        if self._here.leads is None:
            return
        fresh = [action for action in actions if action not in self._leads][:AT_ONCE]
        after = [self._after(action) for action in fresh]
        if after:
            leads = self._foresee(np.stack([self._game.observe(each) for each in after])).leads
            assert leads is not None
            for action, each, lead in zip(fresh, after, leads.tolist(), strict=True):
                self._leads[action] = self._counted(each) if self._game.terminal(each) else -lead

    def _after(self, action: int) -> States:
        state = self._state.copy()
        self._game.play(state, action)
        return state

    def _counted(self, end: States) -> float:
        """The result of a game that is over, as who is to move now sees it."""
        return score(end) * (1 - 2 * self._game.current_player(self._state))
