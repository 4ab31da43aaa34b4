"""Games: rules as compiled kernels behind one contract.

A game is imported and compiled when it is loaded. The names of this package are imported on first use, so that programs
can list the games without loading any.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keima.config.own_modules import describe_error, is_own, keep_module, load_module, stem_of

if TYPE_CHECKING:
    from keima.games.game import CHANCE, Game, IllegalAction, Rules

GAMES = {  # by name, the module with the function of that name that builds the game
    "tic_tac_toe": "keima.games.tic_tac_toe",
    "connect_four": "keima.games.connect_four.rules",
    "go": "keima.games.go.rules",
    "twenty48": "keima.games.twenty48.rules",
    "chess": "keima.games.chess.rules",
    "openspiel": "keima.games.openspiel.rules",
}

__all__ = ["CHANCE", "GAMES", "Game", "IllegalAction", "Rules", "load_game"]

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a name of ``__all__`` from ``keima.games.game``."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("keima.games.game"), name)


def load_game(name: str, **options: Any) -> "Game":
    """Build a game.

    Args:
        name: of a shipped game; a user's file, such as ``my_game.py``; or its name in this machine's store.
        options: of the game.

    Raises:
        ValueError: the game does not exist, does not accept these options, or fails.
    """
    if name.endswith(".py"):
        name = keep_module(Path(name).expanduser())
    if is_own(name):
        return _load_own_game(name, options)
    if name not in GAMES:
        raise ValueError(f"there is no game called {name!r}; the games are {', '.join(sorted(GAMES))}")
    build = getattr(import_module(GAMES[name]), name)
    _check_options(name, build, options)
    try:
        game: Game = build(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"game {name!r}: {error}") from error
    return game


def _load_own_game(name: str, options: dict[str, Any]) -> "Game":
    from keima.games.game import Game

    module = load_module(name)
    build = getattr(module, "game", None)
    if not callable(build):
        raise ValueError(f"{module.__file__}: define a function game(), with the game's options, that returns the Game")
    _check_options(stem_of(name), build, options)
    try:
        game = build(**options)
    except Exception as error:
        raise ValueError(describe_error(error, name)) from error
    if not isinstance(game, Game):
        raise ValueError(f"{module.__file__}: game() must return a Game, and returns a {type(game).__name__}")
    given = signature(build).bind(**options)
    given.apply_defaults()
    return replace(game, name=name, options=dict(given.arguments))


def _check_options(name: str, build: Callable[..., Any], options: dict[str, Any]) -> None:
    takes = signature(build).parameters
    for option in options.keys() - takes.keys():
        raise ValueError(f"game {name!r} has no option {option!r}; it takes {', '.join(takes) or 'none'}")
