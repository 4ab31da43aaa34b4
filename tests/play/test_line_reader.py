"""Lines that two programs send each other, in both directions at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from io import BufferedReader, FileIO

import pytest

from keima.play.handshake import HandshakeResponder
from keima.play.line_reader import LineReader, LineWriter

LINES = 5_000  # more than pipes hold


@dataclass(frozen=True, kw_only=True)
class Pipes:
    """The engine's input and output, and the other program's ends of them."""

    input_end: FileIO
    output_end: FileIO
    sends: FileIO
    receives: FileIO


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    with ExitStack() as stack:
        ends = [
            stack.enter_context(FileIO(end, mode)) for _ in range(2) for end, mode in zip(os.pipe(), "rw", strict=True)
        ]
        yield Pipes(input_end=ends[0], sends=ends[1], receives=ends[2], output_end=ends[3])


def test_a_program_that_writes_everything_before_it_reads_is_not_waited_for(pipes: Pipes) -> None:
    reader = LineReader(pipes.input_end.fileno())
    writer = LineWriter(reader, pipes.output_end.fileno())
    received = list[bytes]()

    def write_all_then_read() -> None:
        for number in range(LINES):
            pipes.sends.write(f"question {number}\n".encode())
        pipes.sends.close()
        with BufferedReader(pipes.receives) as stream:
            received.extend(stream.readline() for _ in range(LINES))

    other = threading.Thread(target=write_all_then_read, daemon=True)
    other.start()
    asked = list[str]()
    while not reader.is_ended:
        for line in reader.read_lines(wait=True):
            asked.append(line)
            writer.write_line(f"answer to {line}, which is longer than the question")
    other.join(60)
    assert asked == [f"question {number}" for number in range(LINES)], "in the order in which they were sent"
    assert received[-1].startswith(f"answer to question {LINES - 1},".encode())


def test_a_closed_output_is_noticed(pipes: Pipes) -> None:
    pipes.receives.close()
    with pytest.raises(BrokenPipeError):
        LineWriter(LineReader(pipes.input_end.fileno()), pipes.output_end.fileno()).write_line("hello")


class InterruptedReader(LineReader):
    """A reader during whose work the next alarm rings."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.depth = self.deepest = 0

    def read_new_lines(self, *, wait: bool) -> list[str]:
        self.depth += 1
        self.deepest = max(self.deepest, self.depth)
        if self.depth < 3:
            signal.raise_signal(signal.SIGALRM)
        lines = super().read_new_lines(wait=wait)
        self.depth -= 1
        return lines


class Silent:
    def answer_line(self, line: str) -> str | None:
        return None

    def is_quit(self, line: str) -> bool:
        return False


def test_an_alarm_in_the_middle_of_another_ones_work_reads_nothing(pipes: Pipes) -> None:
    reader = InterruptedReader(pipes.input_end.fileno())
    pipes.sends.write(b"one\ntwo\n")
    responder = HandshakeResponder(reader, Silent())
    signal.raise_signal(signal.SIGALRM)
    responder.end()
    assert reader.deepest == 1
    assert [reader.read_lines(wait=False), reader.read_lines(wait=False)] == [["one"], ["two"]]


def test_an_alarm_that_is_late_does_not_ring_after_the_end(pipes: Pipes) -> None:
    """On a busy machine a thread may take it from the kernel only then; by itself it would end the process."""
    heard = list[int]()
    usual = signal.signal(signal.SIGALRM, lambda number, frame: heard.append(number))
    try:
        responder = HandshakeResponder(LineReader(pipes.input_end.fileno()), Silent())
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        signal.pthread_kill(threading.get_ident(), signal.SIGALRM)
        responder.end()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        assert not heard
    finally:
        signal.signal(signal.SIGALRM, usual)
