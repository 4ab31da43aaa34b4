"""Who watches a run: the terminal, and the files that it leaves.

Observers read reports and can be taken away one by one.
"""

import io
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from training.common.reports import IterationReport, Observer, ProgressReport
from training.common.run_folder import STATS_NAME
from views.files import EVENTS_FOLDER, METRICS_NAME, EventFile, MetricsFile, StatsFile, earlier_rows
from views.live import LiveView, TerminalConsole
from views.plain import PlainLines

logger = logging.getLogger(__name__)


def make_observers(
    run_dir: Path, *, name: str, game: str, stream: TextIO | None = None, terminal: Observer | None = None
) -> list[Observer]:
    """The observers of a run, new or taken up again; none of them can stop it by failing.

    Args:
        run_dir: the run's folder, where the files go. name: the run's name, for people. game: the game's name, for
        people. stream: where people look, by default the standard output: a live view if it is a terminal that can show
        one, else lines. terminal: who shows the run to people, instead.
    """
    out = stream or sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="replace")  # a character that the terminal lacks is no reason to fail
    earlier = earlier_rows(run_dir / STATS_NAME)
    observers: list[Observer] = [
        StatsFile(run_dir / STATS_NAME),
        MetricsFile(run_dir / METRICS_NAME),
        EventFile(run_dir / EVENTS_FOLDER),
        terminal or _terminal_observer(out, name=name, game=game, earlier=earlier),
    ]
    return [shielded(observer) for observer in observers]


def _terminal_observer(stream: TextIO, *, name: str, game: str, earlier: Sequence[IterationReport]) -> Observer:
    console = TerminalConsole(file=stream, highlight=False)
    if stream.isatty() and console.is_terminal and not console.is_dumb_terminal:
        return LiveView(name=name, game=game, console=console, earlier=earlier)
    return PlainLines(stream)


def shielded(observer: Observer) -> Observer:
    """``observer``, whose failures are logged once and otherwise ignored: a full disk or a closed terminal must not end
    a run.
    """
    return _Shielded(observer)


class Shield:
    """Carries out what an observer is told to do, and logs its first failure."""

    def __init__(self, observer: object) -> None:
        self._name = type(observer).__name__
        self._warned = False

    def __call__(self, tell: Callable[[], None]) -> None:
        """Let the observer do it."""
        try:
            tell()
        except Exception as error:
            if self._warned:
                return
            self._warned = True
            unforeseen = not isinstance(error, OSError)
            logger.warning("%s failed, training goes on: %s", self._name, error, exc_info=unforeseen)


class _Shielded:
    def __init__(self, observer: Observer) -> None:
        self._observer, self._try = observer, Shield(observer)

    def progress(self, report: ProgressReport) -> None:
        self._try(lambda: self._observer.progress(report))

    def iteration(self, report: IterationReport) -> None:
        self._try(lambda: self._observer.iteration(report))

    def event(self, text: str) -> None:
        self._try(lambda: self._observer.event(text))

    def close(self) -> None:
        self._try(self._observer.close)
