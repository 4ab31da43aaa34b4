"""Workers in a run's files. The keys are those of the first versions, so that all versions read each other's files."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from keima.base.reports.worker_status import WorkerStatus

KEYS = (  # an iteration records these, and of a worker on another machine REMOTE_KEYS too
    "name",
    "model_version",
    "games",
    "games_per_second",
    "evaluations_per_second",
    "outstanding",
    "waiting",
    "error",
    "core_hours",
)
REMOTE_KEYS = ("share", "last_batch")
DETAILS = ("machine", "since", "reason", "note", "sent", "received", "disk_free")  # in progress.json alone


def worker_record(worker: WorkerStatus) -> dict[str, Any]:
    """Return an iteration's record of a worker: ``state`` is its activity, and ``mark`` its state."""
    remote = {"mark": worker.state.value, **_select_fields(worker, REMOTE_KEYS)} if worker.state else None
    return {**_select_fields(worker, KEYS), "state": worker.activity, "standing": remote}


def worker_details(worker: WorkerStatus) -> dict[str, Any]:
    """Return the additional fields of a remote worker in progress.json."""
    return _select_fields(worker, DETAILS)


def parse_worker_record(record: Any) -> Any:
    """Return a worker's record, with or without its details, as the fields of a ``WorkerStatus``, and other keys, which
    validation leaves out.
    """
    if not isinstance(record, Mapping):
        return record
    remote, details = record.get("standing") or {}, record.get("details") or {}
    return {**record, **remote, **details, "activity": record.get("state"), "state": remote.get("mark")}


def _select_fields(worker: WorkerStatus, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(worker, name) for name in names}


RecordedWorker = Annotated[WorkerStatus, BeforeValidator(parse_worker_record), PlainSerializer(worker_record)]
