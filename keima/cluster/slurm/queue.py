"""The jobs of a run in Slurm's queue: one poll for all workers, and one submission for all that are to start."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from keima.base.system.threads import new_lock
from keima.cluster.machines.process_manager import ProcessStatus
from keima.cluster.slurm.jobs import (
    RUNNING,
    Job,
    JobEnd,
    judge_end,
    newest_jobs_by_slot,
    slot_name,
    stuck_text,
    waiting_text,
)
from keima.cluster.ssh.errors import ClusterError, describe_failure

log = logging.getLogger(__name__)

STEP_SECONDS = 0.5  # between two steps
GATHER_SECONDS = 1.0  # a submission waits this long for more workers that are to start ...
MOST_GATHER_SECONDS = 5.0  # ... and never longer than this
FIRST_RETRY_SECONDS, MOST_RETRY_SECONDS = 15.0, 600.0  # between two attempts to submit
MOST_FAILURES = 3  # jobs of a worker that fail in a row until the user must look


class Commands(Protocol):
    """Slurm's commands; see ``Slurm``. Everything may raise ClusterError."""

    def check(self) -> None:
        """Check that the commands are there."""

    def submit(self, script: Path, slots: Sequence[int], options: Sequence[str]) -> int:
        """Submit an array; return its id."""

    def jobs(self, name: str) -> list[Job]:
        """Return the jobs of this name."""

    def warn(self, *jobs: str) -> None:
        """Have the workers of jobs exit on their own."""

    def cancel(self, *jobs: str) -> None:
        """End jobs."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The parameters of a submission, the same for every worker of a run."""

    name: str  # of its jobs, by which they are found again
    script: Path
    options: tuple[str, ...]


class JobQueue:
    """The jobs of a run.

    Slurm's commands are called by ``step`` alone, in one thread, since each may take long; all other methods return at
    once, in any thread.

    Args:
        slurm: Slurm's commands.
        submission: what is submitted.
        poll_seconds: the time between two polls of the queue.
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
        self._guard = new_lock()
        self._poll_at = float("-inf")  # when the queue is to be asked again
        self._problem = ""  # why it could not be seen
        self._jobs: dict[int, Job] | None = None  # by slot; None: never seen
        self._mine: set[str] = set()  # jobs that have been seen alive or submitted in this session
        self._given_up: set[str] = set()  # jobs that have been told to end: they no longer count
        self._to_warn: set[str] = set()  # jobs that are to be told so
        self._to_cancel: set[str] = set()
        self._wanted: dict[int, float] = {}  # slots that are to be submitted -> since when
        self._submitted: dict[int, tuple[int, float]] = {}  # slot -> its array, and when, until a poll shows it
        self._refusal = ""  # why the last submission failed
        self._refusals, self._submit_at = 0, float("-inf")
        self._failures: dict[int, int] = {}  # of each slot, in a row
        self._judged: dict[int, JobEnd] = {}  # what the end of a slot's last job means

    # In any thread.

    def request_jobs(self, *slots: int) -> None:
        """Submit a job for each of these slots soon, together with others, unless it has one."""
        with self._guard:
            for slot in slots:
                if self._final_error(slot):  # the user wants another attempt
                    self._failures.pop(slot, None)
                self._judged.pop(slot, None)
                if self._live_job(slot) is None and slot not in self._submitted:
                    self._wanted.setdefault(slot, self._clock())

    def slot_status(self, slot: int) -> ProcessStatus:
        """Return the status of a slot's worker."""
        with self._guard:
            return self._slot_status(slot)

    def request_end(self, slot: int) -> bool:
        """Ask the slot's job to end and do not replace it; return whether its worker may be playing.

        The worker is told first; call ``cancel_job`` when it has had its time.
        """
        with self._guard:
            self._wanted.pop(slot, None)
            self._judged.pop(slot, None)
            job = self._live_job(slot)
            running = job is not None and job.state == RUNNING
            if running and job:
                self._to_warn.add(job.id)
            return running

    def cancel_job(self, slot: int) -> None:
        """End the job of a slot, if it has one, and forget it."""
        with self._guard:
            array, _ = self._submitted.pop(slot, (0, 0.0))
            job = self._live_job(slot)
            ids = {f"{array}_{slot}"} if array else set()
            ids |= {job.id} if job else set()
            self._to_cancel |= ids
            self._given_up |= ids

    # In one thread.

    def step(self) -> float:
        """Do what is due; return the seconds until the next step. It raises nothing."""
        try:
            self._end_jobs()
            self._submit_due_jobs()
            self._poll_queue()
        except Exception as error:
            log.exception("the queue of Slurm: unexpected")
            with self._guard:
                self._problem = f"unexpected {type(error).__name__}: {error}; please report it, with the log"
        return STEP_SECONDS

    def end_all(self) -> None:
        """End all jobs of the run.

        Raises:
            ClusterError: Slurm does not answer.
        """
        self._slurm.cancel(*(job.id for job in self.running_jobs()))

    def running_jobs(self) -> list[Job]:
        """Return all jobs of the run that have not ended.

        Raises:
            ClusterError: Slurm does not answer.
        """
        return [job for job in self._slurm.jobs(self._submission.name) if not job.has_ended]

    def _end_jobs(self) -> None:
        """Tell jobs to end; each is told once, as Slurm repeats what it could not deliver."""
        with self._guard:
            warned, cancelled = sorted(self._to_warn), sorted(self._to_cancel)
            self._to_warn, self._to_cancel = set(), set()
        try:
            self._slurm.warn(*warned)
            warned = []
            self._slurm.cancel(*cancelled)
        except ClusterError as error:
            log.warning("jobs cannot be ended yet: %s", error)
            with self._guard:
                self._to_warn |= set(warned)
                self._to_cancel |= set(cancelled)

    def _submit_due_jobs(self) -> None:
        """Submit all slots that are wanted, once no more have come for a moment."""
        with self._guard:
            slots = self._due_slots()
        if not slots:
            return
        try:
            array = self._slurm.submit(self._submission.script, slots, self._submission.options)
        except ClusterError as error:
            self._note_refusal(describe_failure(error))
            return
        with self._guard:
            now, kept = self._clock(), [slot for slot in slots if slot in self._wanted]
            self._refusal, self._refusals = "", 0
            self._submitted |= dict.fromkeys(kept, (array, now))
            self._mine |= {f"{array}_{slot}" for slot in kept}
            stopped = {f"{array}_{slot}" for slot in set(slots) - set(kept)}  # meanwhile
            self._to_cancel |= stopped
            self._given_up |= stopped
            for slot in kept:
                del self._wanted[slot]
        self._log_event(f"job {array} has been submitted to Slurm, for {len(slots)} of the workers")

    def _due_slots(self) -> list[int]:
        now = self._clock()
        if not self._wanted or now < self._submit_at:
            return []
        first, last = min(self._wanted.values()), max(self._wanted.values())
        if now - last < GATHER_SECONDS and now - first < MOST_GATHER_SECONDS:
            return []
        unseen = self._jobs is None or self._problem  # an earlier session may have submitted them
        return [] if unseen else sorted(self._wanted)

    def _note_refusal(self, text: str) -> None:
        if text != self._refusal:
            self._log_event(f"no jobs are submitted to Slurm: {text}")
        with self._guard:
            self._refusal, self._refusals = text, self._refusals + 1
            pause = FIRST_RETRY_SECONDS * 2 ** min(self._refusals - 1, 10)
            self._submit_at = self._clock() + min(pause, MOST_RETRY_SECONDS)

    def _poll_queue(self) -> None:
        """Poll the queue if a poll is due."""
        if self._clock() < self._poll_at:
            return
        self._poll_at = self._clock() + self._poll_seconds
        try:
            found = self._slurm.jobs(self._submission.name)
        except ClusterError as error:
            text = describe_failure(error)
            if text != self._problem:
                self._log_event(f"Slurm's queue cannot be read: {text}")
            with self._guard:
                self._problem = text
            return
        if self._problem:
            self._log_event("Slurm's queue can be read again")
        with self._guard:
            self._problem = ""
            events = self._update_jobs(found)
        for event in events:
            self._log_event(event)

    # With the guard held.

    def _live_job(self, slot: int) -> Job | None:
        job = (self._jobs or {}).get(slot)
        return job if job and not job.has_ended and job.id not in self._given_up else None

    def _slot_status(self, slot: int) -> ProcessStatus:
        if slot in self._wanted:
            return ProcessStatus(running=True, waits="will be submitted to Slurm", error=self._refusal)
        if slot in self._submitted:
            return ProcessStatus(running=True, waits=f"job {self._submitted[slot][0]}_{slot} has been submitted")
        if self._problem:
            return ProcessStatus(running=True, error=f"Slurm's queue cannot be read: {self._problem}")
        if self._jobs is None:
            return ProcessStatus(running=True, waits="Slurm's queue is being polled for its job")
        if job := self._live_job(slot):
            return ProcessStatus(running=True, waits=waiting_text(job), start=job.start, error=stuck_text(job))
        return ProcessStatus(running=False, error=self._final_error(slot))

    def _final_error(self, slot: int) -> str:
        """Return why no other job follows the last one of a slot, with the remedy; empty if one may."""
        end = self._judged.get(slot)
        if end is None or not (end.final or (end.failed and self._failures.get(slot, 0) >= MOST_FAILURES)):
            return ""
        times = "" if end.final else f"{MOST_FAILURES} jobs in a row have failed, the last one: "
        return f"{times}{end.text}; {end.remedy}"

    def _update_jobs(self, found: Sequence[Job]) -> list[str]:
        """Update the jobs by what the queue shows; return the lines for the log."""
        now, events = self._clock(), []
        self._jobs = newest_jobs_by_slot(found, without=self._given_up)
        for slot, (array, since) in list(self._submitted.items()):
            job = self._jobs.get(slot)
            if (job and job.array >= array) or now - since > 2 * self._poll_seconds:
                del self._submitted[slot]
        for slot, job in self._jobs.items():
            if job.id in self._given_up:
                continue
            if not job.has_ended:
                self._mine.add(job.id)
                self._wanted.pop(slot, None)  # an earlier session has submitted it
            elif job.id in self._mine:
                self._mine.discard(job.id)
                events.append(self._note_end(slot, job))
        return events

    def _note_end(self, slot: int, job: Job) -> str:
        """Record that a job of this session has ended; return a line about it."""
        end = judge_end(job)
        self._failures[slot] = self._failures.get(slot, 0) + 1 if end.failed else 0
        if slot not in self._wanted:
            self._judged[slot] = end
        return f"{slot_name(slot)}: {end.text}"
