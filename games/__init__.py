"""The worlds: rules as compiled kernels behind one contract."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from games.chess import chess
from games.connect_four import connect_four
from games.game import CHANCE, Game, IllegalAction, Rules
from games.go import go
from games.tic_tac_toe import tic_tac_toe
from games.twenty48 import twenty48

GAMES: dict[str, Callable[..., Game]] = {
    "tic_tac_toe": tic_tac_toe,
    "connect_four": connect_four,
    "go": go,
    "twenty48": twenty48,
    "chess": chess,
}

__all__ = ["CHANCE", "GAMES", "Game", "IllegalAction", "Rules", "load_game"]


def load_game(name: str, **options: Any) -> Game:
    """Build the game called ``name``.

    Raises:
        ValueError: there is no such game, or it does not take these options.
    """
    if name not in GAMES:
        raise ValueError(f"there is no game called {name!r}; the games are {', '.join(sorted(GAMES))}")
    takes = signature(GAMES[name]).parameters
    for option in options.keys() - takes.keys():
        raise ValueError(f"game {name!r} has no option {option!r}; it takes {', '.join(takes) or 'none'}")
    try:
        return GAMES[name](**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"game {name!r}: {error}") from error
