"""A whole run, from the first check to the last weights: the one wiring of the Coach that every training program uses.

What differs between them is passed in: the settings, who plays, who watches, and the first weights.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from keima.base.files import write_atomically
from keima.base.reports.formats import game_title
from keima.base.reports.run_reports import IterationReport, Observer
from keima.base.run_folder import FOLLOWED
from keima.base.run_lock import RunLock
from keima.base.system.logs import add_log_handler, package_logger
from keima.cluster.control.cluster_client import open_cluster_client
from keima.cluster.control.requests import lock_control_folder
from keima.cluster.local.learner_ranks import learner_ranks
from keima.cluster.local.processes import spread_processes
from keima.cluster.local.worker_devices import Spread
from keima.cluster.ray import require_ray
from keima.coach.backends.backend import SelfPlayBackend
from keima.coach.loop import Coach
from keima.coach.session import configured_game, event_logger, make_run_folder, session
from keima.coach.stages import Stage, begin_run_folder, check_growth, check_stages, stages_left
from keima.config.load import error_at_setting, with_begun_modules
from keima.config.schema import Settings
from keima.games import Game, load_game
from keima.learning.ranks.process_group import ALONE, Ranks
from keima.paths import workspace
from keima.report import make_observers, shield_observer
from keima.report.files.trackers import require_trackers
from keima.trainers.weights_files import WeightsFiles

log = logging.getLogger(__name__)

LOG_NAME = "coach.log"  # in the run's folder
CLUSTER_LOG = workspace() / "logs" / "distributed_training.log"
LOG_BYTES = 10 * 2**20

LogEvent = Callable[[str], None]
# Takes the run's folder, the game, the settings, the run's id, and what logs an event.
MakeBackend = Callable[[Path, Game, Settings, str, LogEvent], SelfPlayBackend]


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """The end of a session of a run."""

    report: IterationReport | None  # of the last iteration, if one was finished
    coach: Coach
    files: WeightsFiles | None = None  # if files of weights were wanted

    @property
    def stopped(self) -> bool:
        """Whether Ctrl-C has ended it."""
        return self.coach.stop_requested


def train_run(
    run_dir: Path,
    settings: Settings,
    *,
    make_backend: MakeBackend,
    config: Path | None = None,
    resume: bool = False,
    option: str = "--run-dir",
    present: Ranks = ALONE,
    observers: Sequence[Observer] | None = None,
    terminal: Observer | None = None,
    weights: Mapping[str, Any] | None = None,
    weights_path: Callable[[int], Path] | None = None,
) -> RunEnd:
    """Start a run, or resume it, and train until its bounds or a stop; first on its smaller boards, if it has any.

    Args:
        run_dir: its folder; created if missing.
        settings: of the run.
        make_backend: makes what has the games played; see ``local_backend_maker``.
        config: the file of the settings, which messages about the game name, and which the run follows.
        resume: continue the run in the folder.
        option: what names the folder, for messages.
        present: the ranks that torchrun has started, if any.
        observers: receive the reports; by default the terminal, and files in the folder.
        terminal: receives the reports instead of the terminal.
        weights: the first ones; by default random.
        weights_path: the file that the weights of an iteration are written to, every few iterations; by default none.

    Raises:
        ConfigError: the game in the settings cannot be played, or not on the smaller boards.
        ValueError: the folder already holds a run, or none to resume; a tracker or Ray is not installed.
        RunLocked: another process works on this run.
        NobodyPlays: all workers have failed.
        TrainingDiverged: losses or gradients are not finite.
        OSError, sqlite3.Error: see ``keima.coach.opening.open_coach``.
    """
    settings, changed = with_begun_modules(settings, run_dir) if resume else (settings, [])
    require_trackers(settings.run.trackers)
    if settings.distributed.enabled and settings.distributed.ray:
        require_ray()
    if config:
        configured_game(settings, config)  # before anything is written
    *smaller, own = stages_left(run_dir, settings)
    if settings.network.growth:
        game = load_game(settings.game.name, **settings.game.options)
        with naming_setting("network", "growth", config=config):
            check_growth(game, settings.network)
    if smaller:
        with naming_setting("game", "smaller", config=config):
            if not present.is_alone:
                raise ValueError("the ranks of torchrun end with the first board; use training.learner.ranks instead")
            if settings.distributed.enabled and settings.distributed.crowd:
                raise ValueError(
                    "machines that join by a link cannot go on to another board; let them join when the last has begun"
                )
            check_stages([*smaller, own])
    make_run_folder(run_dir, resume=resume, option=option)
    with RunLock(run_dir), log_to_file(run_dir / LOG_NAME), ExitStack() as stack:
        if config and config != run_dir / "config.yaml":  # which is the run's own copy
            write_atomically(run_dir / FOLLOWED, str(config.resolve()).encode())

        def stay_open(observer: Observer) -> Observer:
            stack.callback(shield_observer(observer).close)
            return LeftOpen(observer)

        train = partial(
            train_stage,
            make_backend=make_backend,
            present=present,
            observers=None if observers is None else [stay_open(observer) for observer in observers],
            terminal=terminal and stay_open(terminal),
        )
        if smaller:
            begin_run_folder(own)
        seconds = 0.0
        for stage in smaller:
            stage.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with RunLock(stage.folder):
                end = train(stage, events=changed, weights=weights, seconds=seconds)
            if end.stopped:
                return end
            weights, changed = end.coach.learner.weights(), []
            seconds = 60 * (stage.settings.run.minutes or 0.0)  # the next has all of its time, if this one ended late
            del end  # with its window
        return train(own, events=changed, weights=weights, seconds=seconds, weights_path=weights_path)


@contextmanager
def naming_setting(*keys: str, config: Path | None) -> Iterator[None]:
    """Name the setting with these keys in a ValueError of the block, and its line in the file ``config``, if given.

    Raises:
        ConfigError, ValueError: see above.
    """
    try:
        yield
    except ValueError as error:
        if config:
            raise error_at_setting(config, keys, str(error)) from error
        raise ValueError(f"{'.'.join(keys)}: {error}") from error


class LeftOpen:
    """Passes the reports of one stage of a run on to an observer, which stays open for the next."""

    def __init__(self, observer: Observer) -> None:
        self.progress, self.iteration, self.event = observer.progress, observer.iteration, observer.event

    def close(self) -> None:
        """Do nothing."""


def train_stage(
    stage: Stage,
    *,
    make_backend: MakeBackend,
    present: Ranks,
    observers: Sequence[Observer] | None,
    terminal: Observer | None,
    events: Sequence[str],
    weights: Mapping[str, Any] | None,
    seconds: float,
    weights_path: Callable[[int], Path] | None = None,
) -> RunEnd:
    """Train on the board of one stage, new or resumed; see ``train_run``. The caller holds the folder's lock.

    Args:
        events: what observers are told first.
        weights: the first ones of a new stage.
        seconds: of the run that a new stage has behind it.
    """
    run_dir, settings = stage.folder, stage.settings
    with learner_ranks(settings, run_dir, present=present) as ranks:
        watching = observers if observers is not None else make_run_observers(run_dir, settings, terminal=terminal)
        log_event = event_logger(watching)
        for sentence in filter(None, (*events, stage.news)):
            log_event(sentence)

        def begin(game: Game, run_id: str) -> SelfPlayBackend:
            return make_backend(run_dir, game, settings, run_id, log_event)

        with session(
            run_dir,
            settings,
            make_backend=begin,
            observers=watching,
            weights=weights,
            seconds=seconds,
            ranks=ranks,
        ) as coach:
            coach.bounds.schedule_minutes = stage.run_minutes
            files = WeightsFiles(weights_path, lambda: coach.learner.weights()) if weights_path else None
            if files:
                coach.observers = [*coach.observers, shield_observer(files)]
            return RunEnd(report=coach.run(), coach=coach, files=files)


def make_run_observers(run_dir: Path, settings: Settings, *, terminal: Observer | None = None) -> Sequence[Observer]:
    """Return the usual observers of a run: the terminal, or what stands for it, files, and trackers."""
    return make_observers(
        run_dir,
        name=settings.run.name,
        game=game_title(settings.game.name, settings.game.options),
        terminal=terminal,
        trackers=settings.run.trackers,
    )


def local_backend_maker(*, spread: Spread | None = None) -> MakeBackend:
    """Return what has the games of a run played by processes of this machine, on the devices of ``spread``."""

    def make(run_dir: Path, game: Game, settings: Settings, run_id: str, log_event: LogEvent) -> SelfPlayBackend:
        return spread_processes(
            run_dir / "workers", game=game, settings=settings, run_id=run_id, log_event=log_event, spread=spread
        )

    return make


def cluster_backend_maker(*, config: Path, takeover: bool = False) -> MakeBackend:
    """Return what has the games of a run played on the machines that its config lists.

    Raises:
        RunLocked: another Coach uses this folder's workers; nothing has been written for this run.
        OSError: the folder cannot be written.
    """
    lock_control_folder().close()

    def make(run_dir: Path, game: Game, settings: Settings, run_id: str, log_event: LogEvent) -> SelfPlayBackend:
        CLUSTER_LOG.parent.mkdir(exist_ok=True)
        handler = RotatingFileHandler(CLUSTER_LOG, maxBytes=LOG_BYTES, backupCount=3, encoding="utf-8")
        add_log_handler(package_logger(), handler)  # where users of a cluster expect it
        return open_cluster_client(
            run_dir / "workers",
            config=config,
            run_dir=run_dir,
            game=game,
            settings=settings,
            run_id=run_id,
            takeover=takeover,
            log_event=log_event,
        )

    return make


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Within the block, what training and its workers have to say is written to the file at ``path`` too, and the
    error that ends it.
    """
    logging.raiseExceptions = False  # a full disk would print a traceback per line
    logger = package_logger()
    level, handlers = logger.level, list(logger.handlers)
    add_log_handler(logger, RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=3, encoding="utf-8"))
    logger.setLevel(logging.INFO)
    try:
        yield
    except BaseException:
        log.info("the run ends", exc_info=True)
        raise
    finally:
        logger.setLevel(level)
        for handler in set(logger.handlers) - set(handlers):
            logger.removeHandler(handler)
            handler.close()
