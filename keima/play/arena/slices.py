"""Divides the games of a benchmark into slices, each played by its own process.

The processes are forked from a server that has imported PyTorch (keima/base/system/processes.py), so the next match
begins at once. Each sends lines through a pipe: its progress, and in a last line marked as complete, the games.
"""

import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from keima.base.system.processes import Connection, open_pipe, start_process
from keima.networks.inference.evaluator import use_threads

PRELOADED = "keima.play.arena.preload"  # by the server of processes
ERROR_CHARACTERS = 2000  # of a failed process
END_SECONDS = 2.0  # for processes to end their engines
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

Report = Callable[[JobStatus], None]
Play = Callable[[AnyJob, Report], AnyLine]  # plays a job; returns the last line


# In the process that has games played.


def play_jobs(
    play: Play[AnyJob, AnyLine],
    jobs: Sequence[AnyJob],
    nothing: AnyLine,
    on_progress: Callable[[Sequence[AnyLine]], None],
) -> list[AnyLine]:
    """Play all jobs at once; returns the last line of each.

    Args:
        play: a function of a module that plays a job.
        jobs: what is to be played.
        nothing: the line of a job that has not begun.
        on_progress: called with the latest line of each job whenever there is a new one.

    Raises:
        SliceFailed: a process ended before its games did.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        children = [stack.enter_context(_SliceProcess(play, job, nothing)) for job in jobs]
        stack.callback(_end_together, children)
        for child in children:
            selector.register(child.output, selectors.EVENT_READ, child)
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.read_line():
                    selector.unregister(key.fileobj)
            on_progress([child.line for child in children])
        return [child.line for child in children]


def _end_together(children: Sequence["_SliceProcess[Any, Any]"]) -> None:
    """Give all processes a moment to end their engines."""
    for child in children:
        child.terminate()
    until = time.monotonic() + END_SECONDS
    for child in children:
        child.wait(max(0.0, until - time.monotonic()))


class _SliceProcess(Generic[AnyJob, AnyLine]):
    """A process that plays a job."""

    def __init__(self, play: Play[AnyJob, AnyLine], job: AnyJob, nothing: AnyLine) -> None:
        self._play, self._job = play, job
        self.line = nothing

    def __enter__(self) -> Self:
        self.output, theirs = open_pipe()
        with theirs:
            self._process = start_process(
                play_in_process, (self._play, self._job, theirs), preload=PRELOADED, name="slice", by=signal.SIGKILL
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()
        self.output.close()

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait for its end, not longer than so many seconds."""
        self._process.join(seconds)

    def read_line(self) -> bool:
        """Read the next line; False at the end.

        Raises:
            SliceFailed: the process has ended before its games did.
        """
        try:
            said = self.output.recv()
        except EOFError:
            self._process.join()
            if not self.line.complete:
                raise SliceFailed(f"a playing process has failed: exit code {self._process.exitcode}") from None
            return False
        if isinstance(said, str):
            raise SliceFailed(f"a playing process has failed: {said}")
        self.line = said
        return True


# In the processes that play.


def play_in_process(play: Play[AnyJob, AnyLine], job: AnyJob, output: Connection) -> None:
    """Play a job on one core, and send its lines, or why it failed. SIGTERM ends its engines, too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    use_threads(1)
    try:
        output.send(play(job, output.send))
    except KeyboardInterrupt:  # Ctrl-C reaches all processes of a terminal: the program says what it means
        return
    except Exception:
        output.send(traceback.format_exc()[-ERROR_CHARACTERS:].strip())


class ProgressReporter:
    """Reports a job's progress at intervals."""

    def __init__(self, report: Report) -> None:
        self._report, self._reported = report, time.monotonic()

    def report_if_due(self, line: Callable[[], JobStatus]) -> None:
        """Send a line if a report is due."""
        if time.monotonic() - self._reported >= REPORT_SECONDS:
            self._reported = time.monotonic()
            self._report(line())
