"""A worker's part of evaluation games: play each order once, and clean up after orders that are gone."""

import logging
import time
from collections.abc import Callable

from games import Game
from training.common.files import read_limited, write_atomically
from training.evaluation.match import SearchPlayer
from training.evaluation.match_worker import play_order, played_order, search_for_strength
from training.evaluation.orders import Contestant, MatchOrder, PlayedOrder
from training.networks.evaluator import Evaluator
from training.networks.model_file import (
    CANARY_POSITIONS,
    MAX_MODEL_BYTES,
    Model,
    check_canary,
    content_sha256,
    decode_model,
)
from training.worker.worker_folder import Assignment, WorkerFolder

log = logging.getLogger(__name__)

SURPLUS_SECONDS = 30.0  # a newer file may be named by an assignment that has not arrived yet


class OrderDropped(Exception):
    """The order was withdrawn, or the worker is stopping."""


class OrderPlayer:
    """Plays the orders of an assignment.

    Args:
        folder: the worker's.
        poll: called with the current order before every network call; raises OrderDropped to end it.
    """

    def __init__(self, folder: WorkerFolder, poll: Callable[[MatchOrder], None]) -> None:
        self._folder, self._poll = folder, poll
        self._done: set[str] = set()  # ids of played orders in the assignment
        self._searches: dict[tuple[str, int], SearchPlayer] = {}  # by model and simulations
        self._known: set[str] | None = None  # files of players that assignments have named
        self.current: MatchOrder | None = None

    def take(self, assignment: Assignment) -> None:
        """Forget orders and players that the assignment no longer names, and remove their files.

        A player's file arrives before the assignment that names it. So only files that were named before, or that an
        earlier process left, are removed, unless they have just arrived again.
        """
        named = {player.file_name for player in assignment.players}
        if self._known is None:
            self._known = {path.name for path in self._folder.inbox.glob("player-*.model")}
        self._known = named | {name for name in self._known - named if not self._removed(name)}
        kept = {player.sha256 for player in assignment.players}
        self._searches = {key: search for key, search in self._searches.items() if key[0] in kept}
        orders = {order.file_name for order in assignment.matches}
        for path in self._folder.results():
            if path.name not in orders:
                path.unlink(missing_ok=True)
        self._done &= {order.id for order in assignment.matches}

    def _removed(self, name: str) -> bool:
        """Remove the file of a player that is no longer named, unless it has just arrived."""
        path = self._folder.inbox / name
        try:
            if time.time() - path.stat().st_ctime < SURPLUS_SECONDS:  # moved files keep their other times
                return False
            path.unlink()
        except FileNotFoundError:
            pass
        return True

    def next(self, assignment: Assignment) -> MatchOrder | None:
        """The first order that has not been played."""
        open_orders = (order for order in assignment.matches if order.id not in self._done)
        return next((order for order in open_orders if not (self._folder.outbox / order.file_name).exists()), None)

    def play(self, order: MatchOrder, assignment: Assignment, game: Game) -> None:
        """Play an order and write the result to the outbox; an order that cannot be played is rejected there.

        Raises:
            OrderDropped: it was ended.
            OSError: the disk does not take the result; the order goes to another worker.
        """
        self.current = order
        try:
            result = self._result(order, assignment, game)
        except OrderDropped:
            self._searches.clear()  # one of them is in the middle of a search
            raise
        finally:
            self.current = None
        self._done.add(order.id)
        write_atomically(self._folder.outbox / order.file_name, result.model_dump_json().encode())

    def _result(self, order: MatchOrder, assignment: Assignment, game: Game) -> PlayedOrder:
        try:
            starts, result = play_order(
                game, order, lambda who: self._player(who, order, assignment, game), poll=lambda: self._poll(order)
            )
        except (ValueError, OSError) as error:
            log.warning("order %s cannot be played: %s", order.id, error)
            self._searches.clear()
            return PlayedOrder(worker=assignment.worker, order=order, refused=str(error)[:1000])
        return played_order(assignment.worker, order, starts, result)

    def _player(self, who: Contestant, order: MatchOrder, assignment: Assignment, game: Game) -> SearchPlayer:
        key = (who.sha256, order.num_simulations)
        if key not in self._searches:
            search = search_for_strength(
                game,
                self._model(who, game),
                assignment.search,
                num_simulations=order.num_simulations,
                max_positions=assignment.max_positions,
                poll=self._poll_in_between,
            )
            self._searches[key] = SearchPlayer(search)
        return self._searches[key]

    def _poll_in_between(self) -> None:
        if self.current is not None:
            self._poll(self.current)

    def _model(self, who: Contestant, game: Game) -> Model:
        path = self._folder.inbox / who.file_name
        data = read_limited(path, MAX_MODEL_BYTES)
        if content_sha256(data) != who.sha256:
            raise ValueError(f"{path} does not have the SHA-256 in the order")
        model = decode_model(data)
        check_canary(model, game, Evaluator(model.build(game), game, max_batch=CANARY_POSITIONS))
        return model
