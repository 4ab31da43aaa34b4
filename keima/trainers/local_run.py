"""A whole run from Python, on this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keima.base.formats import game_title
from keima.base.reports import IterationReport, Observer
from keima.base.run_lock import RunLock
from keima.cluster.local.processes import LocalProcesses, spread_processes
from keima.coach.session import configured_game, event_logger, make_run_folder, session
from keima.config.load import load_settings, with_begun_modules
from keima.games import Game
from keima.report import make_observers
from keima.report.files.trackers import require_trackers


def train(
    config: str | Path,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    overrides: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
) -> IterationReport | None:
    """Train like ``start_main.py --config CONFIG``, with worker processes on this machine; returns the last report.

    Args:
        config: a settings file, such as ``configs/quickstart.yaml``.
        run_dir: the run's folder; by default ``runs/<name in the config>``.
        resume: continue the run in that folder.
        overrides: settings by dotted keys, such as ``{"run.minutes": 5}``.
        observer: receives the reports instead of the terminal.

    Raises:
        ConfigError: a setting is invalid; the message names file, line and key.
        ValueError: the folder already holds a run, or none to resume, or the config uses other machines, or a tracker
            that is not installed.
        RunLocked: another process works on this run.
    """
    path = Path(config)
    settings = load_settings(path, overrides=dict(overrides or {}))
    if settings.distributed.enabled:
        raise ValueError(
            f"{path}: distributed.enabled uses other machines; train with start_main.py, or set it to false"
        )
    folder = Path(run_dir) if run_dir else Path(settings.run.directory) / settings.run.name
    settings, changed = with_begun_modules(settings, folder) if resume else (settings, [])
    require_trackers(settings.run.trackers)
    configured_game(settings, path)
    make_run_folder(folder, resume=resume, option="run_dir")
    observers = make_observers(
        folder,
        name=settings.run.name,
        game=game_title(settings.game.name, settings.game.options),
        terminal=observer,
        trackers=settings.run.trackers,
    )
    log_event = event_logger(observers)
    for sentence in changed:
        log_event(sentence)

    def make_backend(game: Game, run_id: str) -> LocalProcesses:
        return spread_processes(folder / "workers", game=game, settings=settings, run_id=run_id, log_event=log_event)

    with RunLock(folder), session(folder, settings, make_backend=make_backend, observers=observers) as coach:
        return coach.run()
