"""What Ctrl-C does to a program of ours: it ends it with few words, from the first moment to the last.

A terminal that is closed does the same (SIGHUP), unless the program was started to outlive it, as by nohup.
This file is imported before all that takes long to import: it needs nothing but Python's standard library.
"""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import ParamSpec, Protocol

OUTPUTS = (1, 2)  # the file descriptors of standard output and standard error
INTERRUPTED = 130  # the exit code after Ctrl-C; a shell gives the same for a process that the signal itself has ended

P = ParamSpec("P")


def ends_at_once() -> None:
    """Have Ctrl-C end this process at once and without a word: nothing is open yet, and Python would show where in
    torch it has been.

    Where it is ignored, as in what a script runs in the background, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def interruptible(main: Callable[P, int]) -> Callable[P, int]:
    """Have Ctrl-C and a closed terminal raise KeyboardInterrupt in a program's ``main``, so that all is closed, and let
    it return 130.
    """

    @wraps(main)
    def run(*arguments: P.args, **options: P.kwargs) -> int:
        asked = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: end_without_terminal}
        at_once = [number for number in asked if signal.getsignal(number) == signal.SIG_DFL]
        try:
            for number in at_once:
                signal.signal(number, asked[number])
            return main(*arguments, **options)
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            for number in at_once:
                signal.signal(number, signal.SIG_DFL)

    return run


class Stoppable(Protocol):
    """Something long that ends in good order when it is asked to."""

    stop_requested: bool


@contextmanager
def stop_on_signals(work: Stoppable) -> Iterator[None]:
    """Within the block, Ctrl-C, termination and a closed terminal ask ``work`` to end; the second of the first two ends
    it at once.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # which may come twice, from the shell and from the system: nobody is impatient
            leave_lost_terminal()
        elif work.stop_requested:
            raise KeyboardInterrupt
        work.stop_requested = True

    asked = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if heeds_hangup() else [])]
    earlier = {number: signal.signal(number, stop) for number in asked}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def leave_to_parent() -> None:
    """Ignore Ctrl-C and a closed terminal, which reach all processes of it: the one that started this one decides what
    they mean.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def heeds_hangup() -> bool:
    """Whether this process is to end with its terminal: not if it was started to ignore that, as by nohup."""
    return signal.getsignal(signal.SIGHUP) != signal.SIG_IGN


def end_without_terminal(number: int, frame: FrameType | None) -> None:
    """What a closed terminal does: raise KeyboardInterrupt, once."""
    signal.signal(number, signal.SIG_IGN)
    leave_lost_terminal()
    raise KeyboardInterrupt


def leave_lost_terminal() -> None:
    """Have what is still written to a terminal that is gone go nowhere, where it would be an error."""
    for output in OUTPUTS:
        watcher = select.poll()
        watcher.register(output, 0)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in watcher.poll(0)):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, output)
            os.close(nowhere)
