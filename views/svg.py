"""Curves as SVG, for self-contained pages."""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 460, 254
LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 64, 12, 42, 34  # margins
LEGEND = 30  # the distance of the curves' names from the top, below the title
TICKS = 5  # about so many on an axis
MOST_CURVE_POINTS = 400  # more are thinned out
MARK_RADIUS = 4.5  # from the centre of a mark to its corners


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve, with a band around it if it has margins."""

    name: str
    points: Sequence[tuple[float, float]]
    margins: Sequence[float] = ()  # as many as points, or none


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Events as triangles; none is left out."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int  # the number of the curve whose colour they have
    up: bool  # whether they point upwards
    hollow: bool


@dataclass(frozen=True, kw_only=True)
class Areas:
    """Filled outlines of one colour."""

    name: str
    outlines: Sequence[Sequence[tuple[float, float]]]
    colour: int  # the number of the curve whose colour they have


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A mapping from values to coordinates."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """The coordinate of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def thinned(series: Series) -> Series:
    """The same curve with at most ``MOST_CURVE_POINTS`` points, including the last one, without NaNs."""
    margins = list(series.margins) or [0.0] * len(series.points)
    known = [pair for pair in zip(series.points, margins, strict=True) if all(map(math.isfinite, (*pair[0], pair[1])))]
    step = max(1, math.ceil(len(known) / MOST_CURVE_POINTS))
    kept = known[::-1][::step][::-1]
    return Series(
        name=series.name,
        points=[point for point, _ in kept],
        margins=[margin for _, margin in kept] if series.margins else (),
    )


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from ``low`` to ``high``."""
    rough = (high - low) / TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [step * number for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """The minimum and maximum, widened if they are equal."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


@dataclass(frozen=True, kw_only=True)
class ChartLayout:
    """Curves over one pair of axes, laid out on a surface of ``WIDTH`` by ``HEIGHT``."""

    title: str
    curves: Sequence[Series]
    across: Axis
    up: Axis
    values: Sequence[tuple[float, str]]  # of horizontal grid lines: the place from the top, and the label at the left
    steps: Sequence[tuple[float, str]]  # of vertical grid lines: the place from the left, and the label below
    x_name: str
    marks: Sequence[Marks] = ()
    areas: Sequence[Areas] = ()


def laid_out(
    title: str,
    series: Sequence[Series],
    *,
    x_name: str,
    show: Callable[[float], str],
    show_x: Callable[[float], str] = "{:g}".format,
    marks: Sequence[Marks] = (),
) -> ChartLayout | None:
    """The layout of a chart; None if no curve has two points.

    Args:
        marks: what is marked on the curves; they may lie off the curves.
        show: a value as text, at the left.
        show_x: likewise below.
    """
    curves = [curve for curve in map(thinned, series) if len(curve.points) > 1]
    if not curves:
        return None
    marked = [point for each in marks for point in each.points]
    low, high = bounds([*(value for curve in curves for value in _reach(curve)), *(y for _, y in marked)])
    first, last = bounds([x for points in (*(curve.points for curve in curves), marked) for x, _ in points])
    across = Axis(low=first, high=last, start=LEFT_MARGIN, end=WIDTH - RIGHT_MARGIN)
    up = Axis(low=low, high=high, start=HEIGHT - BOTTOM_MARGIN, end=TOP_MARGIN)
    return ChartLayout(
        title=title,
        curves=curves,
        across=across,
        up=up,
        values=[(up.place(value), show(value)) for value in ticks(low, high)],
        steps=[(across.place(x), show_x(x)) for x in ticks(first, last)],
        x_name=x_name,
        marks=[each for each in marks if each.points],
    )


def svg(layout: ChartLayout) -> str:
    """The curves as SVG."""
    title = html.escape(layout.title)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">',
        f'<text x="{LEFT_MARGIN}" y="14" class="title">{title}</text>',
    ]
    for y, text in layout.values:
        parts.append(f'<line class="grid" x1="{LEFT_MARGIN}" x2="{WIDTH - RIGHT_MARGIN}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT_MARGIN - 6}" y="{y + 4:.1f}">{html.escape(text)}</text>')
    for x, text in layout.steps:
        parts.append(
            f'<text class="tick middle" x="{x:.1f}" y="{HEIGHT - BOTTOM_MARGIN + 15}">{html.escape(text)}</text>'
        )
    parts.append(
        f'<text class="tick end" x="{WIDTH - RIGHT_MARGIN}" y="{HEIGHT - 4}">{html.escape(layout.x_name)}</text>'
    )
    for number, area in enumerate(layout.areas):
        parts += [
            f'<polygon class="area c{area.colour}" points="{_listed(places(outline, layout))}"/>'
            for outline in area.outlines
        ]
        parts += _name(area.name, number, area.colour)
    for number, curve in enumerate(layout.curves):
        parts += _drawn(curve, number, layout)
    for number, each in enumerate(layout.marks):
        parts += _marked(each, number, layout)
    return "".join([*parts, "</svg>"])


def band(curve: Series, layout: ChartLayout) -> list[tuple[float, float]]:
    """The outline of a curve's band; empty without margins."""
    both = list(zip(curve.points, curve.margins, strict=True)) if curve.margins else []
    edge = [(x, y + margin) for (x, y), margin in both] + [(x, y - margin) for (x, y), margin in reversed(both)]
    return places(edge, layout)


def places(points: Sequence[tuple[float, float]], layout: ChartLayout) -> list[tuple[float, float]]:
    """The coordinates of points."""
    return [(layout.across.place(x), layout.up.place(y)) for x, y in points]


def triangle(place: tuple[float, float], *, up: bool) -> list[tuple[float, float]]:
    """The corners of a mark at this place."""
    (x, y), tip = place, -MARK_RADIUS if up else MARK_RADIUS
    return [(x, y + tip), (x - MARK_RADIUS, y - tip), (x + MARK_RADIUS, y - tip)]


def name_end(number: int) -> float:
    """The end of a curve's name in the legend."""
    return WIDTH - RIGHT_MARGIN - 88 * number


def _reach(curve: Series) -> list[float]:
    margins = curve.margins or [0.0] * len(curve.points)
    return [y + sign * margin for (_, y), margin in zip(curve.points, margins, strict=True) for sign in (-1, 1)]


def _drawn(curve: Series, number: int, layout: ChartLayout) -> list[str]:
    """The curve, its band, and its name in the legend."""
    edge = band(curve, layout)
    parts = [f'<polygon class="band c{number}" points="{_listed(edge)}"/>'] if edge else []
    parts.append(f'<polyline class="curve c{number}" points="{_listed(places(curve.points, layout))}"/>')
    return [*parts, *_name(curve.name, number, number)]


def _marked(marks: Marks, number: int, layout: ChartLayout) -> list[str]:
    """The marks, and their name in the legend with one before it."""
    kind = f"mark c{marks.colour}{' hollow' if marks.hollow else ''}"
    shown = [*places(marks.points, layout), legend_mark(number)]
    drawn = [f'<polygon class="{kind}" points="{_listed(triangle(place, up=marks.up))}"/>' for place in shown]
    return [*drawn, *_name(marks.name, number, marks.colour)]


def _name(name: str, number: int, colour: int) -> list[str]:
    """The legend's entry; nothing without a name."""
    return (
        [f'<text class="name c{colour}" x="{name_end(number)}" y="{LEGEND}">{html.escape(name)}</text>'] if name else []
    )


def legend_mark(number: int) -> tuple[float, float]:
    """The place of a mark in the legend."""
    return name_end(number) - 74, LEGEND - 4


def _listed(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
