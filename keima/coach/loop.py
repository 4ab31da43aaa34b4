"""The Coach: grants games, ingests them, trains, publishes and evaluates, iteration after iteration.

It is asynchronous by default: workers play while it trains, and the number of samples per new position balances the
two. In synchronous mode one model plays all games of an iteration, and a seed reproduces the same games.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from keima.base.files import read_limited, write_atomically
from keima.base.reports import (
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
from keima.base.retry_log import RetryLog
from keima.base.steps import Steps, Turns, complete
from keima.base.worker_status import ClusterStatus, WorkerStatus
from keima.coach.backends.backend import SelfPlayBackend
from keima.coach.backends.pending_batch import PendingBatch
from keima.coach.bounds import Bounds, CoachState, window_capacity
from keima.coach.fingerprint import fingerprint
from keima.coach.granting import Granting
from keima.coach.summary import merge_reports, phase_of_all, worker_statuses
from keima.coach.tally import IterationTally
from keima.coach.waiting import EVALUATING, GATHERING, TRAINING, Waiting
from keima.config.schema import Settings
from keima.config.sections.training import SEED_ACCOUNTS
from keima.data.ledger import Ledger
from keima.data.ledger_rows import make_model_row, model_path
from keima.data.receive import Offer, Quarantined, Received, load_if_intact, receive_batches
from keima.data.records import GameBatch
from keima.games import Game
from keima.learning.checkpoint import Checkpoints
from keima.learning.generalization import measure_generalization
from keima.learning.learner import Learner
from keima.learning.ranks.process_group import RankLost
from keima.networks.files.model_file import (
    MAX_MODEL_BYTES,
    Model,
    decode_model,
    describe_model,
    encode_model,
)
from keima.replay.window import ReplayWindow
from keima.worker.worker_folder import last_ends

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 1.0  # between two reports of progress, or more with many workers:
REPORTED_WORKERS = 400  # a second: a report has every worker, and should take little of the time
WAIT_SECONDS = 0.1
BATCHES_TOGETHER = 16  # at most, that are received together: they are all in memory meanwhile
STEPS_BETWEEN_POLLS, SECONDS_BETWEEN_POLLS = 8, 0.5  # in training, whichever is less
MEASURING_SHARE = 0.1  # of the time in training, for measuring strength beside it
T = TypeVar("T")


class StopRequested(Exception):
    """The run was asked to stop."""


class Evaluation(Protocol):
    """Measures strength."""

    def measure(self, model: Model, *, beside: bool = False) -> Steps[EvaluationReport]:
        """Measure ``model``; with ``beside``, workers play on meanwhile."""

    def accepts(self, candidate: Model, best: Model, *, file: bytes) -> Steps[bool]:
        """Whether ``candidate``, which ``file`` holds, may replace ``best`` in self-play."""


class Coach:
    """One run, from its settings to its end.

    Args:
        run_dir: everything is written here.
        settings: the run's.
        game: what is learned.
        ledger: open for writing.
        backend: the workers.
        learner: the network in training.
        window: the learner samples from it.
        checkpoints: store the learner's state.
        evaluation: measures strength.
        observers: read the reports.
        state: at the end of the last session.
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
        self.model: Model | None = None  # in self-play
        self._tally = IterationTally(game, settings.search.resignation, since=clock())
        self._granting = Granting(
            settings=settings, ledger=ledger, backend=backend, clock=clock, log_event=self.log_event
        )
        self._gathered = state.iteration_sequence  # last sequence number of the iteration's games
        self._waiting, self._reported = Waiting(clock), -PROGRESS_SECONDS
        self._bounds = Bounds(settings.run, seconds=state.seconds, clock=clock)
        self._retries = RetryLog(self.log_event)
        self._complete: SelfPlayReport | None = None  # the iteration's games, once complete
        self._ends: dict[str, int] = {}  # worker -> the number after the last game in its outbox
        self._measuring: Steps[EvaluationReport] | None = None  # beside playing
        self._measured: EvaluationReport | None = None  # since the last iteration
        self._overdue = False  # another model should be measured, once the last one has been
        self._turns = Turns(MEASURING_SHARE)

    def run(self) -> IterationReport | None:
        """Iterate until a limit of the run is reached or it is stopped; returns the last iteration's report.

        Raises:
            NobodyPlays: all workers have failed.
            TrainingDiverged: the learner cannot take a step.
            RankLost: another rank of the learner has ended; the workers have ended and the state is stored.
            OSError, sqlite3.Error: the final state cannot be stored. The run can be resumed all the same.
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
            log.info("stopped while %s; a resumed run continues the iteration", self._waiting.phase)
        except RankLost:
            self.end_if_possible()
            raise
        self.end()
        return report

    def start(self) -> None:
        """Ingest what an earlier session left and start the workers, unless the run is finished."""
        self.catch_up()
        self._granting.restore()
        if self.finished():
            return
        self.publish_again() if self.state.model_version else self.publish()
        if self.state.measuring:
            self.measure_again(self.state.measuring)

    def end(self) -> None:
        """Let the workers hand over their finished games, and store everything."""
        self._waiting.enter("ending")
        self.stop_measuring()
        self.backend.close()
        self.ingest(self.backend.collect())
        self.save()

    def end_if_possible(self) -> None:
        """End as far as this rank can without the others."""
        try:
            self.end()
        except (RuntimeError, OSError, sqlite3.Error) as error:
            log.warning(
                "the last state cannot be stored; a resumed run continues from the checkpoint before: %s", error
            )

    def finished(self) -> bool:
        """Whether a limit of the run is reached or it was asked to stop."""
        return self.stop_requested or self._bounds.reached(self.state.iteration)

    # The phases.

    def gather(self) -> SelfPlayReport:
        """Wait until the iteration's games are complete or the time is up."""
        self._complete = None
        self._waiting.enter(GATHERING)
        self._reported = -PROGRESS_SECONDS  # report the grants at the first poll
        wanted = self.settings.training.games_per_iteration
        if not self.settings.training.asynchronous:
            self._tally.since = self.clock()  # no games were played since the last iteration's were complete
        while self._tally.games < wanted and not self._bounds.time_is_up():
            began, taken = self.clock(), self.poll_workers(ingest=True)
            self._turns.count_main(self.clock() - began, idle=not taken)
            busy = self.measure_on() if self._turns.beside_is_next() else False
            if not taken and not busy:
                self.sleep(WAIT_SECONDS)
        now = self.clock()
        tally, self._tally = self._tally, IterationTally(self.game, self.settings.search.resignation, since=now)
        self._gathered = self.state.window_sequence
        self._complete = tally.report(now)
        self.report_if_due()
        return self._complete

    def learn(self) -> LearnerReport | None:
        """Take the steps that new positions allow; None while the window is too small."""
        training = self.settings.training
        if self.window.num_positions < training.window.min_positions:
            return None
        self._waiting.enter(TRAINING)
        steps = int(self.state.owed_samples // training.batch_size)
        generalized = measure_generalization(self.learner, self.window, self.settings.run.seed) if steps else None
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
            self._turns.count_main(reports[-1].seconds)
            if self._turns.beside_is_next():
                self.measure_on()
            if fresh >= every and steps > 0:
                self.publish()
                self._waiting.enter(TRAINING)
                fresh = 0
        learned = any(report.steps > report.skipped_steps for report in reports)
        return merge_reports(reports, generalized) if learned else None

    def publish(self) -> None:
        """Store the learner's averaged weights as a model and, if gating accepts it, send it to all workers."""
        self._waiting.enter("publishing")
        version = max((row.version for row in self.ledger.models()), default=0) + 1
        description = describe_model(self.game, self.settings.network.arguments(), version)
        model = Model(description=description, weights=self.learner.weights())
        data = encode_model(model, self.game, compressed=self.settings.distributed.compression)
        best = self.model
        accepted = best is None or self.persist(
            f"model {version}", lambda: self.completed(self.evaluation.accepts(model, best, file=data))
        )
        row = make_model_row(self.run_dir, version, iteration=self.state.iteration, data=data, accepted=accepted)
        self.persist(f"model {version}", lambda: write_atomically(model_path(self.run_dir, version), data))
        self.persist(f"model {version}", lambda: self.ledger.add_model(row))
        if not accepted:
            self.log_event(f"model {version} is not stronger than model {self.state.model_version} and is not used")
            return
        self.model, self.state.model_version = model, version
        self.hand_out(data)

    def publish_again(self) -> None:
        """Send all workers the last model of the earlier session, or a new one if its file is damaged."""
        try:
            data = read_limited(model_path(self.run_dir, self.state.model_version), MAX_MODEL_BYTES)
            self.model = decode_model(data)
        except (OSError, ValueError) as error:
            self.log_event(
                f"model {self.state.model_version} cannot be read; the learner's weights replace it: {error}"
            )
            self.publish()
            return
        self.hand_out(data)

    def hand_out(self, file: bytes) -> None:
        """Send the current model to all workers."""
        self.persist("the workers' model", lambda: self.backend.publish(self.state.model_version, file))

    def catch_up(self) -> None:
        """Recount the games of the unfinished iteration, and ingest batches received after the checkpoint."""
        for row in self.ledger.received_batches(after=self.state.iteration_sequence):
            batch = load_if_intact(self.run_dir, row, log_event=self.log_event)
            if batch and row.worker not in SEED_ACCOUNTS.values():
                self._tally.add(batch, row.bytes)
            if row.sequence > self.state.window_sequence:
                self.count(row.games, row.positions, row.sequence)
                if batch:
                    self.add_to_window(batch)
        self._tally.earlier = self._tally.games

    # Measuring strength.

    def evaluate(self) -> EvaluationReport | None:
        """Measure the published model when it is due; returns what was measured since the last iteration.

        In asynchronous mode this begins a measurement beside playing and learning, whose report comes with a later
        iteration; if one is still under way, the next begins after it. After the last iteration, in synchronous mode,
        and with gating, whose games would interrupt it, it is waited for. A stop interrupts it.
        """
        iteration, every = self.state.iteration + 1, self.settings.evaluation.every
        last = self._bounds.reached(iteration)
        if every > 0 and last:
            self.stop_measuring()
        measured, self._measured = self._measured, None
        self._overdue = every > 0 and (self._overdue or last or iteration % every == 0)
        if not self._overdue or self._measuring:
            return measured
        self._overdue = False
        assert self.model is not None
        if last or not self.settings.training.asynchronous or self.settings.evaluation.gating != "none":
            return self.measure_now(self.model)
        self.begin_measuring(self.model)
        return measured

    def measure_now(self, model: Model) -> EvaluationReport | None:
        """Measure ``model`` and wait for the report; None if it was stopped, or its results cannot be stored."""
        self._waiting.enter(EVALUATING)
        with suppress(StopRequested), self._about_evaluation():
            return self.completed(self.evaluation.measure(model))
        return None

    def begin_measuring(self, model: Model) -> None:
        """Begin to measure ``model`` beside playing."""
        self._measuring, self.state.measuring = self.evaluation.measure(model, beside=True), model.model_version

    def measure_again(self, version: int) -> None:
        """Begin the measurement that was under way when the earlier session ended."""
        if self.model is not None and self.model.model_version == version:
            self.begin_measuring(self.model)
            return
        try:
            self.begin_measuring(decode_model(read_limited(model_path(self.run_dir, version), MAX_MODEL_BYTES)))
        except (OSError, ValueError) as error:
            self.log_event(f"model {version} cannot be read, and is not measured: {error}")
            self.state.measuring = 0

    def measure_on(self) -> bool:
        """Do the next step of a measurement beside playing; False if there is nothing to do now."""
        if self._measuring is None:
            return False
        began, busy, ended = self.clock(), False, True
        with self._about_evaluation():
            try:
                busy = next(self._measuring)
                ended = False
            except StopIteration as end:
                self._measured = end.value
        self._turns.count_beside(self.clock() - began)
        if ended:
            self._measuring, self.state.measuring = None, 0
        return busy

    def stop_measuring(self) -> None:
        """End a measurement beside playing without a report; a resumed run begins it again."""
        if self._measuring is not None:
            self._measuring.close()
            self._measuring = None

    def completed(self, steps: Steps[T]) -> T:
        """Do all steps, with polls between them, and wait for the workers' part."""
        return complete(steps, poll=self.poll, wait=lambda: self.sleep(WAIT_SECONDS))

    def _about_evaluation(self) -> AbstractContextManager[None]:
        return self._retries.about("evaluation", "results of matches cannot be stored")

    def conclude(
        self, games: SelfPlayReport, learned: LearnerReport | None, evaluated: EvaluationReport | None
    ) -> IterationReport:
        """Count the iteration, save a checkpoint, and report."""
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
            workers=self.worker_statuses(self.backend.cluster()),
            waits=self._waiting.report(),
        )
        self.persist(
            f"iteration {report.iteration}", lambda: self.ledger.add_iteration(report.iteration, report.as_dict())
        )
        if self.state.iteration % self.settings.training.checkpoint_every == 0:
            self.persist("a checkpoint", self.save)
        report_iteration(self.observers, report)
        return report

    def save(self) -> None:
        """Save a checkpoint."""
        self.state.seconds = self._bounds.seconds()
        learner = self.learner.state()
        path = self.checkpoints.save(learner, vars(self.state))
        log.info("%s: %s", path.name, fingerprint(learner, self.window))

    def persist(self, what: str, action: Callable[[], T]) -> T:
        """Store something; while the disk is full, wait and grant no games.

        Raises:
            StopRequested, NobodyPlays: see ``poll_workers``.
        """

        def wait() -> None:
            self._waiting.enter("waiting for space on the disk")
            self.poll_workers(ingest=False)
            self.sleep(WAIT_SECONDS)

        return self._retries.insist(what, f"{what} cannot be stored now, and the run waits", action, wait=wait)

    # Games.

    def poll(self) -> None:
        """Poll the workers between steps; in synchronous mode without ingesting games.

        Raises:
            StopRequested, NobodyPlays: see ``poll_workers``.
        """
        self.poll_workers(ingest=self.settings.training.asynchronous)

    def poll_workers(self, *, ingest: bool) -> bool:
        """Collect the batches of the workers, ``ingest`` them, grant more games and report; False if none was
        ingested.

        Raises:
            StopRequested: the run was asked to stop.
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
        self.report_if_due(max(PROGRESS_SECONDS, len(self.backend.workers) / REPORTED_WORKERS))
        return taken > 0

    def grant(self, waiting: Sequence[PendingBatch]) -> None:
        """Grant games to the workers; ``waiting`` are all batches in their outboxes."""
        with self._retries.about("grants", "games cannot be granted now"):
            self._granting.give_up_lost(waiting)
            self._granting.grant(self._tally.games)

    def ingest(self, batches: Sequence[PendingBatch]) -> int:
        """Receive batches, add the good ones to the window, and release them; returns how many were received.

        What cannot be fetched or stored now, for example on a full disk, is retried at the next poll.
        """
        taken = 0
        for start in range(0, len(batches), BATCHES_TOGETHER):
            group = batches[start : start + BATCHES_TOGETHER]
            try:
                self.ingest_together(group)
                taken += len(group)
            except (OSError, sqlite3.OperationalError):  # each for itself, to store the others and to name this one
                for batch in group:
                    complaint = f"batch {batch.batch_id} of {batch.worker} cannot be stored now"
                    with self._retries.about(batch.batch_id, complaint):
                        self.ingest_together([batch])
                        taken += 1
        return taken

    def ingest_together(self, batches: Sequence[PendingBatch]) -> None:
        """Receive some batches, all or none."""
        offers = [Offer(worker=batch.worker, batch_id=batch.batch_id, fetch=batch.fetch) for batch in batches]
        receipts = receive_batches(self.ledger, self.game, offers)
        for batch, receipt in zip(batches, receipts, strict=True):
            if isinstance(receipt, Received):
                self.count(receipt.batch.num_games, receipt.batch.num_positions, receipt.sequence)
                self.add_to_window(receipt.batch)
                self._tally.add(receipt.batch, receipt.bytes)
            elif isinstance(receipt, Quarantined):
                self.log_event(f"batch {receipt.batch_id} of {batch.worker} is in quarantine: {receipt.reason}")
        for batch, receipt in zip(batches, receipts, strict=True):
            refused = receipt.reason if isinstance(receipt, Quarantined) else ""
            self.backend.release(batch, delivered=receipt.next_game, refused=refused)

    def count(self, games: int, positions: int, sequence: int) -> None:
        """Count a received batch that is new to the learner."""
        self.state.total_games += games
        self.state.total_positions += positions
        self.state.window_sequence = sequence

    def add_to_window(self, batch: GameBatch) -> None:
        """Add a received batch to the window, which grows with the number of positions played."""
        samples = self.window.add(batch)
        self.state.total_samples += samples
        self.state.owed_samples += samples * self.settings.training.samples_per_position
        self.window.resize(window_capacity(self.settings.training.window, self.state.total_samples))

    # Reports.

    def log_event(self, text: str) -> None:
        """Write an event to the log and to all observers."""
        log.warning("%s", text)
        report_event(self.observers, text)

    def report_if_due(self, after: float = 0.0) -> None:
        """Report progress, if the last report is at least ``after`` seconds old."""
        now = self.clock()
        if now - self._reported >= after:
            self._reported = now
            report_progress(self.observers, self.progress_report())

    def worker_statuses(self, cluster: ClusterStatus | None) -> tuple[WorkerStatus, ...]:
        """Return the statuses of all workers."""
        return worker_statuses(self.backend.heartbeats(), self.ledger.accounts(), cluster, self._ends)

    def progress_report(self) -> ProgressReport:
        """The current state of the run."""
        cluster = self.backend.cluster()
        workers = self.worker_statuses(cluster)
        self._waiting.see(workers)
        return ProgressReport(
            phase=phase_of_all(self._waiting.phase, workers),
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
            cluster=replace(cluster, workers=workers) if cluster else None,
            self_play=self._complete,
        )
