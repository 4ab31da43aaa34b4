"""A user's own game, for tests of what happens to its file."""

from pathlib import Path

from tests.sources import ROOT


def own_game(path: Path) -> Path:
    """Write tic-tac-toe as a game outside the checkout; returns the file."""
    rules = (ROOT / "games" / "tic_tac_toe.py").read_text(encoding="utf-8")
    path.write_text(rules.replace("def tic_tac_toe()", "def game()"), encoding="utf-8")
    return path
