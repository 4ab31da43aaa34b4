"""Long work in small steps, interleaved with other work: generators that return a result at their end."""

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

# Yields True where it can go on at once, and False where it waits for others.
Steps = Generator[bool, None, T]


def run_steps(
    steps: Steps[T], *, poll: Callable[[], None] = lambda: None, wait: Callable[[], None] = lambda: None
) -> T:
    """Do all steps and return the result.

    Args:
        poll: called before each step; an exception from it ends the work.
        wait: called where the work waits for others.
    """
    try:
        while True:
            poll()
            if not next(steps):
                wait()
    except StopIteration as ended:
        result: T = ended.value
        return result
    finally:
        steps.close()


class Turns:
    """Shares a process's time between its main work and side work, by the time that each has taken.

    Args:
        share: of the time for the work beside, while both have something to do.
    """

    def __init__(self, share: float) -> None:
        self._factor = (1 - share) / share  # main seconds for a second beside
        self._owed = 0.0  # seconds of main work

    def is_side_work_next(self) -> bool:
        """Return whether the side work has the next turn."""
        return self._owed <= 0.0

    def count_side_work(self, seconds: float) -> None:
        """Count the time of a step of side work."""
        self._owed += seconds * self._factor

    def count_main_work(self, seconds: float, *, idle: bool = False) -> None:
        """Count the time of a step of main work; ``idle``: the main work has nothing to do now."""
        self._owed = 0.0 if idle else max(0.0, self._owed - seconds)
