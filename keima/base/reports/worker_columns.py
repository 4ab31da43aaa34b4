"""The columns of workers: one table for status.txt, the terminal and the dashboard."""

from collections.abc import Callable
from dataclasses import dataclass

from keima.base.reports.formats import (
    BAD,
    FAINT,
    GOOD,
    NOTICE,
    Column,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_short_duration,
    format_short_rate,
    format_size,
)
from keima.base.reports.text import printable_line
from keima.base.reports.worker_status import WorkerStatus

STATE_STYLES = {
    **{"playing": GOOD, "evaluating": GOOD, "waiting": NOTICE, "starting": NOTICE, "error": BAD, "ended": FAINT},
    **{"Active": GOOD, "Syncing": NOTICE, "Error": BAD, "Offline": FAINT},
}


@dataclass(frozen=True, kw_only=True)
class StatusFileColumn:
    """A column of status.txt, where a line has 80 cells."""

    title: str
    width: int  # in cells
    cell: Callable[[WorkerStatus], str]


@dataclass(frozen=True, kw_only=True)
class WorkerColumn(Column[WorkerStatus]):
    """A column of workers, and where it is shown."""

    in_terminal: bool = True
    in_card: bool = True  # of the dashboard
    in_status_file: StatusFileColumn | None = None  # None: it is not there


def displayed_state(worker: WorkerStatus) -> str:
    """Return the state of a worker on another machine, or the activity of a process on this machine."""
    return worker.state.value if worker.state else worker.activity


def _style_of_state(worker: WorkerStatus) -> str:
    return STATE_STYLES.get(displayed_state(worker), "")


# A cell of what a worker does not have is empty.
WORKER_COLUMNS = (
    WorkerColumn(title="Worker", cell=lambda worker: printable_line(worker.name), left=True, in_card=False),
    WorkerColumn(
        title="State",
        cell=lambda worker: printable_line(displayed_state(worker)),
        left=True,
        style=_style_of_state,
        in_card=False,
    ),
    WorkerColumn(
        title="Share",
        cell=lambda worker: format_percent(worker.share) if worker.state else "",
        rank=1,
        in_status_file=StatusFileColumn(title="share", width=7, cell=lambda worker: f"{worker.share:.1%}"),
    ),
    WorkerColumn(
        title="Games/s",
        cell=lambda worker: format_rate(worker.games_per_second),
        in_status_file=StatusFileColumn(
            title="games/s", width=8, cell=lambda worker: format_short_rate(worker.games_per_second)
        ),
    ),
    WorkerColumn(title="Evals/s", cell=lambda worker: format_count(worker.evaluations_per_second), rank=1),
    WorkerColumn(
        title="Model",
        cell=lambda worker: str(worker.model_version),
        rank=2,
        in_status_file=StatusFileColumn(
            title="model", width=8, cell=lambda worker: f"{worker.model_version}" if worker.model_version else "-"
        ),
    ),
    WorkerColumn(
        title="Last batch",
        cell=lambda worker: "" if worker.last_batch is None else f"{format_duration(worker.last_batch)} ago",
        rank=3,
        in_status_file=StatusFileColumn(
            title="batch",
            width=10,
            cell=lambda worker: "-" if worker.last_batch is None else f"{format_short_duration(worker.last_batch)} ago",
        ),
    ),
    WorkerColumn(title="Games", cell=lambda worker: format_count(worker.games), rank=2),
    WorkerColumn(
        title="Outstanding",
        cell=lambda worker: format_count(worker.outstanding),
        rank=3,
        in_status_file=StatusFileColumn(title="grant", width=9, cell=lambda worker: f"{worker.outstanding}"),
    ),
    WorkerColumn(
        title="Core hours",
        cell=lambda worker: format_rate(worker.core_hours) if worker.core_hours else "",
        in_terminal=False,
    ),
    WorkerColumn(title="Sent", cell=lambda worker: format_size(worker.sent) if worker.state else "", in_terminal=False),
    WorkerColumn(
        title="Received", cell=lambda worker: format_size(worker.received) if worker.state else "", in_terminal=False
    ),
    WorkerColumn(
        title="Disk free",
        cell=lambda worker: "" if worker.disk_free is None or not worker.state else format_size(worker.disk_free),
        in_terminal=False,
    ),
    WorkerColumn(
        title="Error",
        cell=lambda worker: printable_line(worker.error),
        left=True,
        claim=16,
        style=lambda worker: BAD,
        in_card=False,
    ),
)
