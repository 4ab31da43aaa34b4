"""The queue of a run's jobs: one poll and one submission for all workers, and what each of them is told."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from keima.cluster.machines.process_manager import ProcessStatus
from keima.cluster.slurm.jobs import Job
from keima.cluster.slurm.queue import FIRST_RETRY_SECONDS, MOST_FAILURES, JobQueue, Submission
from keima.cluster.ssh.errors import RemoteFailure

POLL = 10.0


class Cluster:
    """Slurm, as the test wants it, on a clock of the test."""

    def __init__(self) -> None:
        self.now = 100.0
        self.found: dict[str, Job] = {}
        self.submitted: list[tuple[int, ...]] = []
        self.polls = 0
        self.refusal = ""
        self.silent = False
        self.warned: list[str] = []
        self.cancelled: list[str] = []
        self.events: list[str] = []
        self.queue = self.open_queue()

    def open_queue(self) -> JobQueue:
        submission = Submission(name="keima-run", script=Path("job.sh"), options=("--requeue",))
        return JobQueue(self, submission, poll_seconds=POLL, log_event=self.events.append, clock=lambda: self.now)

    def check(self) -> None:
        raise AssertionError

    def submit(self, script: Path, slots: Sequence[int], options: Sequence[str]) -> int:
        if self.refusal:
            raise RemoteFailure("slurm", self.refusal, "correct it")
        self.submitted.append(tuple(slots))
        array = 10 * len(self.submitted)
        for slot in slots:
            self.put(Job(array=array, slot=slot, state="PENDING", reason="Resources", partition="gpu"))
        return array

    def jobs(self, name: str) -> list[Job]:
        self.polls += 1
        if self.silent:
            raise RemoteFailure("slurm", "squeue: no answer")
        return list(self.found.values())

    def warn(self, *jobs: str) -> None:
        self.warned += jobs

    def cancel(self, *jobs: str) -> None:
        if jobs and self.silent:
            raise RemoteFailure("slurm", "scancel: no answer")
        self.cancelled += jobs

    def put(self, job: Job) -> None:
        self.found[str(job and job.id)] = job

    def change(self, name: str, **changes: object) -> None:
        self.found[name] = replace(self.found[name], **changes)  # type: ignore[arg-type]

    def status(self, slot: int) -> ProcessStatus:
        """Return the status after a step."""
        self.queue.step()
        return self.queue.slot_status(slot)

    def later(self, seconds: float = POLL) -> "Cluster":
        self.now += seconds
        return self

    def start(self, *slots: int) -> None:
        """Bring the slots to the point where their jobs run."""
        for slot in slots:
            assert not self.status(slot).running
            self.queue.request_jobs(slot)
        self.later(2.0).status(slots[0])
        for name in list(self.found):
            self.change(name, state="RUNNING", reason="None", nodes="node7")
        self.later().status(slots[0])
        assert all(self.status(slot).running for slot in slots)


def test_all_workers_are_submitted_as_one_array_and_looked_at_with_one_call() -> None:
    cluster = Cluster()
    for slot in range(1, 65):
        cluster.queue.request_jobs(slot)
        cluster.later(0.01)
    cluster.status(1)
    cluster.later(2.0)
    polls = cluster.polls
    for slot in range(1, 65):
        assert cluster.status(slot).running
    assert cluster.submitted == [tuple(range(1, 65))]
    assert cluster.polls == polls
    cluster.later()
    assert {cluster.status(slot).waits for slot in range(1, 65)} == {
        f"job 10_{slot} waits for resources in partition gpu" for slot in range(1, 65)
    }
    assert cluster.polls == polls + 1


def test_nothing_is_submitted_before_the_queue_was_seen_and_jobs_of_an_earlier_session_are_found_again() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    cluster.queue = cluster.open_queue()
    cluster.queue.request_jobs(1)
    assert cluster.status(1).running and cluster.status(2).running
    cluster.later(5.0).status(1)
    cluster.later().status(1)
    assert cluster.submitted == [(1, 2)]


def test_a_job_that_slurm_queues_again_waits_and_then_has_another_start() -> None:
    cluster = Cluster()
    cluster.start(1)
    first = cluster.status(1)
    assert (first.waits, first.error) == ("", "")
    cluster.change("10_1", state="PENDING", reason="BeginTime", begin="2026-11-25T23:00:00", restarts=1)
    waiting = cluster.later().status(1)
    assert waiting.running and waiting.waits == "job 10_1 waits until 2026-11-25T23:00:00, as Slurm has queued it again"
    cluster.change("10_1", state="RUNNING", reason="None")
    second = cluster.later().status(1)
    assert second.running and not second.waits and second.start != first.start
    assert cluster.submitted == [(1,)]


def test_a_job_at_its_time_limit_is_followed_by_another() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    for state in ("TIMEOUT", "COMPLETED", "PREEMPTED", "NODE_FAIL"):
        name = f"{10 * len(cluster.submitted)}_1"
        cluster.change(name, state=state)
        status = cluster.later().status(1)
        assert (status.running, status.error) == (False, "")
        assert any(f"slurm-1: job {name}" in event for event in cluster.events)
        cluster.queue.request_jobs(1)
        assert cluster.later(2.0).status(1).running
        cluster.later().status(1)
    assert cluster.submitted == [(1, 2), (1,), (1,), (1,), (1,)]


def test_a_cancelled_job_is_an_error_that_lasts_until_the_user_wants_another() -> None:
    cluster = Cluster()
    cluster.start(3)
    cluster.change("10_3", state="CANCELLED")
    for _ in range(3):
        status = cluster.later().status(3)
        assert not status.running
        assert "job 10_3 was cancelled on node7" in status.error and "keima cluster restart slurm-3" in status.error
    cluster.queue.request_jobs(3)
    assert cluster.later(2.0).status(3).running
    assert not cluster.status(3).error and cluster.submitted == [(3,), (3,)]
    assert len([event for event in cluster.events if "cancelled" in event]) == 1


def test_a_job_that_was_cancelled_in_an_earlier_session_is_followed_by_another() -> None:
    cluster = Cluster()
    cluster.put(Job(array=4, slot=1, state="CANCELLED"))
    status = cluster.status(1)
    assert (status.running, status.error) == (False, "")


def test_jobs_that_fail_are_tried_three_times_and_then_shown_with_the_reason() -> None:
    cluster = Cluster()
    cluster.start(1)
    for attempt in range(1, MOST_FAILURES + 1):
        cluster.change(f"{10 * attempt}_1", state="FAILED", reason="NonZeroExitCode", exit_code=1, nodes="node9")
        status = cluster.later().status(1)
        assert not status.running
        assert bool(status.error) == (attempt == MOST_FAILURES)
        if attempt < MOST_FAILURES:
            cluster.queue.request_jobs(1)
            cluster.later(2.0).status(1)
            cluster.later().status(1)
    assert "3 jobs in a row have failed" in status.error and "on node9 (exit code 1)" in status.error
    cluster.queue.request_jobs(1)  # the user's restart: attempts count anew
    cluster.later(2.0).status(1)
    cluster.change("40_1", state="FAILED", exit_code=1)
    assert not cluster.later().status(1).error


def test_a_node_without_the_folder_is_an_error_at_once_with_the_remedy() -> None:
    cluster = Cluster()
    cluster.start(1)
    cluster.change("10_1", state="FAILED", exit_code=101, nodes="node2")
    error = cluster.later().status(1).error
    assert "on node2: the run's folder of workers is missing" in error and "distributed.slurm.directory" in error


def test_a_refused_submission_is_shown_with_slurm_s_words_and_tried_again_later_and_later() -> None:
    cluster = Cluster()
    cluster.status(1)
    cluster.queue.request_jobs(1)
    cluster.refusal = "sbatch: invalid account"
    cluster.later(2.0).status(1)
    status = cluster.status(1)
    assert status.running and status.error == "sbatch: invalid account; correct it"
    cluster.refusal = ""
    cluster.later(FIRST_RETRY_SECONDS - 1.0).status(1)
    assert not cluster.submitted
    cluster.later(1.0).status(1)
    assert cluster.submitted == [(1,)] and not cluster.status(1).error
    assert len(cluster.events) == 2


def test_a_queue_that_cannot_be_seen_is_an_error_and_nothing_is_submitted_meanwhile() -> None:
    cluster = Cluster()
    cluster.start(1)
    cluster.silent = True
    status = cluster.later().status(1)
    assert status.running and status.error == "Slurm's queue cannot be read: squeue: no answer"
    cluster.queue.request_jobs(2)
    for _ in range(5):
        cluster.later().status(2)
    assert cluster.submitted == [(1,)]
    cluster.silent = False
    assert cluster.later().status(1).error == ""
    cluster.status(2)
    assert cluster.submitted == [(1,), (2,)]


def test_an_error_of_ours_is_shown_and_does_not_end_the_thread_that_steps_the_queue() -> None:
    cluster = Cluster()
    cluster.start(1)
    cluster.put(None)  # type: ignore[arg-type]
    assert "unexpected AttributeError" in cluster.later().status(1).error
    del cluster.found["None"]
    assert not cluster.later().status(1).error


def test_a_job_that_was_told_to_end_no_longer_counts_even_while_it_is_ending() -> None:
    cluster = Cluster()
    cluster.start(1, 2)
    assert cluster.queue.request_end(1)
    cluster.queue.step()
    assert (cluster.warned, cluster.cancelled) == (["10_1"], [])
    cluster.queue.cancel_job(1)
    cluster.queue.step()
    assert cluster.cancelled == ["10_1"]
    cluster.change("10_1", state="COMPLETING")
    assert not cluster.later().status(1).running
    cluster.queue.request_jobs(1)
    cluster.later(2.0).status(1)
    cluster.change("10_1", state="CANCELLED")
    status = cluster.later().status(1)
    assert status.running and "job 20_1" in status.waits and not status.error
    assert cluster.status(2).running


def test_many_jobs_are_ended_by_one_call_and_again_if_slurm_did_not_answer() -> None:
    cluster = Cluster()
    cluster.start(1, 2, 3)
    cluster.silent = True
    for slot in (1, 2, 3):
        cluster.queue.cancel_job(slot)
    cluster.queue.step()
    assert not cluster.cancelled
    cluster.silent = False
    cluster.queue.step()
    assert cluster.cancelled == ["10_1", "10_2", "10_3"]


def test_a_job_that_waits_or_has_just_been_submitted_is_cancelled_without_a_warning() -> None:
    cluster = Cluster()
    cluster.status(1)
    cluster.queue.request_jobs(1, 2)
    cluster.later(2.0).status(1)  # submitted, and not seen yet
    assert not cluster.queue.request_end(1)
    cluster.queue.cancel_job(1)
    cluster.later().status(2)
    assert not cluster.queue.request_end(2)
    cluster.queue.cancel_job(2)
    cluster.queue.step()
    assert (cluster.warned, sorted(cluster.cancelled)) == ([], ["10_1", "10_2"])
    assert not cluster.status(1).running and not cluster.status(2).running


def test_a_worker_that_is_stopped_before_its_job_is_submitted_has_none() -> None:
    cluster = Cluster()
    cluster.status(1)
    cluster.queue.request_jobs(1, 2)
    assert not cluster.queue.request_end(1)
    cluster.queue.cancel_job(1)
    cluster.later(2.0).status(1)
    assert cluster.submitted == [(2,)] and not cluster.cancelled


def test_a_job_that_is_held_is_an_error_that_goes_when_it_is_released() -> None:
    cluster = Cluster()
    cluster.start(1)
    cluster.change("10_1", state="PENDING", reason="JobHeldAdmin", restarts=1)
    status = cluster.later().status(1)
    assert (
        status.running and status.waits and "held back (JobHeldAdmin); ask the cluster's administrators" in status.error
    )
    cluster.change("10_1", reason="Priority")
    status = cluster.later().status(1)
    assert status.waits == "job 10_1 waits behind other jobs in partition gpu" and not status.error
