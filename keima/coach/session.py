"""A session of a run: from opening its Coach, new or resumed, to its clean end."""

import logging
import re
import signal
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from keima.base.disk_words import error_text
from keima.base.files import write_atomically
from keima.base.reports.run_reports import Observer, report_event
from keima.base.run_folder import check_run_folder
from keima.base.run_lock import RunLocked
from keima.base.system.command_line import program_name
from keima.base.system.limits import count_usable_cores
from keima.base.system.signals import INTERRUPTED, discard_output_of_lost_terminal, stop_on_signals
from keima.base.system.start import print_status
from keima.coach.granting import NobodyPlays
from keima.coach.loop import Coach
from keima.coach.opening import MakeBackend, open_coach
from keima.coach.ranks.leading import lead_ranks
from keima.config.load import error_at_setting, save_resolved
from keima.config.own_modules import is_own
from keima.config.schema import Settings
from keima.games import GAMES, Game, load_game
from keima.learning.ranks.process_group import ALONE, RankLost, Ranks
from keima.learning.speed import count_learner_threads
from keima.learning.update_step import TrainingDiverged
from keima.networks.inference.evaluator import use_threads

log = logging.getLogger(__name__)

FIXABLE = (  # errors that users can fix
    RunLocked,
    NobodyPlays,
    TrainingDiverged,
    RankLost,
    ValueError,
    OSError,
    sqlite3.Error,
)


def exit_code(train: Callable[[], int]) -> int:
    """Run ``train`` and print the reason if it fails.

    Returns:
        The exit code: what ``train`` returns, 130 after a second Ctrl-C, or 2 after an error that users can fix.
    """
    console = Console(stderr=True, highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return train()
    except KeyboardInterrupt:
        console.print("Stopped immediately. All finished work is saved: continue with --resume.")
        return INTERRUPTED
    except FIXABLE as error:
        log.info("the run ends with an error", exc_info=True)
        console.print(f"{program_name()}: {error_text(error)}", style="red", markup=False, soft_wrap=True)
        return 2


def require_sound_game(settings: Settings) -> None:
    """Check a user's game against the contract, once on this machine.

    Raises:
        ValueError: it is not what a game must be.
    """
    if is_own(settings.game.name):
        from keima.games.authoring.check import check_game_once  # only now: it takes a tenth of a second

        check_game_once(settings.game.name, settings.game.options, say=print_status)


def configured_game(settings: Settings, config: Path) -> Game:
    """Return the game in the settings of the file ``config``.

    Raises:
        ConfigError: there is no such game, it does not take these options, or it is not what a game must be; with the
            line in the file.
    """
    name, options = settings.game.name, settings.game.options
    try:
        require_sound_game(settings)
        return load_game(name, **options)
    except ValueError as error:
        meant = [option for option in options if re.search(rf"\b{re.escape(option)}\b", str(error))]
        key = "options" if name in GAMES or meant else "module" if is_own(name) else "name"
        keys = ("game", key, *(meant[:1] if key == "options" else ()))
        raise error_at_setting(config, keys, str(error)) from error


def make_run_folder(run_dir: Path, *, resume: bool, option: str = "--run-dir") -> None:
    """Create the run's folder, given by the program's ``option``, or check that it can be resumed.

    Raises:
        ValueError: it holds a run and ``resume`` is false, or it holds none and ``resume`` is true.
    """
    check_run_folder(run_dir, resume=resume, option=option)
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)


@contextmanager
def session(
    run_dir: Path,
    settings: Settings,
    *,
    make_backend: MakeBackend,
    observers: Sequence[Observer],
    weights: Mapping[str, Any] | None = None,
    seconds: float = 0.0,
    ranks: Ranks = ALONE,
) -> Iterator[Coach]:
    """Yield the Coach of the run in ``run_dir``. Within the block, the first Ctrl-C stops it cleanly.

    The caller holds the run's lock. See ``open_coach`` for arguments and errors.
    """
    use_threads(learner_threads(settings, ranks))
    try:
        require_sound_game(settings)
        with lead_ranks(ranks, settings):
            coach = open_coach(
                run_dir,
                settings,
                make_backend=make_backend,
                observers=observers,
                weights=weights,
                seconds=seconds,
                ranks=ranks,
            )
            with coach.ledger, stop_on_signals(coach):
                save_resolved(with_all_options(settings, coach.game), run_dir, write=write_atomically)
                yield coach
    finally:
        for observer in observers:
            observer.close()
        discard_output_of_lost_terminal()


def with_all_options(settings: Settings, game: Game) -> Settings:
    """Return settings that name every option of their game, so that later changes of defaults do not affect them."""
    return settings.model_copy(update={"game": settings.game.model_copy(update={"options": game.options})})


def event_logger(observers: Sequence[Observer]) -> Callable[[str], None]:
    """Return a function that writes an event to the log and to all observers."""

    def log_event(text: str) -> None:
        log.warning("%s", text)
        report_event(observers, text)

    return log_event


def learner_threads(settings: Settings, ranks: Ranks) -> int:
    """Return the number of CPU threads of this rank; all ranks on this machine share them evenly.

    By default, half the cores if workers also play here, and all but one if other machines play.
    """
    threads = count_learner_threads(
        settings.training.threads,
        cores=count_usable_cores(),
        is_spread=settings.distributed.enabled,
        asynchronous=settings.training.asynchronous,
    )
    return max(1, threads // ranks.ranks_on_machine)
