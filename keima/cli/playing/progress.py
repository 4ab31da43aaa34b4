"""What programs that play games show while they play."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
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
    with _show_bar(name, games, [MofNCompleteColumn()], [TimeElapsedColumn()], console) as update:

        def follow(ended: int, moves: int, result: str = "") -> None:
            said = f"{result}{moves:,} moves"
            update(ended, said, f"{ended} of {games} games, {said}")

        yield follow


class ShowTime(Protocol):
    """Receives how much of the time has passed."""

    def __call__(self, seconds: float, text: str) -> None:
        """Show the seconds, and what is known."""


@contextmanager
def show_time(name: str, limit: float, console: Console) -> Iterator[ShowTime]:
    """Show how much of the time has passed within the block; without a terminal, by occasional lines."""
    with _show_bar(name, limit, [], [], console) as update:

        def follow(seconds: float, text: str) -> None:
            said = f"{format_duration(seconds)} of {format_duration(limit)}, {text}"
            update(seconds, said, said)

        yield follow


@contextmanager
def _show_bar(
    name: str, total: float, before: Sequence[ProgressColumn], after: Sequence[ProgressColumn], console: Console
) -> Iterator[Callable[[float, str, str], None]]:
    """Show a bar with columns before and after its text. What is yielded takes how much is complete, the text, and the
    line that stands for both where there is no terminal.
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *before)
    columns = (*columns, TextColumn("{task.fields[text]}", markup=False), *after)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task, last_line = bar.add_task(name, total=total, text=""), time.monotonic()

        def update(completed: float, text: str, line: str) -> None:
            nonlocal last_line
            bar.update(task, completed=completed, text=text)
            if not console.is_terminal and time.monotonic() - last_line >= LINE_SECONDS:
                last_line = time.monotonic()
                console.print(f"{name}: {line}", soft_wrap=True)

        yield update


def line_width(console: Console) -> int:
    """Return the width of a line."""
    return console.width if console.is_terminal else FILE_WIDTH


def print_lines(lines: Sequence[Text], console: Console) -> None:
    """Print a table."""
    for line in lines:
        console.print(line, soft_wrap=True)
