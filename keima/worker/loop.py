"""A worker: plays the games that its folder's assignment grants, with the newest model there, and writes them to the
outbox.

It only watches files, so it plays on when the main node or the network is gone. ``Worker`` is made to be subclassed:
override ``make_self_play`` or ``play`` to play differently. Until an assignment and its model are there it waits; then
``Worker.playing`` holds the games.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from keima.base.files import remove_stale_parts
from keima.base.steps import Turns
from keima.base.system.disk_space import free_disk_bytes
from keima.base.system.limits import count_usable_cores
from keima.compilation.progress import report_compiling
from keima.config.own_modules import is_own, keep_module
from keima.data.records import GameRecord
from keima.evaluation.match_jobs import BESIDE_SHARE, EvaluationJob
from keima.games import Game, load_game
from keima.networks.files.model import CANARY_POSITIONS, Model, check_canary
from keima.networks.inference.evaluator import Evaluator, pick_device
from keima.search.puct import Evaluate
from keima.self_play.compile_ahead import is_compiled
from keima.self_play.groups import ParallelGames, make_parallel_games
from keima.self_play.tuning import (
    AUTO_SIZES,
    DEVICE_SIZES,
    FEWEST_THREADS,
    load_or_measure_plan,
    split_into_batches,
)
from keima.worker.model_inbox import ModelInbox
from keima.worker.playing import Playing, games_handed_over
from keima.worker.spool import salvage_games
from keima.worker.worker_folder import (
    Assignment,
    BrokenMessage,
    Heartbeat,
    ProcessorTime,
    WorkerFolder,
    batch_end,
    is_batch_of_run,
)
from keima.worker.worker_match import JobPlayer

log = logging.getLogger(__name__)

POLL_SECONDS = 0.3  # between two reads of the assignment, while there is something to play
BEAT_SECONDS = 1.0
IDLE_SECONDS = 0.05  # and while there is nothing
MOST_LEASE_STEP = 30.0  # seconds between two looks that count against a lease: a machine may have been asleep or paused
PROCESSOR_TIME_SECONDS = 10.0  # between two writes of the processor time to the disk
RETRY_SECONDS = 2.0  # after the disk has refused finished games


class Worker:
    """One worker on its folder.

    Args:
        root: the worker folder.
        clock: seconds that never go back.

    Attributes:
        device: of its networks; "auto": a GPU if there is one. Whoever starts a worker may set another before it runs.
        most_threads: that may search while a GPU evaluates; likewise.
    """

    device = "auto"
    threads = 1  # that search, once the first model is there

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = WorkerFolder(root).create_folders()
        self.clock = clock
        self.most_threads = count_usable_cores()
        self.assignment: Assignment | None = None
        self.playing: Playing | None = None  # from the first model on
        self.model_version = 0
        self.stopping = False
        self.note = ""
        self._run_id = ""  # the run it plays for
        self._model_sha256 = ""
        self._first_game = 0  # games that earlier processes have handed over
        self._compiling = ""  # what is being compiled
        self._errors: dict[str, str] = {}  # by what went wrong
        self._retry_flush = 0.0
        self._beat = 0
        self._lease, self._lease_age, self._lease_checked = "", 0.0, clock()
        self._polled = -POLL_SECONDS
        self._played = False  # in the last cycle
        self._beaten = -BEAT_SECONDS
        self._earlier_seconds = 0.0  # of the processor, by earlier processes for this run
        self._processor_time_kept = clock()
        self._models = ModelInbox(self.folder)
        self._job_player = JobPlayer(self.folder)
        self._turns = Turns(BESIDE_SHARE)

    # The loop.

    def run(self) -> None:
        """Play until the assignment says stop, a signal comes, or the lease has run out.

        Raises:
            AlreadyRunning: another process plays in this folder.
            FolderGone: the folder was deleted; whoever creates it again starts another process there.
            OSError: the disk does not take the last games.
        """
        with self.folder.lock() as check_folder:
            remove_stale_parts(self.folder.outbox)
            salvage_games(self.folder)
            signal.signal(signal.SIGTERM, self._on_signal)
            with report_compiling(self._report_compiling):
                while not self.stopping:
                    check_folder()
                    if not self.cycle():
                        time.sleep(IDLE_SECONDS)
            self.flush()
            self.beat("ended")

    def cycle(self) -> bool:
        """Read the folder when it is due, and take one step of play; return False if there was nothing to play."""
        now = self.clock()
        self._poll_when_due(now, POLL_SECONDS if self._played else IDLE_SECONDS)
        self._played = False
        if self.playing and not self.stopping:
            self._played = self._advance_games(self.playing)
        self._report_when_due(now, played=self._played)
        return self._played

    def _poll_when_due(self, now: float, seconds: float) -> None:
        if now - self._polled >= seconds:
            self._polled = now
            self.poll()

    def _report_compiling(self, text: str) -> None:
        """Report what is being compiled, since no other heartbeat is written until it is done."""
        log.info("%s", text)
        self._compiling = text
        self.beat("compiling")

    def _report_when_due(self, now: float, *, played: bool) -> None:
        self._compiling = ""
        if self.playing and self.playing.waiting and now >= self._retry_flush:
            self._try_to_flush(self.playing, now)
        if now - self._beaten >= BEAT_SECONDS:
            self.beat("error" if self.error else "playing" if played else "waiting" if self.playing else "starting")

    def _advance_games(self, playing: Playing) -> bool:
        """Advance evaluation games, at once if the Coach waits for them, or self-play; return False without any."""
        jobs, began = self._job_player.unfinished_jobs(playing.assignment), self.clock()
        if jobs and (self._turns.is_side_work_next() or not all(job.beside for job in jobs)):
            self._play_matches(playing, jobs)
            self._turns.count_side_work(self.clock() - began)
            return True
        played = self._play_games(playing)
        self._turns.count_main_work(self.clock() - began, idle=not played)
        return played

    def _play_matches(self, playing: Playing, jobs: Sequence[EvaluationJob]) -> None:
        try:
            self._job_player.advance_jobs(jobs, playing.assignment, playing.game, device=self.device)
        except OSError as error:
            log.warning("results of evaluation games cannot be written: %s", error)
        playing.skip_elapsed_time()

    def _play_games(self, playing: Playing) -> bool:
        played = playing.measure_step(lambda: self.play(playing))
        playing.spool_games()
        return played

    def play(self, playing: Playing) -> bool:
        """Begin the granted games and advance all games by one evaluation; return False when none is in progress."""
        playing.begin_games()
        if playing.self_play.num_playing == 0:
            return False
        for record in playing.self_play.advance():
            self.store(playing, record)
        return True

    def store(self, playing: Playing, record: GameRecord) -> None:
        """Keep a finished game for the next batch."""
        playing.store_game(record)

    def make_self_play(self, game: Game, evaluate: Evaluate, assignment: Assignment) -> ParallelGames:
        """Return the games that this worker plays; ``assignment.parallel_games`` says how many side by side."""
        return make_parallel_games(
            game,
            evaluate,
            assignment.search,
            parallel_games=assignment.parallel_games,
            threads=self.threads,
            cache_positions=assignment.cache_positions,
        )

    # What comes in.

    def poll(self) -> None:
        """Read the assignment and act on what has changed."""
        in_outbox = self.folder.batch_files()  # first: a batch leaves only after "delivered" has been raised
        try:
            assignment = self.folder.read_assignment()
            self._set_error("assignment", "")
        except BrokenMessage as error:
            assignment = None
            self._set_error("assignment", str(error))
        if assignment is not None and self._is_ours(assignment):
            self._accept_assignment(assignment, in_outbox)
        self._check_lease()

    def _is_ours(self, assignment: Assignment) -> bool:
        """Return whether an assignment belongs to this worker's run; otherwise name the other run in the heartbeat."""
        if not self._run_id or (self.assignment is None and assignment.run_id != self._run_id):
            self._run_id = self.folder.owner_run() or assignment.run_id
            self._earlier_seconds = self.folder.read_processor_time(self._run_id).seconds
        ours = assignment.run_id == self._run_id
        refusal = (
            f"the assignment is refused: it is for run {assignment.run_id}, and this worker plays for run "
            f"{self._run_id}"
        )
        self._set_error("run", "" if ours else refusal)
        return ours

    def _accept_assignment(self, assignment: Assignment, in_outbox: list[Path]) -> None:
        first = self.assignment is None
        self.assignment = assignment
        if self.playing:
            self.playing.assignment = assignment
        if assignment.lease != self._lease:
            self._lease, self._lease_age = assignment.lease, 0.0
        if first:
            ends = [batch_end(path.stem) for path in in_outbox if is_batch_of_run(path.name, assignment.run_id)]
            self._first_game = games_handed_over(assignment, ends)
            self.beat("starting" if is_compiled("self_play") else "compiling")  # the next heartbeat takes a while
        self._job_player.update_jobs(assignment)
        if assignment.stop:
            self.stopping = True
        elif assignment.model_sha256 != self._model_sha256 or self.playing is None:
            self._accept_model(assignment)

    def _check_lease(self) -> None:
        now = self.clock()
        self._lease_age += min(now - self._lease_checked, MOST_LEASE_STEP)
        self._lease_checked = now
        if self.assignment is not None and self._lease_age > self.assignment.lease_seconds:
            log.warning("no Coach has renewed the lease for %.0f s: exiting", self._lease_age)
            self.stopping = True

    def _accept_model(self, assignment: Assignment) -> None:
        try:
            pick_device(self.device)
        except ValueError as error:
            self._set_error("device", str(error))
            return
        self._set_error("device", "")
        try:
            self._install_modules(assignment)
            game = load_game(assignment.game, **assignment.options)
            model = self._models.receive_model(assignment.model_version, assignment.model_sha256)
            check_canary(
                model, game, Evaluator(model.build(game), game, device=self.device, max_batch=CANARY_POSITIONS)
            )
            if self.playing:
                self.playing.change_model(model, assignment.model_version)
            else:
                self.playing = self._start_playing(model, game, assignment)
        except (ValueError, OSError) as error:
            self._set_error("model", f"model {assignment.model_version}: {error}")
            return
        self._set_error("model", "")
        self.model_version, self._model_sha256 = assignment.model_version, assignment.model_sha256
        try:
            self._models.remove_other_models(self.model_version)
        except OSError as error:
            log.warning("model %d is in use, but cannot be kept for a restart: %s", self.model_version, error)

    def _install_modules(self, assignment: Assignment) -> None:
        """Put the users' own files that came with the assignment where every process of this machine finds them.

        Raises:
            ModuleProblem: one is damaged, or cannot be kept.
        """
        for name in filter(is_own, assignment.modules):
            path = self.folder.module_path(name)
            if path.exists():  # beside the Coach there is none: it has filled the store
                keep_module(path, expected=name)

    def _start_playing(self, model: Model, game: Game, assignment: Assignment) -> Playing:
        own_device = pick_device(self.device).type != "cpu"
        most = assignment.parallel_games or max(DEVICE_SIZES if own_device else AUTO_SIZES)
        most *= assignment.search.leaves_per_tree
        limit = min(assignment.max_positions or most, most)
        evaluator = Evaluator(model.build(game), game, device=self.device, max_batch=limit)
        evaluate = evaluator if limit == most else split_into_batches(evaluator, limit)
        bundled = assignment
        self.threads = FEWEST_THREADS if own_device else 1
        if assignment.parallel_games == 0:
            plan = load_or_measure_plan(
                game,
                evaluate,
                assignment.search,
                network=f"{model.description.network} {evaluator.describe()}, at most {limit} positions a call",
                clock=time.perf_counter if own_device else time.process_time,
                own_device=own_device,
                max_threads=self.most_threads,
            )
            log.info("%s", plan.found)
            self.note, self.threads = f"{plan.parallel_games} games side by side", plan.threads
            bundled = assignment.model_copy(update={"parallel_games": plan.parallel_games})
        self_play = self.make_self_play(game, evaluate, bundled)
        self_play.change_model(assignment.model_version)
        side_by_side, how = self_play.parallel_games, evaluator.describe()
        log.info(
            "plays %s with model %d, %d games side by side, %s", game.name, assignment.model_version, side_by_side, how
        )
        return Playing(
            self.folder,
            assignment,
            game=game,
            evaluator=evaluator,
            self_play=self_play,
            first_game=self._first_game,
            clock=self.clock,
        )

    # What goes out.

    def flush(self, *, rest: bool = True) -> None:
        """Write the finished games to the outbox, batch by batch; with ``rest``, also a last batch that is not full.

        Raises:
            OSError: the disk does not take them; they are kept.
        """
        if self.playing:
            self.playing.flush_games(rest=rest)

    def _try_to_flush(self, playing: Playing, now: float) -> None:
        try:
            self.flush(rest=playing.must_flush_rest())
            self._set_error("outbox", "")
        except OSError as error:
            self._retry_flush = now + RETRY_SECONDS
            self._set_error("outbox", f"finished games cannot be written to the outbox yet: {error}")

    def beat(self, state: str) -> None:
        """Replace the heartbeat."""
        now = self.clock()
        self._beaten = now
        if not self._run_id:
            return
        self._beat += 1
        heartbeat = Heartbeat.model_validate(
            {
                "run_id": self._run_id,
                "worker": self.assignment.worker if self.assignment else self.folder.root.name,
                "beat": self._beat,
                "pid": os.getpid(),
                "state": state,
                "error": self.error[:1000],
                "model_version": self.model_version,
                "lease": self.assignment.lease if self.assignment else "",
                "granted": self.assignment.granted if self.assignment else 0,
                "begun": self._first_game,
                "finished": self._first_game,
                "job": self._job_player.current_job.id if self._job_player.current_job else "",
                "note": (self._compiling or self.note)[:1000],
                "disk_free": free_disk_bytes(self.folder.root),
                "processor_seconds": self._earlier_seconds + time.process_time(),
            }
            | (_progress_fields(self.playing, now) if self.playing else {})
        )
        try:
            self.folder.write_heartbeat(heartbeat)
            if now - self._processor_time_kept >= PROCESSOR_TIME_SECONDS or state == "ended":
                self._processor_time_kept = now
                used = ProcessorTime(run_id=self._run_id, worker=heartbeat.worker, seconds=heartbeat.processor_seconds)
                self.folder.write_processor_time(used)
        except OSError as error:
            log.warning("the heartbeat cannot be written: %s", error)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True
        if self.playing is None:
            os._exit(128 + number)  # nothing has been played, and compiling the search would take its time

    @property
    def error(self) -> str:
        """The current problem; empty when there is none."""
        return "; ".join(self._errors.values())

    def _set_error(self, what: str, text: str) -> None:
        """Record a problem with the assignment, the model or the outbox; an empty text clears it."""
        if text and self._errors.get(what) != text:
            log.error("%s", text)
        self._errors.pop(what, None)
        if text:
            self._errors[what] = text


def _progress_fields(playing: Playing, now: float) -> dict[str, Any]:
    """Return the fields of a heartbeat about a worker's games."""
    games_per_second, evaluations_per_second = playing.measure_rates(now)
    return {
        "begun": playing.begun,
        "finished": playing.finished,
        "parallel_games": playing.parallel_games,
        "evaluations": playing.self_play.evaluations,
        "games_per_second": games_per_second,
        "speed": playing.full_load_speed(),
        "evaluations_per_second": evaluations_per_second,
    }
