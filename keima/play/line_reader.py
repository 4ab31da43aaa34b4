"""Line-based conversation with a program that may interrupt: its input is read between short slices of work."""

import os
import select
import time
from typing import Protocol

READ_BYTES = 2**16  # the most per read


class ConversationPartner(Protocol):
    """The engine's side of the conversation."""

    @property
    def has_work(self) -> bool:
        """Whether there is work for ``advance``."""

    def handle_line(self, line: str, arrived: float) -> bool:
        """Execute a line that ``arrived`` at this time (``time.monotonic``); False ends the conversation."""

    def advance(self) -> None:
        """Do a short slice of work."""

    def close(self) -> None:
        """Write what is left to write: the input has ended."""


class LineReader:
    """Reads lines from a file descriptor, waiting for the first one at most."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self._rest = descriptor, b""
        self._kept: list[tuple[str, float]] = []
        self.is_closed = False  # whether the input has ended
        self.arrived = time.monotonic()  # when the latest lines arrived

    @property
    def is_ended(self) -> bool:
        """Whether no more lines will come."""
        return self.is_closed and not self._kept

    @property
    def has_put_back(self) -> bool:
        """Whether there are lines that were read and put back."""
        return bool(self._kept)

    def put_back(self, line: str) -> None:
        """Put a line back, after those that were put back before."""
        self._kept.append((line, self.arrived))

    def read_lines(self, *, wait: bool) -> list[str]:
        """Return the complete lines that have arrived, including empty ones; ``wait`` waits for input.

        An unfinished line at the end counts. Lines that were put back come first, one by one.
        """
        if self._kept:
            line, self.arrived = self._kept.pop(0)
            return [line]
        return self.read_new_lines(wait=wait)

    def read_new_lines(self, *, wait: bool) -> list[str]:
        """Return the same, without the lines that were put back."""
        if self.is_closed or not select.select([self.descriptor], [], [], None if wait else 0)[0]:
            return []
        data = os.read(self.descriptor, READ_BYTES)
        self.arrived = time.monotonic()
        self.is_closed = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self.is_closed and self._rest:
            lines.append(self._rest)
        return [line.decode(errors="replace").strip() for line in lines]


class LineWriter:
    """Writes lines to a file descriptor.

    While the other program does not read them, its own lines are taken in, so that neither waits for the other forever.
    """

    def __init__(self, reader: LineReader, descriptor: int) -> None:
        self._reader, self._descriptor = reader, descriptor

    def write_line(self, line: str) -> None:
        """Write a line.

        Raises:
            BrokenPipeError: nobody reads any more.
        """
        data = f"{line}\n".encode()
        while data:
            incoming = [] if self._reader.is_closed else [self._reader.descriptor]
            _, writable, _ = select.select(incoming, [self._descriptor], [])
            if writable:
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
                continue
            for taken in self._reader.read_new_lines(wait=False):
                self._reader.put_back(taken)


def run_conversation(reader: LineReader, partner: ConversationPartner) -> None:
    """Pass lines to ``partner``, and let it work in between, until it ends the conversation or the input ends."""
    while not reader.is_ended:
        for line in reader.read_lines(wait=not partner.has_work):
            if not partner.handle_line(line, reader.arrived):
                return
        if partner.has_work and not reader.is_ended:
            partner.advance()
