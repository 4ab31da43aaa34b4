"""What a full disk or locked books refuse now and may take later: it is tried again at every look, and told of once."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class RetryLog:
    """The troubles that there are now, by what they are about; ``tell`` hears of each when it is new."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._now: dict[str, str] = {}

    @contextmanager
    def about(self, what: str, complaint: str) -> Iterator[None]:
        """Within the block, what the disk or the books refuse is a trouble, which is over when a later block goes well."""
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            trouble = f"{complaint}: {error}"
            if self._now.get(what) != trouble:
                self._now[what] = trouble
                self._tell(trouble)
        else:
            self._now.pop(what, None)

    def insist(self, what: str, complaint: str, action: Callable[[], T], *, wait: Callable[[], None]) -> T:
        """Do what has to be done before anything else is, as often as it takes; ``wait`` comes between two attempts."""
        while True:
            with self.about(what, complaint):
                return action()
            wait()
