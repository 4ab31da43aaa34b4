"""Number formats, sparklines and tables that all views share.

Lines are laid out here rather than by ``rich.table``, which wraps cells where a column should be dropped, and is slow
for a screen that is redrawn repeatedly while the same cores play games.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from keima.base.reports.worker_status import ClusterStatus, WorkerState
from keima.config.own_modules import stem_of

Row = TypeVar("Row")

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = 2  # blanks between columns
FILE_WIDTH = 200  # columns of output that is not a terminal
# Named colours that stay readable on dark and on light terminals.
TITLE, FAINT, GOOD, NOTICE, BAD = "bold", "dim", "green", "magenta", "bold red"


def game_title(name: str, options: Mapping[str, Any]) -> str:
    """Return a game's display name: a user's file without the digits of its content, an OpenSpiel game by OpenSpiel's
    name.
    """
    return str(options["game"]) if name == "openspiel" else stem_of(name)


def format_options(options: Mapping[str, Any]) -> str:
    """Return a game's options in words: size: 9, komi: 7.0."""
    return ", ".join(f"{name}: {value}" for name, value in options.items())


def format_count(number: float) -> str:
    """Return a count in at most six characters: 9,999, 12.3k, 4.56M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= max(0.9995 * size, 9999.5):
            digits = 2 if abs(number) < 9.995 * size else 1 if abs(number) < 99.95 * size else 0
            return f"{number / size:.{digits}f}{letter}"
    return f"{number:,.0f}"


def format_rate(number: float) -> str:
    """Return a rate or other small quantity with three digits: 0.05, 4.56, 12.3, 123."""
    if not math.isfinite(number) or abs(number) >= 99.95:
        return format_count(number)
    return f"{number:.2f}" if abs(number) < 9.995 else f"{number:.1f}"


def cluster_metrics(cluster: ClusterStatus) -> tuple[str, str, str, str]:
    """Return the four metrics of a cluster, each with its name and unit: Games/second: 145.2."""
    sync = cluster.network.sync_seconds
    count = sum(worker.state is WorkerState.SYNCING for worker in cluster.workers)
    syncing = f", {count} syncing" if count else ""  # they may play on meanwhile
    return (
        f"Games/second: {cluster.games_per_second:.1f}",
        f"Workers active: {cluster.active}/{cluster.total}{syncing}",
        f"Model sync time: {'-' if sync is None else f'{sync:.1f}s'}",
        f"Network usage: {cluster.network.network_mb_per_minute:.1f} MB/min",
    )


def games_so_far(here: int, wanted: int) -> str:
    """Return the games received of those wanted; surplus games count towards later iterations."""
    more = f", {here - wanted:,} more are here" if here > wanted else ""
    return f"{min(here, wanted):,} of {wanted:,} games{more}"


def format_percent(share: float, margin: float | None = None) -> str:
    """Return a share as a percentage, with half the width of its interval: 4.1 ± 0.8 %."""
    return f"{100 * share:.1f} %" if margin is None else f"{100 * share:.1f} ± {100 * margin:.1f} %"


def format_score(score: float, margin: float | None = None) -> str:
    """Return a score with half the width of its interval: 12,345 ± 678, or 0.42 ± 0.03, with two digits of it."""
    fine = margin or abs(score)
    digits = 0 if fine >= 10 or score == round(score) and not margin else min(9, 1 - math.floor(math.log10(fine)))
    return f"{score:,.{digits}f}" if margin is None else f"{score:,.{digits}f} ± {margin:,.{digits}f}"


def format_elo(elo: float, margin: float | None = None) -> str:
    """Return an Elo rating with half the width of its interval: 812 ± 40."""
    return f"{elo:,.0f}" if margin is None else f"{elo:,.0f} ± {margin:,.0f}"


def format_elo_gain(elo: float, margin: float | None = None) -> str:
    """Return a difference in Elo with half the width of its interval: +120 ± 30."""
    return f"{elo:+,.0f}" if margin is None else f"{elo:+,.0f} ± {margin:,.0f}"


def format_return(value: float, margin: float | None = None) -> str:
    """Return a mean return, from -1 to 1, with half the width of its interval: +0.42 ± 0.08."""
    return f"{value:+.2f}" if margin is None else f"{value:+.2f} ± {margin:.2f}"


def format_time_left(seconds: float) -> str:
    """Return a run's remaining time in words."""
    return f"about {format_duration(seconds)} left" if seconds > 0 else "time is up; this is the last iteration"


def format_duration(seconds: float) -> str:
    """Return a span of time in its two largest units: 42 s, 12 min 05 s, 3 h 07 min, 2 d 04 h."""
    if not math.isfinite(seconds):
        return "?"
    whole = round(max(seconds, 0))
    for size, unit, part, part_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02d} {part_unit}"
    return f"{whole} s"


def format_short_rate(games: float) -> str:
    """Return a rate in at most six characters."""
    return f"{games:.1f}" if games < 1000 else f"{games:.0f}"


def format_short_duration(seconds: float) -> str:
    """Return a span of time in at most six characters: 7s, 4m, 3h20m."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}h{minutes:02}m" if hours < 100 else f"{hours // 24}d"


def format_size(number: float) -> str:
    """Return a number of bytes in megabytes or gigabytes (10^6 and 10^9)."""
    return f"{format_rate(number / 1e9)} GB" if number >= 1e9 else f"{format_rate(number / 1e6)} MB"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the finite values as a row of at most ``width`` blocks from the least to the greatest; neighbours share a
    block by their mean.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    size = min(len(known), width)
    if size < 1:
        return ""
    edges = [len(known) * i // size for i in range(size + 1)]
    means = [sum(known[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    if span == 0:
        return BLOCKS[3] * size
    return "".join(BLOCKS[round((mean - low) / span * (len(BLOCKS) - 1))] for mean in means)


def progress_bar(done: float, wanted: float, width: int) -> Text:
    """Return a progress bar."""
    filled = round(width * min(max(done / wanted, 0.0), 1.0)) if wanted > 0 else 0
    return Text("█" * filled, GOOD) + Text("░" * (width - filled), FAINT)


def spread_line(left: Text, right: Text, width: int) -> Text:
    """Return ``left`` and ``right`` at the two ends of a line; where it is too short, ``left`` is truncated."""
    room = width - right.cell_len - 1
    if room < 1:
        return left
    start = left.copy()
    start.truncate(room, overflow="ellipsis", pad=True)
    return start + Text(" ") + right


@dataclass(frozen=True, kw_only=True)
class Column(Generic[Row]):
    """A column of a table; one whose cells are all empty is not shown."""

    title: str
    cell: Callable[[Row], str]
    rank: int = 0  # if the line is too short, columns of the highest rank are dropped first; rank 0 stays
    left: bool = False  # aligned to the left
    claim: int = 1000  # cells that it may take from other columns
    style: Callable[[Row], str] | None = None  # of a cell
    help: str = ""  # an explanation, in a sentence


def table_lines(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> list[Text]:
    """Return a line of titles and one line per row, at most ``width`` wide."""
    cells = {column: [column.cell(row) for row in rows] for column in columns}
    shown = [column for column in columns if any(cells[column]) or not rows]
    widths = {column: max(map(cell_len, [column.title, *cells[column]])) for column in shown}
    while sum(min(widths[column], column.claim) + GAP for column in shown) - GAP > width and any(
        column.rank for column in shown
    ):
        last = max(reversed(shown), key=lambda column: column.rank)
        shown = [column for column in shown if column is not last]
    titles = Text(style=FAINT)
    for column in shown:
        titles.append(_align(column.title, widths[column], column.left) + " " * GAP)
    lines = [titles]
    for i, row in enumerate(rows):
        line = Text()
        for column in shown:
            style = column.style(row) if column.style else ""
            line.append(_align(cells[column][i], widths[column], column.left), style).append(" " * GAP)
        lines.append(line)
    for line in lines:
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
    return lines


def _align(text: str, width: int, left: bool) -> str:
    return set_cell_size(text, width) if left else " " * (width - cell_len(text)) + text
