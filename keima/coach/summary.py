"""Combine reports: a worker's from heartbeat and account, a learner's from several parts."""

from collections.abc import Mapping, Sequence

from keima.base.reports import (
    MEANS,
    ClusterReport,
    GeneralizationReport,
    LearnerReport,
    RemoteStanding,
    WorkerReport,
)
from keima.coach.waiting import GATHERING
from keima.data.ledger_rows import WorkerAccount
from keima.worker.worker_folder import Heartbeat


def worker_report(
    name: str,
    heartbeat: Heartbeat | None,
    account: WorkerAccount,
    standing: RemoteStanding | None = None,
    *,
    end: int = 0,
) -> WorkerReport:
    """The report of one worker.

    Args:
        name: the worker's.
        heartbeat: its last.
        account: in the ledger.
        standing: of a worker on another machine.
        end: the number after the last game in its outbox.
    """
    return WorkerReport(
        name=name,
        state=_state(heartbeat),
        model_version=heartbeat.model_version if heartbeat else 0,
        games=account.received,
        games_per_second=heartbeat.games_per_second if heartbeat else 0.0,
        evaluations_per_second=heartbeat.evaluations_per_second if heartbeat else 0.0,
        outstanding=account.outstanding,
        waiting=max(0, end - account.next_game),
        error=heartbeat.error if heartbeat else "",
        core_hours=heartbeat.core_hours if heartbeat else 0.0,
        standing=standing,
    )


def _state(heartbeat: Heartbeat | None) -> str:
    if heartbeat is None:
        return "starting"
    return "evaluating" if heartbeat.state == "playing" and heartbeat.order else heartbeat.state


def worker_reports(
    heartbeats: Mapping[str, Heartbeat | None],
    accounts: Mapping[str, WorkerAccount],
    cluster: ClusterReport | None,
    ends: Mapping[str, int],
) -> tuple[WorkerReport, ...]:
    """The reports of all workers; ``ends`` has the number after the last game in each outbox."""
    standings = cluster.standings if cluster else {}
    return tuple(
        worker_report(
            name, heartbeat, accounts.get(name) or WorkerAccount(name=name), standings.get(name), end=ends.get(name, 0)
        )
        for name, heartbeat in heartbeats.items()
    )


def merge_reports(
    reports: Sequence[LearnerReport], generalization: GeneralizationReport | None = None
) -> LearnerReport:
    """Merge reports of consecutive steps: means weighted by steps, sums of counts, the last spike report.

    Args:
        reports: one or more.
        generalization: measured before them.
    """
    steps = sum(report.steps for report in reports)
    taken = [report.steps - report.skipped_steps for report in reports]
    all_taken = max(1, sum(taken))

    def mean(name: str) -> float:
        return float(
            sum(getattr(report, name) * weight for report, weight in zip(reports, taken, strict=True)) / all_taken
        )

    samples, seconds = sum(report.samples for report in reports), sum(report.seconds for report in reports)
    return LearnerReport(
        steps=steps,
        samples=samples,
        seconds=seconds,
        samples_per_second=samples / max(seconds, 1e-9),
        learning_rate=reports[-1].learning_rate,
        skipped_steps=sum(report.skipped_steps for report in reports),
        spikes=reports[-1].spikes,
        generalization=generalization,
        **{name: mean(name) for name in MEANS},
    )


def phase_of_all(phase: str, workers: Sequence[WorkerReport]) -> str:
    """The phase of the run; while it waits for games, what the workers are doing."""
    states = {worker.state for worker in workers}
    if phase != GATHERING or not states <= {"starting", "compiling"}:
        return phase
    return "compiling the search, once on this machine" if "compiling" in states else "starting the workers"
