"""Operations that fail while a disk is full or a ledger is locked: they are retried at every poll, and logged once."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class RetryLog:
    """The current failures by subject; each new one is passed to ``log_event`` once."""

    def __init__(self, log_event: Callable[[str], None]) -> None:
        self._log_event = log_event
        self._now: dict[str, str] = {}

    @contextmanager
    def log_failures(self, what: str, complaint: str) -> Iterator[None]:
        """Catch and log failures of the disk or the ledger in the block; a success clears the failure."""
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            trouble = f"{complaint}: {error}"
            if self._now.get(what) != trouble:
                self._now[what] = trouble
                self._log_event(trouble)
        else:
            self._now.pop(what, None)

    def retry_until_done(self, what: str, complaint: str, action: Callable[[], T], *, wait: Callable[[], None]) -> T:
        """Repeat ``action`` until it succeeds, and call ``wait`` between attempts."""
        while True:
            with self.log_failures(what, complaint):
                return action()
            wait()
