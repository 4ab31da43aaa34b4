"""The run on one screen of the terminal, redrawn about once a second.

The alternate screen is used, in which every frame covers the whole terminal: changes of its size and other programs'
output last no longer than until the next frame.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from rich.console import Console
from rich.live import Live

from keima.base.reports.run_reports import IterationReport, ProgressReport
from keima.report.tables import ScreenFrame

FRAME_SECONDS = 0.25  # the least time between two frames
ROWS_KEPT, EVENTS_KEPT = 2000, 100


class TerminalConsole(Console):
    """A console whose lost terminal is an ``OSError``, not the end of the program."""

    def on_broken_pipe(self) -> None:
        """Let the caller decide."""
        raise BrokenPipeError("the terminal is closed")


class LiveView:
    """Draws the run on a terminal; once that is gone, drawing raises ``OSError`` once and then does nothing."""

    def __init__(
        self,
        *,
        name: str,
        game: str,
        console: Console,
        earlier: Sequence[IterationReport] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over the screen at the first report; ``earlier`` are the iterations of earlier sessions."""
        self._rows = [replace(row, workers=()) for row in earlier[-ROWS_KEPT:]]
        self._events: list[str] = []
        self._frame = ScreenFrame(name=name, game=game, rows=self._rows, events=self._events)
        self._clock = clock
        self._drawn = -math.inf
        self._live = Live(
            console=console,
            get_renderable=lambda: self._frame,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._lost = False

    def progress(self, report: ProgressReport) -> None:
        """Draw the current state."""
        self._frame = replace(self._frame, now=report)
        self._draw()

    def iteration(self, report: IterationReport) -> None:
        """Add an iteration."""
        before = [row for row in self._rows if row.iteration < report.iteration]
        self._rows[:] = [*before, replace(report, workers=())][-ROWS_KEPT:]
        self._draw()

    def event(self, text: str) -> None:
        """Add an event."""
        self._events.append(f"{datetime.now():%H:%M:%S} {text}")
        del self._events[:-EVENTS_KEPT]
        self._draw()

    def close(self) -> None:
        """Restore the screen, leaving the last frame on the terminal."""
        if self._live.is_started and not self._lost:
            self._live.stop()
            self._live.console.print(self._frame)

    def _draw(self) -> None:
        if self._lost or self._clock() - self._drawn < FRAME_SECONDS:
            return
        self._drawn = self._clock()
        try:
            self._live.start()  # does nothing the second time
            self._live.refresh()
        except OSError:
            self._lost = True
            raise
