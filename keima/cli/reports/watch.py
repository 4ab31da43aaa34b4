"""Watch a run from another terminal, or over SSH: its results, its speed, and the time left.

    keima watch runs/connect_four
    keima watch --file runs/connect_four/training_stats.json --simple
    keima watch runs/connect_four --once

The screen (or, with --simple, one line per iteration) follows the file until Ctrl-C. "Search err" is the share of
positions in which search's move throws away what perfect play would get, "Policy err" the same for the network's first
choice without search. Elo is relative to a random player at 0. Metrics that were not measured are left out.
"""

import argparse
import os
import pwd
import select
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

if __name__ == "__main__":
    from keima.base.system.signals import exit_quietly_on_interrupt

    exit_quietly_on_interrupt()

from keima.base.run_folder import STATS_NAME, find_stats_of_board, name_run, stats_path
from keima.base.system.command_line import CommandLine, program_name
from keima.base.system.signals import handle_interrupts
from keima.base.system.start import parse_before_imports


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ``path`` is the statistics file that it names."""
    parser = CommandLine(__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="the run's folder, or its name if it is in runs/"
    )
    which.add_argument("--file", type=Path, metavar="FILE", help="its training_stats.json, or the folder")
    parser.add_argument("--simple", action="store_true", help="plain lines, for slow connections and for pipes")
    parser.add_argument("--once", action="store_true", help="show the current state and exit")
    args = parser.parse_args(argv)
    args.path = stats_path(args.file or args.run)
    return args


def check_inputs(args: argparse.Namespace) -> None:
    """Check that there is something to watch.

    Raises:
        ValueError: there is nothing.
    """
    with suppress(PermissionError):  # reported later, with a remedy
        if problem := missing_text(args.path):
            raise ValueError(problem)


def missing_text(path: Path) -> str:
    """Return what is missing, or an empty text; a run's file may appear later, but not its folder."""
    if not path.parent.is_dir() or (not path.exists() and path.name != STATS_NAME):
        return f"there is no {path}: name a run's folder, such as runs/connect_four, or the {STATS_NAME} in it"
    return ""


if __name__ == "__main__":
    parse_before_imports(parse, check_inputs)

from rich.console import Console
from rich.live import Live

from keima.base.file_stamp import FileStamp
from keima.base.reports.formats import format_duration
from keima.base.reports.run_reports import ProgressReport
from keima.base.run_lock import LOCK, is_held
from keima.report.files.run_files import StatsRow, UnreadableStats, read_stats
from keima.report.tables import ScreenFrame
from keima.report.terminal.live import ROWS_KEPT
from keima.report.terminal.plain import iteration_line

POLL_SECONDS = 1.0
LINES_AT_FIRST = 10  # iterations that --simple prints first
RECENT = 8  # iterations over which their duration is averaged
STALL_FACTOR, STALL_SECONDS = 3, 60  # an iteration is late after three usual durations, but not before a minute


class WatchConsole(Console):
    """A console that leaves a broken pipe to the caller."""

    def on_broken_pipe(self) -> None:
        """Raise it; rich would end the program as failed.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError


class WatchedStats:
    """A run's statistics file, read again whenever it changes; while it cannot be read, its last rows stay.

    While the run is on a smaller board, the file is that of its board.
    """

    def __init__(self, path: Path) -> None:
        self._given = self.path = path
        self.rows: list[StatsRow] = []
        self.problem = ""
        self.unreadable = ""  # the problem, if it is one of permissions
        self.written = 0.0  # seconds since 1970
        self._seen: FileStamp | None = None

    def poll(self) -> None:
        """Read the file if it has changed, or is that of another board."""
        if (path := find_stats_of_board(self._given)) != self.path:
            self.path, self.rows = path, []
        try:
            seen = FileStamp.of(self.path)
            if seen == self._seen:
                return
            self._seen, self.rows, self.problem = seen, read_stats(self.path, last=ROWS_KEPT), ""
            self.written = seen.written
        except FileNotFoundError:
            self._seen, self.problem = None, f"{self.path} is not there yet: it appears after the first iteration"
        except PermissionError:
            self.problem = self.unreadable = unreadable_text(self.path)
        except (OSError, UnreadableStats) as error:
            self.problem = str(error)

    def seconds_since_iteration(self) -> float:
        """Return the seconds since the last iteration ended."""
        return max(time.time() - self.written, 0.0)

    def has_finished(self) -> bool:
        """Return whether the run has reached its planned end."""
        last = self.rows[-1]
        return last.iteration == last.iterations or (
            last.seconds_left is not None and last.seconds_left <= POLL_SECONDS
        )

    def notice_text(self) -> str:
        """Return what the reader should know about the metrics, or an empty text."""
        if self.problem or not self.rows or self.has_finished():
            return self.problem
        folder, when = self._given.parent, f"{datetime.fromtimestamp(self.written):%Y-%m-%d %H:%M:%S}"
        if (folder / LOCK).exists() and not is_held(folder):
            return f"The run has stopped before its end: its last iteration ended {when}; --resume continues it."
        if len(self.rows) < 2:
            return ""
        recent = self.rows[-RECENT:]
        usual = (recent[-1].seconds - recent[0].seconds) / (len(recent) - 1)
        if self.seconds_since_iteration() < max(STALL_FACTOR * usual, STALL_SECONDS):
            return ""
        return f"No new iteration since {when}; the last ones took {format_duration(usual)} each."


def make_screen(stats: WatchedStats) -> ScreenFrame:
    """Return the screen of a terminal."""
    name = name_run(stats.path.parent)
    if not stats.rows:
        return ScreenFrame(name=name, game="", note=stats.notice_text())
    last = stats.rows[-1]
    done = "finished" if stats.has_finished() else "done"
    now = ProgressReport(
        phase=f"{done} {format_duration(stats.seconds_since_iteration())} ago",
        iteration=last.iteration,
        iterations=last.iterations,
        seconds=last.seconds,
        seconds_left=None
        if last.seconds_left is None
        else max(last.seconds_left - stats.seconds_since_iteration(), 0.0),
        total_games=last.total_games,
        games_wanted=0,
        games_here=0,
        games_per_second=last.self_play.games_per_second,
        evaluations_per_second=sum(worker.evaluations_per_second for worker in last.workers),
        window_positions=last.window_positions,
        model_version=last.model_version,
        workers=last.workers,
    )
    return ScreenFrame(name=name, game="", now=now, rows=stats.rows, note=stats.notice_text())


def watch_screen(stats: WatchedStats, console: Console) -> None:
    """Redraw the screen until the terminal is closed."""
    with Live(get_renderable=lambda: make_screen(stats), console=console, screen=True, auto_refresh=False) as live:
        while not reader_is_gone(console):
            live.refresh()
            time.sleep(POLL_SECONDS)
            stats.poll()


def watch_lines(stats: WatchedStats, console: Console) -> None:
    """Write a line for each new iteration and each new note, until the reader is gone."""
    shown, noted = write_lines(stats.rows[-LINES_AT_FIRST:], console), ""
    while not reader_is_gone(console):
        note = stats.notice_text()
        if note and note != noted:
            console.out(note, highlight=False)
        noted = note
        time.sleep(POLL_SECONDS)
        stats.poll()
        new = [row for row in stats.rows if row.iteration > shown]
        # A run resumed from its last checkpoint repeats iterations: go back with it.
        shown = write_lines(new, console) or min(shown, stats.rows[-1].iteration if stats.rows else 0)


def reader_is_gone(console: Console) -> bool:
    """Return whether the reader has closed the output, as when an SSH connection ends."""
    try:
        output = console.file.fileno()
    except (OSError, ValueError):  # no file of the system's
        return False
    watcher = select.poll()
    watcher.register(output, 0)
    return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in watcher.poll(0))


def unreadable_text(path: Path) -> str:
    """Return the message about a file that this user may not read."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    remedy = f"run this program as the user who trains, or ask them to allow it (chmod o+rX {path.parent})"
    return f"{path} may not be read by {user}: {remedy}"


def write_lines(rows: Sequence[StatsRow], console: Console) -> int:
    """Write a line per iteration; returns the last one's number, or 0."""
    for row in rows:
        console.out(iteration_line(row, row.iterations), highlight=False)
    return rows[-1].iteration if rows else 0


@handle_interrupts
def main(argv: Sequence[str] | None = None) -> int:
    """Watch until Ctrl-C; returns the exit code: 2 if there is nothing to watch."""
    args = parse(argv)
    console, stats = WatchConsole(highlight=False), WatchedStats(args.path)
    stats.poll()
    problem = stats.unreadable or missing_text(stats.path) or unwatchable_reason(stats, once=args.once)
    if problem:
        print(f"{program_name()}: {problem}", file=sys.stderr)
        return 2
    if args.once and args.simple:
        write_lines(stats.rows[-LINES_AT_FIRST:], console)
    elif args.once:
        console.print(make_screen(stats))
    else:
        follow_run(stats, console, lines=args.simple or not console.is_terminal)
    return 0


def unwatchable_reason(stats: WatchedStats, *, once: bool) -> str:
    """Return why there is nothing to watch yet, or an empty text."""
    if once and not stats.rows:
        return stats.problem or f"{stats.path} holds no iterations yet"
    return ""


def follow_run(stats: WatchedStats, console: Console, *, lines: bool) -> None:
    """Watch until Ctrl-C, or until the reader is gone."""
    try:
        (watch_lines if lines else watch_screen)(stats, console)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at its end


if __name__ == "__main__":
    sys.exit(main())
