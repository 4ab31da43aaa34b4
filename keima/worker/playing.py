"""State of a worker that is playing: an assignment with its network, games in progress, and finished games that wait
for their batch.
"""

import logging
from collections.abc import Callable

import keima.worker.batching as batching
from keima.base.files import write_atomically
from keima.base.random import seed_stream
from keima.data.records import GameBatch, GameRecord, encode_batch
from keima.games import Game
from keima.networks.files.model import Model
from keima.networks.inference.evaluator import Evaluator
from keima.self_play.groups import ParallelGames
from keima.worker.batching import make_batch, records_that_fit
from keima.worker.rates import FullLoadSpeed, Rates
from keima.worker.spool import Spool
from keima.worker.worker_folder import Assignment, WorkerFolder

log = logging.getLogger(__name__)


class Playing:
    """The games of a worker process.

    Args:
        folder: the worker's.
        assignment: the newest; ``assignment`` is replaced when another one comes.
        game: what is played.
        evaluator: its network.
        self_play: the games in progress.
        first_game: games that earlier processes have handed over.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        folder: WorkerFolder,
        assignment: Assignment,
        *,
        game: Game,
        evaluator: Evaluator,
        self_play: ParallelGames,
        first_game: int,
        clock: Callable[[], float],
    ) -> None:
        self.folder, self.assignment, self.clock = folder, assignment, clock
        self.game, self.evaluator, self.self_play = game, evaluator, self_play
        self.begun = first_game  # games in all
        self.waiting: list[GameRecord] = []  # finished games that no batch holds yet
        self._waiting_moves = 0
        self._waiting_since = 0.0
        self._first_game = self._next_game = first_game  # _next_game: the first one of the next batch
        self._spool = Spool(folder)
        self._spooled = 0  # of the waiting games
        self._rates = Rates(clock())
        self._speed = FullLoadSpeed(clock())
        self._in_progress = 0  # games after the last step

    @property
    def finished(self) -> int:
        """The number of finished games, including those that wait for their batch."""
        return self.begun - self.self_play.num_playing

    @property
    def parallel_games(self) -> int:
        """The number of games that can be in progress at once."""
        return self.self_play.parallel_games

    def change_model(self, model: Model, version: int) -> None:
        """Continue all games with another model."""
        if self.evaluator.has_shapes_of(model.weights):
            self.evaluator.load(model.weights)
        else:
            self.evaluator.change_network(model.build(self.game))
        self.self_play.change_model(version)

    # Games.

    def begin_games(self) -> None:
        """Begin as many games as are granted and have a free slot."""
        count = min(self.assignment.granted - self.begun, self.self_play.num_idle())
        if count > 0:
            self.self_play.begin([self._game_seed(self.begun + i) for i in range(count)])
            self.begun += count

    def store_game(self, record: GameRecord) -> None:
        """Keep a finished game for the next batch."""
        if not self.waiting:
            self._waiting_since = self.clock()
        self.waiting.append(record)
        self._waiting_moves += len(record.actions)
        self._rates.games += 1

    def measure_step(self, play: Callable[[], bool]) -> bool:
        """Return the result of ``play``, a step of all games; its speed counts for ``full_load_speed``."""
        games, evaluations = self._rates.games, self.self_play.evaluations
        played = play()
        finished, in_progress = self._rates.games - games, self.self_play.num_playing
        full = finished >= self.self_play.num_idle()  # every slot had its game until this step ended some
        progress = finished + (in_progress - self._in_progress) / 2
        self._in_progress = in_progress
        evaluated = self.self_play.evaluations - evaluations
        self._speed.add(self.clock(), progress=progress, evaluations=evaluated, full=full and played)
        return played

    def skip_elapsed_time(self) -> None:
        """Exclude the time since the last step from the speed, since the worker did something else."""
        self._speed.skip(self.clock())

    def full_load_speed(self) -> float:
        """Return games per second at full load; 0 while there is too little to measure."""
        return self._speed.games_per_second()

    def measure_rates(self, now: float) -> tuple[float, float]:
        """Return games and evaluations per second; call it about once a second."""
        return self._rates.measure(now, self.self_play.evaluations)

    def _game_seed(self, number: int) -> int:
        """Return the seed of a game's random numbers.

        A process that takes over draws new seeds: it cannot know which games of the last one were handed over.
        """
        return seed_stream(self.assignment.seed, self.assignment.worker, self._first_game, number)

    # Batches.

    def spool_games(self) -> None:
        """Write finished games where they survive a kill, if they may have to wait for long."""
        if self.assignment.flush_seconds is not None or self._spooled == len(self.waiting):
            return
        unspooled = range(self._spooled, len(self.waiting))
        try:
            self._spool.add([self._make_batch(self.waiting[i : i + 1], self._next_game + i) for i in unspooled])
        except OSError as error:
            log.warning("finished games are in memory only: %s", error)
            return
        self._spooled = len(self.waiting)

    def must_flush_rest(self) -> bool:
        """Return whether games must be handed over although they do not fill a batch."""
        complete = self.begun >= self.assignment.granted and self.self_play.num_playing == 0
        most = self.assignment.flush_seconds
        return complete or (most is not None and self.clock() - self._waiting_since >= most)

    def flush_games(self, *, rest: bool) -> None:
        """Write the finished games to the outbox, batch by batch; with ``rest``, also a last batch that is not full.

        Raises:
            OSError: the disk does not take them; they stay here.
        """
        while self.waiting and (rest or self._has_full_batch()):
            records = records_that_fit(self.waiting[: self.assignment.batch_games])
            batch = self._make_batch(records, self._next_game)
            write_atomically(self.folder.outbox / f"{batch.batch_id}.games", encode_batch(batch))
            self._next_game += len(records)
            self._waiting_moves -= batch.num_positions
            del self.waiting[: len(records)]
            self._spooled = max(0, self._spooled - len(records))
            self._waiting_since = self.clock()  # the games that are left have just ended
            if not self.waiting:
                self._spool.clear()

    def _has_full_batch(self) -> bool:
        return len(self.waiting) >= self.assignment.batch_games or self._waiting_moves > batching.MOST_POSITIONS

    def _make_batch(self, records: list[GameRecord], first_game: int) -> GameBatch:
        return make_batch(
            records,
            run_id=self.assignment.run_id,
            worker=self.assignment.worker,
            game=self.game.name,
            options=self.game.options,
            rules_version=self.game.rules_version,
            first_game=first_game,
        )


def games_handed_over(assignment: Assignment, ends: list[int]) -> int:
    """Return how many games of a worker are in its outbox or safe on the main node.

    Args:
        assignment: its newest.
        ends: for each batch of the run in the outbox, the number after its last game.
    """
    most = max(assignment.granted, assignment.promised)
    return max(assignment.delivered, *(end for end in ends if end <= most), 0)  # no worker wrote a file beyond
