"""A run's files as JSON: the curves of its iterations, and its state now.

The files are read again only where they changed, and nothing is written. Curves come from metrics.jsonl, the state from
progress.json and, read-only, from the ledger. A run of PPO has its rounds in training_stats.json, and no ledger.
"""

import logging
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keima.base.disk_words import error_text
from keima.base.file_stamp import FileStamp, stamp_of
from keima.base.run_folder import LEDGER_NAME, PROGRESS_NAME, STATS_NAME, find_board_folder
from keima.base.run_lock import LOCK, is_held
from keima.base.system.disk_space import free_disk_bytes
from keima.data.ledger import read_ledger
from keima.ppo.rounds import Round, read_rounds
from keima.report.charts.run_charts import make_calibration_charts, make_ppo_charts, make_run_charts
from keima.report.cost import Cost, compute_cost
from keima.report.files.progress_file import LiveState, UnreadableProgress, read_progress
from keima.report.files.run_files import METRICS_NAME, read_metrics
from keima.report.metrics import METRICS, PPO_METRICS, Metric, MetricValues, make_columns
from keima.web.run_state import (
    describe_last_iteration,
    describe_ledger,
    describe_ppo_run,
    describe_progress,
    newest_events,
)

log = logging.getLogger(__name__)

LEDGER_FILES = (LEDGER_NAME, f"{LEDGER_NAME}-wal")
TABLE_ROWS = 50
UNREADABLE = (ValueError, OSError, sqlite3.Error)  # what reading a damaged run raises


class RunReader:
    """Reads a run; may be used by several threads."""

    def __init__(self, folder: Path) -> None:
        self._run_dir = folder
        self.name = folder.resolve().name
        self._read: tuple[FileStamp | None, list[MetricValues], Cost] = (None, [], compute_cost([]))
        self._rounds_read: tuple[FileStamp | None, list[Round]] = (None, [])
        self._curves: tuple[str, dict[str, Any]] = ("", {})

    @property
    def folder(self) -> Path:
        """The folder of the board that the run is on."""
        return find_board_folder(self._run_dir)

    def read_stamps(self) -> tuple[str, str]:
        """Return what changes whenever the curves, and whenever the state, have changed."""
        folder = self.folder
        live = [stamp_of(folder / name) for name in (PROGRESS_NAME, LOCK, *LEDGER_FILES)]
        iterations = stamp_of(folder / METRICS_NAME) or stamp_of(folder / STATS_NAME)
        return repr(iterations), f"{live} {self._is_running()} {'' if live[-2] else iterations}"

    def read_curves(self) -> dict[str, Any]:
        """Return the charts, the metrics of all iterations by column, and the newest iterations as a table."""
        stamp, (known, found) = self.read_stamps()[0], self._curves
        if stamp != known:
            found = self._compute_curves()
            self._curves = stamp, found
        return found

    def _compute_curves(self) -> dict[str, Any]:
        if rounds := self._read_rounds():
            return make_ppo_charts(self.name, rounds).as_json() | table_of_newest_rows(PPO_METRICS, rounds)
        rows, _ = self._read_iterations()
        return make_run_charts(self.name, rows).as_json() | table_of_newest_rows(METRICS, rows)

    def read_calibration(self) -> dict[str, Any]:
        """Return the chart of search's calibration in the newest games. Loads the game's compiled rules.

        Raises:
            ValueError, OSError, sqlite3.Error: there is no such run, it is damaged, or this program does not play it.
        """
        from keima.report.charts.calibration import (
            measure_calibration,  # compiled rules: 140 MB, for those who look at it
        )

        bins = measure_calibration(self.folder, log_event=log.warning)
        return make_calibration_charts(self.name, bins).as_json()

    def read_state(self) -> dict[str, Any]:
        """Read the state now, as the files have it."""
        if rounds := self._read_rounds():
            return describe_ppo_run(self.name, rounds, stamp_of(self.folder / STATS_NAME))
        live, problems = self._read_live_state()
        found: dict[str, Any] = {"name": self.name, "running": self._is_running()}
        found |= {"game": "", "accounts": [], "events": []}
        try:
            with read_ledger(self.folder) as ledger, ledger.read_snapshot():
                found |= describe_ledger(ledger)
        except UNREADABLE as error:
            problems.append(error_text(error))
        rows, cost = self._read_iterations()
        if live:
            found |= describe_progress(
                live.report, rows, cost, running=found["running"], disk_free=free_disk_bytes(self.folder)
            )
            found["events"] = newest_events(found["events"], live.events)
        elif rows:
            found["metrics"] = describe_last_iteration(rows[-1])
        return found | {"problems": problems}

    def _is_running(self) -> bool:
        return (self._run_dir / LOCK).exists() and is_held(self._run_dir)

    def _read_live_state(self) -> tuple[LiveState | None, list[str]]:
        if not self.folder.is_dir():
            return None, [f"{self.folder} is gone"]
        try:
            return read_progress(self.folder / PROGRESS_NAME), []
        except FileNotFoundError:  # a run of an earlier version, or one that is about to begin
            return None, []
        except (UnreadableProgress, OSError) as error:
            return None, [error_text(error)]

    def _read_iterations(self) -> tuple[list[MetricValues], Cost]:
        path = self.folder / METRICS_NAME
        seen, (known, rows, cost) = stamp_of(path), self._read
        if seen != known:
            rows = read_metrics(path)
            cost = compute_cost(rows)
            self._read = seen, rows, cost  # at once, for other threads
        return rows, cost

    def _read_rounds(self) -> list[Round]:
        """Read the rounds of a PPO run, which has no ledger; none for another run."""
        if (self.folder / LEDGER_NAME).exists():
            return []
        path = self.folder / STATS_NAME
        seen, rounds = stamp_of(path), self._rounds_read[1]
        if seen != self._rounds_read[0]:
            try:
                rounds = read_rounds(path) or []
            except OSError:
                rounds = []
            self._rounds_read = seen, rounds
        return rounds


def table_of_newest_rows(metrics: Sequence[Metric], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the last rows as a table, the newest first, and how many there are in all."""
    last = rows[: -TABLE_ROWS - 1 : -1]
    shown = [column for column in make_columns(metrics) if any(column.cell(row) for row in last)]
    return {
        "table": {
            "titles": [{"title": column.title, "help": column.help} for column in shown],
            "rows": [[column.cell(row) for column in shown] for row in last],
        },
        "iterations": len(rows),
    }
