"""Network metrics for the status: the traffic, and how long a model takes to reach all workers."""

from collections import deque
from collections.abc import Sequence

NETWORK_SECONDS = 60.0  # the interval over which traffic is averaged
MEASURE_SECONDS = 1.0


class NetworkMetrics:
    """Traffic and model sync time, from readings about once a second.

    Attributes:
        sync_seconds: from the publication of the last completed model until the last Active worker played with it.
    """

    def __init__(self, now: float) -> None:
        self.sync_seconds: float | None = None
        # Versions that not all Active workers play with yet, and when they were published.
        self._syncs: deque[tuple[int, float]] = deque()
        self._traffic: deque[tuple[float, int]] = deque([(now, 0)])

    @property
    def mb_per_minute(self) -> float:
        """Megabytes per minute, in both directions."""
        (then, before), (now, moved) = self._traffic[0], self._traffic[-1]
        return (moved - before) / 1e6 / max(now - then, MEASURE_SECONDS) * 60

    def note_publication(self, version: int, now: float) -> None:
        """Record that a model has been published."""
        self._syncs.append((version, now))

    def is_reading_due(self, now: float) -> bool:
        """Return whether the next reading is due."""
        return now - self._traffic[-1][0] >= MEASURE_SECONDS

    def add_reading(self, now: float, moved: int, playing: Sequence[tuple[int, float]]) -> None:
        """Add a reading.

        Args:
            now: the time in seconds.
            moved: bytes transferred so far.
            playing: for each Active worker, its model version and since when it has played with it.
        """
        if self.is_reading_due(now):
            self._traffic.append((now, moved))
        while len(self._traffic) > 2 and now - self._traffic[0][0] > NETWORK_SECONDS:
            self._traffic.popleft()
        while playing and self._syncs and all(version >= self._syncs[0][0] for version, _ in playing):
            _, then = self._syncs.popleft()
            self.sync_seconds = max(0.0, max(since for _, since in playing) - then)
