"""What a run costs: the core hours of its workers, in all and for each Elo point.

Workers measure the processor time that they use. What the learner uses beside them is not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from keima.report.metrics import MetricValues

HOUR = 3600.0
ELO, PROCESSES, EARLIER_PROCESSES = "evaluation/elo", "workers/processes", "workers/playing"
ALL_CORE_HOURS, CORE_HOURS = "run/core_hours", "workers/core_hours"  # of all workers so far, and of those present


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The core hours of a run's iterations."""

    core_hours: float
    per_100_elo: float | None  # of the whole run, which began as the random player at 0; None: nothing was gained
    recent_per_100_elo: float | None  # the same since half of the evaluations


def cumulative_core_hours(rows: Sequence[MetricValues]) -> list[float]:
    """Return the core hours that the workers had used by the end of each iteration.

    Args:
        rows: the iterations' metrics, as metrics.jsonl has them. Without a cluster, and in files of earlier versions,
            they have only the sum over the workers that are present, which falls when one leaves. Still earlier ones
            have no processor time: one core for each process is assumed there; the earliest counted only those that
            played.
    """
    hours, total, before, used = list[float](), 0.0, 0.0, 0.0
    for row in rows:
        seconds = row.get("run/seconds", before)
        if ALL_CORE_HOURS in row:
            total, used = max(total, row[ALL_CORE_HOURS]), row.get(CORE_HOURS, used)
        elif CORE_HOURS in row:
            total += max(row[CORE_HOURS] - used, 0.0)
            used = row[CORE_HOURS]
        else:
            total += count_processes(row) * max(seconds - before, 0.0) / HOUR
        hours.append(total)
        before = seconds
    return hours


def core_hours_by_worker(rows: Sequence[MetricValues]) -> dict[str, float]:
    """Return the core hours of each worker.

    Args:
        rows: what each worker said at the end of each iteration; it begins again at 0 if its folder was deleted.
    """
    hours, last = dict[str, float](), dict[str, float]()
    for name, said in ((name, said) for row in rows for name, said in row.items()):
        before = last.get(name, 0.0)
        hours[name] = hours.get(name, 0.0) + (said - before if said >= before else said)
        last[name] = said
    return hours


def count_processes(row: MetricValues) -> float:
    """Return the number of worker processes at the end of an iteration."""
    return row.get(PROCESSES, row.get(EARLIER_PROCESSES, 0.0))


def compute_cost(rows: Sequence[MetricValues]) -> Cost:
    """Compute what the iterations cost."""
    hours = cumulative_core_hours(rows)
    rated = [(spent, row[ELO]) for spent, row in zip(hours, rows, strict=True) if ELO in row]
    return Cost(
        core_hours=hours[-1] if hours else 0.0,
        per_100_elo=_hours_per_100_elo((0.0, 0.0), rated[-1]) if rated else None,
        recent_per_100_elo=_hours_per_100_elo(rated[len(rated) // 2], rated[-1]) if len(rated) > 2 else None,
    )


def _hours_per_100_elo(first: tuple[float, float], last: tuple[float, float]) -> float | None:
    (spent_then, elo_then), (spent, elo) = first, last
    return 100 * (spent - spent_then) / (elo - elo_then) if elo > elo_then else None
