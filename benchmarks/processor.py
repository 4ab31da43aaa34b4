"""The processor time of other processes."""

import os
from pathlib import Path


def processor_seconds(pid: int | None) -> float:
    """The processor time that a process has used so far, all its threads together.

    Raises:
        OSError: there is no such process; None is none.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime
