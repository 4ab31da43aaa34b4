"""The Coach: grants games, takes them in, trains, publishes and measures, cycle after cycle. The loop of everything that searches.

It is asynchronous by default: workers play on while it trains, and the samples drawn per new position keep the two in balance. In
synchronous mode an iteration's games are all played by one model, and a seed gives the same games again.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from configs.schema import Settings, WindowSettings
from games import Game
from training.backend import Parcel, SelfPlayBackend
from training.checkpoint import Checkpoints
from training.files import read_limited, sha256_hex, write_atomically
from training.learner import Learner
from training.ledger import Ledger
from training.ledger_rows import ModelRow
from training.model_file import MAX_MODEL_BYTES, Model, decode_model, describe_model, encode_model
from training.receive import AlreadyHave, Quarantined, Received, load_received, receive
from training.records import GameBatch
from training.replay import ReplayWindow
from training.reports import (
    EvaluationReport,
    IterationReport,
    LearnerReport,
    Observer,
    ProgressReport,
    SelfPlayReport,
    WorkerReport,
    tell_event,
    tell_iteration,
    tell_progress,
)
from training.summary import merge_reports, worker_report
from training.tally import Tally

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 1.0
WAIT_SECONDS = 0.1
STEPS_BETWEEN_LOOKS = 8
BACKLOG_ITERATIONS = 3  # so many iterations' games may wait for the learner before the workers must wait too


class Evaluation(Protocol):
    """What measures strength."""

    def measure(self, model: Model, *, iteration: int, look: Callable[[], None]) -> EvaluationReport | None:
        """How strong ``model`` is, if this iteration is one to measure at; calls ``look`` now and then."""

    def accepts(self, candidate: Model, best: Model, *, look: Callable[[], None]) -> bool:
        """Whether ``candidate`` may replace ``best`` in self-play."""


@dataclass
class CoachState:
    """Where the run stands; what a checkpoint keeps beside the learner."""

    iteration: int = 0  # finished ones
    model_version: int = 0
    window_sequence: int = 0  # the ledger's last batch in the window
    seconds: float = 0.0  # of running, earlier sittings included
    total_games: int = 0
    total_positions: int = 0
    total_samples: int = 0  # of the positions, those to learn from
    owed_samples: float = 0.0  # that new positions allow and no step has drawn yet


def window_capacity(settings: WindowSettings, total_samples: int) -> int:
    """How many positions the window holds when so many have been played: KataGo's power law, within the bounds."""
    grown = settings.min_positions * max(1.0, total_samples / settings.min_positions) ** settings.growth_exponent
    return min(int(grown), settings.max_positions)


class Coach:
    """One run, from its settings to its end.

    Args:
        run_dir: everything is written here.
        settings: the run's.
        game: what is learned.
        ledger: the books, open for writing.
        backend: those who play.
        learner: the network in training.
        window: where the learner draws from.
        checkpoints: where the learner's state is kept.
        evaluation: how strength is measured.
        observers: those who watch.
        state: where an earlier sitting ended.
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
        self._tally = Tally(settings.search.resignation, since=clock())
        self._phase = "starting"
        self._seconds_before, self._started = state.seconds, clock()
        self._shown = -PROGRESS_SECONDS

    def run(self) -> IterationReport | None:
        """Cycle until the run's bounds are reached or a stop is asked for; returns the last iteration's report."""
        report = None
        self.catch_up()
        self.publish_again() if self.state.model_version else self.publish()
        while not self.finished():
            games = self.gather()
            if self.stop_requested:
                break  # the iteration is played on when the run is resumed
            learned = self.learn()
            self.publish()
            evaluated = self.evaluate()
            report = self.conclude(games, learned, evaluated)
        self._phase = "ending"
        self.backend.close()
        self.take_in(self.backend.collect())
        self.save()
        return report

    def finished(self) -> bool:
        """Whether a bound of the run is reached, or a stop was asked for."""
        run = self.settings.run
        enough = run.iterations is not None and self.state.iteration >= run.iterations
        return self.stop_requested or enough or self.time_is_up()

    def time_is_up(self) -> bool:
        """Whether the run's minutes are over."""
        minutes = self.settings.run.minutes
        return minutes is not None and self.seconds() >= minutes * 60

    def seconds(self) -> float:
        """Of running, earlier sittings included."""
        return self._seconds_before + self.clock() - self._started

    # The phases.

    def gather(self) -> SelfPlayReport:
        """Wait until the iteration's games are here, or the time is up."""
        self._phase = "waiting for games"
        wanted = self.settings.training.games_per_iteration
        while self._tally.games < wanted and not self.stop_requested and not self.time_is_up():
            if not self.look():
                self.sleep(WAIT_SECONDS)
        now = self.clock()
        tally, self._tally = self._tally, Tally(self.settings.search.resignation, since=now)
        return tally.report(now)

    def learn(self) -> LearnerReport | None:
        """Take the steps that the new positions allow; None while the window is too small for any."""
        training = self.settings.training
        if self.window.num_positions < training.window.min_positions:
            return None
        self._phase = "training"
        steps = int(self.state.owed_samples // training.batch_size)
        reports = []
        while steps > 0 and not self.stop_requested:
            count = min(STEPS_BETWEEN_LOOKS, steps)
            reports.append(self.learner.train(self.window, count, self.settings.run.seed, progress=self.progress()))
            self.state.owed_samples -= count * training.batch_size
            steps -= count
            self.look_if_asynchronous()
        return merge_reports(reports) if reports else None

    def publish(self) -> None:
        """Put the learner's averaged weights into the models folder and, if they are accepted, give them to all workers."""
        self._phase = "publishing"
        version = max((row.version for row in self.ledger.models()), default=0) + 1
        description = describe_model(self.game, self.settings.network.model_dump(), version)
        model = Model(description=description, weights=self.learner.weights())
        accepted = self.model is None or self.evaluation.accepts(model, self.model, look=self.look_if_asynchronous)
        data = encode_model(model, self.game)
        path = model_path(self.run_dir, version)
        write_atomically(path, data)
        self.ledger.add_model(
            ModelRow(
                version=version,
                iteration=self.state.iteration,
                path=str(path.relative_to(self.run_dir)),
                bytes=len(data),
                sha256=sha256_hex(data),
                accepted=accepted,
            )
        )
        if not accepted:
            tell_event(self.observers, f"model {version} was not stronger than model {self.state.model_version} and is not used")
            return
        self.model, self.state.model_version = model, version
        self.backend.publish(version, data)

    def publish_again(self) -> None:
        """Give all workers the model that an earlier sitting published last."""
        data = read_limited(model_path(self.run_dir, self.state.model_version), MAX_MODEL_BYTES)
        self.model = decode_model(data)
        self.backend.publish(self.state.model_version, data)

    def catch_up(self) -> None:
        """Take in what an earlier sitting received after its last checkpoint."""
        for row in self.ledger.received_batches(after=self.state.window_sequence):
            batch = load_received(self.run_dir, row)
            self.add_to_window(batch, row.sequence)
            self._tally.add(batch, row.bytes)

    def evaluate(self) -> EvaluationReport | None:
        """Measure the published model, when it is time to."""
        self._phase = "evaluating"
        assert self.model is not None
        return self.evaluation.measure(self.model, iteration=self.state.iteration + 1, look=self.look_if_asynchronous)

    def conclude(self, games: SelfPlayReport, learned: LearnerReport | None, evaluated: EvaluationReport | None) -> IterationReport:
        """Count the iteration, keep a checkpoint, and tell everybody."""
        self.state.iteration += 1
        self.state.seconds = self.seconds()
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
            workers=self.workers(),
        )
        self.ledger.add_iteration(report.iteration, report.as_dict())
        if self.state.iteration % self.settings.training.checkpoint_every == 0:
            self.save()
        tell_iteration(self.observers, report)
        return report

    def save(self) -> None:
        """Keep a checkpoint."""
        self.state.seconds = self.seconds()
        self.checkpoints.save(self.learner.state(), vars(self.state))

    # Games.

    def look(self) -> bool:
        """Take in what has come, grant what is due, show how things stand; False when nothing had come."""
        parcels = self.in_turn(self.backend.collect())
        self.take_in(parcels)
        self.grant()
        now = self.clock()
        if now - self._shown >= PROGRESS_SECONDS:
            self._shown = now
            tell_progress(self.observers, self.progress_report())
        return bool(parcels)

    def look_if_asynchronous(self) -> None:
        """Look, but leave games where they are when every iteration's games must be those of one model."""
        if self.settings.training.asynchronous:
            self.look()

    def take_in(self, parcels: Sequence[Parcel]) -> None:
        """Receive each batch, learn from those that are good, and let the workers delete their copies."""
        for parcel in parcels:
            receipt = receive(self.ledger, self.game, worker=parcel.worker, batch_id=parcel.batch_id, fetch=parcel.fetch)
            match receipt:
                case Received(batch=batch, sequence=sequence):
                    self.add_to_window(batch, sequence)
                    row = self.ledger.batch(batch.batch_id)
                    self._tally.add(batch, row.bytes if row else 0)
                case Quarantined(batch_id=batch_id, reason=reason):
                    tell_event(self.observers, f"batch {batch_id} of {parcel.worker} is in quarantine: {reason}")
                case AlreadyHave(batch_id=batch_id):
                    log.info("batch %s of %s was here already", batch_id, parcel.worker)
            self.backend.release(parcel, delivered=self.ledger.books(parcel.worker).next_game)

    def add_to_window(self, batch: GameBatch, sequence: int) -> None:
        """Put a received batch into the window, which grows with all that was ever played."""
        self.state.total_games += batch.num_games
        self.state.total_positions += batch.num_positions
        self.state.window_sequence = sequence
        samples = self.window.add(batch)
        self.state.total_samples += samples
        self.state.owed_samples += samples * self.settings.training.samples_per_position
        self.window.resize(window_capacity(self.settings.training.window, self.state.total_samples))

    def grant(self) -> None:
        """Keep every worker in work: so many games ahead each, or what the iteration still lacks in synchronous mode."""
        training, workers = self.settings.training, self.backend.workers
        outstanding = {worker: self.ledger.books(worker).outstanding for worker in workers}
        if training.asynchronous:
            behind = self._tally.games >= BACKLOG_ITERATIONS * training.games_per_iteration
            ahead = 0 if behind else self.settings.self_play.games_per_worker
            missing = [ahead - outstanding[worker] for worker in workers]
        else:
            left = training.games_per_iteration - self._tally.games - sum(outstanding.values())
            missing = [left // len(workers) + (number < left % len(workers)) for number in range(len(workers))]
        for worker, games in zip(workers, missing, strict=True):
            if games > 0:
                self.ledger.grant(worker, games)
            books = self.ledger.books(worker)
            self.backend.grant(worker, granted=books.granted, delivered=books.next_game)

    def in_turn(self, parcels: Sequence[Parcel]) -> Sequence[Parcel]:
        """In synchronous mode, the parcels of one worker after the other, so that the games come in the same order again."""
        if self.settings.training.asynchronous:
            return parcels
        turn = next((worker for worker in self.backend.workers if self.ledger.books(worker).outstanding > 0), None)
        return [parcel for parcel in parcels if parcel.worker == turn]

    # What observers are told.

    def progress(self) -> float:
        """The share of the run that is over, for schedules."""
        run = self.settings.run
        shares = [
            self.state.iteration / run.iterations if run.iterations else 0.0,
            self.seconds() / 60 / run.minutes if run.minutes else 0.0,
        ]
        return min(1.0, max(shares))

    def workers(self) -> tuple[WorkerReport, ...]:
        """Each worker as it stands."""
        status = self.backend.status()
        return tuple(worker_report(name, status[name], self.ledger.books(name)) for name in self.backend.workers)

    def progress_report(self) -> ProgressReport:
        """The run as it stands."""
        workers = self.workers()
        return ProgressReport(
            phase=self._phase,
            iteration=self.state.iteration + 1,
            iterations=self.settings.run.iterations,
            seconds=self.seconds(),
            seconds_left=self.seconds_left(),
            total_games=self.state.total_games,
            games_wanted=self.settings.training.games_per_iteration,
            games_here=self._tally.games,
            games_per_second=sum(worker.games_per_second for worker in workers),
            evaluations_per_second=sum(worker.evaluations_per_second for worker in workers),
            window_positions=self.window.num_positions,
            model_version=self.state.model_version,
            workers=workers,
        )

    def seconds_left(self) -> float | None:
        """Until the run's bounds are reached, as far as can be told."""
        run, seconds, done = self.settings.run, self.seconds(), self.state.iteration
        estimates = []
        if run.minutes is not None:
            estimates.append(run.minutes * 60 - seconds)
        if run.iterations is not None and done:
            estimates.append(seconds / done * (run.iterations - done))
        return max(min(estimates), 0.0) if estimates else None


def model_path(run_dir: Path, version: int) -> Path:
    """Where a run keeps a published model."""
    return run_dir / "models" / f"model-{version:06d}.model"
