"""The state of the cluster: status.txt for people, who ``watch -n 1 cat`` it in 80 columns, and status.json for
programs.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len, chop_cells, set_cell_size

from keima.base.files import read_limited, write_atomically
from keima.base.reports.formats import cluster_metrics, format_rate, format_short_duration, format_short_rate
from keima.base.reports.text import printable_line
from keima.base.reports.worker_columns import WORKER_COLUMNS
from keima.base.reports.worker_status import ClusterStatus, WorkerState, WorkerStatus
from keima.paths import workspace

log = logging.getLogger(__name__)

STATUS_FOLDER = workspace() / "distributed"
TEXT_NAME, JSON_NAME = "status.txt", "status.json"
JSON_LIMIT = 2**26  # bytes
TEXT_WIDTH = 80  # cells; an emoji takes two
INTERVAL_SECONDS = 1.0
MOST_IN_FULL = 12  # workers; beyond that, Active ones share lines and reasons are cut
CROWDED_REASON = 2  # lines
NAME_WIDTH = 22
COLUMNS = [column.in_status_file for column in WORKER_COLUMNS if column.in_status_file]
NOT_OF_A_CLUSTER = {"activity", "error", "games", "waiting", "state"}  # of a worker, and not in status.json
CELL = 26  # cells of an Active worker among many
SYMBOLS = {WorkerState.ACTIVE: "🟢", WorkerState.SYNCING: "🟡", WorkerState.ERROR: "🔴", WorkerState.OFFLINE: "⚪"}
WORST_FIRST = (WorkerState.ERROR, WorkerState.OFFLINE, WorkerState.SYNCING, WorkerState.ACTIVE)


class StatusFile:
    """The two files, replaced atomically, at most once a second.

    Args:
        folder: where they are written.
        title: the title, for people.
        clock: a monotonic clock in seconds.
        wall: returns seconds since 1970.
    """

    def __init__(
        self,
        folder: Path = STATUS_FOLDER,
        *,
        title: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._title, self._clock, self._wall = folder, title, clock, wall
        self._due = clock()
        self._failing = False

    def write_if_due(self, cluster: Callable[[], ClusterStatus]) -> None:
        """Write the state of the cluster if a second has passed; a full disk is logged and stops nothing."""
        if self._clock() >= self._due:
            self._due = self._clock() + INTERVAL_SECONDS
            self._write(cluster(), ended=False)

    def close(self, cluster: ClusterStatus) -> None:
        """Write the final state, and that the run has ended."""
        self._write(cluster, ended=True)

    def _write(self, cluster: ClusterStatus, *, ended: bool) -> None:
        now = self._wall()
        when = format_local_time(now)
        said = f"ended {when}" if ended else f"as of {when}, every {INTERVAL_SECONDS:.0f} s"
        text = status_text(cluster, title=self._title, when=said)
        values = {
            "time": now,
            "interval": INTERVAL_SECONDS,
            "title": self._title,
            "ended": ended,
            **status_as_json(cluster),
        }
        try:
            for name, content in ((TEXT_NAME, text), (JSON_NAME, json.dumps(values, ensure_ascii=False) + "\n")):
                write_atomically(self._folder / name, content.encode(), mode=0o644, durable=False)
        except OSError as error:
            if not self._failing:
                log.warning("%s cannot be written: %s", self._folder / TEXT_NAME, error)
            self._failing = True
        else:
            self._failing = False


def stale_since(folder: Path = STATUS_FOLDER) -> str | None:
    """Return when the status was last written if its Coach was killed; None if that ended cleanly or never ran."""
    try:
        values = json.loads(read_limited(folder / JSON_NAME, JSON_LIMIT))
        return None if values["ended"] else format_local_time(float(values["time"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def format_local_time(seconds: float) -> str:
    """Return a moment, in seconds since 1970, as text in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def status_as_json(cluster: ClusterStatus) -> dict[str, Any]:
    """Return the cluster's state for JSON; times are in seconds, ``sync_seconds`` and ``last_batch`` may be null."""
    return {
        **{name: getattr(cluster, name) for name in ("games_per_second", "active", "total", "core_hours")},
        **vars(cluster.network),
        "workers": [
            {name: value for name, value in vars(worker).items() if name not in NOT_OF_A_CLUSTER}
            | dict.fromkeys(("state", "mark"), remote_state(worker).value)  # "mark" for readers of before
            for worker in cluster.workers
        ],
    }


def status_text(cluster: ClusterStatus, shown: Sequence[WorkerStatus] | None = None, *, title: str, when: str) -> str:
    """Return lines of at most 80 cells: a header, then the workers, failing ones first.

    Args:
        cluster: all workers.
        shown: the workers to show; by default all.
        title: the title, for people.
        when: the time, in words.
    """
    lines = [*_header_lines(cluster, title, when), "", *_worker_lines(cluster.workers if shown is None else shown)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def remote_state(worker: WorkerStatus) -> WorkerState:
    """Return the state of a worker of a cluster, which all are on other machines."""
    assert worker.state is not None
    return worker.state


def _header_lines(cluster: ClusterStatus, title: str, when: str) -> list[str]:
    games, active, sync, network = cluster_metrics(cluster)
    half = TEXT_WIDTH // 2
    return [
        _align_left(_shorten_middle(f"Keima  {title}", TEXT_WIDTH - cell_len(when) - 2), TEXT_WIDTH - cell_len(when))
        + when,
        _align_left(games, half) + active,
        _align_left(sync, half) + network,
        f"Core hours: {format_rate(cluster.core_hours)}",
    ]


def _worker_lines(workers: Sequence[WorkerStatus]) -> list[str]:
    if not workers:
        return ["No workers: add one with keima cluster add HOST USER"]
    ordered = sorted(
        workers, key=lambda worker: WORST_FIRST.index(remote_state(worker))
    )  # otherwise in the config's order
    if len(ordered) <= MOST_IN_FULL:
        return [_title_line(), *(line for worker in ordered for line in _full_lines(worker, most=None))]
    failing = [worker for worker in ordered if worker.state is not WorkerState.ACTIVE]
    active = [worker for worker in ordered if worker.state is WorkerState.ACTIVE]
    if len(failing) > MOST_IN_FULL:
        return [*(_brief_line(worker) for worker in failing), *_active_lines(active)]
    lines = (
        [_title_line(), *(line for worker in failing for line in _full_lines(worker, most=CROWDED_REASON))]
        if failing
        else []
    )
    return lines + _active_lines(active)


def _title_line() -> str:
    titles = "".join(_align_right(column.title, column.width) for column in COLUMNS)
    return f"{'':10} {_align_left('worker', NAME_WIDTH)}{titles}"


def _full_lines(worker: WorkerStatus, *, most: int | None) -> list[str]:
    """Return a line with all metrics, and below it why the worker is not Active, or a note."""
    state, name = remote_state(worker), _align_left(_shorten_middle(worker.name, NAME_WIDTH), NAME_WIDTH)
    line = f"{SYMBOLS[state]} {state.value:7} {name}"
    line += "".join(_align_right(column.cell(worker), column.width) for column in COLUMNS)
    below = [f"for {format_short_duration(worker.since)}"] if worker.state is not WorkerState.ACTIVE else []
    below += [text for text in (printable_line(worker.reason), printable_line(worker.note)) if text]
    wrapped = wrap_text(": ".join(below), TEXT_WIDTH - 3)
    if most is not None and len(wrapped) > most:
        wrapped = [*wrapped[: most - 1], set_cell_size(wrapped[most - 1], TEXT_WIDTH - 5).rstrip() + " …"]
    return [line, *(f"   {part}" for part in wrapped)]


def _brief_line(worker: WorkerStatus) -> str:
    """Return a line with the time since the worker is not Active, and the start of the reason."""
    name, since = _shorten_middle(worker.name, NAME_WIDTH), format_short_duration(worker.since)
    line = f"{SYMBOLS[remote_state(worker)]} {remote_state(worker).value:7} {name} for {since}: "
    reason = printable_line(worker.reason)
    room = TEXT_WIDTH - cell_len(line)
    return line + (reason if cell_len(reason) <= room else set_cell_size(reason, room - 1).rstrip() + "…")


def _active_lines(active: Sequence[WorkerStatus]) -> list[str]:
    """Return Active workers in columns; status.json has all their metrics."""
    name_width = CELL - 3 - 15
    cells = []
    for each in active:
        name = _align_left(_shorten_middle(each.name, name_width), name_width)
        cells.append(
            _align_left(
                f"{SYMBOLS[remote_state(each)]} {name}{each.share:6.1%}{format_short_rate(each.games_per_second):>6}/s",
                CELL,
            )
        )
    across = TEXT_WIDTH // CELL
    title = [f"Active: worker, share, games/s (all metrics are in {JSON_NAME})"] if cells else []
    return title + ["".join(cells[start : start + across]) for start in range(0, len(cells), across)]


def wrap_text(text: str, width: int) -> list[str]:
    """Return the text in lines of at most ``width`` cells, broken between words if possible."""
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines += chop_cells(word, width)
    return lines


def _shorten_middle(text: str, width: int) -> str:
    """Return the text, with its middle left out if it is too wide: names differ at both ends."""
    if cell_len(text) <= width:
        return text
    half = (width - 1) // 2
    end = text[-half:]
    return set_cell_size(text, width - 1 - cell_len(end)).rstrip() + "…" + end


def _align_left(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _align_right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text
