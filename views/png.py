"""Curves as a PNG picture, for documents and messages."""

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from views.svg import (
    BOTTOM_MARGIN,
    HEIGHT,
    LEFT_MARGIN,
    LEGEND,
    RIGHT_MARGIN,
    WIDTH,
    ChartLayout,
    band,
    legend_mark,
    name_end,
    places,
    triangle,
)

CHART_COLUMNS, TITLE_HEIGHT, EDGE = 2, 34, 10  # charts in a row; the title's height; an outer margin
SCALE, FINER = 2, 2  # pixels to a unit of the layout; drawn finer by so much and then reduced, which smooths the lines
INK, FAINT_INK, PAPER, LINE = "#1c2430", "#64707f", "#ffffff", "#dde2e8"
COLOURS = ("#1f6feb", "#d4691e", "#2a8f4f", "#8a4fbf", "#b3261e")  # as on the page
BAND = 46  # its opacity, of 255


class Surface:
    """Draws in the units of a layout, relative to a movable corner."""

    def __init__(self, width: int, height: int) -> None:
        self._unit = SCALE * FINER
        self._image = Image.new("RGB", (width * self._unit, height * self._unit), PAPER)
        self._draw = ImageDraw.Draw(self._image, "RGBA")
        self.corner = (0, 0)

    def text(self, x: float, y: float, text: str, *, colour: str, size: int = 11, anchor: str = "ls") -> None:
        """Text whose base line is at ``y``; ``anchor`` as Pillow has it."""
        self._draw.text(
            self._at((x, y)), text, fill=colour, font=ImageFont.load_default(size * self._unit), anchor=anchor
        )

    def line(self, points: Sequence[tuple[float, float]], *, colour: str, width: float) -> None:
        """A line through all points."""
        self._draw.line(
            [self._at(point) for point in points], fill=colour, width=round(width * self._unit), joint="curve"
        )

    def area(self, points: Sequence[tuple[float, float]], *, colour: str) -> None:
        """A filled, translucent area."""
        self._draw.polygon([self._at(point) for point in points], fill=f"{colour}{BAND:02x}")

    def shape(self, corners: Sequence[tuple[float, float]], *, colour: str, hollow: bool) -> None:
        """A small filled or hollow shape."""
        self._draw.polygon(
            [self._at(corner) for corner in corners], fill=PAPER if hollow else colour, outline=colour, width=self._unit
        )

    def png(self) -> bytes:
        """The picture as a file."""
        out = io.BytesIO()
        self._image.reduce(FINER).save(out, "PNG", optimize=True)
        return out.getvalue()

    def _at(self, point: tuple[float, float]) -> tuple[float, float]:
        return (self.corner[0] + point[0]) * self._unit, (self.corner[1] + point[1]) * self._unit


def picture(title: str, layouts: Sequence[ChartLayout]) -> bytes:
    """All curves under a title, as a PNG file.

    Raises:
        ValueError: there are none.
    """
    if not layouts:
        raise ValueError("there is nothing to draw: curves need two iterations")
    columns = min(CHART_COLUMNS, len(layouts))
    rows = -(-len(layouts) // columns)
    surface = Surface(columns * WIDTH + 2 * EDGE, TITLE_HEIGHT + rows * HEIGHT + EDGE)
    surface.text(LEFT_MARGIN + EDGE, TITLE_HEIGHT - 12, title, colour=INK, size=16)
    for number, layout in enumerate(layouts):
        surface.corner = EDGE + number % columns * WIDTH, TITLE_HEIGHT + number // columns * HEIGHT
        draw_chart(surface, layout)
    return surface.png()


def draw_chart(surface: Surface, layout: ChartLayout) -> None:
    """One pair of axes with its curves."""
    surface.text(LEFT_MARGIN, 14, layout.title, colour=INK, size=12)
    for y, text in layout.values:
        surface.line([(LEFT_MARGIN, y), (WIDTH - RIGHT_MARGIN, y)], colour=LINE, width=1)
        surface.text(LEFT_MARGIN - 6, y + 4, text, colour=FAINT_INK, anchor="rs")
    for x, text in layout.steps:
        surface.text(x, HEIGHT - BOTTOM_MARGIN + 15, text, colour=FAINT_INK, anchor="ms")
    surface.text(WIDTH - RIGHT_MARGIN, HEIGHT - 4, layout.x_name, colour=FAINT_INK, anchor="rs")
    for number, filled in enumerate(layout.areas):
        for outline in filled.outlines:
            surface.shape(places(outline, layout), colour=COLOURS[filled.colour], hollow=False)
        surface.text(name_end(number), LEGEND, filled.name, colour=COLOURS[filled.colour], anchor="rs")
    for number, curve in enumerate(layout.curves):
        colour = COLOURS[number % len(COLOURS)]
        if edge := band(curve, layout):
            surface.area(edge, colour=colour)
        surface.line(places(curve.points, layout), colour=colour, width=1.8)
        if curve.name:
            surface.text(name_end(number), LEGEND, curve.name, colour=colour, anchor="rs")
    for number, marks in enumerate(layout.marks):
        colour = COLOURS[marks.colour]
        for place in (*places(marks.points, layout), legend_mark(number)):
            surface.shape(triangle(place, up=marks.up), colour=colour, hollow=marks.hollow)
        surface.text(name_end(number), LEGEND, marks.name, colour=colour, anchor="rs")
