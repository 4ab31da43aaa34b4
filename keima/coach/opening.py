"""Open a new or resumed run: its ledger, learner, window, and everything else that a Coach needs."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from keima.base.random import seed_stream
from keima.base.reports.run_reports import Observer, report_event
from keima.base.run_folder import LEDGER_NAME
from keima.coach.backends.backend import SelfPlayBackend
from keima.coach.bounds import CoachState, window_capacity
from keima.coach.fingerprint import fingerprint
from keima.coach.forecast import read_laws
from keima.coach.loop import Coach
from keima.coach.ranks.leading import LeadingLearner, LeadingWindow, send_command, share_state
from keima.coach.ranks.learners import make_learner
from keima.coach.receiving import refill_window
from keima.config.schema import Settings
from keima.data.imports.seed_games import ingest_seed_games
from keima.data.ledger import open_ledger
from keima.data.receive import recover_batches
from keima.evaluation.remote_matches import RemoteMatches
from keima.evaluation.strength import Strength, check_evaluation_settings
from keima.games import Game, load_game
from keima.learning.checkpoint import Checkpoint, Checkpoints
from keima.learning.ranks.process_group import ALONE, Ranks
from keima.replay.window import ReplayWindow

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"  # in the run's folder
MakeBackend = Callable[[Game, str], SelfPlayBackend]  # (game, run id)


def open_coach(
    run_dir: Path,
    settings: Settings,
    *,
    make_backend: MakeBackend,
    observers: Sequence[Observer],
    weights: Mapping[str, Any] | None = None,
    seconds: float = 0.0,
    ranks: Ranks = ALONE,
) -> Coach:
    """Return the Coach of the run in ``run_dir``, which continues from the newest checkpoint, if there is one.

    The caller holds the run's lock.

    Args:
        run_dir: the run's folder; it exists.
        settings: the run's.
        make_backend: makes the backend of the workers.
        observers: read the reports.
        weights: a state dictionary to start a new run from, instead of random weights.
        seconds: of the run's time that a new run has behind it.
        ranks: the processes that train; this is rank 0, and the others follow it.

    Raises:
        OSError, ValueError: a seed file of games cannot be read, or has changed since some of its games were ingested.
        LedgerMismatch, LedgerDamaged, CorruptCheckpoint: files of an earlier session do not fit or are damaged.
        CorruptModel, ValueError: the weights, or the checkpoint's, are of another network.
    """
    game = load_game(settings.game.name, **settings.game.options)
    check_evaluation_settings(game, settings.evaluation)
    ledger = open_ledger(run_dir, game, run_id=repeatable_run_id(settings))
    for folder in ("models", "games"):
        (run_dir / folder).mkdir(mode=0o700, exist_ok=True)
    for receipt in recover_batches(ledger, game):
        log.info("recovered after the last session: %s", receipt)
    log_event = partial(report_event, observers)
    ingest_seed_games(ledger, game, settings.training.window.seed_games, log_event=log_event)
    checkpoints = Checkpoints(run_dir / CHECKPOINTS, keep=settings.training.keep_checkpoints)
    checkpoint = checkpoints.load()
    state = restore_state(checkpoint, seconds=seconds)
    if state.grown > len(settings.network.growth):
        raise ValueError(
            f"network.growth: the network of {run_dir} has grown {state.grown} times; give the steps that it had"
        )
    learner = make_learner(
        game, settings, steps=state.grown, weights=None if checkpoint else weights, kind=LeadingLearner, ranks=ranks
    )
    if checkpoint:
        learner.restore(checkpoint.learner)
    if state.grown:
        send_command(ranks, "grow", steps=state.grown)
    share_state(learner)
    if weights and not checkpoint:
        checkpoints.save(learner.state(), vars(state))  # a resumed run does not need the file of weights
    window = make_window(game, settings, kind=partial(LeadingWindow, ranks=ranks))
    window = refill_window(window, ledger, settings, state, log_event=log_event)
    if checkpoint:
        log.info("resumed from %s: %s", checkpoint.path.name, fingerprint(learner.state(), window))
    backend = make_backend(game, ledger.run_id)
    executors = backend.match_executors() if settings.training.asynchronous else None
    return Coach(
        run_dir=run_dir,
        settings=settings,
        game=game,
        ledger=ledger,
        backend=backend,
        learner=learner,
        window=window,
        checkpoints=checkpoints,
        evaluation=Strength(game, settings, ledger, remote=RemoteMatches(game, executors) if executors else None),
        observers=observers,
        state=state,
        read_laws=lambda: read_laws(list_other_runs(run_dir), game),
    )


def list_other_runs(run_dir: Path) -> list[Path]:
    """Return the other runs next to a run, the oldest first."""
    return [path for path in list_runs_in(run_dir.parent) if path != run_dir]


def list_runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder, the oldest first."""
    found = list[tuple[float, Path]]()
    for path in folder.glob(f"*/{LEDGER_NAME}"):
        with suppress(FileNotFoundError):  # deleted meanwhile
            found.append((path.stat().st_mtime, path.parent))
    return [run for _, run in sorted(found)]


def repeatable_run_id(settings: Settings) -> str | None:
    """Return, in synchronous mode, an id that depends only on name and seed, for reproducible files; else None."""
    if settings.training.asynchronous:
        return None
    return f"{seed_stream(settings.run.name, settings.run.seed):016x}"


def make_window(game: Game, settings: Settings, *, kind: Callable[..., ReplayWindow] = ReplayWindow) -> ReplayWindow:
    """Return an empty replay window of the initial size."""
    training = settings.training
    return kind(
        game,
        capacity_positions=window_capacity(training.window, 0),
        training=training,
        search=settings.search,
        network=settings.network,
    )


def restore_state(checkpoint: Checkpoint | None, *, seconds: float = 0.0) -> CoachState:
    """Return the Coach's own state in a checkpoint; without one, that of a new run after so many seconds.

    Raises:
        ValueError: another version of this program has written it.
    """
    if checkpoint is None:
        return CoachState(seconds=seconds, began=seconds)
    try:
        return CoachState(**checkpoint.coach)
    except TypeError as error:
        raise ValueError(f"{checkpoint.path} was written by another version of this program: {error}") from error
