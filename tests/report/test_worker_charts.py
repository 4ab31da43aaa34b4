"""The rows of a run's workers over time."""

from dataclasses import replace
from itertools import groupby

import pytest

from keima.base.reports.run_reports import IterationReport
from keima.base.reports.worker_status import WorkerState, WorkerStatus
from keima.report.charts.page import make_report_charts, make_run_page
from keima.report.charts.png import COLOURS, draw_picture
from keima.report.charts.run_charts import RowsChart, RowsPart
from keima.report.charts.worker_charts import FAULT_STATES, GREEN, MOST_SPANS, RED, make_worker_charts
from tests.example_reports import iteration, worker
from tests.report.pictures import count_of, pixels


def run(*iterations: tuple[WorkerStatus, ...]) -> list[IterationReport]:
    """A run with these workers at the ends of its iterations, one per minute."""
    return [iteration(number, workers=workers) for number, workers in enumerate(iterations, 1)]


def stretches(chart: RowsChart) -> dict[str, list[tuple[float, float]]]:
    """Return from where to where something is drawn, as shares of the time, by its name."""
    edges = [0.0, *chart.ends]

    def found(part: RowsPart) -> list[tuple[float, float]]:
        places = []
        for row in part.heights:
            for height, group in groupby(range(len(row)), key=lambda span, row=row: row[span]):  # type: ignore[misc]
                spans = list(group)
                places += [(edges[spans[0]] / edges[-1], edges[spans[-1] + 1] / edges[-1])] if height else []
        return places

    return {part.name: found(part) for part in chart.parts}


def test_a_state_is_drawn_for_the_time_when_a_worker_had_it() -> None:
    first, second = worker(0), worker(1)
    waiting, failed = replace(second, activity="waiting"), replace(first, activity="error")
    rows = run((first,), (first, waiting), (failed, second), (first,))
    states, _ = make_worker_charts(rows)
    assert stretches(states) == {
        "playing": [(0, 0.5), (0.75, 1), (0.5, 0.75)],
        "error": [(0.5, 0.75)],
        "waiting": [(0.25, 0.5)],
    }
    assert states.rows == ["local-0", "local-1"]
    assert {part.name: part.colour for part in states.parts}.items() >= {"playing": GREEN, "error": RED}.items()


def test_a_worker_on_another_machine_is_shown_with_its_state() -> None:
    gone = replace(worker(0), state=WorkerState.OFFLINE)
    states, _ = make_worker_charts(run((worker(0),), (gone,)))
    assert stretches(states) == {"playing": [(0, 0.5)], "Offline": [(0.5, 1)]}


def test_a_row_is_as_high_as_its_games_per_second() -> None:
    rows = run(*((replace(worker(0), games_per_second=rate), worker(1)) for rate in (12.2, 3.05)))
    _, rates = make_worker_charts(rows)
    assert rates.title == "Games per second by worker, up to 12.2"
    assert rates.most == 12.2 and rates.parts[0].heights == [[12.2, 3.05], [6.1, 6.1]]


def test_a_fault_is_visible_however_long_the_run_is() -> None:
    workers = [(replace(worker(0), activity="error" if number == 777 else "playing"),) for number in range(1500)]
    states, rates = make_worker_charts(run(*workers))
    assert set(stretches(states)) == {"playing", "error"} and "error" in FAULT_STATES
    assert len(rates.ends) == len(rates.parts[0].heights[0]) <= MOST_SPANS


def test_many_workers_have_one_row_each_with_short_names() -> None:
    names = [f"a-machine-with-a-long-name-{number}" for number in range(64)]
    states, _ = make_worker_charts(run(*[tuple(replace(worker(), name=name) for name in names)] * 3))
    assert len(states.parts[0].heights) == len(states.rows) == 64
    assert states.rows[0] == "…ng-name-0"


@pytest.mark.medium
def test_they_are_on_the_page_and_in_the_picture_unless_there_are_no_workers() -> None:
    rows = run((replace(worker(0), activity="error"),), (replace(worker(0), name="<b>"),))
    text = make_run_page("run", [], rows, [])
    assert "Workers' states at the ends" in text and "<b>" not in text
    drawn = replace(make_report_charts("run", rows), charts=[])
    assert count_of(COLOURS[RED], pixels(draw_picture("run", [drawn], ("run/seconds", "time")))) > 1000
    nobody = run((), ())
    assert make_worker_charts(nobody) == [] and "Workers' states at the ends" not in make_run_page(
        "run", [], nobody, []
    )
