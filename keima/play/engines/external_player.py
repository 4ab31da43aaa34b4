"""A player in matches whose moves another program chooses."""

from abc import abstractmethod
from collections.abc import Sequence

from keima.games.game import Actions, States


class ExternalPlayer:
    """A player whose moves are chosen by another program."""

    def choose(self, states: States) -> Actions:
        """Return the engine's moves in positions without a known history.

        Raises:
            EngineFailed: it does not answer, or its move is not legal.
        """
        return self.choose_with_history(states, states, [()] * len(states))

    @abstractmethod
    def choose_with_history(self, states: States, starts: States, moves: Sequence[Sequence[int]]) -> Actions:
        """Return the engine's moves in ``states``, which came from ``starts`` by ``moves``.

        Raises:
            EngineFailed: it does not answer, or its move is not legal.
        """
