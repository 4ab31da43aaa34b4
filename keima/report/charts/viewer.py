"""The scripts that draw boards and charts and step through games, and what they are given. Imports nothing large."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from keima.paths import PACKAGE

if TYPE_CHECKING:
    from keima.report.games.game_view import GameView

ASSETS = PACKAGE / "report" / "assets"
VIEWER = {kind: ASSETS / f"games.{kind}" for kind in ("html", "css", "js")}
BOARDS = {kind: ASSETS / f"boards.{kind}" for kind in ("css", "js")}  # the viewer draws with them
CHARTS = {  # the library comes first
    "licence": ASSETS / "uplot" / "LICENSE",
    "library css": ASSETS / "uplot" / "uPlot.min.css",
    "library": ASSETS / "uplot" / "uPlot.iife.min.js",
    "css": ASSETS / "charts.css",
    "js": ASSETS / "charts.js",
}


def game_to_json(view: "GameView") -> dict[str, Any]:
    """Return the game for the script of games.js; a board that is drawn needs no text."""
    moments = [replace(moment, board="") if moment.cells or moment.svg else moment for moment in view.moments]
    return asdict(replace(view, moments=tuple(moments)))
