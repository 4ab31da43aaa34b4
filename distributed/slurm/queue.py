"""The jobs of a run in Slurm's queue: one look for all workers, and one submission for all that are to start."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from distributed.setup.process_manager import ProcessStatus
from distributed.slurm.jobs import Ended, Job, by_seat, ending, seat_name, stuck, waiting
from distributed.ssh.errors import ClusterError, RemoteFailure
from training.common.threads import guard

log = logging.getLogger(__name__)

GATHER_SECONDS = 1.0  # a submission waits this long for more workers that are to start ...
MOST_GATHER_SECONDS = 5.0  # ... and never longer than this
MOMENT_SECONDS = 2.0  # the age of a look that counts as one of now
FIRST_RETRY_SECONDS, MOST_RETRY_SECONDS = 15.0, 600.0  # between two attempts to submit
MOST_FAILURES = 3  # jobs of a worker that fail in a row until the user must look


class Commands(Protocol):
    """Slurm's commands; see ``Slurm``. Everything may raise ClusterError."""

    def check(self) -> None:
        """Check that the commands are there."""

    def submit(self, script: Path, seats: Sequence[int], options: Sequence[str]) -> int:
        """Submit an array; return its id."""

    def jobs(self, name: str) -> list[Job]:
        """Return the jobs of this name."""

    def warn(self, job: str) -> None:
        """Have a job's worker end by itself."""

    def cancel(self, *jobs: str) -> None:
        """End jobs."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What is submitted for every worker of a run."""

    name: str  # of its jobs, by which they are found again
    script: Path
    options: tuple[str, ...]


class JobQueue:
    """The jobs of a run. Any thread may call it; a call may take as long as Slurm takes to answer.

    Args:
        slurm: Slurm's commands.
        submission: what is submitted.
        poll_seconds: the time between two looks at the queue.
        log_event: called with each line for the log.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        slurm: Commands,
        submission: Submission,
        *,
        poll_seconds: float,
        log_event: Callable[[str], None] = log.warning,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slurm, self._submission, self._poll_seconds = slurm, submission, poll_seconds
        self._log_event, self._clock = log_event, clock
        self._guard = guard()
        self._looked = float("-inf")  # when the queue was last asked
        self._problem = ""  # why that failed
        self._jobs: dict[int, Job] | None = None  # by seat; None: never seen
        self._mine: set[str] = set()  # jobs that have been seen alive or submitted in this session
        self._given_up: set[str] = set()  # jobs that have been told to end: they no longer count
        self._wanted: dict[int, float] = {}  # seats that are to be submitted -> since when
        self._submitted: dict[int, tuple[int, float]] = {}  # seat -> its array, and when, until a look shows it
        self._refusal = ""  # why the last submission failed
        self._refusals, self._submit_at = 0, float("-inf")
        self._failures: dict[int, int] = {}  # of each seat, in a row
        self._judged: dict[int, Ended] = {}  # what the end of a seat's last job means

    def want(self, seat: int) -> None:
        """Submit a job for this seat soon, together with others."""
        with self._guard:
            if self._error(seat):  # the user wants another attempt
                self._failures.pop(seat, None)
            self._judged.pop(seat, None)
            if seat not in self._wanted and self._alive(seat) is None:
                self._wanted[seat] = self._clock()

    def status(self, seat: int) -> ProcessStatus:
        """Return the status of a seat's worker, from a look at the queue that is at most ``poll_seconds`` old."""
        with self._guard:
            self._submit()
            self._look(self._poll_seconds)
            return self._status(seat)

    def job(self, seat: int) -> Job | None:
        """Return the job of a seat that has not ended, from a look at the queue of a moment ago.

        Raises:
            ClusterError: Slurm does not answer.
        """
        with self._guard:
            self._look(MOMENT_SECONDS)
            if self._problem:
                raise RemoteFailure(seat_name(seat), self._problem)
            return self._alive(seat)

    def give_up(self, seat: int) -> None:
        """Note that the job of a seat has been told to end, and submit none for it."""
        with self._guard:
            self._wanted.pop(seat, None)
            self._submitted.pop(seat, None)
            self._judged.pop(seat, None)
            if job := self._alive(seat):
                self._given_up.add(job.id)

    def living(self) -> list[Job]:
        """Return all jobs of the run that have not ended, also those that have been told to, from a look of now.

        Raises:
            ClusterError: Slurm does not answer.
        """
        return [job for job in self._slurm.jobs(self._submission.name) if not job.has_ended]

    # With the guard held.

    def _alive(self, seat: int) -> Job | None:
        job = (self._jobs or {}).get(seat)
        return job if job and not job.has_ended and job.id not in self._given_up else None

    def _status(self, seat: int) -> ProcessStatus:
        if seat in self._wanted:
            return ProcessStatus(running=True, waits="is to be submitted to Slurm", error=self._refusal)
        if seat in self._submitted:
            return ProcessStatus(running=True, waits=f"job {self._submitted[seat][0]}_{seat} has been submitted")
        if self._jobs is None or self._problem:
            return ProcessStatus(running=True, error=f"Slurm's queue cannot be seen: {self._problem}")
        if job := self._alive(seat):
            return ProcessStatus(running=True, waits=waiting(job), start=job.start, error=stuck(job))
        return ProcessStatus(running=False, error=self._error(seat))

    def _error(self, seat: int) -> str:
        """Return why no other job follows the last one of a seat, with the remedy; empty if one may."""
        end = self._judged.get(seat)
        if end is None or not (end.final or (end.failed and self._failures.get(seat, 0) >= MOST_FAILURES)):
            return ""
        times = "" if end.final else f"{MOST_FAILURES} jobs in a row have failed, the last one: "
        return f"{times}{end.text}; {end.remedy}"

    def _look(self, age: float) -> None:
        """Ask for the queue, unless the last look is younger than ``age`` seconds."""
        now = self._clock()
        if now - self._looked < age:
            return
        self._looked = now
        try:
            found = self._slurm.jobs(self._submission.name)
        except ClusterError as error:
            text = f"{error.what}; {error.remedy}" if error.remedy else error.what
            if text != self._problem:
                self._log_event(f"the queue of Slurm cannot be seen: {text}")
            self._problem = text
            return
        if self._problem:
            self._log_event("the queue of Slurm is seen again")
        self._problem = ""
        self._take(found, now)

    def _take(self, found: Sequence[Job], now: float) -> None:
        """Take in what the queue shows."""
        self._jobs = by_seat(found, without=self._given_up)
        for seat, (array, since) in list(self._submitted.items()):
            job = self._jobs.get(seat)
            if (job and job.array >= array) or now - since > 2 * self._poll_seconds:
                del self._submitted[seat]
        for seat, job in self._jobs.items():
            if job.id in self._given_up:
                continue
            if not job.has_ended:
                self._mine.add(job.id)
                self._wanted.pop(seat, None)  # an earlier session has submitted it
            elif job.id in self._mine:
                self._mine.discard(job.id)
                self._judge(seat, job)

    def _judge(self, seat: int, job: Job) -> None:
        """Take note that a job of this session has ended."""
        end = ending(job)
        self._failures[seat] = self._failures.get(seat, 0) + 1 if end.failed else 0
        if seat not in self._wanted:
            self._judged[seat] = end
        self._log_event(f"{seat_name(seat)}: {end.text}")

    def _submit(self) -> None:
        """Submit all seats that are wanted, once no more have come for a moment."""
        now = self._clock()
        if not self._wanted or now < self._submit_at:
            return
        first, last = min(self._wanted.values()), max(self._wanted.values())
        if now - last < GATHER_SECONDS and now - first < MOST_GATHER_SECONDS:
            return
        if self._jobs is None or self._problem:  # an earlier session may have submitted them
            return
        seats = sorted(self._wanted)
        try:
            array = self._slurm.submit(self._submission.script, seats, self._submission.options)
        except ClusterError as error:
            text = f"{error.what}; {error.remedy}" if error.remedy else error.what
            if text != self._refusal:
                self._log_event(f"no jobs are submitted to Slurm: {text}")
            self._refusal, self._refusals = text, self._refusals + 1
            pause = FIRST_RETRY_SECONDS * 2 ** min(self._refusals - 1, 10)
            self._submit_at = now + min(pause, MOST_RETRY_SECONDS)
            return
        self._refusal, self._refusals = "", 0
        self._wanted.clear()
        self._submitted |= dict.fromkeys(seats, (array, now))
        self._mine |= {f"{array}_{seat}" for seat in seats}
        self._log_event(f"job {array} has been submitted to Slurm, for {len(seats)} workers")
