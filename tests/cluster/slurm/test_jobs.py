"""What squeue prints, and what the states of jobs mean."""

import pytest

from keima.cluster.slurm.jobs import (
    Job,
    array_ranges,
    judge_end,
    newest_jobs_by_slot,
    parse_exit_status,
    parse_jobs,
    stuck_text,
    waiting_text,
)

RECORDED = """\
1    |1    |RUNNING    |None             |node2  |debug  |2026-11-25T22:04:48  |1  |0      |
1    |2    |COMPLETED  |None             |node2  |debug  |2026-11-25T22:04:23  |0  |0      |
1    |3    |CANCELLED  |None             |node1  |debug  |2026-11-25T22:04:31  |0  |0      |
1    |4    |PENDING    |Resources        |       |debug  |N/A                  |1  |0      |
4    |5    |PENDING    |JobHeldUser      |       |debug  |N/A                  |0  |0      |
12   |6    |FAILED     |JobLaunchFailure |node1  |debug  |2026-11-25T22:04:52  |0  |4021   |
13   |7    |FAILED     |NonZeroExitCode  |node1  |debug  |2026-11-25T22:04:56  |0  |25856  |
"""  # of Slurm 22.05.8, with shorter fields


def test_the_queue_of_a_real_cluster_is_read() -> None:
    jobs = {job.id: job for job in parse_jobs(RECORDED)}
    assert list(jobs) == ["1_1", "1_2", "1_3", "1_4", "4_5", "12_6", "13_7"]
    assert (jobs["1_1"].nodes, jobs["1_1"].restarts, jobs["1_1"].start) == ("node2", 1, "1_1.1")
    assert [job.id for job in jobs.values() if not job.has_ended] == ["1_1", "1_4", "4_5"]
    assert waiting_text(jobs["1_4"]) == "job 1_4 waits for resources in partition debug"
    assert stuck_text(jobs["4_5"]) and not stuck_text(jobs["1_4"])
    assert "distributed.slurm.directory" in judge_end(jobs["12_6"]).remedy
    assert "distributed.slurm.directory" in judge_end(jobs["13_7"]).remedy


@pytest.mark.parametrize("text", ["1|2|RUNNING|", "slurm_load_jobs error: Socket timed out", "x|1|RUNNING||||||0:0|"])
def test_text_that_is_no_queue_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a line of squeue|invalid literal"):
        parse_jobs(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0:0", (0, 0)), ("101:0", (101, 0)), ("0:15", (0, 15)), ("25856", (101, 0)), ("15", (0, 15))],
)
def test_an_exit_code_is_read_in_both_forms_that_slurm_prints(text: str, expected: tuple[int, int]) -> None:
    assert parse_exit_status(text) == expected


def test_of_several_jobs_of_a_worker_the_newest_that_lives_counts() -> None:
    jobs = [Job(array=array, slot=1, state=state) for array, state in ((7, "RUNNING"), (9, "FAILED"), (8, "PENDING"))]
    assert newest_jobs_by_slot(jobs)[1].array == 8
    assert newest_jobs_by_slot(jobs, without={"8_1"})[1].array == 7
    assert newest_jobs_by_slot(jobs[1:2])[1].array == 9


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("RUNNING", "None", ""),
        ("PENDING", "Resources", "job 12_3 waits for resources in partition gpu"),
        ("PENDING", "Priority", "job 12_3 waits behind other jobs in partition gpu"),
        ("PENDING", "QOSMaxCpuPerUserLimit", "job 12_3 waits in partition gpu: QOSMaxCpuPerUserLimit"),
        ("PENDING", "a\x1b[31mb", "job 12_3 waits in partition gpu: a [31mb"),
        ("CONFIGURING", "None", "job 12_3 waits for node5 to boot"),
        ("SUSPENDED", "None", "job 12_3 is suspended on node5"),
        ("COMPLETING", "None", "job 12_3 is ending on node5"),
        ("STAGE_OUT", "None", "job 12_3 is stage_out"),
    ],
)
def test_what_a_job_waits_for_is_said_in_words(state: str, reason: str, expected: str) -> None:
    assert waiting_text(Job(array=12, slot=3, state=state, reason=reason, partition="gpu", nodes="node5")) == expected


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("JobHeldUser", "scontrol release 12_3"),
        ("PartitionTimeLimit", "lower distributed.slurm.time"),
        ("QOSMaxWallDurationPerJobLimit", "lower distributed.slurm.time"),
        ("(launch failed requeued held)", "scontrol release 12_3"),
        ("BadConstraints", "distributed.slurm.constraint"),
        ("PartitionConfig", "see scontrol show partition gpu"),
        ("InvalidAccount", "distributed.slurm.account"),
    ],
)
def test_a_job_that_nobody_will_ever_start_is_said_to_be_held_back_with_the_remedy(reason: str, remedy: str) -> None:
    text = stuck_text(Job(array=12, slot=3, state="PENDING", reason=reason, partition="gpu"))
    assert remedy in text and "then keima cluster restart slurm-3" in text


@pytest.mark.parametrize(
    ("state", "reason"), [("PENDING", "Resources"), ("PENDING", "AssocGrpCpuLimit"), ("RUNNING", "None")]
)
def test_a_job_that_may_begin_is_not_held_back(state: str, reason: str) -> None:
    assert not stuck_text(Job(array=12, slot=3, state=state, reason=reason))


@pytest.mark.parametrize(
    ("state", "code", "final", "failed"),
    [
        ("COMPLETED", 0, False, False),
        ("TIMEOUT", 0, False, False),
        ("PREEMPTED", 0, False, False),
        ("NODE_FAIL", 0, False, False),
        ("CANCELLED", 0, True, False),
        ("OUT_OF_MEMORY", 0, True, False),
        ("FAILED", 1, False, True),
        ("FAILED", 102, True, False),
    ],
)
def test_an_end_that_another_job_would_not_repeat_is_followed_by_one(
    state: str, code: int, final: bool, failed: bool
) -> None:
    end = judge_end(Job(array=12, slot=3, state=state, exit_code=code, nodes="node5"))
    assert (end.final, end.failed) == (final, failed)
    assert bool(end.remedy) == (final or failed)


@pytest.mark.parametrize(
    ("slots", "expected"), [([1], "1"), ([1, 2, 3], "1-3"), ([7, 1, 3, 2, 9, 10], "1-3,7,9-10"), ([2, 2], "2")]
)
def test_slots_are_written_as_an_array(slots: list[int], expected: str) -> None:
    assert array_ranges(slots) == expected
