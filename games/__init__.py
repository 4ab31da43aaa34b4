"""Games: rules as compiled kernels behind one contract.

A game is imported and compiled when it is loaded. The names of this package are imported on first use, so that programs
can list the games without loading any.
"""

from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from games.game import CHANCE, Game, IllegalAction, Rules

GAMES = {  # by name, the module with the function of that name that builds the game
    "tic_tac_toe": "games.tic_tac_toe",
    "connect_four": "games.connect_four.rules",
    "go": "games.go.rules",
    "twenty48": "games.twenty48.rules",
    "chess": "games.chess.rules",
}

__all__ = ["CHANCE", "GAMES", "Game", "IllegalAction", "Rules", "load_game"]

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a name of ``__all__`` from ``games.game``."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("games.game"), name)


def load_game(name: str, **options: Any) -> "Game":
    """Build the game called ``name``.

    Raises:
        ValueError: the game does not exist, or does not accept these options.
    """
    if name not in GAMES:
        raise ValueError(f"there is no game called {name!r}; the games are {', '.join(sorted(GAMES))}")
    build = getattr(import_module(GAMES[name]), name)
    takes = signature(build).parameters
    for option in options.keys() - takes.keys():
        raise ValueError(f"game {name!r} has no option {option!r}; it takes {', '.join(takes) or 'none'}")
    try:
        game: Game = build(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"game {name!r}: {error}") from error
    return game
