"""What older files say differently: options that games have gained since, and settings that were removed or renamed."""

from collections.abc import Mapping
from typing import Any

BEFORE: dict[str, dict[str, Any]] = {"connect_four": {"planes": "threats"}, "chess": {"history": 8}}
# Settings of techniques that did not help, by section: the value at which they did nothing; None: they had no effect of
# their own. docs/results/learning_techniques.md says what was measured.
LEFT: dict[str, dict[str, Any]] = {
    "model": {"simulations": None},  # in the heading of a model's file: of searches that grew
    "network": {"predict_soft_policy": False},
    "search": {
        "archive_share": 0.0,
        "archive_positions": None,
        "growth": {"simulations": None, "games": 20_000},
        "variance_scale": 0.0,
        "variance_prior": None,
        "variance_prior_visits": None,
    },
    "training": {"soft_policy_weight": None},
}

RENAMED = {"distributed.ray.seats": "distributed.ray.slots"}  # settings that still go by an older name, too


def with_older_options(game: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a game as a model, a batch, a ledger or a run's copy of its settings names them, with the
    options added that it is too old to name.
    """
    return BEFORE.get(game, {}) | dict(options)


def without_left_settings(section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section of a run's copy of its settings, or the network of a model, without removed settings. Those that
    had an effect remain, to be refused by name.
    """
    left = LEFT.get(section, {})
    return {key: value for key, value in settings.items() if key not in left or left[key] not in (None, value)}
