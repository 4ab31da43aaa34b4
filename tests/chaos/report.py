"""The record of a campaign: every fault, how long it took to be noticed and to be over, and the Coach's health."""

import json
import os
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.faults import Kind


@dataclass(kw_only=True)
class Event:
    """One fault. Times are seconds since the campaign began."""

    number: int
    fault: str
    host: str  # empty: the main node
    at: float
    load: float  # of this machine, when it happened
    # Other faults of this host or of the main node during this one.
    beside: list[str] = field(default_factory=list)
    lasted: float | None = None  # seconds until it was undone
    noticed: float | None = None  # seconds until it was shown, if it must be and lasted long enough
    recovered: float | None = None  # seconds from the end of all faults there until its worker was Active for good


@dataclass(frozen=True, kw_only=True)
class Health:
    """The Coach's process at one time."""

    at: float
    memory_mb: float
    files: int  # open
    threads: int
    disk_mb: float  # of the main node
    games: int  # in the ledger


@dataclass(kw_only=True)
class Report:
    """A whole campaign."""

    seed: int
    hosts: int
    seconds: float = 0.0
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    events: list[Event] = field(default_factory=list)
    health: list[Health] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def load(self) -> tuple[float, float]:
        """Return the median and the highest load."""
        loads = [event.load for event in self.events] or [0.0]
        return statistics.median(loads), max(loads)

    def summary(self) -> dict[str, dict[str, Any]]:
        """Return for each kind of fault, and for all: the count, and the median and longest time until noticed and
        recovered.
        """
        rows: dict[str, dict[str, Any]] = {}
        for name in ["all", *sorted({event.fault for event in self.events})]:
            events = [event for event in self.events if name in ("all", event.fault)]
            noticed = [event.noticed for event in events if event.noticed is not None]
            recovered = [event.recovered for event in events if event.recovered is not None]
            rows[name] = {"count": len(events), "noticed": _spread(noticed), "recovered": _spread(recovered)}
        return rows

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        content = asdict(self) | {"load": self.load, "summary": self.summary()}
        path.write_text(json.dumps(content, indent=1) + "\n")

    def show(self, console: Console) -> None:
        """Print the summary."""
        table = Table(box=None, header_style="dim", pad_edge=False)
        for title in ("fault", "count", "noticed", "median s", "max s", "recovered", "median s", "max s"):
            table.add_column(title, justify="left" if title == "fault" else "right")
        for name, row in self.summary().items():
            table.add_row(name, str(row["count"]), *_cells(row["noticed"]), *_cells(row["recovered"]))
        console.print(table)
        median, most = self.load
        faults = f"{len(self.events)} faults on {self.hosts} hosts in {self.seconds:.0f} s"
        console.print(f"{faults}; load {median:.1f}, at most {most:.1f}")
        console.print(", ".join(f"{name}: {count:,}" for name, count in self.totals.items()))
        if self.health:
            first, last = self.health[0], self.health[-1]
            console.print(
                f"Coach: {first.memory_mb:.0f} to {last.memory_mb:.0f} MB, {first.files} to {last.files} files, "
                f"{first.threads} to {last.threads} threads; disk {first.disk_mb:.0f} to {last.disk_mb:.0f} MB"
            )
        for note in self.notes:
            console.print(f"Note: {note}", markup=False)
        for problem in self.problems:
            console.print(f"Problem: {problem}", markup=False, style="red")


def line(event: Event, kind: Kind) -> str:
    """Return one line about a fault that is over."""
    figures = [
        f"{event.at:7.1f} s  {event.fault:20} {event.host or 'main node':10}",
        f"lasted {event.lasted:5.1f}" if kind.lasts and event.lasted is not None else " " * 12,
        f"noticed {event.noticed:5.1f}" if event.noticed is not None else " " * 13,
        f"recovered {event.recovered:5.1f}" if event.recovered is not None else "",
    ]
    return "  ".join(figures) + (f"  with {', '.join(event.beside)}" if event.beside else "")


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"count": len(values), "median": round(statistics.median(values), 2), "max": round(max(values), 2)}


def _cells(spread: dict[str, float] | None) -> list[str]:
    return [f"{spread['count']:.0f}", f"{spread['median']:.1f}", f"{spread['max']:.1f}"] if spread else ["-", "-", "-"]
