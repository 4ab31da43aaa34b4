"""The settings of a run as others may see them: without the names of machines and folders."""

from typing import Any

from keima.config.schema import Settings

PRIVATE = {  # sections and keys that are left out
    "run": {"directory"},
    "distributed": True,
    "training": {"window": {"seed_games"}},
}


def public_settings(settings: Settings, *, defaults: bool = True) -> dict[str, Any]:
    """Return the settings, section by section.

    Args:
        defaults: also those that have their default value.
    """
    return settings.model_dump(mode="json", exclude_defaults=not defaults, exclude=PRIVATE)  # type: ignore[arg-type]
