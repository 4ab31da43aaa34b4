"""The Coach's view of a worker on another machine: its heartbeat, and its status for people."""

from typing import Any

from keima.base.reports.worker_status import WorkerState, WorkerStatus
from keima.cluster.agent.commands import printable_start
from keima.cluster.fleet.tracked_worker import LOST_STATES, TrackedWorker
from keima.worker.status import worker_status
from keima.worker.worker_folder import Heartbeat

MOST_ERROR = 1000  # characters


def current_heartbeat(worker: TrackedWorker, run_id: str) -> Heartbeat | None:
    """Return the last heartbeat of a worker of a run; that of a worker that cannot play has the reason and no speed."""
    if worker.state not in LOST_STATES:
        return worker.heartbeat
    last = worker.heartbeat or Heartbeat(run_id=run_id, worker=worker.name, beat=0, pid=0, state="error")
    silent = {"games_per_second": 0.0, "evaluations_per_second": 0.0}
    return last.model_copy(update={"state": "error", "error": worker.reason[:MOST_ERROR], **silent})


def make_remote_status(
    worker: TrackedWorker,
    heartbeat: Heartbeat | None,
    now: float,
    *,
    leaving: bool = False,
    refused: str = "",
    **known: Any,
) -> WorkerStatus:
    """Return the status of a worker.

    Args:
        worker: what its connection knows, as of now.
        heartbeat: its ``current_heartbeat``.
        now: the time by the connection's clock.
        leaving: whether its machine is being removed.
        refused: why its last batch was refused; empty: it was accepted.
        known: the other fields, which its connection does not know.
    """
    is_lost = worker.state in LOST_STATES
    is_blamed = bool(refused) and not is_lost
    notes = [
        "is being removed" if leaving else "",
        "plays evaluation games" if heartbeat and heartbeat.job and not is_lost else "",
        heartbeat.note if heartbeat else "",
    ]
    return worker_status(
        worker.name,
        heartbeat,
        **known,
        model_version=worker.model_version,
        state=WorkerState.ERROR if is_blamed else worker.state,
        since=now - worker.since,
        reason=printable_start(refused if is_blamed else worker.reason),
        note=printable_start("; ".join(note for note in notes if note)),
        last_batch=None if worker.last_batch is None else now - worker.last_batch,
    )
