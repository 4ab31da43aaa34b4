"""Options that a game has got since files first named it: what an older file means that does not name them."""

from collections.abc import Mapping
from typing import Any

BEFORE: dict[str, dict[str, Any]] = {"connect_four": {"planes": "threats"}}


def with_older_options(game: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a game as a model, a batch, a ledger or a run's copy of its settings names them, with those added
    that it is too old to name.
    """
    return BEFORE.get(game, {}) | dict(options)
