"""Evaluation games played by the workers: matches are cut into slices, each an order for one worker, and put together
again.

Nothing here ever waits for good. A slice that does not come back in time, or not as the rules allow, is given to
another worker, and where there is none, played at home. The ids of orders are never used twice and each is taken once,
so that no game counts twice.
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

from games import Game
from training.evaluation.match import MatchResult
from training.evaluation.match_worker import Players, RefusedResult, play_order, verified_result
from training.evaluation.orders import MAX_PAIRS, Contestant, MatchOrder, PlayedOrder

log = logging.getLogger(__name__)

LEAST_PAIRS = 2  # in a slice, where there are as many: fewer games side by side are slow
AHEAD = 2  # orders for a worker at a time: the next is there when one is done
WAIT_SECONDS = 0.05
CHECK_SECONDS = 1.0  # between two looks at heartbeats
QUIET_SECONDS = 60.0  # so long an order may show no sign of being played
MOST_SECONDS = 1800.0  # and so long it may take at all
SLOW = 4.0  # once slices have come back: so many times the longest of them, ...
SLOW_SECONDS = 20.0  # ... and at least this


class Sign(Protocol):
    """What is read of a worker's heartbeat."""

    @property
    def beat(self) -> int:
        """Counts up."""

    @property
    def order(self) -> str:
        """The id of the order that it plays now."""


class MatchExecutors(Protocol):
    """Those who play, and what they have played."""

    def bring(self, players: Mapping[Contestant, bytes]) -> None:
        """Give all workers these models' files, and take away all others."""

    def order(self, worker: str, orders: Sequence[MatchOrder]) -> None:
        """Have ``worker`` play these orders and no others, which are dropped with their results."""

    def results(self) -> list[tuple[str, MatchOrder, bytes]]:
        """The results that have come, with the worker and its order; one that is too large is empty."""

    def hosts(self) -> list[str]:
        """The workers that would play an order now."""

    def status(self) -> Mapping[str, Sign | None]:
        """The last heartbeat of each worker."""


@dataclass(frozen=True, kw_only=True)
class MatchSpec:
    """A match that is to be played; None is the random player."""

    first: Contestant | None
    second: Contestant | None
    pairs: int
    seed: int
    opening_plies: int
    num_simulations: int


@dataclass(kw_only=True)
class _Given:
    """An order that a worker has."""

    number: int  # of the fixture
    order: MatchOrder
    worker: str
    since: float
    seen: float  # when there was last a sign of life


@dataclass(kw_only=True)
class _Board:
    """How matches stand: what nobody has, who has what, and what has come."""

    scores: list[NDArray[np.float64]]  # by fixture, [pairs, 2]
    free: deque[tuple[int, MatchOrder]]
    given: dict[str, _Given] = field(default_factory=dict)  # by order
    able: list[str] = field(default_factory=list)  # workers that can be given orders, at the last check
    beats: dict[str, int] = field(default_factory=dict)
    check_at: float = -math.inf
    longest: float = 0.0  # seconds that a slice has taken so far


class RemoteMatches:
    """Has the workers of a backend play matches.

    Args:
        game: what is played.
        hosts: the workers.
        clock: seconds that never go back.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        game: Game,
        hosts: MatchExecutors,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._game, self._hosts, self._clock, self._sleep = game, hosts, clock, sleep
        self._barred: set[str] = set()
        self._tag, self._orders = secrets.token_hex(8), 0
        self.remote_games = self.local_games = 0

    @contextmanager
    def deployed(self, players: Mapping[Contestant, bytes]) -> Iterator[None]:
        """While this lasts, the workers have the files of these models, and matches between them can be played."""
        self._barred.clear()
        self._hosts.bring(players)
        try:
            yield
        finally:
            self._hosts.bring({})

    def pairs_at_once(self) -> int:
        """So many pairs that there is something for every worker."""
        return LEAST_PAIRS * len(self._hosts.hosts())

    def play(self, specs: Sequence[MatchSpec], players: Players, *, poll: Callable[[], None]) -> list[MatchResult]:
        """Play all of these matches, side by side.

        Args:
            players: makes a player of a model, for what must be played at home.
            poll: is called over and over; what it raises ends the matches.
        """
        board = _Board(scores=[np.full((spec.pairs, 2), np.nan) for spec in specs], free=deque(self._slices(specs)))
        try:
            while board.free or board.given:
                poll()
                self._take_results(board)
                self._check(board)
                self._hand_out(board)
                if board.free and not board.given:
                    self._play_locally(board, players, poll)
                elif board.given:
                    self._sleep(WAIT_SECONDS)
        finally:
            for worker in {given.worker for given in board.given.values()}:
                self._hosts.order(worker, ())
        return [MatchResult(scores=scores) for scores in board.scores]

    def _slices(self, specs: Sequence[MatchSpec]) -> Iterator[tuple[int, MatchOrder]]:
        """All pairs of all matches, in orders that are large for few workers and small for many."""
        workers = max(1, len(self._hosts.hosts()))
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
                )
                yield number, order

    def _new_id(self) -> str:
        self._orders += 1
        return f"{self._tag}-{self._orders}"

    def _hand_out(self, board: _Board) -> None:
        """Keep every worker supplied."""
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
        """Tell workers what is theirs."""
        for worker in workers:
            self._hosts.order(worker, [given.order for given in board.given.values() if given.worker == worker])

    def _take_results(self, board: _Board) -> None:
        changed = set()
        for worker, order, data in self._hosts.results():
            given = board.given.get(order.id)
            if given is None or given.worker != worker:
                continue
            try:
                result = verified_result(self._game, order, worker, decode_result(data))
            except RefusedResult as error:
                self._give_back(board, given, f"its result is refused: {error}")
            else:
                self._enter(board, given.number, order, result)
                self.remote_games += result.scores.size
                board.longest = max(board.longest, self._clock() - given.since)
                del board.given[order.id]
            changed.add(worker)
        self._send_orders(board, changed)

    def _check(self, board: _Board) -> None:
        """See who can play, and take from workers what they will not play, as far as can be seen."""
        now = self._clock()
        if now < board.check_at:
            return
        board.check_at = now + CHECK_SECONDS
        self._check_heartbeats(board, now)
        board.able = self._hosts.hosts()
        changed = set()
        for given in list(board.given.values()):
            too_long = max(SLOW_SECONDS, SLOW * board.longest) if board.longest else MOST_SECONDS
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
        for worker, sign in self._hosts.status().items():
            if sign and sign.order in board.given and board.beats.get(worker) != sign.beat:
                board.beats[worker] = sign.beat
                for given in board.given.values():
                    if given.worker == worker:
                        given.seen = now

    def _give_back(self, board: _Board, given: _Given, reason: str) -> None:
        """Have somebody else play it, under another id; with a reason, its worker gets no more orders in this tour."""
        if reason:
            self._barred.add(given.worker)
            log.warning("evaluation games of worker %s are played elsewhere: %s", given.worker, reason)
        del board.given[given.order.id]
        board.free.appendleft((given.number, given.order.model_copy(update={"id": self._new_id()})))

    def _play_locally(self, board: _Board, players: Players, poll: Callable[[], None]) -> None:
        number, order = board.free.popleft()
        _, result = play_order(self._game, order, players, poll=poll)
        self._enter(board, number, order, result)
        self.local_games += result.scores.size

    @staticmethod
    def _enter(board: _Board, number: int, order: MatchOrder, result: MatchResult) -> None:
        board.scores[number][order.first_pair : order.first_pair + order.pairs] = result.scores


def decode_result(data: bytes) -> PlayedOrder:
    """A result as it came.

    Raises:
        RefusedResult: it cannot be understood.
    """
    try:
        return PlayedOrder.model_validate(json.loads(data))
    except (ValidationError, ValueError, RecursionError) as error:
        raise RefusedResult(f"it cannot be understood: {str(error)[:300]}") from error
