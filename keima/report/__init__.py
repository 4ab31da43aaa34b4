"""The observers of a run: the terminal, and the files that a run leaves.

Observers read reports and can be taken away one by one.
"""

import io
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO, TypeVar, cast

from keima.base.reports.run_reports import Observer, report_event
from keima.base.run_folder import PROGRESS_NAME, STATS_NAME
from keima.report.files.progress_file import ProgressFile
from keima.report.files.run_files import (
    EVENTS_FOLDER,
    METRICS_NAME,
    EventFile,
    MetricsFile,
    StatsFile,
    read_earlier_rows,
)
from keima.report.files.trackers import Tracker
from keima.report.terminal.live import ROWS_KEPT, LiveView, TerminalConsole
from keima.report.terminal.plain import PlainLines

logger = logging.getLogger(__name__)
T = TypeVar("T")


def make_observers(
    run_dir: Path,
    *,
    name: str,
    game: str,
    stream: TextIO | None = None,
    terminal: Observer | None = None,
    trackers: Sequence[str] = (),
) -> list[Observer]:
    """Return the observers of a new or resumed run; their failures never stop it.

    Args:
        run_dir: the run's folder, where the files go.
        name: the run's name, for people.
        game: the game's name, for people.
        stream: by default standard output; shows a live view if it is a capable terminal, else lines.
        terminal: an observer for people, instead of these.
        trackers: that are also told, by name; see ``require_trackers``.
    """
    out = stream or sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="replace")  # a character that the terminal lacks must not end the program
    observers: list[Observer] = [
        StatsFile(run_dir / STATS_NAME),
        MetricsFile(run_dir / METRICS_NAME),
        EventFile(run_dir / EVENTS_FOLDER),
        ProgressFile(run_dir / PROGRESS_NAME),
        terminal or _terminal_observer(out, name=name, game=game, stats=run_dir / STATS_NAME),
    ]
    shown = [shield_observer(observer) for observer in observers]

    def log_event(text: str) -> None:
        logger.warning("%s", text)
        report_event(shown, text)

    return [*shown, *(shield_observer(Tracker(tracker, run_dir, log_event=log_event)) for tracker in trackers)]


def _terminal_observer(stream: TextIO, *, name: str, game: str, stats: Path) -> Observer:
    console = TerminalConsole(file=stream, highlight=False)
    if stream.isatty() and console.is_terminal and not console.is_dumb_terminal:
        earlier = read_earlier_rows(stats, last=ROWS_KEPT)
        return LiveView(name=name, game=game, console=console, earlier=earlier)
    return PlainLines(stream)


def shield_observer(observer: T) -> T:
    """Log an observer's first failure and ignore the rest: a full disk or a closed terminal must not end a run."""
    return cast(T, _ShieldedObserver(observer))


class _ShieldedObserver:
    """Passes every call on to an observer, whatever its methods."""

    def __init__(self, observer: object) -> None:
        self._observer, self._warned = observer, False

    def __getattr__(self, name: str) -> Callable[..., None]:
        method = getattr(self._observer, name)

        def call(*arguments: object) -> None:
            try:
                method(*arguments)
            except Exception as error:
                self._warn(error)

        return call

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            unforeseen = not isinstance(error, OSError)
            what = type(self._observer).__name__
            logger.warning("%s failed, training continues: %s", what, error, exc_info=error if unforeseen else None)
