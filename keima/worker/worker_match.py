"""A worker's part of evaluation games: play each job once, and clean up after jobs that are gone."""

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


class JobPlayer:
    """Plays the jobs of an assignment side by side, so that a model evaluates the positions of all in one batch.

    Args:
        folder: the worker's.
    """

    def __init__(self, folder: WorkerFolder) -> None:
        self._folder = folder
        self._session: MatchSession | None = None
        self._playing: dict[str, EvaluationJob] = {}  # by id
        self._done: set[str] = set()  # ids of played jobs in the assignment
        self._searches: dict[tuple[str, int], SearchPlayer] = {}  # by model and simulations
        self._known: set[str] | None = None  # files of players that assignments have named

    @property
    def current_job(self) -> EvaluationJob | None:
        """A job in progress."""
        return next(iter(self._playing.values()), None)

    def unfinished_jobs(self, assignment: Assignment) -> list[EvaluationJob]:
        """Return the jobs that have not been played to their end."""
        return [
            job
            for job in assignment.matches
            if job.id not in self._done
            and (job.id in self._playing or not (self._folder.outbox / job.file_name).exists())
        ]

    def update_jobs(self, assignment: Assignment) -> None:
        """Forget jobs and players that the assignment no longer names, and remove their files.

        A player's file arrives before the assignment that names it. So only files that were named before, or that an
        earlier process left, are removed, unless they have just arrived again.
        """
        named = {player.file_name for player in assignment.players}
        if self._known is None:
            self._known = {path.name for path in self._folder.inbox.glob("player-*.model")}
        self._known = named | {name for name in self._known - named if not self._remove_player_file(name)}
        kept = {player.sha256 for player in assignment.players}
        self._searches = {key: search for key, search in self._searches.items() if key[0] in kept}
        jobs = {job.file_name for job in assignment.matches}
        for path in self._folder.result_files():
            if path.name not in jobs:
                path.unlink(missing_ok=True)
        named_jobs = {job.id for job in assignment.matches}
        self._done &= named_jobs
        for job_id in self._playing.keys() - named_jobs:
            log.info("job %s is not played to its end", job_id)
            self._drop_job(job_id)

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

    def advance_jobs(
        self, jobs: Sequence[EvaluationJob], assignment: Assignment, game: Game, *, device: str = "auto"
    ) -> None:
        """Make one network call of each model, on a device, for all these jobs, and write the results of those that
        end.

        A job that cannot be played is refused in its result.

        Raises:
            OSError: the disk does not take a result; the job is played again, here or elsewhere.
        """
        if self._session is None:
            self._session = MatchSession(game)
        for job in jobs:
            if job.id not in self._playing:
                self._begin_match(self._session, job, assignment, game, device)
        try:
            self._session.advance()
        except ValueError as error:
            for job in list(self._playing.values()):
                self._drop_job(job.id)
                self._refuse_job(job, assignment, error)
            return
        ended = [(self._playing.pop(job_id), result) for job_id, result in self._session.take_results().items()]
        for job, result in ended:  # of which the disk may take none
            self._write_result(make_job_result(assignment.worker, job, job_openings(game, job), result))

    def _begin_match(
        self, session: MatchSession, job: EvaluationJob, assignment: Assignment, game: Game, device: str
    ) -> None:
        try:
            fixture = make_job_fixture(game, job, lambda who: self._make_player(who, job, assignment, game, device))
        except (ValueError, OSError) as error:
            self._refuse_job(job, assignment, error)
            return
        self._playing[job.id] = job
        session.begin(job.id, fixture)

    def _refuse_job(self, job: EvaluationJob, assignment: Assignment, error: Exception) -> None:
        log.warning("job %s cannot be played: %s", job.id, error)
        self._write_result(EvaluationJobResult(worker=assignment.worker, job=job, refused=str(error)[:1000]))

    def _write_result(self, result: EvaluationJobResult) -> None:
        write_atomically(self._folder.outbox / result.job.file_name, result.model_dump_json().encode())
        self._done.add(result.job.id)

    def _drop_job(self, job_id: str) -> None:
        """End a job without a result; with the last one, forget what its searches were in the middle of."""
        if self._playing.pop(job_id, None) and self._session:
            self._session.drop(job_id)
        if not self._playing:
            self._session = None
            self._searches.clear()

    def _make_player(
        self, who: Contestant, job: EvaluationJob, assignment: Assignment, game: Game, device: str
    ) -> SearchPlayer:
        key = (who.sha256, job.num_simulations)
        if key not in self._searches:
            search = make_match_search(
                game,
                self._load_model(who, game, device),
                assignment.search,
                num_simulations=job.num_simulations,
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
            raise ValueError(f"{path} does not have the SHA-256 in the job")
        model = decode_model(data)
        check_canary(model, game, Evaluator(model.build(game), game, device=device, max_batch=CANARY_POSITIONS))
        return model
