"""How an iteration's time is spent: the phases of the Coach, and workers that have fewer games than they could play."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from keima.base.reports.run_reports import WaitReport
from keima.base.reports.worker_status import WorkerStatus

GATHERING, TRAINING, EVALUATING = "waiting for games", "training", "evaluating"  # phases whose time is reported


class Waiting:
    """Adds up who waits for whom.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._phase = clock, "starting"
        self._since = self._seen = clock()
        self._phases: dict[str, float] = defaultdict(float)
        self._workers = 0.0

    @property
    def phase(self) -> str:
        """The Coach's current phase."""
        return self._phase

    def enter_phase(self, phase: str) -> None:
        """Begin another phase of the Coach."""
        now = self._clock()
        self._phases[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def count_waiting(self, workers: Sequence[WorkerStatus]) -> None:
        """Count the time since the last call for places for games that are empty; call it about once a second."""
        now = self._clock()
        self._workers += (now - self._seen) * sum(worker.idle for worker in workers) / max(1, len(workers))
        self._seen = now

    def report(self) -> WaitReport:
        """Return the report of the time since the last report."""
        self.enter_phase(self._phase)
        phases, workers = self._phases, self._workers
        self._phases, self._workers = defaultdict(float), 0.0
        return WaitReport(
            games=phases[GATHERING], learner=workers, evaluation=phases[EVALUATING], learning=phases[TRAINING]
        )
