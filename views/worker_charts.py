"""The workers of a run over time: a row for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from games.text import printable
from training.common.reports import IterationReport, WorkerReport
from views.charts import rate
from views.svg import (
    BOTTOM_MARGIN,
    HEIGHT,
    LEFT_MARGIN,
    RIGHT_MARGIN,
    TOP_MARGIN,
    WIDTH,
    Areas,
    Axis,
    ChartLayout,
    ticks,
)

BLUE, ORANGE, GREEN, PURPLE, RED = range(5)  # the page's colours
STATES = {  # a worker on another machine is shown by its mark
    **{"playing": GREEN, "evaluating": GREEN, "waiting": ORANGE, "error": RED, "ended": PURPLE},
    **{"Active": GREEN, "Syncing": ORANGE, "Error": RED, "Offline": PURPLE},
}
FAULT_STATES = {"error", "Error"}
HALF_BAR = 0.36  # half of a bar's height, in rows
MOST_SPANS = 200  # per row; more iterations are joined
MOST_NAMES, MOST_LETTERS = 16, 10  # the most readable names below each other, and the room for a name's letters


@dataclass(frozen=True, kw_only=True)
class Span:
    """The workers in a span of time, as reported at the ends of iterations."""

    start: float
    end: float
    iterations: Sequence[Mapping[str, WorkerReport]]  # by name

    def state(self, name: str) -> str:
        """A worker's last state, or a fault if there was one; empty if it was absent."""
        known = [workers[name] for workers in self.iterations if name in workers]
        said = [worker.standing.mark if worker.standing else worker.state for worker in known]
        return next((state for state in said if state in FAULT_STATES), said[-1] if said else "")

    def rate(self, name: str) -> float:
        """A worker's mean games per second."""
        return sum(workers[name].games_per_second for workers in self.iterations if name in workers) / len(
            self.iterations
        )


def worker_charts(rows: Sequence[IterationReport], unit: float, unit_name: str) -> list[ChartLayout]:
    """The workers' states over time, and their games per second; empty if no worker is known.

    Args:
        rows: the run's iterations.
        unit: of time, in seconds.
        unit_name: what it is called.
    """
    names = list(dict.fromkeys(worker.name for row in rows for worker in row.workers))
    if not names or rows[-1].seconds <= 0:
        return []
    spans = _spans(rows, unit)
    boxes: dict[str, list[Sequence[tuple[float, float]]]] = {}
    for place, name in enumerate(names):
        for state, some in groupby(spans, key=lambda span: span.state(name)):
            stretch = list(some)
            boxes.setdefault(state, []).append(_hill(place, [(stretch[0].start, stretch[-1].end, 1.0)]))
    boxes.pop("", None)
    states = [Areas(name=state, outlines=boxes[state], colour=STATES.get(state, BLUE)) for state in boxes]
    drawn = [_layout("Workers' states", names, spans, unit_name, states)]
    rates = [[(span.start, span.end, span.rate(name)) for span in spans] for name in names]
    most = max(height for row in rates for _, _, height in row)
    if most > 0:
        hills = [
            _hill(place, [(start, end, height / most) for start, end, height in row]) for place, row in enumerate(rates)
        ]
        played = Areas(name="", outlines=hills, colour=BLUE)
        drawn.append(_layout(f"Games per second by worker, up to {rate(most)}", names, spans, unit_name, [played]))
    return drawn


def _spans(rows: Sequence[IterationReport], unit: float) -> list[Span]:
    step, ends = -(-len(rows) // MOST_SPANS), [0.0, *(row.seconds / unit for row in rows)]
    workers = [{worker.name: worker for worker in row.workers} for row in rows]
    places = range(0, len(rows), step)
    return [
        Span(start=ends[at], end=ends[min(at + step, len(rows))], iterations=workers[at : at + step]) for at in places
    ]


def _hill(place: int, steps: Sequence[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """The outline of a row; each step has a start, an end, and a share of the height."""
    bottom = place + HALF_BAR
    tops = [(x, bottom - 2 * HALF_BAR * share) for start, end, share in steps for x in (start, end)]
    return [(steps[0][0], bottom), *tops, (steps[-1][1], bottom)]


def _layout(
    title: str, names: Sequence[str], spans: Sequence[Span], unit_name: str, areas: Sequence[Areas]
) -> ChartLayout:
    across = Axis(low=0.0, high=spans[-1].end, start=LEFT_MARGIN, end=WIDTH - RIGHT_MARGIN)
    up = Axis(low=len(names) - 0.5, high=-0.5, start=HEIGHT - BOTTOM_MARGIN, end=TOP_MARGIN)
    return ChartLayout(
        title=title,
        curves=(),
        across=across,
        up=up,
        values=[
            (up.place(place), _short(names[place])) for place in range(0, len(names), -(-len(names) // MOST_NAMES))
        ],
        steps=[(across.place(x), f"{x:g}") for x in ticks(across.low, across.high)],
        x_name=unit_name,
        areas=areas,
    )


def _short(name: str) -> str:
    """A short name: the end of a long one, which usually differs."""
    name = printable(name)
    return name if len(name) <= MOST_LETTERS else f"…{name[1 - MOST_LETTERS :]}"
