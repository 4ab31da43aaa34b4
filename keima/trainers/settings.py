"""Settings for a game that has none of its own, and for the workers of this machine."""

import copy
import math
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from keima.cluster.local.worker_devices import Spread
from keima.config.load import apply_overrides, load_settings
from keima.config.own_modules import stem_of
from keima.config.schema import Settings
from keima.games import Game, load_game
from keima.paths import find_file

DEFAULT_EPOCHS = 100  # of a run, unless a call of ``train`` says otherwise
MEASURE_EVERY = 10  # iterations between two measurements of strength
# Parallel games, however few an iteration has: with fewer the network would wait.
FEWEST_ON_CPU, FEWEST_ON_GPU = 16, 64
MOST_PARALLEL = 256
WINDOW_GROWTH = 0.9  # after the first iteration, the window grows to hold about half of all games
SEARCH_DEFAULTS = {"algorithm": "gumbel", "full_search_probability": 1.0}
FLUSH_SECONDS = 2.0
SMOKE = {  # the most of each in a smoke test
    "run.iterations": 2,
    "training.games_per_iteration": 8,
    "training.batch_size": 16,
    "search.num_simulations": 4,
    "network.blocks": 1,
    "network.channels": 8,
}


def load_shipped_game(name: str) -> Game:
    """Return the game ``name`` with the options of the shipped experiment of that name, if there is one."""
    shipped = find_file(f"configs/{name}.yaml")
    return load_game(name, **load_settings(shipped).game.options) if shipped.exists() else load_game(name)


def default_settings(rules: Game) -> dict[str, Any]:
    """Return the sections of the shipped experiment with this game, or settings that suit most games."""
    shipped = find_file(f"configs/{rules.name}.yaml")
    if shipped.exists():
        settings = load_settings(shipped).model_dump()
    else:
        general = {"run": {"name": stem_of(rules.name)}, "game": {"name": rules.name}, "search": SEARCH_DEFAULTS}
        settings = Settings.model_validate(general).model_dump()
    settings["game"]["options"] = rules.options
    if rules.num_players == 1:
        settings["evaluation"] = {"every": 0, "rating_games": 0}  # the games of self-play have scores
    else:
        settings["evaluation"] |= {"every": MEASURE_EVERY, "gating": "none"}
    return settings


def trainer_settings(rules: Game, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of a run of ``ParallelZeroTrainer``: those of the shipped experiment with this game, in a
    folder of its own that is named after the game and the time.

    Args:
        rules: the game.
        overrides: by dotted key, such as ``{"run.name": "mine", "run.seed": 7, "training.device": "cpu"}``.

    Raises:
        ValueError: some are out of range; the message names them.
    """
    document = default_settings(rules)
    document["run"] = {"name": f"{stem_of(rules.name)}-{time.strftime('%Y%m%d-%H%M%S')}", "iterations": DEFAULT_EPOCHS}
    apply_overrides(document, overrides or {})
    return validate_settings(document)


def apply_given(document: dict[str, Any], given: Mapping[str, Any], *, smoke: bool = False) -> dict[str, Any]:
    """Return the sections of settings with those that a command line gives, by dotted key.

    Args:
        document: the sections.
        given: replace those of the document.
        smoke: shrink the run to a minute; its length stays if it is given.
    """
    changed = copy.deepcopy(document)
    apply_overrides(changed, given)
    for key, limit in SMOKE.items() if smoke else ():
        section, name = key.split(".")
        if key not in given or key != "run.iterations":
            changed[section][name] = min(changed[section][name] or limit, limit)
    return changed


def settings_for_workers(
    document: dict[str, Any],
    spread: Spread,
    *,
    batch_games: int | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Settings:
    """Return the settings in a document, for the workers of ``spread``.

    Each worker plays few games in parallel, because an iteration has few, but enough to keep the network busy.

    Args:
        document: the sections of the settings.
        spread: the devices of the workers.
        batch_games: games in a delivered file; by default a worker's part of an iteration, up to 100.
        given: settings by dotted key that are not computed, but as they are here.

    Raises:
        ValueError: see ``validate_settings``.
    """
    games = document["training"]["games_per_iteration"]
    fewest = FEWEST_ON_GPU if spread.devices[0] else FEWEST_ON_CPU
    parallel = min(MOST_PARALLEL, max(fewest, math.ceil(games / len(spread))))
    computed = {
        "self_play.workers": len(spread),
        "self_play.parallel_games": parallel,
        "self_play.games_per_worker": 2 * parallel,
        "self_play.flush_seconds": FLUSH_SECONDS,
        "distributed.batch_size": batch_games or min(100, max(1, games // len(spread))),
        "distributed.enabled": False,
    }
    kept = {key: value for key, value in given.items() if key in computed and key != "self_play.workers"}
    return validate_settings(apply_given(document, computed | kept))


def validate_settings(document: dict[str, Any]) -> Settings:
    """Check the settings in a document, and return them.

    Raises:
        ValueError: some are out of range; the message names them.
    """
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}, found {problem['input']!r}"
            for problem in error.errors()
        ]
        raise ValueError("; ".join(problems)) from None
