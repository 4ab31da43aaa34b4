"""The clocks of the Go Text Protocol: main time, then periods with a time for a number of moves.

In Canadian byo-yomi a period has several moves, and its time must last for all of them. In Japanese byo-yomi (only in
kgs-time_settings) a period has one move, and there are several periods; a period is lost if it ends before the move.
"""

from dataclasses import dataclass

from keima.play.gtp.syntax import GtpCommand, GtpError, parse_decimal, parse_whole
from keima.play.time_keeping import Clock

TIME_NUMBERS = {"none": 0, "absolute": 1, "byoyomi": 3, "canadian": 3}


@dataclass(frozen=True, kw_only=True)
class TimeSettings:
    """Each player's time at the start, in seconds."""

    main: float
    period: float = 0.0
    moves: int = 1  # of a period
    periods: int = 1  # more than one only in Japanese byo-yomi


class PlayerClock:
    """One player's clock. It follows time_left commands, and without them its own measurements."""

    def __init__(self, settings: TimeSettings) -> None:
        self._settings = settings
        self._main = settings.main
        self._left, self._moves = 0.0, 0  # of the current period; 0 moves: there is none

    def set_remaining(self, seconds: float, moves: int) -> None:
        """Set the time left: of the main time if ``moves`` is 0, else of a period with this many moves (or periods of
        one move).
        """
        self._main, self._left, self._moves = (0.0, seconds, moves) if moves else (seconds, 0.0, 0)

    def subtract_move_time(self, seconds: float) -> None:
        """Subtract a move's time."""
        settings = self._settings
        if not self._moves:
            over, self._main = max(seconds - self._main, 0.0), max(self._main - seconds, 0.0)
            if self._main > 0 or settings.period == 0:
                return
            seconds, self._left, self._moves = over, settings.period, settings.moves
        self._left -= seconds
        self._moves -= 1
        if self._moves <= 0 or settings.periods > 1:
            self._left, self._moves = settings.period, settings.moves

    @property
    def clock(self) -> Clock:
        """The clock for time management."""
        settings = self._settings
        if self._moves:
            return Clock(remaining=max(self._left, 0.0), moves_to_go=self._moves if settings.periods == 1 else 1)
        # A move's time in later periods, the first of which follows the main time.
        share = settings.period / settings.moves
        return Clock(remaining=self._main + share, increment=share)


def parse_time_settings(command: GtpCommand) -> TimeSettings | None:
    """Parse the arguments of time_settings: main time, period, moves per period; None means no limit.

    Raises:
        Refused: it says something else.
    """
    main, period, moves = command.require_words(3)
    seconds, count = _parse_seconds(period), parse_whole(moves)
    if seconds > 0 and count == 0:
        return None
    return TimeSettings(main=_parse_seconds(main), period=seconds, moves=max(count, 1))


def parse_kgs_time_settings(command: GtpCommand) -> TimeSettings | None:
    """Parse the arguments of kgs-time_settings: none, absolute, byoyomi or canadian with their numbers; None means no
    limit.

    Raises:
        Refused: it says something else.
    """
    kind, *rest = command.words or ("",)
    if len(rest) != TIME_NUMBERS.get(kind, -1):
        raise GtpError(
            "syntax error: expected none, absolute TIME, byoyomi TIME PERIOD PERIODS or canadian TIME PERIOD STONES"
        )
    if kind == "none":
        return None
    if kind == "absolute":
        return TimeSettings(main=_parse_seconds(rest[0]))
    main, period, count = _parse_seconds(rest[0]), _parse_seconds(rest[1]), parse_whole(rest[2], least=1)
    return (
        TimeSettings(main=main, period=period, periods=count)
        if kind == "byoyomi"
        else TimeSettings(main=main, period=period, moves=count)
    )


def _parse_seconds(word: str) -> float:
    return max(parse_decimal(word), 0.0)
