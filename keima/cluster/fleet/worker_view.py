"""A worker as people see it, from its connection's snapshot, its heartbeat and the balancer's decision."""

from keima.cluster.fleet.balancer import Decision
from keima.cluster.fleet.fleet_view import WorkerView
from keima.cluster.fleet.remote_worker import WorkerSnapshot
from keima.cluster.fleet.worker_state import Mark, WorkerState
from keima.coach.backends.assignments import GamesAccount


def worker_view(
    snapshot: WorkerSnapshot,
    state: WorkerState,
    now: float,
    *,
    machine: str,
    leaving: bool,
    account: GamesAccount,
    decision: Decision | None,
    refused: str,
    weight: float,
    sent: int,
    received: int,
) -> WorkerView:
    """Return the view of a worker.

    Args:
        snapshot: the worker's state, from its connection.
        state: its state now.
        now: the time by the connection's clock.
        machine: the machine it plays on.
        leaving: whether the machine is being removed.
        account: the worker's games.
        decision: the balancer's decision; None: there is none yet.
        refused: why its last batch was refused; empty: it was accepted.
        weight: the machine's weight in the config.
        sent: bytes of files to the machine so far.
        received: bytes of files from it.
    """
    heartbeat = snapshot.heartbeat
    plays = state.mark not in (Mark.ERROR, Mark.OFFLINE) and heartbeat is not None
    match = "plays evaluation games" if heartbeat and heartbeat.order and plays else ""
    notes = ["is being removed" if leaving else "", match, heartbeat.note if heartbeat else ""]
    blamed = bool(refused) and state.mark in (Mark.ACTIVE, Mark.SYNCING)
    return WorkerView(
        name=snapshot.name,
        machine=machine,
        mark=Mark.ERROR if blamed else state.mark,
        since=now - state.since,
        reason=refused if blamed else state.reason,
        model_version=state.model_version,
        games_per_second=heartbeat.games_per_second if plays and heartbeat else 0.0,
        evaluations_per_second=heartbeat.evaluations_per_second if plays and heartbeat else 0.0,
        outstanding=account.granted - account.delivered,
        share=decision.share if decision else 0.0,
        weight=weight,
        last_batch=None if snapshot.last_batch is None else now - snapshot.last_batch,
        note="; ".join(note for note in notes if note),
        sent=sent,
        received=received,
        disk_free=heartbeat.disk_free if heartbeat else None,
        core_hours=heartbeat.core_hours if heartbeat else 0.0,
    )
