"""A worker's status on the main node, from its heartbeat."""

from dataclasses import fields
from typing import Any

from keima.base.reports.worker_status import WorkerStatus
from keima.worker.worker_folder import Heartbeat

# What both have under one name, and with one meaning: a new field needs no line here, a property does.
OF_HEARTBEATS = {*Heartbeat.model_fields, "core_hours", "idle"} - {"state", "note"}
SAME = OF_HEARTBEATS & {each.name for each in fields(WorkerStatus)}


def worker_status(name: str, heartbeat: Heartbeat | None, **known: Any) -> WorkerStatus:
    """Return the status of a worker.

    Args:
        name: the worker's.
        heartbeat: its last one; None: it has sent none.
        known: what else is known of it; replaces what the heartbeat says.
    """
    if heartbeat is None:
        return WorkerStatus(name=name, **known)
    said = {"activity": activity_text(heartbeat), **{name: getattr(heartbeat, name) for name in SAME}}
    return WorkerStatus(name=name, **{**said, **known})


def activity_text(heartbeat: Heartbeat) -> str:
    """Return a worker's activity; a worker that plays a match is shown as such, although its process plays."""
    return "evaluating" if heartbeat.state == "playing" and heartbeat.job else heartbeat.state
