"""What a cluster's status shows of its network: how much goes over it, and how long a model takes to all who play."""

from collections import deque
from collections.abc import Sequence

NETWORK_SECONDS = 60.0  # over which the network's usage is averaged
MEASURE_SECONDS = 1.0


class NetworkMetrics:
    """Both figures, from what is read off about once a second."""

    def __init__(self, now: float) -> None:
        self.sync_seconds: float | None = (
            None  # from the publication of a model until the last Active worker played with it; the last one's
        )
        self._syncs: deque[tuple[int, float]] = (
            deque()
        )  # versions that not all Active workers play with yet, and when they were published
        self._traffic: deque[tuple[float, int]] = deque([(now, 0)])

    @property
    def mb_per_minute(self) -> float:
        """Megabytes a minute, in both directions."""
        (then, before), (now, moved) = self._traffic[0], self._traffic[-1]
        return (moved - before) / 1e6 / max(now - then, MEASURE_SECONDS) * 60

    def published(self, version: int, now: float) -> None:
        """A model is on its way."""
        self._syncs.append((version, now))

    def is_time(self, now: float) -> bool:
        """Whether to read again."""
        return now - self._traffic[-1][0] >= MEASURE_SECONDS

    def read(self, now: float, moved: int, playing: Sequence[tuple[int, float]]) -> None:
        """Take the figures.

        Args:
            now: seconds.
            moved: bytes so far.
            playing: for each Active worker, its model version and since when it has played with it.
        """
        if self.is_time(now):
            self._traffic.append((now, moved))
        while len(self._traffic) > 2 and now - self._traffic[0][0] > NETWORK_SECONDS:
            self._traffic.popleft()
        while playing and self._syncs and all(version >= self._syncs[0][0] for version, _ in playing):
            _, then = self._syncs.popleft()
            self.sync_seconds = max(0.0, max(since for _, since in playing) - then)
