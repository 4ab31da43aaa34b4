"""When a run measures its strength: beside playing and learning, or while the Coach waits for the report."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from keima.base.files import read_limited
from keima.base.reports.run_reports import EvaluationReport
from keima.base.retry_log import RetryLog
from keima.base.steps import Steps, Turns
from keima.coach.bounds import CoachState
from keima.config.schema import Settings
from keima.data.ledger_rows import model_path
from keima.networks.files.container import MAX_MODEL_BYTES
from keima.networks.files.model import Model, decode_model


class Evaluation(Protocol):
    """Measures strength."""

    def measure(self, model: Model, *, beside: bool = False) -> Steps[EvaluationReport]:
        """Measure ``model``; with ``beside``, workers play on meanwhile."""

    def accepts(self, candidate: Model, best: Model, *, file: bytes) -> Steps[bool]:
        """Return whether ``candidate``, which ``file`` holds, may replace ``best`` in self-play."""


class Measuring:
    """The measurements of a run, one at a time.

    Args:
        evaluation: measures.
        run_dir: has the models.
        settings: of the run.
        state: of the Coach; ``state.measuring`` is the version that is being measured beside playing, or whose report
            has not been asked for, or 0.
        turns: the shares of the Coach's time.
        retries: logs results that cannot be stored.
        complete: takes all steps and waits for the workers' part, or stops.
        clock: seconds that never go back.
        log_event: called with each line for the log.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        *,
        run_dir: Path,
        settings: Settings,
        state: CoachState,
        turns: Turns,
        retries: RetryLog,
        complete: Callable[[Steps[EvaluationReport]], EvaluationReport | None],
        clock: Callable[[], float],
        log_event: Callable[[str], None],
    ) -> None:
        self._evaluation, self._run_dir, self._settings, self._state = evaluation, run_dir, settings, state
        self._turns, self._retries, self._complete = turns, retries, complete
        self._clock, self._log_event = clock, log_event
        self._steps: Steps[EvaluationReport] | None = None  # of a measurement beside playing
        self._measured: EvaluationReport | None = None  # since the last iteration
        self._is_overdue = False  # another model should be measured, once the last one has been

    def measure_if_due(self, model: Model, *, iteration: int, is_last: bool) -> EvaluationReport | None:
        """Measure the published model when it is due; return what was measured since the last iteration.

        In asynchronous mode this begins a measurement beside playing and learning, whose report comes with a later
        iteration; if one is still under way, the next begins after it. After the last iteration, in synchronous mode,
        and with gating, whose games would interrupt it, the Coach waits for the report. A stop interrupts it.
        """
        every = self._settings.evaluation.every
        if every > 0 and is_last:
            self.stop()
        measured, self._measured = self._measured, None
        if measured:
            self._state.measuring = 0  # only now: until here, a resumed run has to measure again
        self._is_overdue = every > 0 and (self._is_overdue or is_last or iteration % every == 0)
        if not self._is_overdue or self._steps:
            return measured
        self._is_overdue = False
        if is_last or not self._settings.training.asynchronous or self._settings.evaluation.gating != "none":
            with self._log_failures():
                return self._complete(self._evaluation.measure(model)) or measured
            return measured
        self._begin(model)
        return measured

    def _begin(self, model: Model) -> None:
        """Begin to measure ``model`` beside playing."""
        self._steps, self._state.measuring = self._evaluation.measure(model, beside=True), model.model_version

    def restart_measurement(self, current: Model | None) -> None:
        """Begin the measurement that was under way when the earlier session ended, if there was one.

        Args:
            current: the model in self-play, which need not be read.
        """
        version = self._state.measuring
        if not version:
            return
        if current is not None and current.model_version == version:
            self._begin(current)
            return
        try:
            self._begin(decode_model(read_limited(model_path(self._run_dir, version), MAX_MODEL_BYTES)))
        except (OSError, ValueError) as error:
            self._log_event(f"model {version} cannot be read, and is not measured: {error}")
            self._state.measuring = 0

    def take_step(self) -> bool:
        """Take the next step of a measurement beside playing; False if there is nothing to do now."""
        if self._steps is None:
            return False
        began, is_busy, has_ended = self._clock(), False, True
        with self._log_failures():
            try:
                is_busy = next(self._steps)
                has_ended = False
            except StopIteration as end:
                self._measured = end.value
        self._turns.count_side_work(self._clock() - began)
        if has_ended:
            self._steps = None
            if not self._measured:
                self._state.measuring = 0
        return is_busy

    def stop(self) -> None:
        """End a measurement beside playing without a report; a resumed run begins it again."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def _log_failures(self) -> AbstractContextManager[Any]:
        """Log results that cannot be stored within the block, only once."""
        return self._retries.log_failures("evaluation", "results of matches cannot be stored")
