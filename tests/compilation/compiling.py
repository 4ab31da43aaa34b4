"""Code in processes of its own, with a compile cache of its own, and what they compile."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from numba.core import event

from keima.compilation.shared_cache import COMPILE
from tests.sources import ROOT


class _Listener(event.Listener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.names = list[str]()

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        self.names.append(f"{function.__module__}:{function.__qualname__}")

    def on_end(self, event: Any) -> None:
        pass


def watch_compiling() -> list[str]:
    """Return a list that gets ``module:function`` of all that this process compiles from now on."""
    listener = _Listener()
    event.register(COMPILE, listener)
    return listener.names


def run_code(code: str, cache: Path, *arguments: str) -> list[str]:
    """Return the lines that code prints in a new process, whose compile cache is that folder."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "KEIMA_CACHE": str(cache)}
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
