"""How long to think about a move, so that no game is lost on time.

The rule: assume ``EXPECTED_MOVES`` more of the engine's own moves, or the number up to the time control if it is known,
and divide the time left, with all increments and overheads of these moves, evenly. No move gets more than
``MOST_SHARE`` of the time left. So with an increment, a reserve of ``EXPECTED_MOVES`` times the safety margin of the
overhead remains.

The overhead is measured: the clock's loss from one move to the next, less the thinking time. For safety, the user's
setting is added.
"""

from dataclasses import dataclass

EXPECTED_MOVES = 30
MOST_SHARE = 0.6
FORGETTING = 0.9  # the factor per move on a measured overhead
MOST_OVERHEAD = 2.0  # seconds; more is not overhead: the clocks were reset


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A player's clock, in seconds."""

    remaining: float
    increment: float = 0.0  # per move
    moves_to_go: int | None = None  # until there is more time


def allot_seconds(clock: Clock, overhead: float) -> float:
    """Return the seconds for this move; 0 if there are none to think."""
    moves = max(clock.moves_to_go or EXPECTED_MOVES, 1)
    share = (clock.remaining + (moves - 1) * clock.increment) / moves - overhead
    return max(min(share, MOST_SHARE * (clock.remaining - overhead)), 0.0)


class TimeKeeper:
    """Allots the time of a game, and measures the overhead of moves. Times are from ``time.monotonic``.

    Args:
        overhead: seconds a move, for safety.
    """

    def __init__(self, *, overhead: float) -> None:
        self.overhead = overhead
        self._measured = 0.0
        self._clock: Clock | None = None
        self._began = 0.0
        self._expected: float | None = None  # on the clock at our next move, without overhead

    def new_game(self) -> None:
        """Forget the clock of the last game."""
        self._clock, self._expected = None, None

    def seconds_for(self, clock: Clock) -> float:
        """Return the seconds for a move with this clock."""
        if self._expected is not None and 0 <= self._expected - clock.remaining <= MOST_OVERHEAD:
            self._measured = max(self._expected - clock.remaining, FORGETTING * self._measured)
        self._clock, self._expected = clock, None
        return allot_seconds(clock, self.overhead + self._measured)

    def note_started(self, now: float) -> None:
        """Note that our clock has started."""
        self._began = now

    def note_moved(self, now: float) -> None:
        """Note that we have moved and our clock has stopped."""
        if self._clock is not None:
            self._expected = self._clock.remaining - (now - self._began) + self._clock.increment
