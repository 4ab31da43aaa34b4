"""Report what is being compiled: the first run on a machine compiles for half a minute or more."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core import event
from numba.core.dispatcher import Dispatcher

from keima.compilation.shared_cache import COMPILE, WAIT
from keima.compilation.sources import OWN_PREFIX, PROJECT, cache_folder
from keima.paths import PACKAGE


@contextmanager
def report_compiling(report: Callable[[str], None]) -> Iterator[None]:
    """Call ``report`` for each part of the program compiled within the block: "compiling search (2 of up to 6)".

    A part is a room, or a game. The second number counts the uncompiled parts that are
    imported by then. A part that another process is compiling is reported in the same way.
    """
    listener = _CompileListener(report)
    for kind in (COMPILE, WAIT):
        event.register(kind, listener)
    try:
        yield
    finally:
        for kind in (COMPILE, WAIT):
            event.unregister(kind, listener)


class _CompileListener(event.Listener):  # type: ignore[misc]
    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._reported: list[str] = []
        self._missing: set[str] = set()

    def on_start(self, event: Any) -> None:
        """Report the part of a function that is about to be compiled."""
        part = find_part_of_program((event.data if event.kind == WAIT else event.data["dispatcher"].py_func).__module__)
        if not part or part in self._reported:
            return
        self._missing |= find_uncompiled_parts()
        self._reported.append(part)
        self._report(f"compiling {part} ({len(self._reported)} of up to {len(self._missing | set(self._reported))})")

    def on_end(self, event: Any) -> None:
        """Do nothing: see ``on_start``."""


def find_part_of_program(module: str) -> str:
    """Return the part of the program that a module belongs to, such as a user's game; empty for other packages."""
    if module.startswith(OWN_PREFIX):
        return module.removeprefix(OWN_PREFIX).rpartition("_")[0].replace("_", " ")
    package, *names = module.split(".")
    if package != PACKAGE.name or not names:
        return ""
    return names[1 if names[0] == "games" and len(names) > 1 else 0].replace("_", " ")


def find_uncompiled_parts() -> set[str]:
    """Return the imported parts that have compiled functions but none in the cache."""
    found = set()
    for name, module in list(sys.modules.items()):
        if find_part_of_program(name) and any(
            isinstance(each, Dispatcher) and each.py_func.__module__ == name for each in vars(module).values()
        ):
            path = Path(module.__file__ or "").resolve()
            if PROJECT in path.parents and not cache_folder(path).exists():
                found.add(find_part_of_program(name))
    return found
