"""Ctrl-C ends every program cleanly and without a traceback, from its first moment to its last.

So does a closed terminal (SIGHUP), unless the program ignores it, as under nohup. Imports only the standard library, so
that programs start fast.
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
INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it

P = ParamSpec("P")


def exit_quietly_on_interrupt() -> None:
    """Let Ctrl-C end this process silently while it imports, instead of with a traceback from inside torch.

    Where the signal is ignored, as in background jobs of scripts, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def handle_interrupts(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate a ``main``: Ctrl-C or a closed terminal raises KeyboardInterrupt in it, and it returns 130."""

    @wraps(main)
    def run(*arguments: P.args, **options: P.kwargs) -> int:
        asked = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: interrupt_on_hangup}
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
    """Long work that ends cleanly when asked to."""

    stop_requested: bool


@contextmanager
def stop_on_signals(work: Stoppable) -> Iterator[None]:
    """Stop ``work`` in the block cleanly on Ctrl-C, SIGTERM and SIGHUP, and at once on a second Ctrl-C or SIGTERM."""

    def stop(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # comes twice, from the shell and from the system
            discard_output_of_lost_terminal()
        elif work.stop_requested:
            raise KeyboardInterrupt
        work.stop_requested = True

    asked = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if ends_with_terminal() else [])]
    earlier = {number: signal.signal(number, stop) for number in asked}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def ignore_terminal_signals() -> None:
    """Ignore Ctrl-C and a closed terminal, which reach every process of a terminal: the parent handles them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def ends_with_terminal() -> bool:
    """Return whether this process ends with its terminal; false under nohup."""
    return signal.getsignal(signal.SIGHUP) != signal.SIG_IGN


def interrupt_on_hangup(number: int, frame: FrameType | None) -> None:
    """Handle a closed terminal: raise KeyboardInterrupt, once."""
    signal.signal(number, signal.SIG_IGN)
    discard_output_of_lost_terminal()
    raise KeyboardInterrupt


def discard_output_of_lost_terminal() -> None:
    """Redirect output to a closed terminal to the null device, since writing to it would fail."""
    for output in OUTPUTS:
        watcher = select.poll()
        watcher.register(output, 0)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in watcher.poll(0)):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, output)
            os.close(nowhere)
