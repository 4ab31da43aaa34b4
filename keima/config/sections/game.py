"""The settings of the game."""

from pathlib import Path
from typing import Any

from pydantic import ValidationInfo, model_validator

from keima.config.own_modules import is_own, keep_module
from keima.config.sections.types import Line, Name, Scalar, Section


class GameSettings(Section):
    """The game and its options: a shipped game by its name, a user's file, or a game of OpenSpiel."""

    name: Name
    """The game: chess, connect_four, go, openspiel, tic_tac_toe or twenty48; required without module."""
    module: Line | None = None
    """Instead of name: a Python file with a game of your own (docs/add_a_game.md)."""
    options: dict[str, Scalar] = {}
    """The options of the game; docs/reference.md#options-of-games lists them with their defaults."""

    @model_validator(mode="before")
    @classmethod
    def _name(cls, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, dict) and "openspiel" in given:
            return _of_openspiel(given)
        return with_own_name(given, "name", info)


def _of_openspiel(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of ``{openspiel: hex}``, written out."""
    if given.keys() != {"openspiel"}:
        raise ValueError("openspiel: write the parameters into the name, such as hex(board_size=5), without other keys")
    return {"name": "openspiel", "options": {"game": given["openspiel"]}}


def with_own_name(given: Any, key: str, info: ValidationInfo) -> Any:
    """Return a section read from a settings file, with the user's file ``module`` in this machine's store and its name
    at ``key``; a section from elsewhere already has the name.
    """
    if not isinstance(given, dict) or not isinstance(given.get("module"), str):
        return given
    name, config = given.get(key, ""), (info.context or {}).get("config")
    if is_own(str(name)) and config is None:
        return given
    if name and not is_own(str(name)):
        raise ValueError(f"either {key}, for what is shipped, or module, for a file of your own")
    path = Path(given["module"]).expanduser()
    path = path if config is None else (Path(config).parent / path).resolve()
    return given | {key: keep_module(path, expected=str(name)), "module": str(path)}
