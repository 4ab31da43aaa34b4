"""Evaluation games on the workers: matches are split into slices, each a job for one worker.

Nothing here waits forever. A slice whose result is late or invalid goes to another worker or, if there is none, is
played here. Job ids are unique and each counts once, so no game counts twice.
"""

import json
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from keima.base.steps import Steps, run_steps
from keima.evaluation.match import MatchResult
from keima.evaluation.match_jobs import BESIDE_SHARE, MAX_PAIRS, Contestant, EvaluationJob, EvaluationJobResult
from keima.evaluation.match_worker import (
    InvalidMatchResult,
    MakePlayer,
    make_job_fixture,
    play_fixtures,
    verify_job_result,
)
from keima.games import Game

log = logging.getLogger(__name__)

MIN_PAIRS = 2  # in a slice, if possible: fewer parallel games are slow
JOBS_PER_WORKER = 2  # jobs per worker at a time, so that the next is there when one is done
WAIT_SECONDS = 0.05
CHECK_SECONDS = 1.0  # between checks of heartbeats
QUIET_SECONDS = 60.0  # timeout of a job without a sign of being played
MOST_SECONDS = 1800.0  # timeout of any job
SLOW_FACTOR = 4.0  # timeout after the first results: this many times the slowest of them, ...
SLOW_SECONDS = 20.0  # ... and at least this


class MatchHeartbeat(Protocol):
    """The part of a heartbeat that matters here."""

    @property
    def beat(self) -> int:
        """The number of the heartbeat."""

    @property
    def job(self) -> str:
        """The id of the job that the worker plays now."""


class MatchExecutors(Protocol):
    """The workers that play, and their results."""

    def deploy_models(self, players: Mapping[Contestant, bytes]) -> None:
        """Give all workers the files of these models, and remove all others."""

    def assign_jobs(self, worker: str, jobs: Sequence[EvaluationJob]) -> None:
        """Set the jobs of ``worker``; others are dropped with their results."""

    def results(self) -> list[tuple[str, EvaluationJob, bytes]]:
        """Return the results so far, with worker and job; a file that is too large counts as empty."""

    def ready_workers(self) -> list[str]:
        """Return the workers that can play a job now."""

    def heartbeats(self) -> Mapping[str, MatchHeartbeat | None]:
        """Return the last heartbeat of each worker."""


@dataclass(frozen=True, kw_only=True)
class MatchSpec:
    """A match to play; None is the random player."""

    first: Contestant | None
    second: Contestant | None
    pairs: int
    seed: int
    opening_plies: int
    num_simulations: int
    beside: bool = False  # self-play goes on meanwhile


@dataclass(kw_only=True)
class _RunningJob:
    """A job that was given to a worker."""

    number: int  # of the match
    job: EvaluationJob
    worker: str
    since: float
    last_sign: float  # time of the last sign of life


@dataclass(kw_only=True)
class _MatchState:
    """The state of matches: free jobs, given jobs, and scores."""

    scores: list[NDArray[np.float64]]  # by match, [pairs, players]
    free: deque[tuple[int, EvaluationJob]]
    given: dict[str, _RunningJob] = field(default_factory=dict)  # by job
    ready_workers: list[str] = field(default_factory=list)  # workers that could play at the last check
    last_heartbeats: dict[str, int] = field(default_factory=dict)
    next_check: float = -math.inf
    slowest_seconds: float = 0.0  # seconds of the slowest slice so far


class RemoteMatches:
    """Plays matches on the workers of a backend.

    Args:
        game: what is played.
        executors: the workers.
        clock: seconds that never go back.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        game: Game,
        executors: MatchExecutors,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._game, self._executors, self._clock, self._sleep = game, executors, clock, sleep
        self._excluded_workers: set[str] = set()
        self._tag, self._num_jobs = secrets.token_hex(8), 0
        self.remote_games = self.local_games = 0

    @contextmanager
    def deploy(self, players: Mapping[Contestant, bytes]) -> Iterator[None]:
        """Give the workers the files of these models for the block, so that they can play matches between them."""
        self._excluded_workers.clear()
        self._executors.deploy_models(players)
        try:
            yield
        finally:
            self._executors.deploy_models({})

    def pairs_per_round(self) -> int:
        """Return a number of pairs that keeps every worker busy."""
        return MIN_PAIRS * len(self._executors.ready_workers())

    def play(self, specs: Sequence[MatchSpec], players: MakePlayer, *, poll: Callable[[], None]) -> list[MatchResult]:
        """Play all these matches in parallel, and wait for their results.

        Args:
            players: make a player from a model, for what is played here.
            poll: called regularly; an exception from it ends the matches.
        """
        return run_steps(self.play_steps(specs, players), poll=poll, wait=lambda: self._sleep(WAIT_SECONDS))

    def play_steps(self, specs: Sequence[MatchSpec], players: MakePlayer) -> Steps[list[MatchResult]]:
        """Play all these matches in parallel; see ``play``. Unfinished matches are withdrawn."""
        scores = [np.full((spec.pairs, self._game.num_players), np.nan) for spec in specs]
        board = _MatchState(scores=scores, free=deque(self._split_into_jobs(specs)))
        try:
            while board.free or board.given:
                self._take_results(board)
                self._reclaim_late_jobs(board)
                self._assign_jobs(board)
                if board.free and not board.given:
                    yield from self._play_locally(board, players)
                elif board.given:
                    yield False
        finally:
            for worker in {given.worker for given in board.given.values()}:
                self._executors.assign_jobs(worker, ())
        return [MatchResult(scores=scores) for scores in board.scores]

    def _split_into_jobs(self, specs: Sequence[MatchSpec]) -> Iterator[tuple[int, EvaluationJob]]:
        """Yield all pairs of all matches as jobs, which are larger for fewer workers."""
        workers = max(1, len(self._executors.ready_workers()))
        share = math.ceil(sum(spec.pairs for spec in specs) / (JOBS_PER_WORKER * workers))
        size = min(max(share, MIN_PAIRS), MAX_PAIRS)
        for number, spec in enumerate(specs):
            for first_pair in range(0, spec.pairs, size):
                job = EvaluationJob(
                    id=self._make_job_id(),
                    first=spec.first,
                    second=spec.second,
                    seed=spec.seed,
                    opening_plies=spec.opening_plies,
                    match_pairs=spec.pairs,
                    first_pair=first_pair,
                    pairs=min(size, spec.pairs - first_pair),
                    num_simulations=spec.num_simulations,
                    beside=spec.beside,
                )
                yield number, job

    def _make_job_id(self) -> str:
        self._num_jobs += 1
        return f"{self._tag}-{self._num_jobs}"

    def _assign_jobs(self, board: _MatchState) -> None:
        """Give free jobs to workers."""
        changed = set()
        for _ in range(JOBS_PER_WORKER):
            for worker in board.ready_workers:
                mine = [given for given in board.given.values() if given.worker == worker]
                if board.free and worker not in self._excluded_workers and len(mine) < JOBS_PER_WORKER:
                    number, job = board.free.popleft()
                    now = self._clock()
                    board.given[job.id] = _RunningJob(number=number, job=job, worker=worker, since=now, last_sign=now)
                    changed.add(worker)
        self._send_jobs(board, changed)

    def _send_jobs(self, board: _MatchState, workers: set[str]) -> None:
        """Send workers their jobs."""
        for worker in workers:
            self._executors.assign_jobs(worker, [given.job for given in board.given.values() if given.worker == worker])

    def _take_results(self, board: _MatchState) -> None:
        changed = set()
        for worker, job, data in self._executors.results():
            given = board.given.get(job.id)
            if given is None or given.worker != worker:
                continue
            try:
                result = verify_job_result(self._game, job, worker, decode_result(data))
            except InvalidMatchResult as error:
                self._requeue_job(board, given, f"its result is invalid: {error}")
            else:
                self._record_scores(board, given.number, job, result)
                self.remote_games += result.scores.size
                board.slowest_seconds = max(board.slowest_seconds, self._clock() - given.since)
                del board.given[job.id]
            changed.add(worker)
        self._send_jobs(board, changed)

    def _reclaim_late_jobs(self, board: _MatchState) -> None:
        """Update which workers can play, and take back jobs that time out."""
        now = self._clock()
        if now < board.next_check:
            return
        board.next_check = now + CHECK_SECONDS
        self._check_heartbeats(board, now)
        board.ready_workers = self._executors.ready_workers()
        changed = set()
        for given in list(board.given.values()):
            too_long = max(SLOW_SECONDS, SLOW_FACTOR * board.slowest_seconds) if board.slowest_seconds else MOST_SECONDS
            if given.job.beside:  # the slowest so far may have been of a worker without games of its own
                too_long /= BESIDE_SHARE
            if given.worker not in board.ready_workers:
                self._requeue_job(board, given, "")
            elif now - given.last_sign > QUIET_SECONDS:
                self._requeue_job(board, given, f"it has reported no progress for {QUIET_SECONDS:.0f} s")
            elif now - given.since > min(too_long, MOST_SECONDS):
                self._requeue_job(board, given, f"it has not finished them within {now - given.since:.0f} s")
            else:
                continue
            changed.add(given.worker)
        self._send_jobs(board, changed)

    def _check_heartbeats(self, board: _MatchState, now: float) -> None:
        for worker, sign in self._executors.heartbeats().items():
            if sign and sign.job in board.given and board.last_heartbeats.get(worker) != sign.beat:
                board.last_heartbeats[worker] = sign.beat
                for given in board.given.values():
                    if given.worker == worker:
                        given.last_sign = now

    def _requeue_job(self, board: _MatchState, given: _RunningJob, reason: str) -> None:
        """Requeue a job under a new id; with a reason, its worker gets no more jobs of these matches."""
        if reason:
            self._excluded_workers.add(given.worker)
            log.warning("evaluation games of worker %s are played elsewhere: %s", given.worker, reason)
        del board.given[given.job.id]
        board.free.appendleft((given.number, given.job.model_copy(update={"id": self._make_job_id()})))

    def _play_locally(self, board: _MatchState, players: MakePlayer) -> Steps[None]:
        number, job = board.free.popleft()
        (result,) = yield from play_fixtures(self._game, [make_job_fixture(self._game, job, players)])
        self._record_scores(board, number, job, result)
        self.local_games += result.scores.size

    @staticmethod
    def _record_scores(board: _MatchState, number: int, job: EvaluationJob, result: MatchResult) -> None:
        board.scores[number][job.first_pair : job.first_pair + job.pairs] = result.scores


def decode_result(data: bytes) -> EvaluationJobResult:
    """Decode a result.

    Raises:
        InvalidMatchResult: it is invalid.
    """
    try:
        return EvaluationJobResult.model_validate(json.loads(data))
    except (ValidationError, ValueError, RecursionError) as error:
        raise InvalidMatchResult(f"it cannot be parsed: {str(error)[:300]}") from error
