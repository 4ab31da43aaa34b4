"""The rows of a run's workers over time."""

from dataclasses import replace

from tests.training.example_reports import iteration, worker
from training.common.reports import IterationReport, RemoteStanding, WorkerReport
from views.page import page
from views.png import picture
from views.svg import LEFT_MARGIN, RIGHT_MARGIN, WIDTH, Areas, ChartLayout, places, svg
from views.worker_charts import FAULT_STATES, GREEN, MOST_SPANS, RED, worker_charts

START, END = LEFT_MARGIN, WIDTH - RIGHT_MARGIN


def run(*iterations: tuple[WorkerReport, ...]) -> list[IterationReport]:
    """A run with these workers at the ends of its iterations, one per minute."""
    return [iteration(number, workers=workers) for number, workers in enumerate(iterations, 1)]


def stretches(layout: ChartLayout) -> dict[str, list[tuple[float, float]]]:
    """Return from where to where something is drawn, as shares of the width, by its name."""

    def ends(outline: object, areas: Areas) -> tuple[float, float]:
        across = [x for x, _ in places(outline, layout)]  # type: ignore[arg-type]
        return (min(across) - START) / (END - START), (max(across) - START) / (END - START)

    return {areas.name: [ends(outline, areas) for outline in areas.outlines] for areas in layout.areas}


def test_a_state_is_drawn_for_the_time_when_a_worker_had_it() -> None:
    first, second = worker(0), worker(1)
    rows = run((first,), (first, replace(second, state="waiting")), (replace(first, state="error"), second), (first,))
    states, _ = worker_charts(rows, 60.0, "minutes")
    assert stretches(states) == {
        "playing": [(0, 0.5), (0.75, 1), (0.5, 0.75)],
        "error": [(0.5, 0.75)],
        "waiting": [(0.25, 0.5)],
    }
    assert [text for _, text in states.values] == ["local-0", "local-1"]
    assert {areas.name: areas.colour for areas in states.areas}.items() >= {"playing": GREEN, "error": RED}.items()


def test_a_worker_on_another_machine_is_shown_with_its_mark() -> None:
    gone = replace(worker(0), standing=RemoteStanding(mark="Offline", share=0.0, last_batch=None))
    states, _ = worker_charts(run((worker(0),), (gone,)), 60.0, "minutes")
    assert stretches(states) == {"playing": [(0, 0.5)], "Offline": [(0.5, 1)]}


def test_a_row_is_as_high_as_its_games_per_second() -> None:
    rows = run(*((replace(worker(0), games_per_second=rate), worker(1)) for rate in (12.2, 3.05)))
    _, rates = worker_charts(rows, 60.0, "minutes")
    assert rates.title == "Games per second by worker, up to 12.2"
    (first, second) = [[y for _, y in outline] for outline in rates.areas[0].outlines]
    heights = [[max(ys) - y for y in ys[1:-1:2]] for ys in (first, second)]
    assert [[round(height / heights[0][0], 3) for height in row] for row in heights] == [[1, 0.25], [0.5, 0.5]]


def test_a_fault_is_visible_however_long_the_run_is() -> None:
    workers = [(replace(worker(0), state="error" if number == 777 else "playing"),) for number in range(1500)]
    states, rates = worker_charts(run(*workers), 60.0, "minutes")
    assert set(stretches(states)) == {"playing", "error"} and "error" in FAULT_STATES
    assert len(rates.areas[0].outlines[0]) <= 2 * MOST_SPANS + 2


def test_many_workers_have_one_row_each_with_readable_names() -> None:
    names = [f"a-machine-with-a-long-name-{number}" for number in range(64)]
    rows = run(*[tuple(replace(worker(), name=name) for name in names)] * 3)
    states, _ = worker_charts(rows, 60.0, "minutes")
    assert len(states.areas[0].outlines) == 64 and len(states.values) == 16
    assert states.values[0][1] == "…ng-name-0"
    assert "<b>" not in svg(worker_charts(run((replace(worker(), name="<b>"),)), 60.0, "minutes")[0])


def test_they_are_on_the_page_and_in_the_picture_unless_there_are_no_workers() -> None:
    rows = run((worker(0),), (worker(0),))
    assert "<h2>Workers, as each stood" in page("run", [], rows, []) and 'class="area c2"' in page("run", [], rows, [])
    assert picture("run", worker_charts(rows, 60.0, "minutes")).startswith(b"\x89PNG")
    assert worker_charts(run((), ()), 60.0, "minutes") == [] and "<h2>Workers" not in page("run", [], run((), ()), [])
