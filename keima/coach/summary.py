"""Combine reports: a worker's status from heartbeat and account, a learner's report from several parts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from keima.base.reports.run_reports import (
    MEANS,
    GeneralizationReport,
    LearnerReport,
)
from keima.base.reports.worker_status import ClusterStatus, WorkerStatus
from keima.coach.waiting import GATHERING
from keima.data.ledger_rows import WorkerAccount
from keima.worker.status import worker_status
from keima.worker.worker_folder import Heartbeat


def worker_statuses(
    heartbeats: Mapping[str, Heartbeat | None],
    accounts: Mapping[str, WorkerAccount],
    cluster: ClusterStatus | None,
    ends: Mapping[str, int],
) -> tuple[WorkerStatus, ...]:
    """Return the statuses of all workers, with their games.

    Args:
        heartbeats: the last one of each.
        accounts: of each in the ledger.
        cluster: what is known of workers on other machines.
        ends: the number after the last game in each outbox.
    """
    far = {worker.name: worker for worker in cluster.workers} if cluster else {}
    found = []
    for name, heartbeat in heartbeats.items():
        account = accounts.get(name) or WorkerAccount(name=name)
        found.append(
            replace(
                far.get(name) or worker_status(name, heartbeat),
                games=account.received,
                outstanding=account.outstanding,
                waiting=max(0, ends.get(name, 0) - account.next_game),
            )
        )
    return tuple(found)


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


def phase_of_all(phase: str, workers: Sequence[WorkerStatus]) -> str:
    """Return the phase of the run; while it waits for games, the phase of the workers."""
    states = {worker.activity for worker in workers}
    if phase != GATHERING or not states <= {"starting", "compiling"}:
        return phase
    return "compiling the search, once on this machine" if "compiling" in states else "starting the workers"
