"""A worker: plays the games that its folder's assignment grants, with the newest model there, and puts them into the
outbox.

It watches files and nothing else, so that it plays on when the main node or the way to it is gone. ``Worker`` is made
to be subclassed: override ``play`` or ``make_self_play`` to play otherwise.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import training.worker.batching as batching
from games import Game, load_game
from training.common.compiling import report_compiling
from training.common.files import remove_stale_parts, write_atomically
from training.common.random import seed_stream
from training.data.records import GameBatch, GameRecord, encode
from training.evaluation.orders import MatchOrder
from training.networks.evaluator import Evaluator
from training.networks.model_file import CANARY_POSITIONS, Model, check_canary
from training.search.puct import Evaluate
from training.self_play.self_play import SelfPlay
from training.self_play.tuning import AUTO_SIZES, in_parts, measure_parallel_games, search_is_compiled
from training.worker.batching import fitting, make_batch
from training.worker.model_push import ModelInbox
from training.worker.rates import FullLoadSpeed, Rates
from training.worker.spool import Spool, salvage
from training.worker.worker_folder import Assignment, BrokenMessage, Heartbeat, WorkerFolder, end_of_batch, is_of_run
from training.worker.worker_match import OrderDropped, OrderPlayer

log = logging.getLogger(__name__)

POLL_SECONDS = 0.3  # between looks at the assignment
BEAT_SECONDS = 1.0
IDLE_SECONDS = 0.05
RETRY_SECONDS = 2.0  # after a disk has refused finished games


class Worker:
    """One worker on its folder.

    Args:
        root: the worker folder.
        clock: seconds that never go back.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = WorkerFolder(root).make()
        self.clock = clock
        self.assignment: Assignment | None = None
        self._run_id = ""  # whom it plays for
        self.game: Game | None = None
        self.evaluator: Evaluator | None = None
        self.self_play: SelfPlay | None = None
        self.model_version = 0
        self._model_sha256 = ""
        self.stopping = False
        self.note = ""
        self._compiling = ""  # what, while it does
        self._errors: dict[str, str] = {}  # by what went wrong
        self._buffer: list[GameRecord] = []
        self._buffered_moves = 0
        self._buffered_since = 0.0
        self._spool = Spool(self.folder)
        self._spooled = 0  # of the buffered games
        self._first_game = 0  # where this process began to count
        self._begun = 0  # games in all
        self._next_game = 0  # the number of the first game of the next batch
        self._retry_flush = 0.0
        self._beat = 0
        self._rates = Rates(clock())
        self._speed = FullLoadSpeed(clock())
        self._playing = 0  # games under way after the last step
        self._lease = ""
        self._lease_seen = clock()
        self._polled = -POLL_SECONDS
        self._beaten = -BEAT_SECONDS
        self._models = ModelInbox(self.folder)
        self._orders = OrderPlayer(self.folder, self._poll_from_match)

    # The loop.

    def run(self) -> None:
        """Play until the assignment says stop, a signal comes, or the lease has run out.

        Raises:
            AlreadyRunning: another process plays in this folder.
            FolderGone: it was deleted; whoever makes it anew starts another process there.
            OSError: the disk does not take the last games.
        """
        with self.folder.lock() as check_folder:
            remove_stale_parts(self.folder.outbox)
            salvage(self.folder)
            signal.signal(signal.SIGTERM, self._on_signal)
            with report_compiling(self._report_compiling):
                while not self.stopping:
                    check_folder()
                    if not self.cycle():
                        time.sleep(IDLE_SECONDS)
            self.flush()
            self.beat("ended")

    def cycle(self) -> bool:
        """One look at the folder, when it is time for one, and one step of play; False when there was nothing to play."""
        now = self.clock()
        self._poll_when_due(now)
        played = (
            self.self_play is not None
            and not self.stopping
            and (self._play_match() or self._play_measured(self.self_play))
        )
        self._report_when_due(now, played=played)
        return played

    def _poll_when_due(self, now: float) -> None:
        if now - self._polled >= POLL_SECONDS:
            self._polled = now
            self.poll()

    def _report_compiling(self, text: str) -> None:
        """Say what is compiled now: no other beat comes before it is."""
        log.info("%s", text)
        self._compiling = text
        self.beat("compiling")

    def _report_when_due(self, now: float, *, played: bool) -> None:
        self._compiling = ""
        if self._buffer and now >= self._retry_flush:
            self._try_to_flush(now)
        if now - self._beaten >= BEAT_SECONDS:
            self.beat("error" if self.error else "playing" if played else "waiting" if self.self_play else "starting")

    def _play_match(self) -> bool:
        """Play the first order for evaluation games, while games under way wait; False when there is none."""
        assert self.assignment is not None and self.game is not None
        order = self._orders.next(self.assignment)
        if order is None:
            return False
        try:
            self._orders.play(order, self.assignment, self.game)
        except OrderDropped:
            log.info("order %s is not played to its end", order.id)
        except OSError as error:
            log.warning("the result of order %s cannot be handed over: %s", order.id, error)
        self._speed.skip(self.clock())
        return True

    def _poll_from_match(self, order: MatchOrder) -> None:
        """Between two network calls of an order: all that the loop does beside playing."""
        now = self.clock()
        self._poll_when_due(now)
        self._report_when_due(now, played=True)
        if self.stopping or self.assignment is None or order not in self.assignment.matches:
            raise OrderDropped

    def _play_measured(self, self_play: SelfPlay) -> bool:
        games, evaluations = self._rates.games, self_play.evaluations
        played = self.play(self_play)
        self._spool_games()
        finished, playing = self._rates.games - games, self_play.num_playing
        full = finished >= self_play.num_idle()  # every slot had its game until this step ended some
        progress = finished + (playing - self._playing) / 2
        self._playing = playing
        self._speed.add(
            self.clock(), progress=progress, evaluations=self_play.evaluations - evaluations, full=full and played
        )
        return played

    def play(self, self_play: SelfPlay) -> bool:
        """Begin what is granted and advance all games by one evaluation; False when no game is under way."""
        assert self.assignment is not None
        wanted = min(self.assignment.granted - self._begun, self_play.num_idle())
        if wanted > 0:
            self_play.begin([self._seed(self._begun + i) for i in range(wanted)])
            self._begun += wanted
        if self_play.num_playing == 0:
            return False
        for record in self_play.advance():
            self.store(record)
        return True

    def make_self_play(self, game: Game, evaluate: Evaluate, assignment: Assignment) -> SelfPlay:
        """The games that this worker plays."""
        parallel_games = assignment.parallel_games
        if parallel_games == 0:
            parallel_games, measured = measure_parallel_games(game, evaluate, assignment.search)
            log.info("%s", measured)
            self.note = f"{parallel_games} games side by side"
        return SelfPlay(
            game, evaluate, assignment.search, parallel_games=parallel_games, cache_positions=assignment.cache_positions
        )

    # What comes in.

    def poll(self) -> None:
        """Read the assignment and take up what has changed."""
        in_outbox = (
            self.folder.batches()
        )  # before the assignment: a batch leaves only after "delivered" has been raised
        try:
            assignment = self.folder.read_assignment()
            self._say("assignment", "")
        except BrokenMessage as error:
            assignment = None
            self._say("assignment", str(error))
        if assignment is not None and self._is_ours(assignment):
            self._accept(assignment, in_outbox)
        self._check_lease()

    def _is_ours(self, assignment: Assignment) -> bool:
        """Whether an assignment is of the run that this worker plays for; another run's is refused, and named in the
        heartbeat.
        """
        if not self._run_id or (self.assignment is None and assignment.run_id != self._run_id):
            self._run_id = self.folder.owner_run() or assignment.run_id
        ours = assignment.run_id == self._run_id
        refusal = (
            f"the assignment is refused: it is of run {assignment.run_id}, and this worker plays for run {self._run_id}"
        )
        self._say("run", "" if ours else refusal)
        return ours

    def _accept(self, assignment: Assignment, in_outbox: list[Path]) -> None:
        first = self.assignment is None
        self.assignment = assignment
        if assignment.lease != self._lease:
            self._lease, self._lease_seen = assignment.lease, self.clock()
        if first:
            most = max(assignment.granted, assignment.promised)
            ends = [end_of_batch(path.stem) for path in in_outbox if is_of_run(path.name, assignment.run_id)]
            believed = [end for end in ends if end <= most]  # any other was not put there by a worker
            self._first_game = self._begun = self._next_game = max(assignment.delivered, *believed, 0)
            self.beat("starting" if search_is_compiled() else "compiling")  # which takes a while, without another beat
        self._orders.take(assignment)
        if assignment.stop:
            self.stopping = True
        elif assignment.model_sha256 != self._model_sha256 or self.self_play is None:
            self._accept_model(assignment)

    def _check_lease(self) -> None:
        since = self.clock() - self._lease_seen
        if self.assignment is not None and since > self.assignment.lease_seconds:
            log.warning("nobody has renewed the lease for %.0f s: ending", since)
            self.stopping = True

    def _accept_model(self, assignment: Assignment) -> None:
        try:
            game = load_game(assignment.game, **assignment.options)
            model = self._models.receive(assignment.model_version, assignment.model_sha256)
            check_canary(model, game, Evaluator(model.build(game), game, max_batch=CANARY_POSITIONS))
            if self.self_play is None:
                self._start_playing(model, game, assignment)
            else:
                assert self.evaluator is not None
                self.evaluator.load(model.weights)
                self.self_play.change_model(assignment.model_version)
        except (ValueError, OSError) as error:
            self._say("model", f"model {assignment.model_version}: {error}")
            return
        self._say("model", "")
        self.model_version, self._model_sha256 = assignment.model_version, assignment.model_sha256
        try:
            self._models.tidy(self.model_version)
        except OSError as error:
            log.warning("model %d is played with, but cannot be kept for a restart: %s", self.model_version, error)

    def _start_playing(self, model: Model, game: Game, assignment: Assignment) -> None:
        self.game = game
        most = (assignment.parallel_games or max(AUTO_SIZES)) * assignment.search.leaves_per_tree
        limit = min(assignment.max_positions or most, most)
        self.evaluator = Evaluator(model.build(self.game), self.game, max_batch=limit)
        evaluate = self.evaluator if limit == most else in_parts(self.evaluator, limit)
        self.self_play = self.make_self_play(self.game, evaluate, assignment)
        self.self_play.change_model(assignment.model_version)
        side_by_side, how = self.self_play.num_idle(), self.evaluator.describe()
        log.info(
            "plays %s with model %d, %d games side by side, %s", game.name, assignment.model_version, side_by_side, how
        )
        self._speed = FullLoadSpeed(self.clock())  # compiling and measuring are no play

    # What goes out.

    def store(self, record: GameRecord) -> None:
        """Put a finished game aside for the next batch."""
        if not self._buffer:
            self._buffered_since = self.clock()
        self._buffer.append(record)
        self._buffered_moves += len(record.actions)
        self._rates.games += 1

    def _spool_games(self) -> None:
        """Put finished games where a kill does not reach them, if they may have to wait for long."""
        if self.assignment is None or self.assignment.flush_seconds is not None or self._spooled == len(self._buffer):
            return
        waiting = range(self._spooled, len(self._buffer))
        try:
            self._spool.add([self._batch(self._buffer[i : i + 1], self._next_game + i) for i in waiting])
        except OSError as error:
            log.warning("finished games wait in memory alone: %s", error)
            return
        self._spooled = len(self._buffer)

    def _nothing_more_to_wait_for(self) -> bool:
        """Whether games must be handed over although they do not fill a batch."""
        assert self.assignment is not None and self.self_play is not None
        complete = self._begun >= self.assignment.granted and self.self_play.num_playing == 0
        most = self.assignment.flush_seconds
        return complete or (most is not None and self.clock() - self._buffered_since >= most)

    def _try_to_flush(self, now: float) -> None:
        try:
            self.flush(rest=self._nothing_more_to_wait_for())
            self._say("outbox", "")
        except OSError as error:
            self._retry_flush = now + RETRY_SECONDS
            self._say("outbox", f"finished games cannot be handed over, and wait: {error}")

    def flush(self, *, rest: bool = True) -> None:
        """Put the finished games into the outbox, batch by batch, and with ``rest`` also those that fill none.

        Raises:
            OSError: the disk does not take them; they are kept.
        """
        while (
            self._buffer and self.assignment is not None and (rest or self._fills_a_batch(self.assignment.batch_games))
        ):
            records = fitting(self._buffer[: self.assignment.batch_games])
            batch = self._batch(records, self._next_game)
            write_atomically(self.folder.outbox / f"{batch.batch_id}.games", encode(batch))
            self._next_game += len(records)
            self._buffered_moves -= batch.num_positions
            del self._buffer[: len(records)]
            self._spooled = max(0, self._spooled - len(records))
            if not self._buffer:
                self._spool.clear()

    def _fills_a_batch(self, batch_games: int) -> bool:
        return len(self._buffer) >= batch_games or self._buffered_moves > batching.MOST_POSITIONS

    def _batch(self, records: list[GameRecord], first_game: int) -> GameBatch:
        assert self.assignment is not None and self.game is not None
        return make_batch(
            records,
            run_id=self.assignment.run_id,
            worker=self.assignment.worker,
            game=self.game.name,
            options=self.game.options,
            rules_version=self.game.rules_version,
            first_game=first_game,
        )

    def beat(self, state: str) -> None:
        """Replace the heartbeat."""
        now = self.clock()
        self._beaten = now
        if not self._run_id:
            return
        assignment = self.assignment  # None: it has been told nothing yet, and has refused what was another run's
        self._beat += 1
        evaluations = self.self_play.evaluations if self.self_play else 0
        games_rate, evaluations_rate = self._rates.measure(now, evaluations)
        playing = self.self_play.num_playing if self.self_play else 0
        heartbeat = Heartbeat.model_validate(
            dict(
                run_id=self._run_id,
                worker=assignment.worker if assignment else self.folder.root.name,
                beat=self._beat,
                pid=os.getpid(),
                state=state,
                error=self.error[:1000],
                model_version=self.model_version,
                lease=assignment.lease if assignment else "",
                granted=assignment.granted if assignment else 0,
                begun=self._begun,
                finished=self._begun - playing,
                parallel_games=playing + self.self_play.num_idle() if self.self_play else 0,
                evaluations=evaluations,
                games_per_second=games_rate,
                speed=self._speed.games_per_second(),
                evaluations_per_second=evaluations_rate,
                order=self._orders.current.id if self._orders.current else "",
                note=(self._compiling or self.note)[:1000],
            )
        )
        try:
            self.folder.write_heartbeat(heartbeat)
        except OSError as error:
            log.warning("the heartbeat cannot be written: %s", error)

    def _seed(self, number: int) -> int:
        """Where a game's random numbers start.

        A process that takes over draws new seeds: it cannot know which games of the last one have been handed over
        already.
        """
        assert self.assignment is not None
        return seed_stream(self.assignment.seed, self.assignment.worker, self._first_game, number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True
        if self.self_play is None:
            os._exit(128 + number)  # nothing has been played, and compiling the search would take its time

    @property
    def error(self) -> str:
        """What is wrong now; empty when nothing is."""
        return "; ".join(self._errors.values())

    def _say(self, what: str, text: str) -> None:
        """Note what is wrong with the assignment, the model or the outbox, or that nothing is any more."""
        if text and self._errors.get(what) != text:
            log.error("%s", text)
        self._errors.pop(what, None)
        if text:
            self._errors[what] = text
