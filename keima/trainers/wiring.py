"""What the programs that train on this machine share: settings for a game and its workers, and files of weights."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from keima.base.reports import IterationReport, ProgressReport
from keima.base.system.logs import log_also_to, package_logger
from keima.cluster.local.worker_devices import Spread
from keima.config.load import load_settings, override
from keima.config.own_modules import stem_of
from keima.config.schema import Settings
from keima.games import Game, load_game
from keima.networks.files.model_file import save_weights
from keima.paths import find_file

DEFAULT_EPOCHS = 100  # of a run, unless a call of ``train`` says otherwise
MEASURE_EVERY = 10  # iterations between two measurements of strength, and between two files of weights
# Parallel games, however few an iteration has: with fewer the network would wait.
FEWEST_ON_CPU, FEWEST_ON_GPU = 16, 64
MOST_PARALLEL = 256
WINDOW_GROWTH = 0.9  # after the first iteration, the window grows to hold about half of all games
SEARCH_DEFAULTS = {"algorithm": "gumbel", "full_search_probability": 1.0}
FLUSH_SECONDS = 2.0


class WeightsFiles:
    """An observer that writes the learner's weights to a file every few iterations.

    Args:
        path_of: returns the file for an iteration; its folder is created.
        weights: returns the weights.
        every: iterations between two files.
    """

    def __init__(
        self, path_of: Callable[[int], Path], weights: Callable[[], Mapping[str, Any]], *, every: int = MEASURE_EVERY
    ) -> None:
        self._path_of, self._weights, self._every = path_of, weights, every
        self._iteration = 0
        self.path: Path | None = None  # of the last one

    def progress(self, report: ProgressReport) -> None:
        """See ``Observer``."""

    def iteration(self, report: IterationReport) -> None:
        """See ``Observer``."""
        if report.iteration % self._every == 0:
            self.write(report.iteration)

    def event(self, text: str) -> None:
        """See ``Observer``."""

    def close(self) -> None:
        """See ``Observer``."""

    def write(self, iteration: int) -> None:
        """Write the weights of an iteration, unless they are written already.

        Raises:
            OSError: the file cannot be written.
        """
        if iteration > self._iteration:
            path = self._path_of(iteration)
            path.parent.mkdir(parents=True, exist_ok=True)
            save_weights(path, self._weights())
            self._iteration, self.path = iteration, path


def shipped_rules(name: str) -> Game:
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
    """The settings of a run of ``ParallelZeroTrainer``: those of the shipped experiment with this game, in a folder of
    its own that is named after the game and the time.

    Args:
        rules: the game.
        overrides: by dotted key, such as ``{"run.name": "mine", "run.seed": 7, "training.device": "cpu"}``.

    Raises:
        ValueError: some are out of range; the message names them.
    """
    document = default_settings(rules)
    document["run"] = {"name": f"{stem_of(rules.name)}-{time.strftime('%Y%m%d-%H%M%S')}", "iterations": DEFAULT_EPOCHS}
    for key, value in (overrides or {}).items():
        override(document, key.split("."), value)
    return validated(document)


def with_workers(document: dict[str, Any], spread: Spread, *, batch_games: int | None = None) -> Settings:
    """Return the settings in a document, for the workers of ``spread``.

    Each worker plays few games in parallel, because an iteration has few, but enough to keep the network busy.

    Args:
        document: the sections of the settings.
        spread: the devices of the workers.
        batch_games: games in a delivered file; by default a worker's part of an iteration, up to 100.

    Raises:
        ValueError: see ``validated``.
    """
    games = document["training"]["games_per_iteration"]
    fewest = FEWEST_ON_GPU if spread.devices[0] else FEWEST_ON_CPU
    parallel = min(MOST_PARALLEL, max(fewest, math.ceil(games / len(spread))))
    self_play = {
        "workers": len(spread),
        "parallel_games": parallel,
        "games_per_worker": 2 * parallel,
        "flush_seconds": FLUSH_SECONDS,
    }
    distributed = {
        **document["distributed"],
        "enabled": False,
        "batch_size": batch_games or min(100, max(1, games // len(spread))),
    }
    return validated({**document, "self_play": {**document["self_play"], **self_play}, "distributed": distributed})


def validated(document: dict[str, Any]) -> Settings:
    """The settings in a document.

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


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Within the block, what training and its workers have to say is written to the file at ``path`` too."""
    handler = logging.FileHandler(path, encoding="utf-8")
    logger = package_logger()
    level = logger.level
    log_also_to(logger, handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()
