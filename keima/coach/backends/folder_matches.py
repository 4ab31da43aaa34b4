"""Evaluation games of workers whose outboxes, or mirrors of them, are folders on this machine."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keima.base.files import FileTooLarge, read_limited
from keima.coach.backends.assignments import AssignmentBook
from keima.evaluation.match_jobs import MAX_RESULT_BYTES, RESULT_SUFFIX, Contestant, EvaluationJob

if TYPE_CHECKING:  # the fleet's process imports no compiled rules
    from keima.evaluation.remote_matches import MatchHeartbeat


class FolderMatches:
    """A ``MatchExecutors`` on worker folders.

    Args:
        root: the folder of the worker folders.
        book: the workers' assignments; jobs are entered there.
        assign: sends a worker its current assignment.
        send_players: gives all workers the models of evaluation games.
        ready_workers: returns the workers that can play now.
        heartbeats: returns the last heartbeat of each worker.
    """

    def __init__(
        self,
        root: Path,
        book: AssignmentBook,
        *,
        assign: Callable[[str], None],
        send_players: Callable[[Mapping[Contestant, bytes]], None],
        ready_workers: Callable[[], list[str]],
        heartbeats: Callable[[], Mapping[str, "MatchHeartbeat | None"]],
    ) -> None:
        self._root, self._book = root, book
        self._assign, self._send_players = assign, send_players
        self._ready_workers, self._heartbeats = ready_workers, heartbeats

    def deploy_models(self, players: Mapping[Contestant, bytes]) -> None:
        """See ``MatchExecutors``."""
        self._book.set_players(players)
        for path in self._root.glob(f"*/outbox/*{RESULT_SUFFIX}"):
            path.unlink(missing_ok=True)  # too late
        self._send_players(self._book.players)
        for worker in self._book.workers:
            self._assign(worker)

    def assign_jobs(self, worker: str, jobs: Sequence[EvaluationJob]) -> None:
        """See ``MatchExecutors``."""
        dropped = self._book.set_jobs(worker, jobs)
        if dropped is None:
            return
        self._assign(worker)
        for job in dropped:
            (self._root / worker / "outbox" / job.file_name).unlink(missing_ok=True)

    def results(self) -> list[tuple[str, EvaluationJob, bytes]]:
        """See ``MatchExecutors``."""
        found = []
        for worker, jobs in self._book.jobs.items():
            for job in jobs:
                path = self._root / worker / "outbox" / job.file_name
                try:
                    found.append((worker, job, read_limited(path, MAX_RESULT_BYTES)))
                except FileTooLarge:
                    found.append((worker, job, b""))
                except OSError:
                    continue  # not there yet
        return found

    def ready_workers(self) -> list[str]:
        """See ``MatchExecutors``."""
        return self._ready_workers()

    def heartbeats(self) -> Mapping[str, "MatchHeartbeat | None"]:
        """See ``MatchExecutors``."""
        return self._heartbeats()
