"""A worker's part of evaluation games: play each order once, and clean up after orders that are gone."""

import logging
import time
from collections.abc import Sequence

from keima.base.files import read_limited, write_atomically
from keima.evaluation.match import MatchSession, SearchPlayer
from keima.evaluation.match_jobs import Contestant, EvaluationJob, EvaluationJobResult
from keima.evaluation.match_worker import job_openings, make_job_fixture, make_job_result, make_match_search
from keima.games import Game
from keima.networks.files.container import MAX_MODEL_BYTES
from keima.networks.files.heading import stored_sha256
from keima.networks.files.model import CANARY_POSITIONS, Model, check_canary, decode_model
from keima.networks.inference.evaluator import Evaluator
from keima.worker.worker_folder import Assignment, WorkerFolder

log = logging.getLogger(__name__)

SURPLUS_SECONDS = 30.0  # a newer file may be named by an assignment that has not arrived yet


class OrderPlayer:
    """Plays the orders of an assignment side by side, so that a model evaluates the positions of all in one batch.

    Args:
        folder: the worker's.
    """

    def __init__(self, folder: WorkerFolder) -> None:
        self._folder = folder
        self._table: MatchSession | None = None
        self._playing: dict[str, EvaluationJob] = {}  # by id
        self._done: set[str] = set()  # ids of played orders in the assignment
        self._searches: dict[tuple[str, int], SearchPlayer] = {}  # by model and simulations
        self._known: set[str] | None = None  # files of players that assignments have named

    @property
    def current_order(self) -> EvaluationJob | None:
        """An order in progress."""
        return next(iter(self._playing.values()), None)

    def unfinished_orders(self, assignment: Assignment) -> list[EvaluationJob]:
        """Return the orders that have not been played to their end."""
        return [
            order
            for order in assignment.matches
            if order.id not in self._done
            and (order.id in self._playing or not (self._folder.outbox / order.file_name).exists())
        ]

    def update_orders(self, assignment: Assignment) -> None:
        """Forget orders and players that the assignment no longer names, and remove their files.

        A player's file arrives before the assignment that names it. So only files that were named before, or that an
        earlier process left, are removed, unless they have just arrived again.
        """
        named = {player.file_name for player in assignment.players}
        if self._known is None:
            self._known = {path.name for path in self._folder.inbox.glob("player-*.model")}
        self._known = named | {name for name in self._known - named if not self._remove_player_file(name)}
        kept = {player.sha256 for player in assignment.players}
        self._searches = {key: search for key, search in self._searches.items() if key[0] in kept}
        orders = {order.file_name for order in assignment.matches}
        for path in self._folder.result_files():
            if path.name not in orders:
                path.unlink(missing_ok=True)
        named_orders = {order.id for order in assignment.matches}
        self._done &= named_orders
        for order_id in self._playing.keys() - named_orders:
            log.info("evaluation job %s was cancelled", order_id)
            self._drop_order(order_id)

    def _remove_player_file(self, name: str) -> bool:
        """Remove the file of a player that is no longer named, unless it has just arrived."""
        path = self._folder.inbox / name
        try:
            if time.time() - path.stat().st_ctime < SURPLUS_SECONDS:  # moved files keep their other times
                return False
            path.unlink()
        except FileNotFoundError:
            pass
        return True

    def advance_orders(
        self, orders: Sequence[EvaluationJob], assignment: Assignment, game: Game, *, device: str = "auto"
    ) -> None:
        """Make one network call of each model, on a device, for all these orders, and write the results of those that
        end.

        An order that cannot be played is refused in its result.

        Raises:
            OSError: the disk does not take a result; the order is played again, here or elsewhere.
        """
        if self._table is None:
            self._table = MatchSession(game)
        for order in orders:
            if order.id not in self._playing:
                self._begin_match(self._table, order, assignment, game, device)
        try:
            self._table.advance()
        except ValueError as error:
            for order in list(self._playing.values()):
                self._drop_order(order.id)
                self._refuse_order(order, assignment, error)
            return
        for order_id, result in self._table.take_results().items():
            order = self._playing.pop(order_id)
            self._write_result(make_job_result(assignment.worker, order, job_openings(game, order), result))

    def _begin_match(
        self, table: MatchSession, order: EvaluationJob, assignment: Assignment, game: Game, device: str
    ) -> None:
        try:
            fixture = make_job_fixture(game, order, lambda who: self._make_player(who, order, assignment, game, device))
        except (ValueError, OSError) as error:
            self._refuse_order(order, assignment, error)
            return
        self._playing[order.id] = order
        table.begin(order.id, fixture)

    def _refuse_order(self, order: EvaluationJob, assignment: Assignment, error: Exception) -> None:
        log.warning("evaluation job %s cannot be played: %s", order.id, error)
        self._write_result(EvaluationJobResult(worker=assignment.worker, order=order, refused=str(error)[:1000]))

    def _write_result(self, result: EvaluationJobResult) -> None:
        write_atomically(self._folder.outbox / result.order.file_name, result.model_dump_json().encode())
        self._done.add(result.order.id)

    def _drop_order(self, order_id: str) -> None:
        """End an order without a result; after the last one, clear the searches."""
        if self._playing.pop(order_id, None) and self._table:
            self._table.drop(order_id)
        if not self._playing:
            self._table = None
            self._searches.clear()

    def _make_player(
        self, who: Contestant, order: EvaluationJob, assignment: Assignment, game: Game, device: str
    ) -> SearchPlayer:
        key = (who.sha256, order.num_simulations)
        if key not in self._searches:
            search = make_match_search(
                game,
                self._load_model(who, game, device),
                assignment.search,
                num_simulations=order.num_simulations,
                max_positions=assignment.max_positions,
                cached=True,
                device=device,
            )
            self._searches[key] = SearchPlayer(search)
        return self._searches[key]

    def _load_model(self, who: Contestant, game: Game, device: str) -> Model:
        path = self._folder.inbox / who.file_name
        data = read_limited(path, MAX_MODEL_BYTES)
        if stored_sha256(data) != who.sha256:
            raise ValueError(f"the SHA-256 of {path} does not match the evaluation job")
        model = decode_model(data)
        check_canary(model, game, Evaluator(model.build(game), game, device=device, max_batch=CANARY_POSITIONS))
        return model
