"""A run's files as JSON: the curves of its iterations, and its state now.

The files are read again only where they changed, and nothing is written. Curves come from metrics.jsonl, the state from
progress.json and, read-only, from the ledger.
"""

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.common.disk_words import in_words
from training.common.reports import WorkerReport
from training.common.run_folder import LEDGER_NAME
from training.common.run_lock import LOCK, is_held
from training.data.ledger import Ledger, read_ledger
from training.data.ledger_rows import WorkerAccount
from views.charts import count, duration, game_title, games_so_far, rate, time_left
from views.files import METRICS_NAME
from views.metrics import METRICS, columns
from views.plain import figures_of
from views.progress_file import PROGRESS_NAME, LiveState, UnreadableProgress, read_progress
from views.run_charts import Figures, run_charts
from views.views import MACHINES, WORKER_COLUMNS

LEDGER_FILES = (LEDGER_NAME, f"{LEDGER_NAME}-wal")
TABLE_ROWS = 50
EVENTS_SHOWN = 50
UNREADABLE = (ValueError, OSError, sqlite3.Error)  # what reading a damaged run raises


@dataclass(frozen=True)
class Stamp:
    """What tells one content of a file from another; a missing file has none."""

    file: int
    size: int
    changed: int

    @staticmethod
    def of(path: Path) -> "Stamp | None":
        """The stamp of a file."""
        try:
            status = path.stat()
        except OSError:
            return None
        return Stamp(status.st_ino, status.st_size, status.st_mtime_ns)


class RunReader:
    """Reads a run; may be used by several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.resolve().name
        self._read: tuple[Stamp | None, list[Figures]] = (None, [])

    def stamps(self) -> tuple[str, str]:
        """What changes whenever the curves, and whenever the state, have changed."""
        live = [Stamp.of(self.folder / name) for name in (PROGRESS_NAME, LOCK, *LEDGER_FILES)]
        return repr(Stamp.of(self.folder / METRICS_NAME)), f"{live} {self._is_running()}"

    def curves(self) -> dict[str, Any]:
        """The charts, the figures of all iterations by column, and the newest iterations as a table."""
        rows = self._iterations()
        shown = [column for column in columns(METRICS) if any(column.cell(row) for row in rows[-TABLE_ROWS:])]
        return run_charts(rows) | {
            "table": {
                "titles": [{"title": column.title, "help": column.help} for column in shown],
                "rows": [[column.cell(row) for column in shown] for row in rows[: -TABLE_ROWS - 1 : -1]],
            },
            "iterations": len(rows),
        }

    def state(self) -> dict[str, Any]:
        """The state now, as the files have it."""
        live, problems = self._live()
        found: dict[str, Any] = {"name": self.name, "running": self._is_running()}
        found |= {"game": "", "accounts": [], "events": []}
        try:
            with read_ledger(self.folder) as ledger, ledger.one_moment():
                found |= ledger_state(ledger)
        except UNREADABLE as error:
            problems.append(in_words(error))
        if live:
            found |= live_state(live, running=found["running"])
            found["events"] = sorted([*found["events"], *live.events])
        elif rows := self._iterations():
            found["figures"] = last_figures(rows[-1])
        found["events"] = [[when, text] for when, text in found["events"][-EVENTS_SHOWN:]]
        return found | {"problems": problems}

    def _is_running(self) -> bool:
        return (self.folder / LOCK).exists() and is_held(self.folder)

    def _live(self) -> tuple[LiveState | None, list[str]]:
        if not self.folder.is_dir():
            return None, [f"{self.folder} is gone"]
        try:
            return read_progress(self.folder / PROGRESS_NAME), []
        except FileNotFoundError:  # a run of an earlier version, or one that is about to begin
            return None, []
        except (UnreadableProgress, OSError) as error:
            return None, [in_words(error)]

    def _iterations(self) -> list[Figures]:
        path = self.folder / METRICS_NAME
        seen, rows = Stamp.of(path), self._read[1]
        if seen != self._read[0]:
            rows = read_metrics(path)
            self._read = seen, rows  # at once, for other threads
        return rows


def read_metrics(path: Path) -> list[Figures]:
    """The iterations in metrics.jsonl; lines that are no object of numbers, such as an incomplete last one, are left
    out.
    """
    rows: list[Figures] = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and "iteration" in row:
            row["run/iteration"] = row["iteration"]
            rows.append({name: value for name, value in row.items() if type(value) in (int, float)})
    return rows


def ledger_state(ledger: Ledger) -> dict[str, Any]:
    """What the ledger says: the game, each worker's account, and what happened."""
    accounts = ledger.accounts()
    return {
        "game": game_title(ledger.game, ledger.options),
        "accounts": [account_of(account) for account in accounts.values()],
        "events": [(when, f"{worker}: {text}" if worker else text) for _, worker, text, when in ledger.events()],
    }


def account_of(account: WorkerAccount) -> dict[str, Any]:
    """A worker's account; granted games are the sum of all others."""
    return {
        name: getattr(account, name)
        for name in ("name", "granted", "received", "quarantined", "missing", "discarded", "outstanding")
    }


def live_state(live: LiveState, *, running: bool) -> dict[str, Any]:
    """What the Coach last said."""
    report = live.report
    planned = "" if report.iterations is None else f" of {report.iterations:,}"
    figures = [
        ("Iteration", f"{report.iteration:,}{planned}"),
        ("Elapsed", duration(report.seconds)),
        ("Left", time_left(report.seconds_left) if running and report.seconds_left is not None else ""),
        ("Games", f"{report.total_games:,}"),
        ("Games/s", rate(report.games_per_second) if running else ""),
        ("Evaluations/s", count(report.evaluations_per_second) if running else ""),
        ("Window", f"{count(report.window_positions)} positions"),
        ("Model", f"{report.model_version:,}"),
    ]
    return {
        "phase": report.phase if running else "ended",
        "games_so_far": games_so_far(report.games_here, report.games_wanted) if report.games_wanted > 0 else "",
        "figures": [[title, text] for title, text in figures if text],
        "cluster": figures_of(report),
        "workers": [card_of(worker) for worker in report.workers],
    }


def last_figures(row: Figures) -> list[list[str]]:
    """What the last iteration says of a run that has left no progress file."""
    shown = (
        ("Iteration", "iteration", count),
        ("Elapsed", "run/seconds", duration),
        ("Games", "run/total_games", count),
    )
    return [[title, show(row[name])] for title, name, show in shown if name in row]


def card_of(worker: WorkerReport) -> dict[str, Any]:
    """A worker: its mark, or its state on this machine, its figures, and what is wrong."""
    shown = MACHINES if worker.standing else WORKER_COLUMNS
    figures = [(column.title, column.cell(worker)) for column in shown[2:-1]]
    return {
        "name": worker.name,
        "mark": worker.standing.mark if worker.standing else worker.state,
        "figures": [[title, text] for title, text in figures if text],
        "error": worker.error,
    }
