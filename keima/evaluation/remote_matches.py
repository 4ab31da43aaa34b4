"""Evaluation games on the workers: matches are split into slices, each an order for one worker.

Nothing here waits forever. A slice whose result is late or invalid goes to another worker or, if there is none, is
played here. Order ids are unique and each counts once, so no game counts twice.
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
from keima.evaluation.match_worker import (
    Players,
    RefusedResult,
    fixture_steps,
    order_fixture,
    verified_result,
)
from keima.evaluation.orders import BESIDE_SHARE, MAX_PAIRS, Contestant, MatchOrder, PlayedOrder
from keima.games import Game

log = logging.getLogger(__name__)

LEAST_PAIRS = 2  # in a slice, if possible: fewer parallel games are slow
AHEAD = 2  # orders per worker at a time, so that the next is there when one is done
WAIT_SECONDS = 0.05
CHECK_SECONDS = 1.0  # between checks of heartbeats
QUIET_SECONDS = 60.0  # timeout of an order without a sign of being played
MOST_SECONDS = 1800.0  # timeout of any order
SLOW_FACTOR = 4.0  # timeout after the first results: this many times the slowest of them, ...
SLOW_SECONDS = 20.0  # ... and at least this


class Sign(Protocol):
    """The part of a heartbeat that matters here."""

    @property
    def beat(self) -> int:
        """The number of the heartbeat."""

    @property
    def order(self) -> str:
        """The id of the order that the worker plays now."""


class MatchExecutors(Protocol):
    """The workers that play, and their results."""

    def bring(self, players: Mapping[Contestant, bytes]) -> None:
        """Give all workers the files of these models, and remove all others."""

    def order(self, worker: str, orders: Sequence[MatchOrder]) -> None:
        """Set the orders of ``worker``; others are dropped with their results."""

    def results(self) -> list[tuple[str, MatchOrder, bytes]]:
        """The results so far, with worker and order; a file that is too large counts as empty."""

    def ready_workers(self) -> list[str]:
        """The workers that can play an order now."""

    def heartbeats(self) -> Mapping[str, Sign | None]:
        """The last heartbeat of each worker."""


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
class _Given:
    """An order that was given to a worker."""

    number: int  # of the match
    order: MatchOrder
    worker: str
    since: float
    seen: float  # time of the last sign of life


@dataclass(kw_only=True)
class _Board:
    """The state of matches: free orders, given orders, and scores."""

    scores: list[NDArray[np.float64]]  # by match, [pairs, players]
    free: deque[tuple[int, MatchOrder]]
    given: dict[str, _Given] = field(default_factory=dict)  # by order
    able: list[str] = field(default_factory=list)  # workers that could play at the last check
    beats: dict[str, int] = field(default_factory=dict)
    check_at: float = -math.inf
    longest: float = 0.0  # seconds of the slowest slice so far


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
        self._barred: set[str] = set()
        self._tag, self._orders = secrets.token_hex(8), 0
        self.remote_games = self.local_games = 0

    @contextmanager
    def deployed(self, players: Mapping[Contestant, bytes]) -> Iterator[None]:
        """Within the block, the workers have the files of these models and can play matches between them."""
        self._barred.clear()
        self._executors.bring(players)
        try:
            yield
        finally:
            self._executors.bring({})

    def pairs_at_once(self) -> int:
        """A number of pairs that keeps every worker busy."""
        return LEAST_PAIRS * len(self._executors.ready_workers())

    def play(self, specs: Sequence[MatchSpec], players: Players, *, poll: Callable[[], None]) -> list[MatchResult]:
        """Play all these matches in parallel, and wait for their results.

        Args:
            players: make a player from a model, for what is played here.
            poll: called regularly; an exception from it ends the matches.
        """
        return run_steps(self.steps(specs, players), poll=poll, wait=lambda: self._sleep(WAIT_SECONDS))

    def steps(self, specs: Sequence[MatchSpec], players: Players) -> Steps[list[MatchResult]]:
        """Play all these matches in parallel; see ``play``. Matches that are not played to their end are withdrawn."""
        scores = [np.full((spec.pairs, self._game.num_players), np.nan) for spec in specs]
        board = _Board(scores=scores, free=deque(self._slices(specs)))
        try:
            while board.free or board.given:
                self._take_results(board)
                self._check(board)
                self._hand_out(board)
                if board.free and not board.given:
                    yield from self._play_locally(board, players)
                elif board.given:
                    yield False
        finally:
            for worker in {given.worker for given in board.given.values()}:
                self._executors.order(worker, ())
        return [MatchResult(scores=scores) for scores in board.scores]

    def _slices(self, specs: Sequence[MatchSpec]) -> Iterator[tuple[int, MatchOrder]]:
        """All pairs of all matches as orders, which are larger for fewer workers."""
        workers = max(1, len(self._executors.ready_workers()))
        share = math.ceil(sum(spec.pairs for spec in specs) / (AHEAD * workers))
        size = min(max(share, LEAST_PAIRS), MAX_PAIRS)
        for number, spec in enumerate(specs):
            for first_pair in range(0, spec.pairs, size):
                order = MatchOrder(
                    id=self._new_id(),
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
                yield number, order

    def _new_id(self) -> str:
        self._orders += 1
        return f"{self._tag}-{self._orders}"

    def _hand_out(self, board: _Board) -> None:
        """Give free orders to workers."""
        changed = set()
        for _ in range(AHEAD):
            for worker in board.able:
                mine = [given for given in board.given.values() if given.worker == worker]
                if board.free and worker not in self._barred and len(mine) < AHEAD:
                    number, order = board.free.popleft()
                    now = self._clock()
                    board.given[order.id] = _Given(number=number, order=order, worker=worker, since=now, seen=now)
                    changed.add(worker)
        self._send_orders(board, changed)

    def _send_orders(self, board: _Board, workers: set[str]) -> None:
        """Send workers their orders."""
        for worker in workers:
            self._executors.order(worker, [given.order for given in board.given.values() if given.worker == worker])

    def _take_results(self, board: _Board) -> None:
        changed = set()
        for worker, order, data in self._executors.results():
            given = board.given.get(order.id)
            if given is None or given.worker != worker:
                continue
            try:
                result = verified_result(self._game, order, worker, decode_result(data))
            except RefusedResult as error:
                self._give_back(board, given, f"its result is invalid: {error}")
            else:
                self._enter(board, given.number, order, result)
                self.remote_games += result.scores.size
                board.longest = max(board.longest, self._clock() - given.since)
                del board.given[order.id]
            changed.add(worker)
        self._send_orders(board, changed)

    def _check(self, board: _Board) -> None:
        """Update which workers can play, and take back orders that time out."""
        now = self._clock()
        if now < board.check_at:
            return
        board.check_at = now + CHECK_SECONDS
        self._check_heartbeats(board, now)
        board.able = self._executors.ready_workers()
        changed = set()
        for given in list(board.given.values()):
            too_long = max(SLOW_SECONDS, SLOW_FACTOR * board.longest) if board.longest else MOST_SECONDS
            if given.order.beside:  # the slowest so far may have been of a worker without games of its own
                too_long /= BESIDE_SHARE
            if given.worker not in board.able:
                self._give_back(board, given, "")
            elif now - given.seen > QUIET_SECONDS:
                self._give_back(board, given, f"it has shown no sign of playing for {QUIET_SECONDS:.0f} s")
            elif now - given.since > min(too_long, MOST_SECONDS):
                self._give_back(board, given, f"it has not been played in {now - given.since:.0f} s")
            else:
                continue
            changed.add(given.worker)
        self._send_orders(board, changed)

    def _check_heartbeats(self, board: _Board, now: float) -> None:
        for worker, sign in self._executors.heartbeats().items():
            if sign and sign.order in board.given and board.beats.get(worker) != sign.beat:
                board.beats[worker] = sign.beat
                for given in board.given.values():
                    if given.worker == worker:
                        given.seen = now

    def _give_back(self, board: _Board, given: _Given, reason: str) -> None:
        """Free an order under a new id; with a reason, its worker gets no more orders of these matches."""
        if reason:
            self._barred.add(given.worker)
            log.warning("evaluation games of worker %s are played elsewhere: %s", given.worker, reason)
        del board.given[given.order.id]
        board.free.appendleft((given.number, given.order.model_copy(update={"id": self._new_id()})))

    def _play_locally(self, board: _Board, players: Players) -> Steps[None]:
        number, order = board.free.popleft()
        (result,) = yield from fixture_steps(self._game, [order_fixture(self._game, order, players)])
        self._enter(board, number, order, result)
        self.local_games += result.scores.size

    @staticmethod
    def _enter(board: _Board, number: int, order: MatchOrder, result: MatchResult) -> None:
        board.scores[number][order.first_pair : order.first_pair + order.pairs] = result.scores


def decode_result(data: bytes) -> PlayedOrder:
    """Decode a result.

    Raises:
        RefusedResult: it is invalid.
    """
    try:
        return PlayedOrder.model_validate(json.loads(data))
    except (ValidationError, ValueError, RecursionError) as error:
        raise RefusedResult(f"it cannot be parsed: {str(error)[:300]}") from error
