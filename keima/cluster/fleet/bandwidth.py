"""A limit for the bytes that a connection moves in a second."""

import time
from collections.abc import Callable

MOST_SECONDS = 0.5
BURST_SECONDS = 1.0  # of the limit that may be moved at once after a pause


class BandwidthLimit:
    """Says how long to wait, so that no more than ``rate`` bytes a second are moved on average.

    Args:
        rate: bytes per second; None: no limit.
        clock: a monotonic clock in seconds.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        rate: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._counted = 0  # bytes
        self._paid_at = clock()  # when what has been counted is as old as the limit asks for

    def seconds_due(self, moved: int) -> float:
        """Return for how many seconds nothing should be moved, after ``moved`` bytes in all."""
        now = self._clock()
        if self._rate is not None:
            self._paid_at = max(self._paid_at, now) + (moved - self._counted) / self._rate
        self._counted = moved
        return max(0.0, self._paid_at - now - BURST_SECONDS)

    def wait(self, moved: int) -> None:
        """Wait as ``seconds_due`` says, but not for long: the caller has heartbeats to read between two waits."""
        if due := self.seconds_due(moved):
            self._sleep(min(due, MOST_SECONDS))
