"""The charts of a run and the figures that they draw, as JSON for charts.js."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from views.charts import count, percent
from views.cost import core_hours
from views.limits import time_shares
from views.metrics import CHARTS, METRICS, PPO_CHARTS, PPO_METRICS, Chart, Metric

if TYPE_CHECKING:
    from views.calibration import Bin

LEARNING, HEALTH = "Learning", "Speed and time"
HEALTH_CHARTS = (
    *(chart for chart in CHARTS if chart.title in ("Games per second", "Plies per game", "Positions in the window")),
    Chart(title="Network evaluations per second", curves=(("", "workers/evaluations_per_second"),), format=count),
    Chart(title="Positions learned per second", curves=(("", "learner/samples_per_second"),), format=count),
    Chart(
        title="How the main node spends its time",
        curves=(
            ("waiting for games", "time/games"),
            ("learning", "time/learning"),
            ("measuring strength", "time/evaluating"),
        ),
        format=percent,
    ),
)
LEARNING_CHARTS = tuple(chart for chart in CHARTS if chart not in HEALTH_CHARTS)
AXES = {  # what curves may be drawn over: figures, and their names
    "run/seconds": "time",
    "run/total_games": "games",
    "run/total_positions": "positions",
    "iteration": "iterations",
    "run/core_hours": "core hours",
    "run/total_steps": "steps",
}
REACHED = "self_play/reached_"  # how the shares of games that reach a tile are called
TILES_DRAWN = 5
EXPECTED, WON, WON_MARGIN = "calibration/expected", "calibration/won", "calibration/won_margin"
DIGITS = 6  # of a number in the curves

Figures = Mapping[str, float]


def run_charts(rows: Sequence[Figures]) -> dict[str, Any]:
    """What charts.js draws of a run: its charts, and their figures by column.

    Args:
        rows: the run's iterations, as ``metrics.jsonl`` has them.
    """
    rows = with_time_and_cost(rows)
    return drawn(chart_list(rows), rows)


def with_time_and_cost(rows: Sequence[Figures]) -> list[Figures]:
    """The rows with what follows from several of them: core hours, and how the main node spent each iteration."""
    spent = [time_shares(pair) for pair in pairwise(rows)]
    shares = [
        {"time/games": each.games, "time/learning": each.learning, "time/evaluating": each.evaluating} if each else {}
        for each in (None, *spent)
    ]
    costs = zip(rows, core_hours(rows), shares, strict=False)
    return [{**row, "run/core_hours": hours, **share} for row, hours, share in costs]


def ppo_charts(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What charts.js draws of a PPO run; a round stands for an iteration.

    Args:
        rounds: the run's rounds, as its ``training_stats.json`` has them.
    """
    rows = [{**row, "iteration": row["round"]} for row in rounds]
    health = [chart for chart in PPO_CHARTS if chart.title == "Steps per second"]
    learning = [chart for chart in PPO_CHARTS if chart not in health]
    return drawn(sections(((LEARNING, learning), (HEALTH, health)), PPO_METRICS), rows)


def calibration_charts(bins: Sequence["Bin"]) -> dict[str, Any]:
    """What charts.js draws of search's calibration, over ``axis``: the wins that were won, and those expected."""
    chart = Chart(
        title="Wins by what search expected", curves=(("won", WON), ("as expected", EXPECTED)), format=percent
    )
    known = Metric(name=WON, title="", format=percent, help="on the line, search is well calibrated", margin=WON_MARGIN)
    rows = [{EXPECTED: each.expected, WON: each.won, WON_MARGIN: each.margin} for each in bins]
    charts = sections((("Calibration", [chart]),), (known,))
    return drawn(charts, rows) | {"axis": {"figure": EXPECTED, "name": "expected wins"}}


def drawn(charts: list[dict[str, Any]], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The charts with the figures that they need."""
    names = [name for name in figure_names(charts) if any(name in row for row in rows)]
    return {"charts": charts, "figures": {name: [rounded(row.get(name)) for row in rows] for name in names}}


def chart_list(rows: Sequence[Figures]) -> list[dict[str, Any]]:
    """The charts of a run, section by section, also those that it has no figures for."""
    return sections(((LEARNING, (*LEARNING_CHARTS, *tile_charts(rows))), (HEALTH, HEALTH_CHARTS)), METRICS)


def sections(parts: Sequence[tuple[str, Sequence[Chart]]], metrics: Sequence[Metric]) -> list[dict[str, Any]]:
    """The charts of named sections, in order."""
    known = {metric.name: metric for metric in metrics}
    return [{"section": section, **chart_of(chart, known)} for section, charts in parts for chart in charts]


def tile_charts(rows: Sequence[Figures]) -> list[Chart]:
    """The shares of games that reach the largest tiles; empty for games without tiles."""
    reached = {name for row in rows for name, share in row.items() if name.startswith(REACHED) and share > 0}
    tiles = sorted(int(name.removeprefix(REACHED)) for name in reached if name.removeprefix(REACHED).isdecimal())
    curves = tuple((str(tile), f"{REACHED}{tile}") for tile in tiles[-TILES_DRAWN:])
    return [Chart(title="Games that reach a tile", curves=curves, format=percent)] if curves else []


def chart_of(chart: Chart, known: Mapping[str, Metric]) -> dict[str, Any]:
    """A chart with the metrics, margins and help texts of its curves."""
    metrics = [known.get(name) for _, name in chart.curves]
    first = chart.format or (metrics[0].format if metrics[0] else None)
    return {
        "title": chart.title,
        "unit": "share" if first is percent else "",
        "curves": [
            {
                "name": name,
                "figure": figure,
                "margin": metric.margin if metric else "",
                "help": metric.help if metric else "",
            }
            for (name, figure), metric in zip(chart.curves, metrics, strict=True)
        ],
    }


def figure_names(charts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the axes and of all figures that some curve shows, with their margins."""
    curves = [curve for chart in charts for curve in chart["curves"]]
    names = (*AXES, *(curve["figure"] for curve in curves), *(curve["margin"] for curve in curves))
    return [name for name in dict.fromkeys(names) if name]


def rounded(value: float | None) -> float | None:
    """The number with few digits; None where there is none, for JSON has no other."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")
