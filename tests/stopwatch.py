"""How long a program takes, as far as that depends on the program and not on what else the machine does."""

import os
import time
from pathlib import Path


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime


class Stopwatch:
    """Runs from its making.

    Args:
        pid: of the program.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began, self._used = time.monotonic(), _processor_seconds(pid)

    def seconds(self) -> float:
        """Return the lesser of the seconds since then and of the processor's seconds that the program has used."""
        return min(time.monotonic() - self._began, _processor_seconds(self._pid) - self._used)
