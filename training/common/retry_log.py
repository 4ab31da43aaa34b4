"""What a full disk or a locked ledger refuse now and may take later: it is tried again at every look, and told of once."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class RetryLog:
    """The troubles that there are now, by what they are about; ``log_event`` hears of each when it is new."""

    def __init__(self, log_event: Callable[[str], None]) -> None:
        self._log_event = log_event
        self._now: dict[str, str] = {}

    @contextmanager
    def about(self, what: str, complaint: str) -> Iterator[None]:
        """Within the block, what the disk or the ledger refuse is a trouble, which is over when a later block goes well."""
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            trouble = f"{complaint}: {error}"
            if self._now.get(what) != trouble:
                self._now[what] = trouble
                self._log_event(trouble)
        else:
            self._now.pop(what, None)

    def insist(self, what: str, complaint: str, action: Callable[[], T], *, wait: Callable[[], None]) -> T:
        """Do what has to be done before anything else is, as often as it takes; ``wait`` comes between two attempts."""
        while True:
            with self.about(what, complaint):
                return action()
            wait()
