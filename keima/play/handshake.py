"""Answers what needs no network while a program loads: GUIs ask engines for their names and give up after seconds.

A timer reads the input between two steps of whatever Python is doing, such as importing torch or compiling, so it needs
no thread. This file is imported before everything that takes long to import.
"""

import os
import signal
import sys
from types import FrameType
from typing import Protocol

from keima.play.line_reader import LineReader

POLL_SECONDS = 0.05


class Handshake(Protocol):
    """An engine's answers before it has loaded."""

    def answer_line(self, line: str) -> str | None:
        """Return the complete answer to a line; None if the line must wait for the engine."""

    def is_quit(self, line: str) -> bool:
        """Return whether a line ends the conversation."""


class HandshakeResponder:
    """Answers on standard output until ``end``.

    From the first line that it cannot answer, all lines are kept for the engine.
    """

    def __init__(self, reader: LineReader, hello: Handshake) -> None:
        self.reader, self._hello, self._is_polling = reader, hello, False
        self._before = signal.signal(signal.SIGALRM, self._poll)
        signal.siginterrupt(signal.SIGALRM, False)  # libraries that are being loaded are not interrupted by it
        signal.setitimer(signal.ITIMER_REAL, POLL_SECONDS / 10, POLL_SECONDS)

    def end(self) -> None:
        """Stop answering; ``reader`` gives the lines that were put back, and then new ones."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # drops an alarm that no thread has taken yet: it would kill us
        signal.signal(signal.SIGALRM, self._before)

    def _poll(self, number: int, frame: FrameType | None) -> None:
        if self._is_polling:  # on a busy machine the next alarm may come in the middle of this one's work
            return
        self._is_polling = True
        self._answer_lines()
        self._is_polling = False

    def _answer_lines(self) -> None:
        waiting = self.reader.has_put_back
        for line in self.reader.read_new_lines(wait=False):
            answer = self._hello.answer_line(line) if not waiting else None
            if answer is None:
                self.reader.put_back(line)
                waiting = True
                continue
            self._write(answer)
            if self._hello.is_quit(line):
                os._exit(0)
        if self.reader.is_ended:  # with nothing put back, because no command will come
            os._exit(0)

    def _write(self, text: str) -> None:
        data = text.encode()
        try:
            while data:
                data = data[os.write(sys.stdout.fileno(), data) :]
        except BrokenPipeError:
            os._exit(0)
