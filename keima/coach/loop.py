"""The Coach: grants games, ingests them, trains, publishes and evaluates, iteration after iteration.

It is asynchronous by default: workers play while it trains, and the number of samples per new position balances the
two. In synchronous mode one model plays all games of an iteration, and a seed reproduces the same games.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from keima.base.files import read_limited, write_atomically
from keima.base.reports.run_reports import (
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
from keima.base.reports.worker_status import ClusterStatus, WorkerStatus
from keima.base.retry_log import RetryLog
from keima.base.steps import Steps, Turns, run_steps
from keima.coach.backends.backend import SelfPlayBackend
from keima.coach.backends.pending_batch import PendingBatch
from keima.coach.bounds import Bounds, CoachState, batch_size_now, least_batch_size
from keima.coach.crowd.distrusting import Distrusting
from keima.coach.fingerprint import fingerprint
from keima.coach.forecast import (
    UNREADABLE,
    Law,
    add_forecast,
    compute_at,
    count_earlier_compute,
    find_gains,
    find_law_of_run,
    forecast_end,
    keep_for_forecast,
    read_elo_results,
    read_measurements,
)
from keima.coach.granting import Granting
from keima.coach.measuring import Evaluation, Measuring
from keima.coach.ranks.leading import send_command, share_state
from keima.coach.ranks.learners import grow_learner
from keima.coach.receiving import Receiving
from keima.coach.summary import merge_reports, phase_of_all, worker_statuses
from keima.coach.waiting import EVALUATING, GATHERING, TRAINING, Waiting
from keima.config.schema import Settings
from keima.data.ledger import Ledger
from keima.data.ledger_rows import make_model_row, model_path
from keima.data.model_files import thin_models
from keima.data.packs import pack_old_batches
from keima.games import Game
from keima.learning.checkpoint import Checkpoints
from keima.learning.generalization import measure_generalization
from keima.learning.learner import Learner
from keima.learning.ranks.process_group import RankLost
from keima.networks.files.container import MAX_MODEL_BYTES
from keima.networks.files.model import Model, decode_model, describe_model, encode_model
from keima.replay.window import ReplayWindow
from keima.worker.worker_folder import last_batch_ends

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 1.0  # between two reports of progress, or more with many workers:
REPORTED_WORKERS = 400  # a second: a report has every worker, and should take little of the time
WAIT_SECONDS = 0.1
STEPS_BETWEEN_POLLS, SECONDS_BETWEEN_POLLS = 8, 0.5  # in training, whichever is less
MEASURING_SHARE = 0.1  # of the time in training, for measuring strength beside it
T = TypeVar("T")


class StopRequested(Exception):
    """The run was asked to stop."""


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
        read_laws: returns how strength grows in this game, for what to expect at the end; called once.
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
        read_laws: Callable[[], Mapping[str, Law]],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.run_dir, self.settings, self.game = run_dir, settings, game
        self.ledger, self.backend, self.learner = ledger, backend, learner
        self.window, self.checkpoints, self.evaluation = window, checkpoints, evaluation
        self.observers, self.state, self.clock, self.sleep = observers, state, clock, sleep
        self.stop_requested, self._read_laws = False, read_laws
        self._laws: Mapping[str, Law] = {}  # empty until the first forecast
        self._measured: dict[int, dict[str, Any]] | None = None  # by iteration: what forecasts use, once one was made
        self._compute_before = 0.0  # on smaller boards; read with it
        self.model: Model | None = None  # in self-play
        self._retries, self._turns = RetryLog(self.log_event), Turns(MEASURING_SHARE)
        self.receiving = Receiving(
            run_dir=run_dir,
            game=game,
            settings=settings,
            ledger=ledger,
            backend=backend,
            window=window,
            state=state,
            retries=self._retries,
            clock=clock,
            log_event=self.log_event,
        )
        self._distrusting = Distrusting(
            run_dir=run_dir,
            settings=settings,
            ledger=ledger,
            backend=backend,
            receiving=self.receiving,
            retries=self._retries,
            clock=clock,
            log_event=self.log_event,
        )
        self._measuring = Measuring(
            evaluation,
            run_dir=run_dir,
            settings=settings,
            state=state,
            turns=self._turns,
            retries=self._retries,
            complete=self._measure_now,
            clock=clock,
            log_event=self.log_event,
        )
        self._granting = Granting(
            settings=settings,
            ledger=ledger,
            backend=backend,
            clock=clock,
            log_event=self.log_event,
            limit=self._distrusting.limit_grant,
        )
        self._gathered = state.iteration_sequence  # last sequence number of the iteration's games
        self._waiting, self._reported = Waiting(clock), -PROGRESS_SECONDS
        self.bounds = Bounds(settings.run, seconds=state.seconds, began=state.began, clock=clock)
        self._complete: SelfPlayReport | None = None  # the iteration's games, once complete
        self._least_batch_size = 0  # of the next steps
        self._ends: dict[str, int] = {}  # worker -> the number after the last game in its outbox

    def run(self) -> IterationReport | None:
        """Iterate until a limit of the run is reached or it is stopped; return the last iteration's report.

        Raises:
            NobodyPlays: all workers have failed.
            TrainingDiverged: the learner cannot take a step.
            RankLost: another rank of the learner has ended; the workers have ended and the state is stored.
            OSError, sqlite3.Error: the final state cannot be stored. The run can be resumed all the same.
        """
        report = None
        try:
            self.start()
            while not self.is_finished():
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
        self.receiving.restore()
        self._granting.restore_accounts()
        if self.is_finished():
            return
        self.publish_again() if self.state.model_version else self.publish()
        self._measuring.restart_measurement(self.model)

    def end(self) -> None:
        """Let the workers hand over their finished games, and store everything."""
        self._waiting.enter_phase("ending")
        self._measuring.stop()
        self._distrusting.close()
        self.backend.close()
        self.receiving.receive(self.backend.collect())
        self.save()

    def end_if_possible(self) -> None:
        """End as far as this rank can without the other ranks."""
        try:
            self.end()
        except (RuntimeError, OSError, sqlite3.Error) as error:
            log.warning(
                "the last state cannot be stored; a resumed run continues from the previous checkpoint: %s", error
            )

    def is_finished(self) -> bool:
        """Return whether a limit of the run is reached or it was asked to stop."""
        return self.stop_requested or self.bounds.is_reached_after(self.state.iteration)

    # The phases.

    def gather(self) -> SelfPlayReport:
        """Wait until the iteration's games are complete or the time is up."""
        self._complete = None
        self._waiting.enter_phase(GATHERING)
        self._reported = -PROGRESS_SECONDS  # report the grants at the first poll
        wanted = self.settings.training.games_per_iteration
        if not self.settings.training.asynchronous:
            self.receiving.tally.since = self.clock()  # no games were played since the last iteration's were complete
        while self.receiving.tally.games < wanted and not self.bounds.is_time_up():
            began, taken = self.clock(), self.poll_workers(ingest=True)
            self._turns.count_main_work(self.clock() - began, idle=not taken)
            busy = self._measuring.take_step() if self._turns.is_side_work_next() else False
            if not taken and not busy:
                self.sleep(WAIT_SECONDS)
        self._gathered = self.state.window_sequence
        self._complete = self.receiving.close_iteration()
        self.report_if_due()
        return self._complete

    def learn(self) -> LearnerReport | None:
        """Take the steps that new positions allow; None while the window is too small."""
        training = self.settings.training
        if self.window.num_positions < training.window.min_positions:
            return None
        self._waiting.enter_phase(TRAINING)
        self.grow_if_due()
        batch_size = batch_size_now(
            training,
            total_samples=self.state.total_samples,
            share=self.bounds.share_of_part(self.state.iteration),
            least=self._least_batch_size,
        )
        steps = int(self.state.owed_samples // batch_size)
        generalized = measure_generalization(self.learner, self.window, self.settings.run.seed) if steps else None
        reports, fresh, every = [], 0, training.steps_per_model or steps + 1  # fresh: steps since the last model
        while steps > 0 and self.window.num_positions > 0 and not self.bounds.is_time_up():
            count = min(STEPS_BETWEEN_POLLS, steps, every - fresh)
            reports.append(
                self.learner.train(
                    self.window,
                    count,
                    self.settings.run.seed,
                    batch_size=batch_size,
                    progress=self.bounds.share_done(self.state.iteration),
                    seconds=SECONDS_BETWEEN_POLLS,
                )
            )
            self.state.owed_samples -= reports[-1].samples
            steps, fresh = steps - reports[-1].steps, fresh + reports[-1].steps
            self.poll()
            self._turns.count_main_work(reports[-1].seconds)
            if self._turns.is_side_work_next():
                self._measuring.take_step()
            if fresh >= every and steps > 0:
                self.publish()
                self._waiting.enter_phase(TRAINING)
                fresh = 0
        learned = any(report.steps > report.skipped_steps for report in reports)
        return merge_reports(reports, generalized) if learned else None

    def grow_if_due(self) -> None:
        """Let the network take on the size that it is to have by now; the next model has it."""
        network = self.settings.network
        steps = network.count_growth_steps(self.bounds.share_done(self.state.iteration))
        if steps <= self.state.grown:
            return
        send_command(self.learner.ranks, "grow", steps=steps)
        self.learner, self.state.grown = grow_learner(self.learner, self.game, self.settings, steps), steps
        self.learner.settle_statistics(self.window, self.settings.run.seed)
        share_state(self.learner)
        size = network.sizes[steps]
        self.log_event(f"the network grows to {size.blocks} blocks and {size.channels} channels")

    def publish(self) -> None:
        """Store the learner's averaged weights as a model and, if gating accepts it, send it to all workers."""
        self._waiting.enter_phase("publishing")
        version = self.ledger.newest_model_version() + 1
        description = describe_model(self.game, self.settings.network.arguments(self.state.grown), version)
        model = Model(description=description, weights=self.learner.weights())
        data = encode_model(model, self.game, compressed=self.settings.distributed.compression)
        best = self.model
        accepted = best is None or self.persist(
            f"model {version}", lambda: self.complete_steps(self.evaluation.accepts(model, best, file=data))
        )
        row = make_model_row(self.run_dir, version, iteration=self.state.iteration, data=data, accepted=accepted)
        self.persist(f"model {version}", lambda: write_atomically(model_path(self.run_dir, version), data))
        self.persist(f"model {version}", lambda: self.ledger.add_model(row))
        if not accepted:
            self.log_event(f"model {version} is rejected: it is not stronger than model {self.state.model_version}")
            return
        self.model, self.state.model_version = model, version
        self.publish_to_workers(data)

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
        self.publish_to_workers(data)

    def publish_to_workers(self, file: bytes) -> None:
        """Send the current model to all workers."""
        self.persist("the workers' model", lambda: self.backend.publish(self.state.model_version, file))

    def evaluate(self) -> EvaluationReport | None:
        """Measure the published model when it is due; see ``Measuring.measure_if_due``."""
        assert self.model is not None
        iteration = self.state.iteration + 1
        is_last = self.bounds.is_reached_after(iteration)
        return self._measuring.measure_if_due(self.model, iteration=iteration, is_last=is_last)

    def _measure_now(self, steps: Steps[EvaluationReport]) -> EvaluationReport | None:
        """Take all steps of a measurement; None if it was stopped."""
        self._waiting.enter_phase(EVALUATING)
        with suppress(StopRequested):
            return self.complete_steps(steps)
        return None

    def complete_steps(self, steps: Steps[T]) -> T:
        """Do all steps, with polls between them, and wait for the workers' part."""
        return run_steps(steps, poll=self.poll, wait=lambda: self.sleep(WAIT_SECONDS))

    def conclude(
        self, games: SelfPlayReport, learned: LearnerReport | None, evaluated: EvaluationReport | None
    ) -> IterationReport:
        """Count the iteration, save a checkpoint, and report."""
        self.state.iteration += 1
        self.state.iteration_sequence = self._gathered
        began, self.state.seconds = self.state.seconds, self.bounds.seconds()
        waits = self._waiting.report()
        share = waits.learning / max(self.state.seconds - began, 1e-9)
        self._least_batch_size = least_batch_size(learned.samples // learned.steps, share) if learned else 0
        cluster = self.backend.cluster()
        workers = self.worker_statuses(cluster)
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
            workers=workers,
            waits=waits,
            core_hours=cluster.core_hours if cluster else None,
        )
        if evaluated:
            report = replace(report, evaluation=self._with_forecast(evaluated, report))
        content = report.as_dict()
        if self._measured is not None:
            self._measured[report.iteration] = keep_for_forecast(content)
        self.persist(f"iteration {report.iteration}", lambda: self.ledger.add_iteration(report.iteration, content))
        if self.state.iteration % self.settings.training.checkpoint_every == 0:
            self.persist("a checkpoint", self.save)
        with self._retries.log_failures("older files", "older games and models cannot be put away now"):
            while pack_old_batches(self.ledger):
                pass
            thin_models(self.ledger, self.settings.run.keep_models)
        report_iteration(self.observers, report)
        return report

    def _with_forecast(self, evaluated: EvaluationReport, report: IterationReport) -> EvaluationReport:
        """Return what was measured with what to expect at the end of the run, if it has one."""
        seconds = self.bounds.total_seconds(report.iteration)
        if seconds is None or self.bounds.is_reached_after(report.iteration):
            return evaluated
        if self.state.began and report.iteration == 1:  # its time is not known apart from that of smaller boards
            return evaluated
        if self._measured is None:
            try:
                self._laws = self._read_laws()
            except UNREADABLE as error:
                log.warning("nothing is foretold now, as earlier runs cannot be read: %s", error)
                return evaluated
            found = self.ledger.read_iterations()
            self._measured = {row["iteration"]: keep_for_forecast(row) for row in found}
            with suppress(*UNREADABLE):  # it is for forecasts alone
                self._compute_before = count_earlier_compute(self.run_dir)
        earlier = [row for iteration, row in sorted(self._measured.items()) if iteration < report.iteration]
        rows, results = [*earlier, keep_for_forecast(report.as_dict())], read_elo_results(self.ledger, self.game)
        decays = self.settings.training.learning_rate_schedule == "cosine"
        points = self.game.height * self.game.width
        before = self._compute_before
        measured = read_measurements(rows, results, points=points, seconds=seconds, decays=decays, before=before)
        expected = forecast_end(
            measured, rows, points=points, seconds=seconds, decays=decays, before=before, laws=self._laws
        )
        law = find_law_of_run(measured, self._laws)
        if law is None:
            return add_forecast(evaluated, expected)
        compute = compute_at(rows, seconds, points=points, before=before)
        machines = self.settings.distributed.machine_count
        gains = find_gains(law, compute, hours=seconds / 3600, machines=machines)
        return add_forecast(evaluated, expected, gains=gains)

    def save(self) -> None:
        """Save a checkpoint."""
        self.state.seconds = self.bounds.seconds()
        learner = self.learner.state()
        path = self.checkpoints.save(learner, vars(self.state))
        log.info("%s: %s", path.name, fingerprint(learner, self.window))

    def persist(self, what: str, action: Callable[[], T]) -> T:
        """Store something; while the disk is full, wait and grant no games.

        Raises:
            StopRequested, NobodyPlays: see ``poll_workers``.
        """

        def wait() -> None:
            self._waiting.enter_phase("waiting for space on the disk")
            self.poll_workers(ingest=False)
            self.sleep(WAIT_SECONDS)

        return self._retries.retry_until_done(what, f"{what} cannot be stored now; the run waits", action, wait=wait)

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
        self._ends = last_batch_ends((batch.worker, batch.batch_id) for batch in waiting)
        self._distrusting.poll()
        taken = 0
        if ingest:
            taken = self.receiving.receive(self._granting.in_turn(waiting))
            self.grant(waiting)
        self.report_if_due(max(PROGRESS_SECONDS, len(self.backend.workers) / REPORTED_WORKERS))
        return taken > 0

    def grant(self, waiting: Sequence[PendingBatch]) -> None:
        """Grant games to the workers; ``waiting`` are all batches in their outboxes."""
        with self._retries.log_failures("grants", "games cannot be granted now"):
            self._granting.give_up_lost(waiting)
            self._granting.grant(self.receiving.tally.games)

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
        """Return the current state of the run."""
        cluster = self.backend.cluster()
        workers = self.worker_statuses(cluster)
        self._waiting.count_waiting(workers)
        return ProgressReport(
            phase=phase_of_all(self._waiting.phase, workers),
            iteration=self.state.iteration + 1,
            iterations=self.settings.run.iterations,
            seconds=self.bounds.seconds(),
            seconds_left=self.bounds.seconds_left(self.state.iteration),
            total_games=self.state.total_games,
            games_wanted=self.settings.training.games_per_iteration,
            games_here=self.receiving.tally.games,
            games_per_second=sum(worker.games_per_second for worker in workers),
            evaluations_per_second=sum(worker.evaluations_per_second for worker in workers),
            window_positions=self.window.num_positions,
            model_version=self.state.model_version,
            workers=workers,
            network=cluster.network if cluster else None,
            self_play=self._complete,
        )
