"""How long a program takes, as far as that depends on the program and not on what else the machine does."""

import time

from benchmarks.harness import processor_seconds


class Stopwatch:
    """Runs from its making.

    Args:
        pid: of the program.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began, self._used = time.monotonic(), processor_seconds(pid)

    def seconds(self) -> float:
        """Return the lesser of the seconds since then and of the processor's seconds that the program has used."""
        return min(time.monotonic() - self._began, processor_seconds(self._pid) - self._used)
