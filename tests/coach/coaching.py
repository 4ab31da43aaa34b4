"""Coaches of tiny runs in this process, with one inline worker and an evaluation with results set by a test."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from keima.base.reports.run_reports import EvaluationReport, IterationReport, ProgressReport
from keima.base.steps import Steps
from keima.coach.backends.backend import InlineBackend, SelfPlayBackend
from keima.coach.forecast import Law, make_laws
from keima.coach.loop import Coach
from keima.coach.opening import (
    MakeBackend,
    make_window,
    repeatable_run_id,
    restore_state,
)
from keima.coach.ranks.learners import make_learner
from keima.coach.receiving import refill_window
from keima.config.schema import Settings
from keima.data.ledger import open_ledger
from keima.learning.checkpoint import Checkpoints
from keima.networks.files.model import Model
from tests.small_run import GAME


@dataclass
class FakeEvaluation:
    """Accepts all models except those that it is told to refuse."""

    refused: set[int] = field(default_factory=set)
    asked: list[int] = field(default_factory=list)
    measured: list[int] = field(default_factory=list)
    in_between: Callable[[], None] = lambda: None
    at_the_end: Callable[[], None] = lambda: None
    beside: list[int] = field(default_factory=list)  # of the measured ones

    def measure(self, model: Model, *, beside: bool = False) -> Steps[EvaluationReport]:
        self.in_between()
        yield False
        self.measured.append(model.model_version)
        if beside:
            self.beside.append(model.model_version)
        self.at_the_end()
        return EvaluationReport(model_version=model.model_version, num_simulations=1)

    def accepts(self, candidate: Model, best: Model, *, file: bytes) -> Steps[bool]:
        self.asked.append(candidate.model_version)
        yield True
        return candidate.model_version not in self.refused


@dataclass
class Listener:
    """Records what observers receive."""

    reports: list[IterationReport] = field(default_factory=list)
    looks: list[ProgressReport] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def progress(self, report: ProgressReport) -> None:
        self.looks.append(report)

    def iteration(self, report: IterationReport) -> None:
        self.reports.append(report)

    def event(self, text: str) -> None:
        self.events.append(text)

    def close(self) -> None:
        pass


@contextmanager
def coaching(
    folder: Path,
    settings: Settings,
    *,
    evaluation: FakeEvaluation | None = None,
    make_backend: MakeBackend | None = None,
    listeners: Sequence[Listener] = (),
    read_laws: Callable[[], dict[str, Law]] = lambda: make_laws(GAME),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = lambda seconds: None,
) -> Iterator[Coach]:
    """Yield a Coach of the run in ``folder``, opened as by ``keima.coach.opening.open_coach``; its ledger is closed at
    the end.
    """
    ledger = open_ledger(folder, GAME, run_id=repeatable_run_id(settings))
    (folder / "models").mkdir(exist_ok=True)
    checkpoints = Checkpoints(folder / "checkpoints", keep=settings.training.keep_checkpoints)
    checkpoint = checkpoints.load()
    state = restore_state(checkpoint)
    learner = make_learner(GAME, settings, steps=state.grown)
    if checkpoint:
        learner.restore(checkpoint.learner)
    window = refill_window(make_window(GAME, settings), ledger, settings, state)
    with ledger:
        yield Coach(
            run_dir=folder,
            settings=settings,
            game=GAME,
            ledger=ledger,
            backend=make_backend(GAME, ledger.run_id) if make_backend else inline(folder, settings, ledger.run_id),
            learner=learner,
            window=window,
            checkpoints=checkpoints,
            evaluation=evaluation or FakeEvaluation(),
            observers=listeners,
            state=state,
            read_laws=read_laws,
            clock=clock,
            sleep=sleep,
        )


def inline(folder: Path, settings: Settings, run_id: str) -> SelfPlayBackend:
    return InlineBackend(folder / "workers", game=GAME, settings=settings, run_id=run_id, cycles=40)
