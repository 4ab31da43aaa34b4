"""When a player resigns."""

MOVES = 3  # in a row, because a single evaluation may be wrong


class Resignation:
    """Counts a player's hopeless moves.

    Args:
        below: the game is given up after ``MOVES`` moves whose chance to win was less than this, from 0 (never) to 1.
    """

    def __init__(self, below: float) -> None:
        self._below = below
        self._hopeless = 0

    def should_resign(self, value: float) -> bool:
        """Return whether to resign, given the search value of the player's next move, from -1 (lost) to 1."""
        self._hopeless = self._hopeless + 1 if (1 + value) / 2 < self._below else 0
        return self._hopeless >= MOVES
