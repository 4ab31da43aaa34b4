"""What programs that play games show while they play."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from keima.base.reports.formats import FILE_WIDTH, format_duration

LINE_SECONDS = 30.0  # between two lines of progress where there is no terminal


class ShowProgress(Protocol):
    """Receives a player's progress."""

    def __call__(self, ended: int, moves: int, result: str = "") -> None:
        """Show finished games, moves made, and the score so far."""


@contextmanager
def show_progress(name: str, games: int, console: Console) -> Iterator[ShowProgress]:
    """Show a player's progress within the block; without a terminal, by occasional lines."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[moves]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task, last_line = bar.add_task(name, total=games, moves=""), time.monotonic()

        def follow(ended: int, moves: int, result: str = "") -> None:
            nonlocal last_line
            said = f"{result}{moves:,} moves"
            bar.update(task, completed=ended, moves=said)
            if not console.is_terminal and time.monotonic() - last_line >= LINE_SECONDS:
                last_line = time.monotonic()
                console.print(f"{name}: {ended} of {games} games, {said}", soft_wrap=True)

        yield follow


class ShowTime(Protocol):
    """Receives how much of the time has passed."""

    def __call__(self, seconds: float, text: str) -> None:
        """Show the seconds, and what is known."""


@contextmanager
def show_time(name: str, limit: float, console: Console) -> Iterator[ShowTime]:
    """Show how much of the time has passed within the block; without a terminal, by occasional lines."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task, last_line = bar.add_task(name, total=limit, text=""), time.monotonic()

        def follow(seconds: float, text: str) -> None:
            nonlocal last_line
            said = f"{format_duration(seconds)} of {format_duration(limit)}, {text}"
            bar.update(task, completed=seconds, text=said)
            if not console.is_terminal and time.monotonic() - last_line >= LINE_SECONDS:
                last_line = time.monotonic()
                console.print(f"{name}: {said}", soft_wrap=True)

        yield follow


def line_width(console: Console) -> int:
    """Return the width of a line."""
    return console.width if console.is_terminal else FILE_WIDTH


def print_lines(lines: Sequence[Text], console: Console) -> None:
    """Print a table."""
    for line in lines:
        console.print(line, soft_wrap=True)
