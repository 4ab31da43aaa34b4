"""The Coach: grants games, takes them in, trains, publishes and measures, cycle after cycle.

The loop of everything that searches.

It is asynchronous by default: workers play on while it trains, and the samples drawn per new position keep the two in
balance. In synchronous mode an iteration's games are all played by one model, and a seed gives the same games again.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from configs.schema import SEED_ACCOUNTS, Settings
from games import Game
from training.common.files import read_limited, write_atomically
from training.common.reports import (
    EvaluationReport,
    IterationReport,
    LearnerReport,
    Observer,
    ProgressReport,
    SelfPlayReport,
    report_event,
    report_iteration,
    report_progress,
)
from training.common.retry_log import RetryLog
from training.data.ledger import Ledger
from training.data.ledger_rows import model_path, model_row
from training.data.receive import Quarantined, Received, load_if_intact, receive
from training.data.records import GameBatch
from training.learning.checkpoint import Checkpoints
from training.learning.generalization import generalization
from training.learning.learner import Learner
from training.networks.model_file import MAX_MODEL_BYTES, Model, decode_model, describe_model, encode_model
from training.replay.replay import ReplayWindow
from training.run.backend import PendingBatch, SelfPlayBackend
from training.run.bounds import Bounds, CoachState, window_capacity
from training.run.fingerprint import fingerprint
from training.run.granting import Granting
from training.run.summary import merge_reports, phase_of_all, worker_reports
from training.run.tally import IterationTally
from training.worker.worker_folder import last_ends

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 1.0
WAIT_SECONDS = 0.1
STEPS_BETWEEN_POLLS, SECONDS_BETWEEN_POLLS = 8, 0.5  # whichever is less, in training
T = TypeVar("T")


class StopRequested(Exception):
    """Somebody has asked the run to end."""


class Evaluation(Protocol):
    """What measures strength."""

    def measure(self, model: Model, *, poll: Callable[[], None]) -> EvaluationReport:
        """How strong ``model`` is; calls ``poll`` now and then."""

    def accepts(self, candidate: Model, best: Model, *, file: bytes, poll: Callable[[], None]) -> bool:
        """Whether ``candidate``, which ``file`` holds, may replace ``best`` in self-play."""


class Coach:
    """One run, from its settings to its end.

    Args:
        run_dir: everything is written here.
        settings: the run's.
        game: what is learned.
        ledger: the ledger, open for writing.
        backend: those who play.
        learner: the network in training.
        window: where the learner draws from.
        checkpoints: where the learner's state is kept.
        evaluation: how strength is measured.
        observers: those who watch.
        state: where an earlier session ended.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        settings: Settings,
        game: Game,
        ledger: Ledger,
        backend: SelfPlayBackend,
        learner: Learner,
        window: ReplayWindow,
        checkpoints: Checkpoints,
        evaluation: Evaluation,
        observers: Sequence[Observer],
        state: CoachState,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.run_dir, self.settings, self.game = run_dir, settings, game
        self.ledger, self.backend, self.learner = ledger, backend, learner
        self.window, self.checkpoints, self.evaluation = window, checkpoints, evaluation
        self.observers, self.state, self.clock, self.sleep = observers, state, clock, sleep
        self.stop_requested = False
        self.model: Model | None = None  # the one that plays
        self._tally = IterationTally(game, settings.search.resignation, since=clock())
        self._granting = Granting(
            settings=settings, ledger=ledger, backend=backend, clock=clock, log_event=self.log_event
        )
        self._gathered = state.iteration_sequence  # the ledger's last batch when the iteration's games were complete
        self._phase, self._reported = "starting", -PROGRESS_SECONDS
        self._bounds = Bounds(settings.run, seconds=state.seconds, clock=clock)
        self._retries = RetryLog(self.log_event)
        self._complete: SelfPlayReport | None = None  # the iteration's games, once all are here
        self._ends: dict[str, int] = {}  # worker -> the number behind the last game in its outbox at the last look

    def run(self) -> IterationReport | None:
        """Cycle until the run's bounds are reached or a stop is asked for; returns the last iteration's report.

        Raises:
            NobodyPlays: all workers have failed.
            TrainingDiverged: the learner could take no step.
            OSError, sqlite3.Error: what the end leaves cannot be kept. The run can be resumed, as after any other end.
        """
        report = None
        try:
            self.start()
            while not self.finished():
                games = self.gather()
                learned = self.learn()
                if learned:
                    self.publish()
                evaluated = self.evaluate()
                report = self.conclude(games, learned, evaluated)
        except StopRequested:
            log.info("stopped while %s; the iteration goes on when the run is resumed", self._phase)
        self.end()
        return report

    def start(self) -> None:
        """Take up what an earlier session has left, and set the workers to work, if there is anything left to do."""
        self.catch_up()
        self._granting.restore()
        if self.finished():
            return
        self.publish_again() if self.state.model_version else self.publish()

    def end(self) -> None:
        """Let the workers hand over what they have finished, and keep everything."""
        self._phase = "ending"
        self.backend.close()
        self.ingest(self.backend.collect())
        self.save()

    def finished(self) -> bool:
        """Whether a bound of the run is reached, or a stop was asked for."""
        return self.stop_requested or self._bounds.reached(self.state.iteration)

    # The phases.

    def gather(self) -> SelfPlayReport:
        """Wait until the iteration's games are here, or the time is up."""
        self._phase, self._complete, self._reported = (
            "waiting for games",
            None,
            -PROGRESS_SECONDS,
        )  # the first look shows what is granted
        wanted = self.settings.training.games_per_iteration
        if not self.settings.training.asynchronous:
            self._tally.since = self.clock()  # nobody has played since the last iteration's games were complete
        while self._tally.games < wanted and not self._bounds.time_is_up():
            if not self.poll_workers(ingest=True):
                self.sleep(WAIT_SECONDS)
        now = self.clock()
        tally, self._tally = self._tally, IterationTally(self.game, self.settings.search.resignation, since=now)
        self._gathered = self.state.window_sequence
        self._complete = tally.report(now)
        self.show()
        return self._complete

    def learn(self) -> LearnerReport | None:
        """Take the steps that the new positions allow; None while the window is too small for any."""
        training = self.settings.training
        if self.window.num_positions < training.window.min_positions:
            return None
        self._phase, steps = "training", int(self.state.owed_samples // training.batch_size)
        generalized = generalization(self.learner, self.window, self.settings.run.seed) if steps else None
        reports, fresh, every = [], 0, training.steps_per_model or steps + 1  # fresh: steps since the last model
        while steps > 0 and not self._bounds.time_is_up():
            count, progress = min(STEPS_BETWEEN_POLLS, steps, every - fresh), self._bounds.share(self.state.iteration)
            reports.append(
                self.learner.train(
                    self.window, count, self.settings.run.seed, progress=progress, seconds=SECONDS_BETWEEN_POLLS
                )
            )
            self.state.owed_samples -= reports[-1].samples
            steps, fresh = steps - reports[-1].steps, fresh + reports[-1].steps
            self.poll()
            if fresh >= every and steps > 0:
                self.publish()
                self._phase, fresh = "training", 0
        return merge_reports(reports, generalized) if reports else None

    def publish(self) -> None:
        """Put the learner's averaged weights into the models folder and, if they are accepted, give them to all
        workers.
        """
        self._phase = "publishing"
        version = max((row.version for row in self.ledger.models()), default=0) + 1
        description = describe_model(self.game, self.settings.network.model_dump(), version)
        model = Model(description=description, weights=self.learner.weights())
        data = encode_model(model, self.game, compressed=self.settings.distributed.compression)
        best = self.model
        accepted = best is None or self.persist(
            f"model {version}", lambda: self.evaluation.accepts(model, best, file=data, poll=self.poll)
        )
        row = model_row(self.run_dir, version, iteration=self.state.iteration, data=data, accepted=accepted)
        self.persist(f"model {version}", lambda: write_atomically(model_path(self.run_dir, version), data))
        self.persist(f"model {version}", lambda: self.ledger.add_model(row))
        if not accepted:
            self.log_event(f"model {version} was not stronger than model {self.state.model_version} and is not used")
            return
        self.model, self.state.model_version = model, version
        self.hand_out(data)

    def publish_again(self) -> None:
        """Give all workers the model that an earlier session published last, or if its file is damaged, a new one."""
        try:
            data = read_limited(model_path(self.run_dir, self.state.model_version), MAX_MODEL_BYTES)
            self.model = decode_model(data)
        except (OSError, ValueError) as error:
            self.log_event(
                f"model {self.state.model_version} cannot be read, the learner's weights take its place: {error}"
            )
            self.publish()
            return
        self.hand_out(data)

    def hand_out(self, file: bytes) -> None:
        """Have all workers play with the current model."""
        self.persist("the workers' model", lambda: self.backend.publish(self.state.model_version, file))

    def catch_up(self) -> None:
        """Count again the games of the unfinished iteration, and take in what was received after the last checkpoint."""
        for row in self.ledger.received_batches(after=self.state.iteration_sequence):
            batch = load_if_intact(self.run_dir, row, log_event=self.log_event)
            if batch and row.worker not in SEED_ACCOUNTS.values():
                self._tally.add(batch, row.bytes)
            if row.sequence > self.state.window_sequence:
                self.count(row.games, row.positions, row.sequence)
                if batch:
                    self.add_to_window(batch)
        self._tally.earlier = self._tally.games

    def evaluate(self) -> EvaluationReport | None:
        """Measure the published model, when it is time to and after the last iteration; not to its end when a stop is
        asked for.
        """
        iteration, every = self.state.iteration + 1, self.settings.evaluation.every
        if every == 0 or not (iteration % every == 0 or self._bounds.reached(iteration)):
            return None
        self._phase = "evaluating"
        assert self.model is not None
        with suppress(StopRequested), self._retries.about("evaluation", "what matches have shown cannot be kept"):
            return self.evaluation.measure(self.model, poll=self.poll)
        return None

    def conclude(
        self, games: SelfPlayReport, learned: LearnerReport | None, evaluated: EvaluationReport | None
    ) -> IterationReport:
        """Count the iteration, keep a checkpoint, and tell everybody."""
        self.state.iteration += 1
        self.state.iteration_sequence = self._gathered
        self.state.seconds = self._bounds.seconds()
        report = IterationReport(
            iteration=self.state.iteration,
            seconds=self.state.seconds,
            total_games=self.state.total_games,
            total_positions=self.state.total_positions,
            window_games=self.window.num_games,
            window_positions=self.window.num_positions,
            model_version=self.state.model_version,
            self_play=games,
            learner=learned,
            evaluation=evaluated,
            workers=worker_reports(self.backend.status(), self.ledger.accounts(), self.backend.cluster(), self._ends),
        )
        self.persist(
            f"iteration {report.iteration}", lambda: self.ledger.add_iteration(report.iteration, report.as_dict())
        )
        if self.state.iteration % self.settings.training.checkpoint_every == 0:
            self.persist("a checkpoint", self.save)
        report_iteration(self.observers, report)
        return report

    def save(self) -> None:
        """Keep a checkpoint."""
        self.state.seconds = self._bounds.seconds()
        learner = self.learner.state()
        path = self.checkpoints.save(learner, vars(self.state))
        log.info("%s: %s", path.name, fingerprint(learner, self.window))

    def persist(self, what: str, action: Callable[[], T]) -> T:
        """Put something where it lasts; while the disk has no room for it, wait, and grant nobody any games.

        Raises what ``poll_workers`` does.
        """

        def wait() -> None:
            self._phase = "waiting for room on the disk"
            self.poll_workers(ingest=False)
            self.sleep(WAIT_SECONDS)

        return self._retries.insist(what, f"{what} cannot be kept now, and the run waits", action, wait=wait)

    # Games.

    def poll(self) -> None:
        """Visit the workers in between, but leave games where they are when every iteration's must be those of one
        model.

        Raises:
            Stopped, NobodyPlays: see ``poll_workers``.
        """
        self.poll_workers(ingest=self.settings.training.asynchronous)

    def poll_workers(self, *, ingest: bool) -> bool:
        """See what the workers have, ``ingest`` it in and grant more, show how things stand; False when nothing was taken
        in.

        Raises:
            StopRequested: somebody has asked for it.
            NobodyPlays: all workers have failed.
        """
        if self.stop_requested:
            raise StopRequested
        waiting = self.backend.collect()
        self._ends = last_ends((batch.worker, batch.batch_id) for batch in waiting)
        taken = 0
        if ingest:
            taken = self.ingest(self._granting.in_turn(waiting))
            self.grant(waiting)
        self.show(PROGRESS_SECONDS)
        return taken > 0

    def grant(self, waiting: Sequence[PendingBatch]) -> None:
        """Keep the workers in work; ``waiting`` is all that lay in their outboxes."""
        with self._retries.about("grants", "games cannot be granted now"):
            self._granting.give_up_lost(waiting)
            self._granting.grant(self._tally.games)

    def ingest(self, batches: Sequence[PendingBatch]) -> int:
        """Receive each batch, learn from those that are good, and let the workers delete their copies; returns how many
        were received.

        What cannot be fetched or kept now, because of a full disk for example, stays where it is until the next look.
        """
        taken = 0
        for batch in batches:
            with self._retries.about(
                batch.batch_id, f"batch {batch.batch_id} of {batch.worker} cannot be taken in now"
            ):
                self.ingest_batch(batch)
                taken += 1
        return taken

    def ingest_batch(self, batch: PendingBatch) -> None:
        """Receive one batch."""
        receipt = receive(self.ledger, self.game, worker=batch.worker, batch_id=batch.batch_id, fetch=batch.fetch)
        refused = receipt.reason if isinstance(receipt, Quarantined) else ""
        if isinstance(receipt, Received):
            self.count(receipt.batch.num_games, receipt.batch.num_positions, receipt.sequence)
            self.add_to_window(receipt.batch)
            self._tally.add(receipt.batch, receipt.bytes)
        elif refused:
            self.log_event(f"batch {receipt.batch_id} of {batch.worker} is in quarantine: {refused}")
        self.backend.release(batch, delivered=receipt.next_game, refused=refused)

    def count(self, games: int, positions: int, sequence: int) -> None:
        """Count a received batch, which is new to the learner."""
        self.state.total_games += games
        self.state.total_positions += positions
        self.state.window_sequence = sequence

    def add_to_window(self, batch: GameBatch) -> None:
        """Put a received batch into the window, which grows with all that was ever played."""
        samples = self.window.add(batch)
        self.state.total_samples += samples
        self.state.owed_samples += samples * self.settings.training.samples_per_position
        self.window.resize(window_capacity(self.settings.training.window, self.state.total_samples))

    # What observers are told.

    def log_event(self, text: str) -> None:
        """Tell everybody what is worth a line."""
        log.warning("%s", text)
        report_event(self.observers, text)

    def show(self, after: float = 0.0) -> None:
        """Show how things stand, if they were last shown so many seconds ago."""
        now = self.clock()
        if now - self._reported >= after:
            self._reported = now
            report_progress(self.observers, self.progress_report())

    def progress_report(self) -> ProgressReport:
        """The run as it stands."""
        cluster = self.backend.cluster()
        workers = worker_reports(self.backend.status(), self.ledger.accounts(), cluster, self._ends)
        return ProgressReport(
            phase=phase_of_all(self._phase, workers),
            iteration=self.state.iteration + 1,
            iterations=self.settings.run.iterations,
            seconds=self._bounds.seconds(),
            seconds_left=self._bounds.seconds_left(self.state.iteration),
            total_games=self.state.total_games,
            games_wanted=self.settings.training.games_per_iteration,
            games_here=self._tally.games,
            games_per_second=sum(worker.games_per_second for worker in workers),
            evaluations_per_second=sum(worker.evaluations_per_second for worker in workers),
            window_positions=self.window.num_positions,
            model_version=self.state.model_version,
            workers=workers,
            cluster=cluster,
            self_play=self._complete,
        )
