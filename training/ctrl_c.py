"""What Ctrl-C does to a program of ours: it ends it with few words, from the first moment to the last.

This file is imported before all that takes long to import: it needs nothing but Python's standard library.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import ParamSpec, Protocol

INTERRUPTED = 130  # the exit code after Ctrl-C; a shell gives the same for a process that the signal itself has ended

P = ParamSpec("P")


def ends_at_once() -> None:
    """Have Ctrl-C end this process at once and without a word: nothing is open yet, and Python would show where in torch it has been.

    Where it is ignored, as in what a script runs in the background, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def interruptible(main: Callable[P, int]) -> Callable[P, int]:
    """Have Ctrl-C raise KeyboardInterrupt within a program's ``main``, so that what is open is closed, and let it return 130 then."""

    @wraps(main)
    def run(*arguments: P.args, **options: P.kwargs) -> int:
        at_once = signal.getsignal(signal.SIGINT) == signal.SIG_DFL
        try:
            if at_once:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            return main(*arguments, **options)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            if at_once:
                signal.signal(signal.SIGINT, signal.SIG_DFL)

    return run


class Stoppable(Protocol):
    """Something long that ends in good order when it is asked to."""

    stop_requested: bool


@contextmanager
def stop_on_signals(work: Stoppable) -> Iterator[None]:
    """Within the block, Ctrl-C and termination ask ``work`` to end; the second one ends it at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        if work.stop_requested:
            raise KeyboardInterrupt
        work.stop_requested = True

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
