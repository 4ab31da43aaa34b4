"""The scripts that draw boards and charts and step through games, and what they are given. Imports nothing large."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from views.game_view import GameView

VIEWS = Path(__file__).parent
VIEWER = {kind: VIEWS / f"games.{kind}" for kind in ("html", "css", "js")}
BOARDS = {kind: VIEWS / f"boards.{kind}" for kind in ("css", "js")}  # the viewer draws with them
CHARTS = {  # the library comes first
    "licence": VIEWS / "uplot" / "LICENSE",
    "library css": VIEWS / "uplot" / "uPlot.min.css",
    "library": VIEWS / "uplot" / "uPlot.iife.min.js",
    "css": VIEWS / "charts.css",
    "js": VIEWS / "charts.js",
}


def shown_game(view: "GameView") -> dict[str, Any]:
    """The game for the script of games.js; a board that is drawn needs no text."""
    moments = [replace(moment, board="") if moment.cells or moment.svg else moment for moment in view.moments]
    return asdict(replace(view, moments=tuple(moments)))
