"""A worker as people see it, from what its link, its heartbeat and the balancer say."""

from distributed.fleet.balancer import Decision
from distributed.fleet.remote_worker import WorkerReport
from distributed.fleet.views import WorkerView
from distributed.fleet.worker_state import Mark, WorkerState
from training.run.assignments import GamesAccount


def worker_view(
    report: WorkerReport,
    state: WorkerState,
    now: float,
    *,
    machine: str,
    leaving: bool,
    account: GamesAccount,
    decision: Decision | None,
    refused: str,
    weight: float,
) -> WorkerView:
    """How a worker stands.

    Args:
        seat: as its link has reported it.
        state: its state now.
        now: by the link's clock.
        machine: where it plays.
        leaving: whether the machine is being removed.
        account: games granted to it, and delivered by it.
        decision: on its share; None: none has been made.
        refused: why the last batch of it was; empty when it was good.
        weight: of its machine, in the config.
    """
    heartbeat = report.heartbeat
    plays = state.mark not in (Mark.ERROR, Mark.OFFLINE) and heartbeat is not None
    match = "plays evaluation games" if heartbeat and heartbeat.order and plays else ""
    notes = ["is being removed" if leaving else "", match, heartbeat.note if heartbeat else ""]
    blamed = bool(refused) and state.mark in (Mark.ACTIVE, Mark.SYNCING)
    return WorkerView(
        name=report.name,
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
        last_batch=None if report.last_batch is None else now - report.last_batch,
        note="; ".join(note for note in notes if note),
    )
