"""Charts of runs as a PNG picture, for documents and messages, with matplotlib.

matplotlib takes long to import, so only drawing imports it.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count as numbers
from typing import TYPE_CHECKING

from keima.base.reports.formats import format_count, format_percent
from keima.report.charts.run_charts import TIME, Curve, DrawnChart, RowsChart, RunCharts, choose_time_unit, merge_charts
from keima.report.metrics import format_money

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS, CHART_SIZE, TITLE_HEIGHT, DPI = 2, (4.6, 2.6), 0.4, 200  # charts in a row; inches, and pixels in one
INK, FAINT_INK, PAPER, LINE = "#1c2430", "#5b6675", "#ffffff", "#dde2e8"
COLOURS = ("#1f6feb", "#c2570c", "#1f7a3d", "#8a4fbf", "#b3261e", "#0f7a83", "#8a6100", "#b0307f")  # as in charts.css
BAND = 0.18  # its opacity
MOST_NAMES, HALF_BAR = 16, 0.36  # readable names of rows below each other; half of a bar's height, in rows
FORMATS: dict[str, Callable[[float], str]] = {"share": format_percent, "money": format_money}
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": LINE,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "font.size": 7.5,
    "grid.color": LINE,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "text.color": INK,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "xtick.color": FAINT_INK,
    "xtick.major.size": 0,
    "ytick.color": FAINT_INK,
    "ytick.major.size": 0,
}

Line = tuple[str, Curve, list[tuple[float, float, float]]]  # name, curve, and its points: place, value, margin


def draw_picture(title: str, runs: Sequence[RunCharts], axis: tuple[str, str]) -> bytes:
    """Draw all charts of runs over each other under a title, as a PNG file.

    Args:
        axis: the metric that curves are drawn over, and its name.

    Raises:
        ValueError: there are none.
    """
    charts = [(chart, collect_lines(chart, runs, axis[0])) for chart in merge_charts(runs)]
    drawing = [partial(draw_curves, chart=chart, lines=lines, axis=axis) for chart, lines in charts if lines]
    for run in runs:
        owner = f"{run.name}: " if len(runs) > 1 else ""
        drawing += [partial(draw_rows, chart=chart, title=f"{owner}{chart.title}") for chart in run.rows]
    if not drawing:
        raise ValueError("there is nothing to draw: curves need two iterations")
    columns = min(COLUMNS, len(drawing))
    rows = -(-len(drawing) // columns)

    def draw(figure: Figure) -> None:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        for place, draw_chart in enumerate(drawing, 1):
            draw_chart(figure.add_subplot(rows, columns, place))

    return render_png((columns * CHART_SIZE[0], rows * CHART_SIZE[1] + TITLE_HEIGHT), draw)


def render_png(size: tuple[float, float], draw: Callable[[Figure], None]) -> bytes:
    """Return what ``draw`` draws on a figure of this size in inches, as a file; the user's matplotlib settings are
    ignored.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a name may have letters that the font lacks
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        draw(figure)
        figure.savefig(out, format="png")
    return out.getvalue()


def collect_lines(chart: DrawnChart, runs: Sequence[RunCharts], axis: str) -> list[Line]:
    """Return the lines and marks of a chart, of each run; none if no line has two points."""
    found: list[Line] = []
    for number, run in enumerate(runs):
        for curve in chart.curves if number == 0 else [each for each in chart.curves if not each.shared]:
            points = collect_points(curve, run, chart.over or axis)
            if len(points) >= (1 if curve.mark else 2):
                owner = run.name if len(runs) > 1 and not curve.shared else ""
                found.append((" ".join(filter(None, (owner, curve.name))), curve, points))
    return found if any(not curve.mark for _, curve, _ in found) else []


def collect_points(curve: Curve, run: RunCharts, axis: str) -> list[tuple[float, float, float]]:
    """Return place, value and margin of each point whose place and value are known."""
    places, values = run.metrics.get(axis, ()), run.metrics.get(curve.metric, ())
    margins = run.metrics.get(curve.margin) or [None] * len(values)
    return [
        (place, value, margin or 0.0)
        for place, value, margin in zip(places, values, margins, strict=False)
        if place is not None and value is not None
    ]


def draw_curves(axes: Axes, *, chart: DrawnChart, lines: Sequence[Line], axis: tuple[str, str]) -> None:
    """Draw one pair of axes with its curves."""
    last = max(points[-1][0] for _, _, points in lines)
    size, unit = (1.0, chart.over_name or axis[1]) if chart.over or axis[0] != TIME else choose_time_unit(last)
    next_colour = numbers()
    for name, curve, points in lines:
        places, values = [place / size for place, _, _ in points], [value for _, value, _ in points]
        colour = COLOURS[(next(next_colour) if curve.colour is None else curve.colour) % len(COLOURS)]
        if curve.mark:
            shape, filled = "^" if curve.mark == "up" else "v", PAPER if curve.hollow else colour
            axes.scatter(places, values, marker=shape, s=20, color=filled, edgecolors=colour, label=name, zorder=3)
            continue
        axes.plot(places, values, color=colour, label=name)
        if curve.margin:
            low, high = ([value + sign * margin for _, value, margin in points] for sign in (-1, 1))
            axes.fill_between(places, low, high, color=colour, alpha=BAND, linewidth=0)
    _label_axes(axes, chart.title, unit)
    show, show_x = FORMATS.get(chart.unit, _format_short), FORMATS.get(chart.over_unit, _format_short)
    axes.yaxis.set_major_formatter(lambda value, _: show(value))
    axes.xaxis.set_major_formatter(lambda value, _: show_x(value))
    if any(name for name, _, _ in lines):
        axes.legend(fontsize=6.5)


def draw_rows(axes: Axes, *, chart: RowsChart, title: str) -> None:
    """Draw a row for each of several things."""
    size, unit = choose_time_unit(chart.ends[-1])
    edges = [0.0, *(end / size for end in chart.ends)]
    for part in chart.parts:
        for place, heights in enumerate(part.heights):
            tops = [place + HALF_BAR * (1 - 2 * height / chart.most) for height in heights]
            label = part.name if place == 0 else None
            bottom, colour = place + HALF_BAR, COLOURS[part.colour]
            axes.stairs(tops, edges, baseline=bottom, fill=True, color=colour, linewidth=0, label=label)
    _label_axes(axes, title, unit)
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    named = range(0, len(chart.rows), -(-len(chart.rows) // MOST_NAMES))
    axes.set_yticks(named, [chart.rows[place] for place in named])
    if len(chart.parts) > 1:
        axes.legend(fontsize=6.5, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(chart.parts))


def _label_axes(axes: Axes, title: str, below: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(below, loc="right", color=FAINT_INK)


def _format_short(value: float) -> str:
    """Return a number with at most four digits."""
    return f"{value:,.4g}" if abs(value) < 9999.5 else format_count(value)
