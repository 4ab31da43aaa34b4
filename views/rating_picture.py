"""Ratings with their intervals as a PNG picture, the strongest at the top."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from views.charts import rating
from views.png import COLOURS, EDGE, FAINT_INK, INK, LINE, TITLE_HEIGHT, Surface
from views.svg import Axis, bounds, ticks

WIDTH, ROW_HEIGHT, LEFT_MARGIN, RIGHT_MARGIN, FOOT = 720, 26, 200, 96, 30
DOT, END = 3, 4  # half their heights


@dataclass(frozen=True, kw_only=True)
class RatedPlayer:
    """A player's Elo; ``margin`` is half the width of the interval, 0 for the anchor."""

    name: str
    elo: float
    margin: float
    marked: bool = False  # the player that the picture is about


def rating_picture(title: str, players: Sequence[RatedPlayer], *, anchor: str) -> bytes:
    """The picture as a file.

    Raises:
        ValueError: no rating is known.
    """
    known = sorted((player for player in players if math.isfinite(player.margin)), key=lambda player: -player.elo)
    if not known:
        raise ValueError("there is nothing to draw: no ratings")
    low, high = bounds([player.elo + sign * player.margin for player in known for sign in (-1, 1)])
    across = Axis(low=low, high=high, start=LEFT_MARGIN, end=WIDTH - RIGHT_MARGIN)
    bottom = TITLE_HEIGHT + ROW_HEIGHT * len(known)
    surface = Surface(WIDTH, bottom + FOOT + EDGE)
    surface.text(EDGE, TITLE_HEIGHT - 14, title, colour=INK, size=16)
    for value in ticks(low, high):
        x = across.place(value)
        surface.line([(x, TITLE_HEIGHT), (x, bottom)], colour=LINE, width=1)
        surface.text(x, bottom + 14, f"{value:g}", colour=FAINT_INK, anchor="ms")
    surface.text(WIDTH - EDGE, bottom + FOOT, f"Elo with 95 % intervals; {anchor} is 0", colour=FAINT_INK, anchor="rs")
    for number, player in enumerate(known):
        draw_player(surface, player, across, TITLE_HEIGHT + ROW_HEIGHT * number + ROW_HEIGHT / 2)
    return surface.png()


def draw_player(surface: Surface, player: RatedPlayer, across: Axis, y: float) -> None:
    """A player's line."""
    colour = COLOURS[1] if player.marked else COLOURS[0]
    x, first, last = (across.place(player.elo + offset) for offset in (0.0, -player.margin, player.margin))
    surface.text(LEFT_MARGIN - 12, y + 4, player.name, colour=INK if player.marked else FAINT_INK, anchor="rs")
    surface.line([(first, y), (last, y)], colour=colour, width=1.8)
    for end in (first, last):
        surface.line([(end, y - END), (end, y + END)], colour=colour, width=1.8)
    surface.area([(x - DOT, y), (x, y - DOT), (x + DOT, y), (x, y + DOT)], colour=colour)
    surface.line([(x, y - DOT), (x, y + DOT)], colour=colour, width=2 * DOT)
    surface.text(WIDTH - EDGE, y + 4, rating(player.elo, player.margin or None), colour=INK, anchor="rs")
