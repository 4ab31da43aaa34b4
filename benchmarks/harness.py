"""What all benchmarks share: the command line, turns, ratios with intervals, and tables.

    parser = Parser(__doc__, rounds=5, seconds=1.0)
    parser.option("--simulations", whole(), 64, quick=8, help="of a search")
    arguments = parser.parse()
    with Report(arguments) as report:
        table = report.table("Moves/s", "game", "ours", "theirs", "ratio")
        ours, theirs = measure_rates([play, play_theirs], rounds=arguments.rounds, seconds=arguments.seconds)
        table.add("go9", median(ours), median(theirs), divide_rounds(ours, theirs))

A way of working is a function that does some work and returns how much. Ways take turns: whatever else the machine does
disturbs all of them, so their ratio means something where their rates do not. Times are processor times unless a
benchmark says otherwise.
"""

import argparse
import importlib
import json
import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

from keima.base.system.machine import describe_machine
from keima.config.flags import number, whole

Way = Callable[[], float]  # does some work, and returns how much
Clock = Callable[[], float]
Cell = str | float | tuple[float, ...] | None

CONFIDENCE = 0.95
NARROWEST, FIRST = 9, 26  # characters of a column, and of the first one


class Parser(argparse.ArgumentParser):
    """The command line of a benchmark, with --rounds, --seconds, --quick and --json.

    Args:
        text: the help's text, such as the program's docstring.
        rounds: how many turns each way has; None: there are no turns.
        seconds: how long a turn is; None: as long as its work.
    """

    def __init__(self, text: str | None, *, rounds: int | None = None, seconds: float | None = None) -> None:
        super().__init__(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._defaults_of: dict[str, tuple[Any, Any]] = {}
        if rounds is not None:
            self.option("--rounds", whole(), rounds, quick=min(rounds, 2), help="turns of each way")
        if seconds is not None:
            self.option("--seconds", number(above=0), seconds, quick=0.05, help="of each turn")
        self.add_argument("--quick", action="store_true", help="little and short, to see that it works")
        self.add_argument("--json", type=Path, metavar="FILE", help="write the tables there too")

    def option(
        self, flag: str, kind: Callable[[str], Any] | Collection[str], full: Any, *, quick: Any = None, help: str
    ) -> None:
        """Add a flag of a type or with texts to choose from; it has several values if its default is a list."""
        several = isinstance(full, list | tuple)
        default = " ".join(map(str, full)) if several else full
        read: dict[str, Any] = {"type": kind} if callable(kind) else {"choices": sorted(kind)}
        nargs = "+" if several else None
        action = self.add_argument(flag, nargs=nargs, help=f"{help} (default: {default})", **read)
        self._defaults_of[action.dest] = full, full if quick is None else quick

    def parse(self) -> argparse.Namespace:
        """Read the command line."""
        arguments = self.parse_args()
        for name, defaults in self._defaults_of.items():
            if getattr(arguments, name) is None:
                setattr(arguments, name, defaults[arguments.quick])
        return arguments


def measure_rate(work: Way, seconds: float, clock: Clock = time.process_time) -> float:
    """Repeat work for some seconds, and return how much was done per second."""
    done, began = 0.0, clock()
    while (took := clock() - began) < seconds or not done:
        done += work()
    return done / took


def take_turns(turns: Sequence[Callable[[], Any]], rounds: int) -> list[list[Any]]:
    """Call each function once a round, and return the answers of each; the order is reversed after each round."""
    answers: list[list[Any]] = [[] for _ in turns]
    for number_of_round in range(rounds):
        for place in range(len(turns))[:: -1 if number_of_round % 2 else 1]:
            answers[place].append(turns[place]())
    return answers


def measure_rates(
    ways: Sequence[Way], *, rounds: int, seconds: float, clock: Clock = time.process_time
) -> list[list[float]]:
    """Let ways take turns, and return each one's rates, a rate for each round.

    Before that, each has worked once, so that it is compiled and its memory allocated.
    """
    for way in ways:
        way()
    return take_turns([partial(measure_rate, way, seconds, clock) for way in ways], rounds)


def time_call(call: Callable[[], object], clock: Clock = time.process_time) -> float:
    """Return the seconds of a call."""
    began = clock()
    call()
    return clock() - began


class Ratio(NamedTuple):
    """A figure with its 95 % interval, such as the median of the rounds' ratios."""

    middle: float
    low: float
    high: float


def divide_rounds(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """Divide the figures of each round, the first by the second."""
    return find_median([one / other for one, other in zip(first, second, strict=True)])


def find_median(values: Sequence[float]) -> Ratio:
    """Return the median of values with its 95 % interval by order statistics.

    Fewer than six values have no such interval; theirs reaches from the lowest to the highest.
    """
    ordered, count, cut, outside = sorted(values), len(values), 0, 0.0
    while (outside := outside + math.comb(count, cut) / 2**count) <= (1 - CONFIDENCE) / 2:
        cut += 1
    least = max(cut - 1, 0)
    return Ratio(median(ordered), ordered[least], ordered[-1 - least])


def format_cell(value: Cell) -> str:
    """Return a cell's text."""
    if value is None or value != value:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, Ratio):
        return f"{format_cell(value.middle)} ({format_cell(value.low)} to {format_cell(value.high)})"
    if isinstance(value, tuple):
        return ", ".join(map(format_cell, value))
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


class Table:
    """A table that is printed as Markdown, row by row."""

    def __init__(self, title: str, columns: Sequence[str]) -> None:
        self.title, self.columns = title, columns
        self.rows: list[tuple[Cell, ...]] = []
        print(f"\n{title}\n")
        self._print(columns)
        print(f"|{'|'.join('-' * (self._width(place) + 2) for place in range(len(columns)))}|", flush=True)

    def add(self, *cells: Cell) -> None:
        """Print a row: a text, numbers, several numbers, a ``Ratio``; None where there is nothing."""
        self.rows.append(cells)
        self._print([format_cell(cell) for cell in cells])

    def _width(self, place: int) -> int:
        return max(NARROWEST if place else FIRST, len(self.columns[place]))

    def _print(self, texts: Sequence[str]) -> None:
        cells = (text.ljust(self._width(i)) if i == 0 else text.rjust(self._width(i)) for i, text in enumerate(texts))
        print(f"| {' | '.join(cells)} |", flush=True)


class Report:
    """The tables of a benchmark; at the end of its block they are written to the file of --json."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments, self._tables, self._began = arguments, list[Table](), time.monotonic()
        self.machine = describe_machine()
        print(", ".join(f"{name} {value}" for name, value in self.machine.items()))
        if arguments.quick:
            print("--quick: the figures say nothing.")

    def table(self, title: str, *columns: str) -> Table:
        """Begin a table."""
        self._tables.append(Table(title, columns))
        return self._tables[-1]

    def __enter__(self) -> Self:
        """Return the report."""
        return self

    def __exit__(self, *what: object) -> None:
        """Write the file."""
        seconds = time.monotonic() - self._began
        print(f"\n{seconds:.0f} s")
        if self._arguments.json:
            content = {
                "machine": self.machine,
                "arguments": {name: str(value) for name, value in vars(self._arguments).items()},
                "tables": [vars(table) for table in self._tables],
                "seconds": seconds,
            }
            self._arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def processor_seconds(pid: int | None) -> float:
    """Return the processor time that a process has used so far, all its threads together.

    Raises:
        OSError: there is no such process; None is none.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime


def import_if_installed(name: str, package: str) -> Any:
    """Return a module to compare with; without it None, after saying how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{package} is not installed, so only our own figures follow: pip install {package}")
        return None
