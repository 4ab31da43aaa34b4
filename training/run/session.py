"""A session of a run: from when its Coach is opened, new or resumed, to when it has ended in good order."""

import logging
import os
import re
import signal
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from configs.load import located, save_resolved
from configs.schema import Settings
from games import GAMES, Game, load_game
from training.common.disk_words import in_words
from training.common.files import write_atomically
from training.common.reports import Observer, report_event
from training.common.run_folder import see_run_folder
from training.common.run_lock import RunLocked
from training.common.signals import INTERRUPTED, leave_lost_terminal, stop_on_signals
from training.learning.learner import TrainingDiverged
from training.networks.evaluator import use_threads
from training.ranks.ranks import ALONE, RankLost, Ranks
from training.run.coach import Coach
from training.run.granting import NobodyPlays
from training.run.leading import leading
from training.run.run import MakeBackend, open_coach

log = logging.getLogger(__name__)

TO_BE_PUT_RIGHT = (
    RunLocked,
    NobodyPlays,
    TrainingDiverged,
    RankLost,
    ValueError,
    OSError,
    sqlite3.Error,
)  # not by us: what a run may end with


def exit_code(program: str, train: Callable[[], int]) -> int:
    """What ``train`` returns; else people are told why it has ended, and the ``program`` is to end with what this
    returns.

    Returns:
        130 after a Ctrl-C that ended it at once, 2 when something is wrong that can be put right.
    """
    console = Console(stderr=True, highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return train()
    except KeyboardInterrupt:
        console.print("Ended at once. Everything that was finished is safe: go on with --resume.")
        return INTERRUPTED
    except TO_BE_PUT_RIGHT as error:
        log.info("the run ends", exc_info=True)
        console.print(f"{program}: {in_words(error)}", style="red", markup=False, soft_wrap=True)
        return 2


def configured_game(settings: Settings, config: Path) -> Game:
    """The game that is to be played.

    Raises:
        ConfigError: there is no such game, or it does not take these options; with the line of ``config``, from which
        the settings come.
    """
    name, options = settings.game.name, settings.game.options
    try:
        return load_game(name, **options)
    except ValueError as error:
        meant = [option for option in options if re.search(rf"\b{re.escape(option)}\b", str(error))]
        keys = ("game", "name") if name not in GAMES else ("game", "options", *meant[:1])
        raise located(config, keys, str(error)) from error


def make_run_folder(run_dir: Path, *, resume: bool, option: str = "--run-dir") -> None:
    """Make the run's folder, which the program's ``option`` names, or see that it is there to go on with.

    Raises:
        ValueError: it is there and nobody said ``resume``, or the other way round.
    """
    see_run_folder(run_dir, resume=resume, option=option)
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)


@contextmanager
def session(
    run_dir: Path,
    settings: Settings,
    *,
    make_backend: MakeBackend,
    observers: Sequence[Observer],
    weights: Mapping[str, Any] | None = None,
    ranks: Ranks = ALONE,
) -> Iterator[Coach]:
    """The Coach of the run in ``run_dir``; within the block the first Ctrl-C ends it cleanly. After it all is closed.

    The caller holds the run's lock. For arguments and errors see ``open_coach``.
    """
    use_threads(learner_threads(settings, ranks))
    try:
        with leading(ranks, settings):
            coach = open_coach(
                run_dir, settings, make_backend=make_backend, observers=observers, weights=weights, ranks=ranks
            )
            with coach.ledger, stop_on_signals(coach):
                save_resolved(settings, run_dir, write=write_atomically)
                yield coach
    finally:
        for observer in observers:
            observer.close()
        leave_lost_terminal()


def event_logger(observers: Sequence[Observer]) -> Callable[[str], None]:
    """Who tells the log and all who watch of an event."""

    def log_event(text: str) -> None:
        log.warning("%s", text)
        report_event(observers, text)

    return log_event


def learner_threads(settings: Settings, ranks: Ranks) -> int:
    """How many threads this rank trains with, which all ranks on this machine share evenly.

    They are half the cores where workers are busy on all of them meanwhile, all but one where others play.
    """
    threads, cores = settings.training.threads, len(os.sched_getaffinity(0))
    if threads == "auto":
        threads = cores - 1 if settings.distributed.enabled else cores // 2 if settings.training.asynchronous else cores
    return max(1, threads // ranks.neighbours)
