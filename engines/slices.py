"""Divides the games of a benchmark into slices, each played by its own process.

Such a process is a module of this package, started with ``python -m``. It reads its job as JSON from the standard input
and writes lines of JSON to the standard output: its progress, and in a last line marked as complete, the games.
"""

import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from training.networks.evaluator import use_threads

PROJECT = Path(__file__).resolve().parents[1]
ERROR_CHARACTERS = 2000  # characters of a failed process
REPORT_SECONDS = 0.5  # between two lines of a process's progress


class SliceFailed(RuntimeError):
    """A playing process has failed; the text has its last output."""


class JobMessage(BaseModel):
    """A message between processes; unknown fields are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class JobStatus(JobMessage):
    """The status of a job."""

    ended: int  # games
    moves: int  # made in all
    complete: bool = False  # this is the last line, and has the games


AnyJob = TypeVar("AnyJob", bound=JobMessage)
AnyLine = TypeVar("AnyLine", bound=JobStatus)


# In the process that has games played.


def play_jobs(
    module: str, jobs: Sequence[JobMessage], nothing: AnyLine, on_progress: Callable[[Sequence[AnyLine]], None]
) -> list[AnyLine]:
    """Play all jobs at once; returns the last line of each.

    Args:
        module: the program that plays a job.
        nothing: the line of a job that has not begun.
        on_progress: called with the latest line of each job whenever there is a new one.

    Raises:
        SliceFailed: a process ended before its games did.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        children = [stack.enter_context(_Child(module, job, nothing)) for job in jobs]
        for child in children:
            selector.register(child.output, selectors.EVENT_READ, child)
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.listen():
                    selector.unregister(key.fileobj)
            on_progress([child.line for child in children])
        return [child.line for child in children]


class _Child(Generic[AnyLine]):
    """A process that plays a job."""

    def __init__(self, module: str, job: JobMessage, nothing: AnyLine) -> None:
        self._module, self._job = module, job
        self.line = nothing
        self._text = b""

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module], cwd=PROJECT, stdin=pipe, stdout=pipe, stderr=self._errors
        )
        assert self._process.stdin and self._process.stdout
        self.output = self._process.stdout
        self._process.stdin.write(self._job.model_dump_json().encode())
        self._process.stdin.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self.output.close()
        self._errors.close()

    def listen(self) -> bool:
        """Read new output; False at its end.

        Raises:
            SliceFailed: it has ended before its games did.
        """
        data = os.read(self.output.fileno(), 2**16)
        *lines, self._text = (self._text + data).split(b"\n")
        try:
            for line in lines:
                self.line = type(self.line).model_validate_json(line)
        except ValidationError as error:
            raise SliceFailed(f"a process said what cannot be understood: {error}") from error
        if not data and (self._process.wait() != 0 or not self.line.complete):
            raise SliceFailed(f"a process that played has failed: {self._last_words()}")
        return bool(data)

    def _last_words(self) -> str:
        self._errors.seek(0)
        return (
            self._errors.read()[-ERROR_CHARACTERS:].decode(errors="replace").strip()
            or f"exit code {self._process.returncode}"
        )


# In the processes that play.


class ProgressReporter:
    """Reports a job's progress at intervals."""

    def __init__(self) -> None:
        self._reported = time.monotonic()

    def maybe(self, line: Callable[[], JobStatus]) -> None:
        """Write a line if a report is due."""
        if time.monotonic() - self._reported >= REPORT_SECONDS:
            self._reported = time.monotonic()
            write_line(line())


def write_line(line: JobStatus) -> None:
    """Write a line."""
    sys.stdout.write(line.model_dump_json() + "\n")
    sys.stdout.flush()


def answer(kind: type[AnyJob], play: Callable[[AnyJob], JobStatus]) -> None:
    """Play the job from standard input, and write its result."""
    use_threads(1)
    write_line(play(kind.model_validate_json(sys.stdin.read())))
