"""The settings of the game."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, ValidationInfo, model_validator

from keima.config.own_modules import is_own, keep_module
from keima.config.sections.types import Line, Name, Scalar, Section, as_tuple, matching

OPTION = r"[A-Za-z_][A-Za-z0-9_]{0,31}=-?[0-9]{1,6}(\.[0-9]{1,6})?"
BoardStep = Annotated[
    str,
    matching(
        rf"{OPTION}( {OPTION}){{0,3}}@0\.[0-9]{{1,6}}",
        "OPTION=NUMBER@SHARE with a share of the run's time between 0 and 1, such as size=5@0.1",
    ),
]


class SmallerBoard(NamedTuple):
    """A smaller board, on which a run begins."""

    name: str  # its options as they are given, such as "size=5"
    options: dict[str, int | float]  # they replace those of the run's own board
    share: float  # of the run's time, until which it is played


class GameSettings(Section):
    """The game and its options: a shipped game by its name, a user's file, or a game of OpenSpiel."""

    name: Name
    """The game: chess, connect_four, go, openspiel, tic_tac_toe or twenty48; required without module."""
    module: Line | None = None
    """Instead of name: a Python file with a game of your own (docs/add_a_game.md)."""
    options: dict[str, Scalar] = {}
    """The options of the game; docs/reference.md#options-of-games lists them with their defaults."""
    smaller: Annotated[tuple[BoardStep, ...], BeforeValidator(as_tuple)] = ()
    """Begin on smaller boards, each until a share of run.minutes, such as [size=5@0.1, size=7@0.3] or, with more than
    one option, [size=5 komi=24.5@0.1, size=7 komi=9.0@0.3] in Go, where the fair komi depends on the size; the network
    goes on with what it has learned there.
    """

    @model_validator(mode="before")
    @classmethod
    def _name(cls, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, dict) and "openspiel" in given:
            return _of_openspiel(given)
        return with_own_name(given, "name", info)

    @property
    def boards(self) -> tuple[SmallerBoard, ...]:
        """The smaller boards, in the order in which they are played."""
        found = []
        for step in self.smaller:
            name, share = step.split("@")
            pairs = dict(pair.split("=") for pair in name.split())
            options = {key: float(value) if "." in value else int(value) for key, value in pairs.items()}
            found.append(SmallerBoard(name, options, float(share)))
        return tuple(found)

    @model_validator(mode="after")
    def _check(self) -> Self:
        shares = [0.0, *(board.share for board in self.boards)]
        for before, after in pairwise(shares):
            if after <= before:
                raise ValueError(f"smaller: the shares must ascend from 0, but {after:g} follows {before:g}")
        return self


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
