"""The charts of a run and the metrics that they draw: for charts.js as JSON, and for pictures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from keima.base.reports.formats import format_count, format_percent
from keima.report.cost import cumulative_core_hours
from keima.report.limits import compute_time_shares
from keima.report.metrics import (
    CHARTS,
    METRICS,
    PPO_CHARTS,
    PPO_METRICS,
    Chart,
    Format,
    Metric,
    MetricValues,
    format_money,
)

if TYPE_CHECKING:
    from keima.report.charts.calibration import CalibrationBin

LEARNING, HEALTH = "Learning", "Speed and time"
HEALTH_CHARTS = (
    *(chart for chart in CHARTS if chart.title in ("Games per second", "Plies per game", "Positions in the window")),
    Chart(
        title="Network evaluations per second", curves=(("", "workers/evaluations_per_second"),), format=format_count
    ),
    Chart(title="Positions learned per second", curves=(("", "learner/samples_per_second"),), format=format_count),
    Chart(
        title="How the main node spends its time",
        curves=(
            ("waiting for games", "time/games"),
            ("learning", "time/learning"),
            ("measuring strength", "time/evaluating"),
        ),
        format=format_percent,
    ),
)
LEARNING_CHARTS = tuple(chart for chart in CHARTS if chart not in HEALTH_CHARTS)
TIME = "run/seconds"
AXES = {  # what curves may be drawn over: metrics, and their names
    TIME: "time",
    "run/total_games": "games",
    "run/total_positions": "positions",
    "iteration": "iterations",
    "run/core_hours": "core hours",
    "run/total_steps": "steps",
}
REACHED = "self_play/reached_"  # how the shares of games that reach a tile are called
TILES_DRAWN = 5
EXPECTED, EVEN, WON, WON_MARGIN = (f"calibration/{name}" for name in ("expected", "even", "won", "won_margin"))
DIGITS = 6  # of a number in the curves
UNITS: dict[Format, str] = {format_percent: "share", format_money: "money"}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One metric over another, as a line or as marks."""

    name: str  # empty: that of the chart
    metric: str
    margin: str = ""  # the metric with half the width of its interval
    help: str = ""
    mark: str = ""  # "up" or "down": triangles instead of a line
    hollow: bool = False  # of triangles
    colour: int | None = None  # None: the next one
    shared: bool = False  # equal in all runs, and drawn once


@dataclass(frozen=True, kw_only=True)
class DrawnChart:
    """Curves over one pair of axes."""

    section: str  # the heading
    title: str
    curves: Sequence[Curve]
    unit: str = ""  # of the values: "share", "money", or none
    over: str = ""  # the metric of the axis below; empty: the one that is chosen for all
    over_name: str = ""
    over_unit: str = ""


@dataclass(frozen=True, kw_only=True)
class RowsPart:
    """What is drawn in one colour in the rows of a chart."""

    name: str
    colour: int
    heights: Sequence[Sequence[float]]  # in each row, in each span of time; 0: nothing


@dataclass(frozen=True, kw_only=True)
class RowsChart:
    """A row for each of several things over time."""

    section: str  # the heading
    title: str
    rows: Sequence[str]  # their names, from the top
    ends: Sequence[float]  # of the spans of time, in seconds; the first one begins at 0
    most: float  # the height that fills a row
    parts: Sequence[RowsPart]


@dataclass(frozen=True, kw_only=True)
class RunCharts:
    """What is drawn of a run."""

    name: str
    charts: Sequence[DrawnChart]
    metrics: Mapping[str, Sequence[float | None]]  # columns of numbers; those over the same axis are equally long
    rows: Sequence[RowsChart] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the same for charts.js."""
        charts, rows = [asdict(chart) for chart in self.charts], [asdict(chart) for chart in self.rows]
        return {"name": self.name, "charts": charts, "metrics": dict(self.metrics), "rows": rows}


def make_run_charts(name: str, rows: Sequence[MetricValues]) -> RunCharts:
    """Return the charts of a run.

    Args:
        name: the run's name.
        rows: its iterations, as ``metrics.jsonl`` has them.
    """
    rows = add_time_and_cost(rows)
    charts = list_charts(rows)
    return RunCharts(name=name, charts=charts, metrics=collect_columns(charts, rows))


def add_time_and_cost(rows: Sequence[MetricValues]) -> list[MetricValues]:
    """Add to the rows what follows from several of them: core hours, and how the main node spent each iteration."""
    spent = [compute_time_shares(pair) for pair in pairwise(rows)]
    shares = [
        {"time/games": each.games, "time/learning": each.learning, "time/evaluating": each.evaluating} if each else {}
        for each in (None, *spent)
    ]
    costs = zip(rows, cumulative_core_hours(rows), shares, strict=False)
    return [{**row, "run/core_hours": hours, **share} for row, hours, share in costs]


def make_ppo_charts(name: str, rounds: Sequence[Mapping[str, Any]]) -> RunCharts:
    """Return the charts of a PPO run; a round stands for an iteration.

    Args:
        name: the run's name.
        rounds: its rounds, as its ``training_stats.json`` has them.
    """
    rows = [{**row, "iteration": row["round"]} for row in rounds]
    health = [chart for chart in PPO_CHARTS if chart.title == "Steps per second"]
    learning = [chart for chart in PPO_CHARTS if chart not in health]
    charts = [*describe_charts(LEARNING, learning, PPO_METRICS), *describe_charts(HEALTH, health, PPO_METRICS)]
    return RunCharts(name=name, charts=charts, metrics=collect_columns(charts, rows))


def make_calibration_charts(name: str, bins: Sequence["CalibrationBin"]) -> RunCharts:
    """Return the actual win rates of a run over the predicted ones: on the diagonal, search is well calibrated. Empty
    with fewer than two bins.
    """
    if len(bins) < 2:
        return RunCharts(name=name, charts=[], metrics={})
    won = Curve(name="won", metric=WON, margin=WON_MARGIN, help="on the line, search is well calibrated")
    chart = DrawnChart(
        section="Calibration",
        title="Actual wins by predicted wins",
        unit="share",
        curves=(won, Curve(name="as expected", metric=EVEN, shared=True)),
        over=EXPECTED,
        over_name="expected wins",
        over_unit="share",
    )
    expected = [0.0, *(round_value(each.expected) for each in bins), 1.0]
    actual = [None, *(round_value(each.won) for each in bins), None]
    margins = [None, *(round_value(each.margin) for each in bins), None]
    metrics = {EXPECTED: expected, EVEN: expected, WON: actual, WON_MARGIN: margins}
    return RunCharts(name=name, charts=[chart], metrics=metrics)


def list_charts(rows: Sequence[MetricValues]) -> list[DrawnChart]:
    """Return the charts of a run, section by section, including those that it has no metrics for."""
    learning = describe_charts(LEARNING, (*LEARNING_CHARTS, *make_tile_charts(rows)), METRICS)
    return [*learning, *describe_charts(HEALTH, HEALTH_CHARTS, METRICS)]


def make_tile_charts(rows: Sequence[MetricValues]) -> list[Chart]:
    """Return the shares of games that reach the largest tiles; empty for games without tiles."""
    reached = {name for row in rows for name, share in row.items() if name.startswith(REACHED) and share > 0}
    tiles = sorted(int(name.removeprefix(REACHED)) for name in reached if name.removeprefix(REACHED).isdecimal())
    curves = tuple((str(tile), f"{REACHED}{tile}") for tile in tiles[-TILES_DRAWN:])
    return [Chart(title="Games that reach a tile", curves=curves, format=format_percent)] if curves else []


def describe_charts(section: str, charts: Sequence[Chart], metrics: Sequence[Metric]) -> list[DrawnChart]:
    """Return the charts with the margins and help texts of their metrics, under one heading."""
    known = {metric.name: metric for metric in metrics}
    found = []
    for chart in charts:
        first = known.get(chart.curves[0][1])
        shown = chart.format or (first.format if first else None)
        curves = [_make_curve(name, metric, known.get(metric)) for name, metric in chart.curves]
        unit = UNITS.get(shown, "") if shown else ""
        found.append(DrawnChart(section=section, title=chart.title, unit=unit, curves=curves))
    return found


def _make_curve(name: str, metric: str, known: Metric | None) -> Curve:
    return Curve(name=name, metric=metric, margin=known.margin if known else "", help=known.help if known else "")


def collect_columns(
    charts: Sequence[DrawnChart], rows: Sequence[Mapping[str, float | None]]
) -> dict[str, list[float | None]]:
    """Return the columns of the axes and of all metrics that a curve shows, with their margins; none that is empty."""
    curves = [curve for chart in charts for curve in chart.curves]
    names = dict.fromkeys((*AXES, *(curve.metric for curve in curves), *(curve.margin for curve in curves)))
    columns = {name: [round_value(row.get(name)) for row in rows] for name in names if name}
    return {name: column for name, column in columns.items() if any(value is not None for value in column)}


def merge_charts(runs: Sequence[RunCharts]) -> list[DrawnChart]:
    """Return the charts of all runs; a chart that several runs have gets the curves of all."""
    found: dict[str, DrawnChart] = {}
    for chart in (chart for run in runs for chart in run.charts):
        known = found.setdefault(chart.title, chart)
        more = [curve for curve in chart.curves if curve not in known.curves]
        found[chart.title] = replace(known, curves=[*known.curves, *more])
    return list(found.values())


def round_value(value: float | None) -> float | None:
    """Return the number with few digits; None if it is not finite, since JSON cannot say that."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def choose_time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit of the time axis of a run of this length: its seconds and its name."""
    return (3600.0, "hours") if seconds >= 7200 else (60.0, "minutes")
