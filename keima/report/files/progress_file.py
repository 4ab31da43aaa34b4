"""The state of a run between its iterations, for programs that watch it: progress.json."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    WrapSerializer,
)

from keima.base.files import read_limited, write_atomically
from keima.base.reports.run_reports import IterationReport, ProgressReport
from keima.base.reports.worker_records import worker_details

EVENTS_KEPT = 100
MOST_BYTES = 8 * 2**20  # thousands of workers


def _dump_report(report: ProgressReport, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
    """Return a report as in the file: ``standings`` and ``details`` of a cluster are by worker."""
    record: dict[str, Any] = dump(report)
    network, record["cluster"] = record.pop("network"), None
    if report.cluster:
        record["cluster"] = {
            "active": report.cluster.active,
            "total": report.cluster.total,
            **network,
            "standings": {worker["name"]: worker["standing"] for worker in record["workers"]},
            "details": {worker.name: worker_details(worker) for worker in report.workers},
        }
    return record


def _restore_details(record: Any) -> Any:
    """Return a report from the file, with its workers' details."""
    cluster = record.get("cluster") if isinstance(record, dict) else None
    if not isinstance(cluster, dict):
        return record
    details = cluster.get("details") or {}
    workers = [{**worker, "details": details.get(worker.get("name"))} for worker in record.get("workers") or ()]
    return {**record, "workers": workers, "network": {"model_version": record.get("model_version"), **cluster}}


@dataclass(frozen=True, kw_only=True)
class LiveState:
    """The content of the file."""

    written: float  # seconds since 1970
    report: Annotated[ProgressReport, BeforeValidator(_restore_details), WrapSerializer(_dump_report)]
    events: tuple[tuple[float, str], ...] = ()  # the newest last, with their times in seconds since 1970


# A number that is not finite is a string in the file ("NaN"), because JSON has none.
_STATES = TypeAdapter(list[LiveState], config=ConfigDict(ser_json_inf_nan="strings"))


class UnreadableProgress(ValueError):
    """A file is not a progress file."""


def read_progress(path: Path) -> LiveState:
    """Read the last state that the run has written.

    Raises:
        UnreadableProgress: it is not such a file.
        OSError: it is missing or may not be read.
    """
    try:
        (state,) = _STATES.validate_json(b"[" + read_limited(path, MOST_BYTES) + b"]")
        return state
    except ValidationError as error:
        raise UnreadableProgress(f"{path} is not a progress file: {error.errors()[0]['msg']}") from error
    except ValueError as error:
        raise UnreadableProgress(f"{path} is not a progress file: {error}") from error


class ProgressFile:
    """Writes the newest progress report to the file, with the newest events; a power cut may lose it."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._events: deque[tuple[float, str]] = deque(maxlen=EVENTS_KEPT)

    def progress(self, report: ProgressReport) -> None:
        """Replace the file."""
        state = LiveState(written=self._clock(), report=report, events=tuple(self._events))
        write_atomically(self._path, _STATES.dump_json([state])[1:-1], mode=0o644, durable=False)

    def iteration(self, report: IterationReport) -> None:
        """Do nothing: iterations are recorded elsewhere."""

    def event(self, text: str) -> None:
        """Add an event to the next report."""
        self._events.append((self._clock(), text))

    def close(self) -> None:
        """Do nothing: the last state remains in the file."""
