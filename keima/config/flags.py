"""Flags of programs. A flag for a setting takes its type, default and help from where the setting is declared.

Values out of range are rejected with the flag and the range, before anything is imported or written.
"""

import argparse
import ast
import difflib
import importlib
import math
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from keima.config.descriptions import MAIN, DeclaredSetting, declared_settings, describe_setting
from keima.config.own_modules import ModuleProblem, keep_module

HIGHEST_SEED = 2**63 - 1
HIGHEST_PORT = 65_535


def whole(least: int | None = 1, most: int | None = None) -> Callable[[str], int]:
    """Return the type of a flag that takes an integer from ``least`` to ``most``, both included."""
    low = "" if least is None else f" from {least:,}"
    expected = f"expected a whole number{low}{'' if most is None else f' to {most:,}'}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{expected}, found {text or 'nothing'}") from None
        if (least is not None and value < least) or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{expected}, found {text}")
        return value

    return read


def number(
    *, least: float | None = None, above: float | None = None, most: float | None = None, below: float | None = None
) -> Callable[[str], float]:
    """Return the type of a flag that takes a finite number in a range; ``least`` and ``most`` are included."""
    low = f" from {least:g}" if least is not None else f" above {above:g}" if above is not None else ""
    upwards = " and up to" if above is not None else " to" if least is not None else " up to"
    high = f"{upwards} {most:g}" if most is not None else f" and below {below:g}" if below is not None else ""
    expected = f"expected a number{low}{high}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{expected}, found {text or 'nothing'}") from None
        too_low = (least is not None and value < least) or (above is not None and value <= above)
        too_high = (most is not None and value > most) or (below is not None and value >= below)
        if too_low or too_high or not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{expected}, found {text}")
        return value

    return read


def game_among(shipped: Collection[str]) -> Callable[[str], str]:
    """Return the type of a flag that takes a game: the name of a shipped one, or a file of the user's, such as
    my_game.py.
    """

    def read(text: str) -> str:
        if text in shipped:
            return text
        if not text.endswith(".py"):
            games = ", ".join(sorted(shipped))
            raise argparse.ArgumentTypeError(f"expected one of {games}, or a file such as my_game.py, found {text}")
        try:
            return keep_module(Path(text).expanduser())
        except ModuleProblem as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def as_setting(key: str, settings: str = MAIN) -> Callable[[str], float]:
    """Return the type of a flag that takes the range of the numeric setting with this dotted key.

    The settings are imported when the flag is first parsed, so that ``--help`` does not wait for them.
    """

    def read(text: str) -> float:
        from keima.config.load import number_schema

        module, _, kind = settings.rpartition(".")
        schema = number_schema(key, getattr(importlib.import_module(module), kind))
        least, above, most, below = (
            schema.get(name) for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
        )
        if schema["type"] == "integer":
            return whole(least, most if below is None else below - 1)(text)
        return number(least=least, above=above, most=most, below=below)(text)

    return read


def add_setting(add: Callable[..., Any], flag: str, key: str, *, dest: str | None = None, usual: object = None) -> None:
    """Add a flag that gives the numeric setting with this dotted key, and says what the setting means.

    Args:
        add: a parser's ``add_argument``.
        flag: the flag.
        key: the key.
        dest: under what name the parsed value is kept; by default under the key, where ``given_settings`` finds it.
        usual: what the program takes by default, for the help.
    """
    about, _ = _split_description(key, MAIN)
    add(flag, type=as_setting(key), dest=dest or key, metavar=_metavar(flag), help=_help_text(about, usual))


def add_section(add: Callable[..., Any], section: str, settings: str) -> None:
    """Add a flag for each setting of a section: of its name, type, default and meaning.

    Text is taken to be the path of a file. The parsed value is kept under the setting's name, and is None if the flag
    is not given.

    Args:
        add: a parser's ``add_argument``.
        section: the section's dotted key.
        settings: the class of the program's settings, as module.Class.
    """
    for name, declared in declared_settings(section, settings).items():
        flag, key = f"--{name.replace('_', '-')}", f"{section}.{name}"
        about, unset = _split_description(key, settings)
        usual = unset if declared.default == "None" else _default_text(ast.literal_eval(declared.default))
        add(flag, help=_help_text(about, usual), **_value_options(flag, key, declared, settings))


def _value_options(flag: str, key: str, declared: DeclaredSetting, settings: str) -> dict[str, Any]:
    """Return what ``add_argument`` needs to know of the values of a setting."""
    if declared.kind == "bool":
        return {"action": argparse.BooleanOptionalAction}
    if declared.kind.startswith("Literal["):
        return {"choices": ast.literal_eval(declared.kind.removeprefix("Literal"))}
    if declared.kind.startswith("Line"):
        return {"type": Path}
    return {"type": as_setting(key, settings), "metavar": _metavar(flag)}


def _metavar(flag: str) -> str:
    return flag.strip("-").replace("-", "_").upper()


def _split_description(key: str, settings: str) -> tuple[str, str | None]:
    """Return a setting's description without what null or auto means, which no flag can be, and that meaning."""
    about, *unset = re.split("; (?:null|auto): ", describe_setting(key, settings), maxsplit=1)
    return about, unset[0] if unset else None


def _help_text(about: str, usual: object) -> str:
    """Return the help of a flag."""
    return f"{about}{'' if usual is None else f' (default: {usual})'}".replace("%", "%%")


def _default_text(value: bool | float | str) -> str:
    """Return a default in the words of a command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def add_set(add: Callable[..., Any]) -> None:
    """Add the flag that gives any setting."""
    text = (
        "any setting of the config, such as search.num_simulations=200; may be repeated, and comes before other flags"
    )
    add("--set", type=assignment, action="append", default=[], metavar="KEY=VALUE", help=text)


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that a command line gives, by dotted key."""
    flags = {key: value for key, value in vars(arguments).items() if "." in key and value is not None}
    return {**dict(arguments.set), **flags}


def assignment(text: str) -> tuple[str, Any]:
    """Parse the value of ``--set``: a setting's dotted key, and its value, which is written as in a config."""
    from keima.config.load import known_keys, read_value
    from keima.config.older_options import RENAMED

    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, such as search.num_simulations=200, found {text}")
    keys = list(known_keys())
    if RENAMED.get(key, key) not in keys:
        close = difflib.get_close_matches(key, keys, n=1) or [known for known in keys if known.endswith(f".{key}")]
        hint = f"; did you mean {close[0]}?" if close else ""
        raise argparse.ArgumentTypeError(f"there is no setting {key}{hint}")
    try:
        return key, read_value(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{key}: {error}") from None


def complete_keys(prefix: str, **_: object) -> list[str]:
    """Return how a shell may complete the word after ``--set``."""
    from keima.config.load import known_keys

    return [f"{key}=" for key in known_keys() if key.startswith(prefix)]


assignment.completer = complete_keys  # type: ignore[attr-defined]
