"""The workers of a run over time: a row for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keima.base.reports.formats import format_rate
from keima.base.reports.run_reports import IterationReport
from keima.base.reports.text import printable_line
from keima.base.reports.worker_columns import displayed_state
from keima.base.reports.worker_status import WorkerStatus
from keima.report.charts.run_charts import RowsChart, RowsPart, round_value

TITLE = "Workers' states at the ends of iterations"
BLUE, ORANGE, GREEN, PURPLE, RED = range(5)  # colours of charts
STATES = {  # of a worker on this machine, and of one on another
    **{"playing": GREEN, "evaluating": GREEN, "waiting": ORANGE, "error": RED, "ended": PURPLE},
    **{"Active": GREEN, "Syncing": ORANGE, "Error": RED, "Offline": PURPLE},
}
FAULT_STATES = {"error", "Error"}
MOST_SPANS = 200  # per row; more iterations are joined
MOST_LETTERS = 10  # the room for a name


@dataclass(frozen=True, kw_only=True)
class TimeSpan:
    """The workers in a span of time, as reported at the ends of iterations."""

    end: float  # in seconds
    iterations: Sequence[Mapping[str, WorkerStatus]]  # by name

    def state_of(self, name: str) -> str:
        """Return a worker's last state, or a fault if there was one; empty if it was absent."""
        known = [workers[name] for workers in self.iterations if name in workers]
        said = [displayed_state(worker) for worker in known]
        return next((state for state in said if state in FAULT_STATES), said[-1] if said else "")

    def rate_of(self, name: str) -> float:
        """Return a worker's mean games per second."""
        return sum(workers[name].games_per_second for workers in self.iterations if name in workers) / len(
            self.iterations
        )


def make_worker_charts(rows: Sequence[IterationReport]) -> list[RowsChart]:
    """Return the workers' states over time, and their games per second; empty if no worker is known."""
    names = list(dict.fromkeys(worker.name for row in rows for worker in row.workers))
    if not names or rows[-1].seconds <= 0:
        return []
    spans = _split_into_spans(rows)
    said = [[span.state_of(name) for span in spans] for name in names]
    states = [
        RowsPart(
            name=state,
            colour=STATES.get(state, BLUE),
            heights=[[1.0 if each == state else 0.0 for each in row] for row in said],
        )
        for state in dict.fromkeys(each for row in said for each in row if each)
    ]
    drawn = [_make_chart("Workers' states", names, spans, 1.0, states)]
    rates = [[round_value(span.rate_of(name)) or 0.0 for span in spans] for name in names]
    most = max(height for row in rates for height in row)
    if most > 0:
        played = RowsPart(name="games/s of all", colour=BLUE, heights=rates)
        drawn.append(
            _make_chart(f"Games per second by worker, up to {format_rate(most)}", names, spans, most, [played])
        )
    return drawn


def _split_into_spans(rows: Sequence[IterationReport]) -> list[TimeSpan]:
    step = -(-len(rows) // MOST_SPANS)
    workers = [{worker.name: worker for worker in row.workers} for row in rows]
    return [
        TimeSpan(end=rows[min(at + step, len(rows)) - 1].seconds, iterations=workers[at : at + step])
        for at in range(0, len(rows), step)
    ]


def _make_chart(
    title: str, names: Sequence[str], spans: Sequence[TimeSpan], most: float, parts: Sequence[RowsPart]
) -> RowsChart:
    return RowsChart(
        section=TITLE,
        title=title,
        rows=[_shorten_name(name) for name in names],
        ends=[round_value(span.end) or 0.0 for span in spans],
        most=most,
        parts=parts,
    )


def _shorten_name(name: str) -> str:
    """Return a short name: the end of a long one, which usually differs."""
    name = printable_line(name)
    return name if len(name) <= MOST_LETTERS else f"…{name[1 - MOST_LETTERS :]}"
