"""A whole run from Python, on this machine."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keima.base.named import find_experiment
from keima.base.reports.run_reports import IterationReport, Observer
from keima.coach.proposal import load_run_settings
from keima.trainers.run import local_backend_maker, train_run

log = logging.getLogger(__name__)


def train(
    config: str | Path,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    overrides: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
) -> IterationReport | None:
    """Train like ``keima train CONFIG``, with worker processes on this machine; returns the last report.

    Args:
        config: a settings file, or the name of a shipped one, such as ``quickstart``.
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
    path = find_experiment(str(config))
    settings = load_run_settings(
        path, overrides or {}, run_dir=Path(run_dir) if run_dir else None, say=log.info, resume=resume
    )
    folder = Path(run_dir) if run_dir else settings.run.folder
    if settings.distributed.enabled:
        raise ValueError(f"{path}: distributed.enabled uses other machines; train with keima train, or set it to false")
    end = train_run(
        folder,
        settings,
        make_backend=local_backend_maker(),
        config=path,
        resume=resume,
        option="run_dir",
        terminal=observer,
    )
    return end.report
