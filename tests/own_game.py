"""Games in files of their own, for tests: a user's, and those for three players."""

from pathlib import Path
from typing import Any

from keima.games import Game, load_game
from tests.sources import ROOT

EXAMPLES = ROOT / "games"


def own_game(path: Path) -> Path:
    """Write tic-tac-toe as a game outside the checkout; returns the file."""
    rules = (ROOT / "keima" / "games" / "tic_tac_toe.py").read_text(encoding="utf-8")
    path.write_text(rules.replace("def tic_tac_toe()", "def game()"), encoding="utf-8")
    return path


def example(name: str, **options: Any) -> Game:
    """Return a game of ``games``."""
    return load_game(str(EXAMPLES / f"{name}.py"), **options)


def three_in_line() -> Game:
    """Return Connect Four for three players on a small board, where three in line win."""
    return example("three_player_connect_four", rows=4, columns=4, winning=3)


def last_stone(stones: int) -> Game:
    """Return the solved game of tests/games/last_stone.py."""
    return load_game(str(ROOT / "tests" / "games" / "last_stone.py"), stones=stones)
