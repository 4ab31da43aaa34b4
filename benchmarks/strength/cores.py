"""Programs beside each other, each on a core of its own."""

import os
import subprocess
from collections.abc import Sequence
from functools import partial
from queue import Queue
from typing import Any


def all_cores() -> "Queue[int]":
    """The cores that this process may use, all of them free."""
    cores: Queue[int] = Queue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    return cores


def on_a_core(line: Sequence[str], cores: "Queue[int]", **streams: Any) -> None:
    """Run a program alone on the next free core.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    core = cores.get()
    try:
        subprocess.run(line, check=True, preexec_fn=partial(os.sched_setaffinity, 0, {core}), **streams)
    finally:
        cores.put(core)
