"""Ratings with their intervals as a PNG picture, the strongest at the top."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keima.base.reports.formats import format_elo
from keima.report.charts.png import COLOURS, FAINT_INK, INK, render_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, ROW_HEIGHT, EDGES = 7.2, 0.26, 0.9  # inches


@dataclass(frozen=True, kw_only=True)
class RatedPlayer:
    """A player's Elo; ``margin`` is half the width of the interval, 0 for the anchor."""

    name: str
    elo: float
    margin: float
    marked: bool = False  # the player that the picture is about


def draw_ratings(title: str, players: Sequence[RatedPlayer], *, anchor: str) -> bytes:
    """Draw the picture as a file.

    Raises:
        ValueError: no rating is known.
    """
    known = sorted((player for player in players if math.isfinite(player.margin)), key=lambda player: -player.elo)
    if not known:
        raise ValueError("there is nothing to draw: no ratings")

    def draw(figure: Figure) -> None:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        axes = figure.add_subplot()
        for place, player in enumerate(known):
            colour = COLOURS[1] if player.marked else COLOURS[0]
            axes.errorbar(player.elo, place, xerr=player.margin, fmt="o", color=colour, capsize=3, markersize=5)
        axes.set_yticks(range(len(known)), [player.name for player in known])
        for label, player in zip(axes.get_yticklabels(), known, strict=True):
            label.set_color(INK if player.marked else FAINT_INK)
        axes.set_ylim(len(known) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"Elo with 95 % intervals; {anchor} is 0", loc="right", color=FAINT_INK)
        ratings = axes.secondary_yaxis("right")
        ratings.set_yticks(range(len(known)), [format_elo(player.elo, player.margin or None) for player in known])
        for each in (axes, ratings):
            each.tick_params(axis="y", length=0)
            each.spines[:].set_visible(False)

    return render_png((WIDTH, ROW_HEIGHT * len(known) + EDGES), draw)
