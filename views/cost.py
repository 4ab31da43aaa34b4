"""What a run costs: the core hours of its workers, in all and for each Elo point.

A worker process uses one core, or one GPU. What the learner uses beside them is not counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOUR = 3600.0
ELO, PROCESSES, EARLIER_PROCESSES = "evaluation/elo", "workers/processes", "workers/playing"

Figures = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The core hours of a run's iterations."""

    hours: float
    per_100_elo: float | None  # of the whole run, which began as the random player at 0; None: nothing was gained
    lately: float | None  # the same since half of the evaluations


def core_hours(rows: Sequence[Figures]) -> list[float]:
    """The hours that worker processes had run by the end of each iteration.

    Args:
        rows: the iterations' figures, as metrics.jsonl has them; earlier versions counted only workers that played.
    """
    hours, total, before = list[float](), 0.0, 0.0
    for row in rows:
        seconds = row.get("run/seconds", before)
        total += processes(row) * max(seconds - before, 0.0) / HOUR
        hours.append(total)
        before = seconds
    return hours


def processes(row: Figures) -> float:
    """The number of worker processes at the end of an iteration."""
    return row.get(PROCESSES, row.get(EARLIER_PROCESSES, 0.0))


def cost_of(rows: Sequence[Figures]) -> Cost:
    """What the iterations cost."""
    hours = core_hours(rows)
    rated = [(spent, row[ELO]) for spent, row in zip(hours, rows, strict=True) if ELO in row]
    return Cost(
        hours=hours[-1] if hours else 0.0,
        per_100_elo=_per_100((0.0, 0.0), rated[-1]) if rated else None,
        lately=_per_100(rated[len(rated) // 2], rated[-1]) if len(rated) > 2 else None,
    )


def _per_100(first: tuple[float, float], last: tuple[float, float]) -> float | None:
    (spent_then, elo_then), (spent, elo) = first, last
    return 100 * (spent - spent_then) / (elo - elo_then) if elo > elo_then else None
