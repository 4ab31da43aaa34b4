"""What one machine, link or address may use of the door: requests, bytes, workers and disk."""

import time
from collections import OrderedDict
from collections.abc import Callable

MOST_KEYS = 20_000  # remembered at a time; the longest unused are forgotten, with full buckets

MACHINE_REQUESTS = (5.0, 200.0)  # a second in the long run, and at once
REFUSED_REQUESTS = (0.5, 30.0)  # of an address, that carry no valid secret
MACHINE_BYTES = (2 * 2**20, 256 * 2**20)  # of games a second in the long run, and at once
MAILBOX_BYTES = 64 * 2**20  # of games of one worker that the Coach has not taken yet
MOST_HEAD_BYTES = 16_384  # of a request's first line and headers
HEAD_SECONDS = 10.0  # for them to arrive
BODY_SECONDS = 30.0  # for each next part of a body
READ_SECONDS = 60.0  # for a part of an answer to be taken


class Buckets:
    """A token bucket for each key: ``rate`` tokens a second flow in, up to ``most``.

    Args:
        rate: tokens a second.
        most: tokens that a bucket holds; new ones are full.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, rate: float, most: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._most, self._clock = rate, most, clock
        self._kept: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key -> tokens, and when they were counted

    def take(self, key: str, tokens: float = 1.0) -> bool:
        """Take tokens from the key's bucket; return False, and take none, if it has too few."""
        left = self._tokens(key)
        if left < tokens:
            return False
        self._kept[key] = (left - tokens, self._clock())
        self._kept.move_to_end(key)
        while len(self._kept) > MOST_KEYS:
            self._kept.popitem(last=False)
        return True

    def seconds_until(self, key: str, tokens: float = 1.0) -> float:
        """Return the seconds until the bucket has so many tokens."""
        return max(0.0, (tokens - self._tokens(key)) / self._rate)

    def _tokens(self, key: str) -> float:
        tokens, then = self._kept.get(key, (self._most, 0.0))
        return min(self._most, tokens + self._rate * max(0.0, self._clock() - then)) if key in self._kept else tokens
