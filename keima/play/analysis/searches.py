"""Searches of many positions, several side by side: their leaves fill the batches of the network."""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from keima.config.sections.search import SearchSettings
from keima.games.game import Game
from keima.play.analysis.query import Position, Query
from keima.play.gtp.predictions import PositionPredictions
from keima.play.thinking import VISITS_A_LEAF, measure_batch_seconds
from keima.search.analysis import (
    Analysis,
    AnalysisTrees,
    make_analysis_settings,
    run_side_by_side,
    simulations_that_fit,
)
from keima.search.puct import Evaluate

MEGABYTES = 1024  # the most for all trees


@dataclass(kw_only=True, eq=False)
class Job:
    """A position that waits for its search, or is being searched."""

    query: Query
    position: Position
    predictions: PositionPredictions | None  # None: the network makes none
    analysis: Analysis | None = None  # None: it waits
    ends: float = 0.0  # this, and the next report, in seconds of ``time.monotonic``
    next_report: float = 0.0

    @property
    def has_results(self) -> bool:
        """Whether there is something to report."""
        return self.analysis is not None and self.analysis.visits > 0

    @property
    def is_done(self) -> bool:
        """Whether its search is complete."""
        analysis = self.analysis
        if analysis is None or not analysis.is_evaluated:
            return False
        if analysis.is_finished or analysis.visits >= self.query.max_visits:
            return True
        return analysis.visits > 0 and time.monotonic() >= self.ends

    def begin(self, analysis: Analysis) -> None:
        """Begin the search in this tree."""
        analysis.begin(self.position.state)
        analysis.consider_only(self.position.allowed)
        self.analysis, began = analysis, time.monotonic()
        self.ends = began + self.query.max_seconds
        self.next_report = began + (self.query.report_seconds or 0.0)

    def is_report_due(self) -> bool:
        """Return whether a report is due now; if so, the next one is due an interval later."""
        now = time.monotonic()
        if self.query.report_seconds is None or now < self.next_report or not self.has_results:
            return False
        self.next_report = now + self.query.report_seconds
        return True


@dataclass(order=True)
class _Waiting:
    """A job's place in the queue: higher priorities first, then earlier ones."""

    rank: int
    number: int
    job: Job = field(compare=False)


class Searches:
    """The positions that wait or are being searched.

    Args:
        game: Go.
        evaluate: a network that takes up to ``max_batch`` positions.
        search: of the network's run.
        parallel: positions that are searched side by side.
        score_utility: the most that points count (``make_workspace``).
    """

    def __init__(
        self,
        game: Game,
        evaluate: Evaluate,
        *,
        search: SearchSettings = SearchSettings(),
        max_batch: int,
        parallel: int,
        score_utility: float = 0.0,
    ) -> None:
        self.most_visits = simulations_that_fit(MEGABYTES // parallel, moves=game.most_legal_actions)
        self._batch = max(*measure_batch_seconds(game, evaluate, max_batch), parallel)
        trees = AnalysisTrees(
            game,
            evaluate,
            make_analysis_settings(search, leaves=self._batch),
            max_simulations=self.most_visits,
            num_trees=parallel,
            score_utility=score_utility,
        )
        self._idle = [Analysis(trees, number) for number in range(parallel)]
        self._running: list[Job] = []
        self._waiting: list[_Waiting] = []
        self._submitted = 0

    @property
    def are_over(self) -> bool:
        """Whether no position waits or is being searched."""
        return not self._running and not self._waiting

    def submit(self, job: Job) -> None:
        """Have a position searched."""
        heapq.heappush(self._waiting, _Waiting(-job.position.priority, self._submitted, job))
        self._submitted += 1

    def advance(self) -> tuple[list[Job], list[Job]]:
        """Begin what there is a tree for, and search until the network has been called once.

        Returns:
            The jobs that are done, whose results last until the next call; and those that are still searched.

        Raises:
            ValueError: the network's answers are not finite, or have the wrong shape.
        """
        while self._waiting and self._idle:
            job = heapq.heappop(self._waiting).job
            job.begin(self._idle.pop())
            self._running.append(job)
        share = self._batch // max(len(self._running), 1)
        wanted = dict[Analysis, int]()
        for job in self._running:
            assert job.analysis is not None
            visits = job.analysis.visits
            wanted[job.analysis] = max(min(share, visits // VISITS_A_LEAF, job.query.max_visits - visits), 1)
        run_side_by_side(wanted)
        done = [job for job in self._running if job.is_done]
        self._release(done)
        return done, self._running

    def drop(self, is_dropped: Callable[[Job], bool]) -> list[Job]:
        """Drop the jobs of which this is true; returns them, with results that last until the next call."""
        running = [job for job in self._running if is_dropped(job)]
        waiting = [each.job for each in sorted(self._waiting) if is_dropped(each.job)]
        self._release(running)
        self._waiting = [each for each in self._waiting if not is_dropped(each.job)]
        heapq.heapify(self._waiting)
        return [*running, *waiting]

    def _release(self, jobs: Sequence[Job]) -> None:
        """Stop searching these jobs."""
        self._running = [job for job in self._running if job not in jobs]
        self._idle += [job.analysis for job in jobs if job.analysis is not None]
