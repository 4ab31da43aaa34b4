"""The script that steps through recorded games, and what it is given. Imports nothing large."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from views.game_view import GameView

VIEWER = {kind: Path(__file__).with_name(f"games.{kind}") for kind in ("html", "css", "js")}


def shown_game(view: "GameView") -> dict[str, Any]:
    """The game for the script of games.js; a board that is drawn needs no text."""
    moments = [replace(moment, board="") if moment.cells else moment for moment in view.moments]
    return asdict(replace(view, moments=tuple(moments)))
