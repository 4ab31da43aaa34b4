"""The speed of a worker: its recent rates, and its speed at full load."""

RATE_SECONDS = 10.0  # averaging window of the rates
FULL_SECONDS = 20.0  # of play at full load; then all counts are halved
MEMORY_GAMES = 200.0  # the same for games
LEAST_SECONDS = 0.5  # at full load before there is a speed


class Rates:
    """Games and evaluations per second over the last ``RATE_SECONDS``."""

    def __init__(self, now: float) -> None:
        self.games = 0
        self._marks: list[tuple[float, int, int]] = [(now, 0, 0)]

    def measure(self, now: float, evaluations: int) -> tuple[float, float]:
        """Return games and evaluations per second; call it about once a second."""
        self._marks.append((now, self.games, evaluations))
        while len(self._marks) > 2 and now - self._marks[0][0] > RATE_SECONDS:
            del self._marks[0]
        then, games, earlier = self._marks[0]
        seconds = max(now - then, 1e-6)
        return (self.games - games) / seconds, max(evaluations - earlier, 0) / seconds


class FullLoadSpeed:
    """Games per second while all slots are taken, whether or not the worker idles in between.

    Few games end in a short time at full load. So this is evaluations per second at full load divided by evaluations
    per game at any load, where a game in progress counts as half a game.
    """

    def __init__(self, now: float) -> None:
        self._then, self._busy = now, False
        self._seconds = self._rate_evaluations = 0.0  # at full load
        self._games = self._game_evaluations = 0.0  # at any load

    def add(self, now: float, *, progress: float, evaluations: int, full: bool) -> None:
        """Count the time since the last call.

        Args:
            now: seconds that never go back.
            progress: growth of the number of finished games plus half of those in progress.
            evaluations: number of evaluations.
            full: whether all slots were taken.
        """
        seconds, self._then = now - self._then, now
        self._games += progress
        self._game_evaluations += evaluations
        if full and self._busy:  # otherwise part of the time was a pause
            self._seconds += seconds
            self._rate_evaluations += evaluations
        self._busy = evaluations > 0
        if self._seconds > FULL_SECONDS:
            self._seconds, self._rate_evaluations = self._seconds / 2, self._rate_evaluations / 2
        if self._games > MEMORY_GAMES:
            self._games, self._game_evaluations = self._games / 2, self._game_evaluations / 2

    def games_per_second(self) -> float:
        """Return the speed; 0 until there is enough to measure."""
        if self._seconds < LEAST_SECONDS or self._games <= 0 or self._game_evaluations <= 0:
            return 0.0
        return self._rate_evaluations / self._seconds * self._games / self._game_evaluations

    def skip(self, now: float) -> None:
        """Exclude the time since the last call: the worker did something else."""
        self._then = now
