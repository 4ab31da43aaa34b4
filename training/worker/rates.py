"""How fast a worker plays: what it has played of late, and what it could play if it always had enough to do."""

RATE_SECONDS = 10.0  # over which rates are averaged
FULL_SECONDS = 20.0  # of play at full load: older ones count half as much, again and again
MEMORY_GAMES = 200.0  # likewise
LEAST_SECONDS = 0.5  # at full load, before a speed is told


class Rates:
    """Games and evaluations a second, over the last ``RATE_SECONDS``."""

    def __init__(self, now: float) -> None:
        self.games = 0
        self._marks: list[tuple[float, int, int]] = [(now, 0, 0)]

    def measure(self, now: float, evaluations: int) -> tuple[float, float]:
        """Games and evaluations a second; call it about once a second."""
        self._marks.append((now, self.games, evaluations))
        while len(self._marks) > 2 and now - self._marks[0][0] > RATE_SECONDS:
            del self._marks[0]
        then, games, earlier = self._marks[0]
        seconds = max(now - then, 1e-6)
        return (self.games - games) / seconds, max(evaluations - earlier, 0) / seconds


class FullLoadSpeed:
    """Games a second while all slots are taken: the same for a worker that idles on purpose as for one that never does.

    That cannot be counted in games alone, few of which end in a short time at full load. So it is evaluations a second
    at full load, divided by evaluations a game at any load, where a game under way counts as half a game.
    """

    def __init__(self, now: float) -> None:
        self._then, self._busy = now, False
        self._seconds = self._rate_evaluations = 0.0  # at full load
        self._games = self._game_evaluations = 0.0  # at any

    def add(self, now: float, *, progress: float, evaluations: int, full: bool) -> None:
        """Count the time since the last call.

        Args:
            now: seconds that never go back.
            progress: by how much the games finished, and half of those under way, have grown.
            evaluations: that were made.
            full: whether all slots were taken.
        """
        seconds, self._then = now - self._then, now
        self._games += progress
        self._game_evaluations += evaluations
        if full and self._busy:  # else part of the time was a pause
            self._seconds += seconds
            self._rate_evaluations += evaluations
        self._busy = evaluations > 0
        if self._seconds > FULL_SECONDS:
            self._seconds, self._rate_evaluations = self._seconds / 2, self._rate_evaluations / 2
        if self._games > MEMORY_GAMES:
            self._games, self._game_evaluations = self._games / 2, self._game_evaluations / 2

    def games_per_second(self) -> float:
        """The speed; 0 while there has been too little to measure."""
        if self._seconds < LEAST_SECONDS or self._games <= 0 or self._game_evaluations <= 0:
            return 0.0
        return self._rate_evaluations / self._seconds * self._games / self._game_evaluations

    def skip(self, now: float) -> None:
        """Leave out the time since the last call: the worker did something else."""
        self._then = now
