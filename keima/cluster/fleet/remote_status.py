"""The status of a worker on another machine."""

from typing import Any

from keima.base.worker_status import WorkerState, WorkerStatus
from keima.cluster.fleet.tracked_worker import LOST_STATES, TrackedWorker
from keima.cluster.machines.machine import printable_start
from keima.worker.status import worker_status

MOST_ERROR = 1000  # characters
SILENT = {"games_per_second": 0.0, "evaluations_per_second": 0.0}


def remote_status(
    worker: TrackedWorker, now: float, *, leaving: bool = False, refused: str = "", **known: Any
) -> WorkerStatus:
    """Return the status of a worker.

    Args:
        worker: what its connection knows, as of now.
        now: the time by the connection's clock.
        leaving: whether its machine is being removed.
        refused: why its last batch was refused; empty: it was accepted.
        known: the other fields, which its connection does not know.
    """
    heartbeat, is_lost = worker.heartbeat, worker.state in LOST_STATES
    notes = ["is being removed" if leaving else "", heartbeat.note if heartbeat else ""]
    if heartbeat and heartbeat.order and not is_lost:
        notes.insert(1, "plays evaluation games")
    if is_lost:
        known |= {"activity": "error", "error": worker.reason[:MOST_ERROR], **SILENT}
    is_blamed = bool(refused) and not is_lost
    return worker_status(
        worker.name,
        heartbeat,
        **known | {"model_version": worker.model_version},
        state=WorkerState.ERROR if is_blamed else worker.state,
        since=now - worker.since,
        reason=printable_start(refused if is_blamed else worker.reason),
        note=printable_start("; ".join(note for note in notes if note)),
        last_batch=None if worker.last_batch is None else now - worker.last_batch,
    )
