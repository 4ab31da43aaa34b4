"""Training with one self-play process for each of the given GPUs, the first of which also trains.

The loop is the Coach's, in synchronous mode: all workers play an iteration's games with one model, then the network
learns from them. A worker delivers a hundred games at a time, or the rest of its share. Its finished games are in its
spool, so a kill loses none of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keima.base.formats import game_title
from keima.base.reports import IterationReport
from keima.base.run_lock import RunLock
from keima.cluster.local.learner_ranks import learner_ranks
from keima.cluster.local.processes import LocalProcesses
from keima.cluster.local.worker_devices import DeviceSlot, Spread
from keima.coach.backends.backend import SelfPlayBackend
from keima.coach.loop import Coach
from keima.coach.session import event_logger, session
from keima.config.schema import Settings
from keima.games import Game
from keima.networks.files.model_file import save_weights
from keima.report import make_observers, shielded
from keima.report.terminal.devices import DeviceLines
from keima.trainers.wiring import MEASURE_EVERY, WeightsFiles, logged_to, with_workers
from keima.worker.spool import BATCH_GAMES

RESTARTS = 1  # of a worker within ten minutes; after one more death the others play without it
FINAL = "model_final.pt"


@dataclass(frozen=True, kw_only=True)
class SessionEnd:
    """The end of a session."""

    report: IterationReport | None  # the last iteration's
    stopped: bool  # by Ctrl-C
    model: Path  # the file of the last weights


def synchronous(document: dict[str, Any], slots: Sequence[DeviceSlot]) -> Settings:
    """Return the settings in a document for these workers, which play each iteration's games with one model.

    Raises:
        ValueError: some are out of range; the message names them.
    """
    on_gpu = bool(slots[0].device)
    training = {
        **document["training"],
        "asynchronous": False,
        "steps_per_model": None,
        "device": "cuda" if on_gpu else "cpu",
    }
    spread = Spread(devices=tuple(slot.device for slot in slots))
    return with_workers({**document, "training": training}, spread, batch_games=BATCH_GAMES)


def train_on_devices(
    run_dir: Path, settings: Settings, slots: Sequence[DeviceSlot], *, say: Callable[[str], None]
) -> SessionEnd:
    """Train in the run's folder until the run's bounds or a stop.

    Args:
        run_dir: an existing folder, empty or with a run to resume.
        settings: the result of ``synchronous``.
        slots: the devices of the workers.
        say: called with each line for the user.

    Raises:
        RunLocked: another process works on this run.
        NobodyPlays: all workers have failed.
        TrainingDiverged: losses or gradients are not finite.
        ValueError, OSError, sqlite3.Error: see ``keima.coach.opening.open_coach``.
    """
    titles = {slot.worker: slot.title for slot in slots}
    with RunLock(run_dir), logged_to(run_dir / "coach.log"), learner_ranks(settings, run_dir) as ranks:
        lines = DeviceLines(titles, say, epochs=settings.training.samples_per_position)
        observers = make_observers(
            run_dir,
            name=settings.run.name,
            game=game_title(settings.game.name, settings.game.options),
            terminal=lines,
            trackers=settings.run.trackers,
        )
        log_event = event_logger(observers)

        def make_backend(game: Game, run_id: str) -> SelfPlayBackend:
            return LocalProcesses(
                run_dir / "workers",
                count=len(slots),
                names=[slot.worker for slot in slots],
                devices=[slot.device for slot in slots],
                restarts=RESTARTS,
                game=game,
                settings=settings,
                run_id=run_id,
                log_event=log_event,
                log_death=lambda worker, what: log_event(f"ERROR in {titles[worker]}: {what}"),
            )

        with session(run_dir, settings, make_backend=make_backend, observers=observers, ranks=ranks) as coach:
            report = run_coach(coach, run_dir)
    return SessionEnd(report=report, stopped=coach.stop_requested, model=run_dir / FINAL)


def run_coach(coach: Coach, run_dir: Path) -> IterationReport | None:
    """Run the Coach to its end, and write files of weights for other programs."""
    files = WeightsFiles(
        lambda iteration: run_dir / f"checkpoint_iter_{iteration}.pt", coach.learner.weights, every=MEASURE_EVERY
    )
    coach.observers = [*coach.observers, shielded(files)]
    report = coach.run()
    save_weights(run_dir / FINAL, coach.learner.weights())
    return report
