"""Talking by lines with a program that may interrupt: what it says is looked at between two short pieces of work."""

import os
import select
import time
from typing import Protocol

MOST_BYTES = 2**16  # read at once


class Partner(Protocol):
    """One who is spoken to."""

    @property
    def busy(self) -> bool:
        """Whether there is work for ``advance``."""

    def obey(self, line: str, arrived: float) -> bool:
        """Do what a line says that ``arrived`` at this time (``time.monotonic``); False ends the conversation."""

    def advance(self) -> None:
        """Do a short piece of work."""

    def close(self) -> None:
        """Nobody speaks any more: say what there is left to say."""


class LineReader:
    """Lines from a file descriptor, without ever waiting for more than the first."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._rest = descriptor, b""
        self._kept: list[tuple[str, float]] = []
        self._closed = False
        self.arrived = time.monotonic()  # when the latest lines did

    @property
    def ended(self) -> bool:
        """Whether no line will come any more."""
        return self._closed and not self._kept

    @property
    def kept(self) -> bool:
        """Whether there are lines that were read and put back."""
        return bool(self._kept)

    def put_back(self, line: str) -> None:
        """Put a line that was just read back, behind those that were before."""
        self._kept.append((line, self.arrived))

    def lines(self, *, wait: bool) -> list[str]:
        """The complete lines that have come, empty ones too; with ``wait`` it waits for something to come.

        An unfinished line at the end counts. Lines that were put back come first, one by one.
        """
        if self._kept:
            line, self.arrived = self._kept.pop(0)
            return [line]
        return self.read(wait=wait)

    def read(self, *, wait: bool) -> list[str]:
        """The same, past the lines that were put back."""
        if self._closed or not select.select([self._descriptor], [], [], None if wait else 0)[0]:
            return []
        data = os.read(self._descriptor, MOST_BYTES)
        self.arrived = time.monotonic()
        self._closed = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._closed and self._rest:
            lines.append(self._rest)
        return [line.decode(errors="replace").strip() for line in lines]


def converse(reader: LineReader, partner: Partner) -> None:
    """Let ``partner`` obey line after line and work meanwhile, until it ends the conversation or nobody speaks any
    more.
    """
    while not reader.ended:
        for line in reader.lines(wait=not partner.busy):
            if not partner.obey(line, reader.arrived):
                return
        if partner.busy and not reader.ended:
            partner.advance()
