"""OpenSpiel's package: load a game, and reject games that do not fit the contract, with the reason."""

import platform
import sys
from difflib import get_close_matches
from importlib import import_module
from math import isfinite
from typing import Any

MAX_ACTIONS = 2**16  # actions or outcomes that the contract allows


def import_pyspiel() -> Any:
    """Import OpenSpiel's package.

    Raises:
        ValueError: it is not installed; the message says where, and how to install it.
    """
    try:
        return import_module("pyspiel")
    except ImportError as error:
        raise ValueError(
            f"OpenSpiel is not installed on {platform.node()}: run `{sys.executable} -m pip install open_spiel` there"
        ) from error


def load_openspiel_game(text: str) -> Any:
    """Load a game of OpenSpiel's, such as ``hex(board_size=5)``.

    Raises:
        ValueError: OpenSpiel has no such game or refuses its parameters, or the game does not fit the contract.
    """
    library = import_pyspiel()
    name, known = text.partition("(")[0].strip(), library.registered_names()
    if name not in known:
        similar = get_close_matches(name, known) or ["hex(board_size=5)", "othello", "backgammon"]
        raise ValueError(f"OpenSpiel has no game called {name!r}; similar names are {', '.join(similar)}")
    try:
        game = library.load_game(text)
        unfit = explain_misfit(game)
    except (library.SpielError, RuntimeError, IndexError) as error:  # IndexError: std::out_of_range
        raise ValueError(f"OpenSpiel refuses {text!r}: {' '.join(str(error).split())}") from error
    if unfit:
        raise ValueError(f"OpenSpiel's {text} cannot be played here: {unfit}")
    return game


def explain_misfit(game: Any) -> str:
    """Return why a game of OpenSpiel does not fit the contract of ``keima.games.game``; empty if it does."""
    kind, players = game.get_type(), game.num_players()
    if kind.information != kind.Information.PERFECT_INFORMATION:
        return "its players do not see the whole position (imperfect information)"
    if kind.dynamics != kind.Dynamics.SEQUENTIAL:
        return "its players move at the same time (simultaneous moves)"
    if kind.chance_mode == kind.ChanceMode.SAMPLED_STOCHASTIC:
        return "it samples its chance outcomes and does not report their probabilities"
    if players not in (1, 2):
        return f"it has {players} players, and Keima plays games for one or two"
    if players == 2 and kind.utility != kind.Utility.ZERO_SUM:
        return "one player's win is not the other's loss (not a zero-sum game)"
    if not kind.provides_observation_tensor:
        return "OpenSpiel has no observation tensor for it, and the network needs one"
    if not 1 <= game.num_distinct_actions() <= MAX_ACTIONS or game.max_chance_outcomes() > MAX_ACTIONS:
        return f"it has more than {MAX_ACTIONS} actions or chance outcomes, or none"
    if not (isfinite(game.min_utility()) and isfinite(game.max_utility()) and game.min_utility() < game.max_utility()):
        return "OpenSpiel gives no bounds for its returns"
    return ""
