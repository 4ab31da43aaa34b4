"""Training with one self-play process for each of the given GPUs, the first of which also trains.

The loop is the Coach's, in synchronous mode: all workers play an iteration's games with one model, then the network
learns from them. A worker delivers a hundred games at a time, or the rest of its share. Its finished games are in its
spool, so a kill loses none of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from keima.base.reports.run_reports import IterationReport
from keima.cluster.local.processes import LocalProcesses
from keima.cluster.local.worker_devices import DeviceSlot, Spread
from keima.coach.backends.backend import SelfPlayBackend
from keima.config.schema import Settings
from keima.games import Game
from keima.networks.files.weights_file import save_weights
from keima.report.terminal.devices import DeviceLines
from keima.trainers.run import LogEvent, train_run
from keima.trainers.settings import settings_for_workers
from keima.worker.spool import BATCH_GAMES

RESTARTS = 1  # of a worker within ten minutes; after one more death the others play without it
FINAL = "model_final.pt"


@dataclass(frozen=True, kw_only=True)
class SessionEnd:
    """The end of a session."""

    report: IterationReport | None  # the last iteration's
    stopped: bool  # by Ctrl-C
    model: Path  # the file of the last weights


def make_synchronous_settings(
    document: dict[str, Any], slots: Sequence[DeviceSlot], *, given: Mapping[str, Any] = MappingProxyType({})
) -> Settings:
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
    return settings_for_workers({**document, "training": training}, spread, batch_games=BATCH_GAMES, given=given)


def train_on_devices(
    run_dir: Path,
    settings: Settings,
    slots: Sequence[DeviceSlot],
    *,
    resume: bool = False,
    say: Callable[[str], None],
) -> SessionEnd:
    """Train in the run's folder until the run's bounds or a stop.

    Args:
        run_dir: its folder.
        settings: the result of ``make_synchronous_settings``.
        slots: the devices of the workers.
        resume: continue the run in the folder.
        say: called with each line for the user.

    Raises:
        Exception: see ``keima.trainers.run.train_run``.
    """
    titles = {slot.worker: slot.title for slot in slots}

    def make_backend(folder: Path, game: Game, settings: Settings, run_id: str, log_event: LogEvent) -> SelfPlayBackend:
        return LocalProcesses(
            folder / "workers",
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

    end = train_run(
        run_dir,
        settings,
        make_backend=make_backend,
        resume=resume,
        option="--save-dir",
        terminal=DeviceLines(titles, say, epochs=settings.training.samples_per_position),
        weights_path=lambda iteration: run_dir / f"checkpoint_iter_{iteration}.pt",
    )
    save_weights(run_dir / FINAL, end.coach.learner.weights())
    return SessionEnd(report=end.report, stopped=end.stopped, model=run_dir / FINAL)
