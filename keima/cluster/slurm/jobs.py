"""Slurm's jobs as squeue lists them, and what their states mean for a worker. All functions here are pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from keima.base.reports.text import printable_line
from keima.config.sections.slurm import SLURM_NAME

# Of squeue's --Format, with the most characters of each. A bar follows each: names of nodes and partitions hold none.
FIELDS = {
    "ArrayJobID": 20,
    "ArrayTaskID": 20,
    "State": 30,
    "Reason": 100,
    "NodeList": 100,
    "Partition": 100,
    "StartTime": 30,
    "RestartCnt": 20,
    "exit_code": 20,
}
FORMAT = ",".join(f"{field}:{size}|" for field, size in FIELDS.items())

RUNNING = "RUNNING"
ENDED = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
    )
)
ENDING = "COMPLETING"

# Exit codes of the job's script (``script.py``), with what is wrong and the remedy.
NOT_SHARED, NO_PYTHON, NO_GPU = 101, 102, 103
FAILURES = {
    NOT_SHARED: (
        "the run's folder of workers is missing",
        "set distributed.slurm.directory to a folder that all nodes of the partition share",
    ),
    NO_PYTHON: (
        "its Python cannot be run there, or is older than 3.11",
        "set distributed.slurm.python to one that all nodes have, or load it in distributed.slurm.setup",
    ),
    NO_GPU: (
        "Slurm has assigned it no GPU (CUDA_VISIBLE_DEVICES is not set)",
        "request one as this cluster requires, with distributed.slurm.options, or set gpus: 0",
    ),
}

# Why a job waits for now, by Slurm's reason.
WAITS = {
    "Resources": "waits for resources in partition {partition}",
    "Priority": "waits behind other jobs in partition {partition}",
    "BeginTime": "waits until {begin}, as Slurm has queued it again",
    "None": "waits in partition {partition}",
    "Prolog": "is being prepared on {nodes}",
}
# Why a job waits until somebody changes something, by Slurm's reason, with the remedy.
STUCK = {
    r"JobHeldUser": "scontrol release {id} lets it start",
    r"JobHeldAdmin": "ask the cluster's administrators",
    r"JobHoldMaxRequeue|launch failed requeued held|.*requeued held": (
        "it repeatedly failed to start: see the log of slurmd on its node, then scontrol release {id}"
    ),
    r"PartitionTimeLimit|.*WallDuration.*|TimeLimit": "lower distributed.slurm.time to what {partition} allows",
    r"PartitionNodeLimit|BadConstraints|NodeNotAvail|ReqNodeNotAvail.*UnavailableNodes.*": (
        "no node of {partition} can run it: see sinfo, and distributed.slurm.constraint, gpus, cpus and memory"
    ),
    r"PartitionConfig": (
        "it requests more time, cores or memory than {partition} allows: see scontrol show partition {partition}"
    ),
    r"InvalidAccount|AccountNotAllowed": "correct distributed.slurm.account",
    r"InvalidQOS|QOSNotAllowed": "correct distributed.slurm.qos",
    r".*PerJobLimit": "lower what distributed.slurm asks for each job",
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job of an array, as squeue lists it."""

    array: int  # the array's id
    slot: int  # the number of its worker
    state: str  # Slurm's word
    reason: str = ""  # why it waits, or why it ended
    nodes: str = ""
    partition: str = ""
    begin: str = ""  # when it began, or may begin
    restarts: int = 0  # how often Slurm has queued it again
    exit_code: int = 0
    signal: int = 0  # that ended it

    @property
    def id(self) -> str:
        """Its id in scancel's notation."""
        return f"{self.array}_{self.slot}"

    @property
    def has_ended(self) -> bool:
        """Whether it will never run again."""
        return self.state in ENDED

    @property
    def start(self) -> str:
        """Identifies a start, also among several starts of the same job."""
        return f"{self.id}.{self.restarts}"


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """The meaning of a job's end."""

    text: str
    remedy: str = ""
    final: bool = False  # another job must not follow before the user wants it
    failed: bool = False  # its worker could not play


def parse_jobs(text: str) -> list[Job]:
    """Return the jobs in the output of squeue with ``FORMAT``.

    Raises:
        ValueError: a line is not a job.
    """
    return [_parse_job(line) for line in text.splitlines() if line.strip()]


def _parse_job(line: str) -> Job:
    fields = [field.strip() for field in line.split("|")]
    if len(fields) != len(FIELDS) + 1 or fields[-1]:
        raise ValueError(f"{line[:200]!r} is not a line of squeue --Format")
    array, slot, state, reason, nodes, partition, begin, restarts, status = fields[:-1]
    code, signal = parse_exit_status(status)
    return Job(
        array=int(array),
        slot=int(slot) if slot.isdecimal() else 0,  # N/A: not of an array
        state=state,
        reason=reason,
        nodes=nodes,
        partition=partition,
        begin="" if begin == "N/A" else begin,
        restarts=int(restarts),
        exit_code=code,
        signal=signal,
    )


def parse_exit_status(text: str) -> tuple[int, int]:
    """Return exit code and signal from either form in which versions of Slurm print them: ``1:0``, or the status of
    wait(2).
    """
    code, separator, signal = text.partition(":")
    if separator:
        return int(code), int(signal)
    return (int(text) >> 8) & 0xFF, int(text) & 0x7F


def newest_jobs_by_slot(jobs: Iterable[Job], *, without: frozenset[str] | set[str] = frozenset()) -> dict[int, Job]:
    """Return the job of each slot: the newest that has not ended, else the newest.

    Args:
        jobs: all of the run.
        without: ids of jobs that count as ended.
    """
    found: dict[int, Job] = {}
    for job in sorted(jobs, key=lambda job: (not job.has_ended and job.id not in without, job.array)):
        found[job.slot] = job
    return found


def waiting_text(job: Job) -> str:
    """Return what the job of a worker waits for; empty if it runs."""
    if job.state == RUNNING:
        return ""
    nodes = job.nodes or "its node"
    if job.state == "PENDING":
        known = WAITS.get(job.reason, "waits in partition {partition}: {reason}")
        text = known.format(
            partition=job.partition, begin=job.begin or "later", reason=printable_line(job.reason), nodes=nodes
        )
    elif job.state == "CONFIGURING":
        text = f"waits for {nodes} to boot"
    elif job.state == "SUSPENDED":
        text = f"is suspended on {nodes}"
    elif job.state == ENDING:
        text = f"is ending on {nodes}"
    else:
        text = f"is {job.state.lower()}" + (f" ({printable_line(job.reason)})" if job.reason != "None" else "")
    return f"job {job.id} {text}"


def stuck_text(job: Job) -> str:
    """Return why a job will not start until somebody intervenes, with the remedy; empty if it may start."""
    if job.state not in ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT"):
        return ""
    for pattern, remedy in STUCK.items():
        if re.fullmatch(pattern, job.reason.strip("()"), re.IGNORECASE):
            told = remedy.format(id=job.id, partition=job.partition)
            again = f"keima cluster restart {slot_name(job.slot)}"
            return f"job {job.id} is held back ({printable_line(job.reason)}); {told}; then {again}"
    return ""


def judge_end(job: Job) -> JobEnd:
    """Return the meaning of a job's end for its worker."""
    where = f" on {job.nodes}" if job.nodes else ""
    again = f"keima cluster restart {slot_name(job.slot)} submits another"
    match job.state:
        case "CANCELLED":
            return JobEnd(
                text=f"job {job.id} was cancelled{where}, by scancel or an administrator", remedy=again, final=True
            )
        case "OUT_OF_MEMORY":
            remedy = f"raise distributed.slurm.memory; then {again}"
            return JobEnd(text=f"job {job.id} needed more memory than it has{where}", remedy=remedy, final=True)
        case "DEADLINE":
            return JobEnd(text=f"job {job.id} could not end before its deadline", remedy=again, final=True)
        case "FAILED" | "LAUNCH_FAILED":
            return _failed_end(job, where, again)
        case "TIMEOUT":
            return JobEnd(text=f"job {job.id} reached its time limit{where}")
        case "COMPLETED":
            return JobEnd(text=f"job {job.id} has ended{where}")
    return JobEnd(text=f"job {job.id} was ended by Slurm{where} ({job.state})")


def _failed_end(job: Job, where: str, again: str) -> JobEnd:
    if job.exit_code in FAILURES:
        what, remedy = FAILURES[job.exit_code]
        return JobEnd(text=f"job {job.id} failed{where}: {what}", remedy=f"{remedy}; then {again}", final=True)
    if job.reason == "JobLaunchFailure":  # such as an output file that cannot be written there
        what, remedy = FAILURES[NOT_SHARED]
        text = f"job {job.id} could not be launched{where}; perhaps {what}"
        return JobEnd(text=text, remedy=f"{remedy}, or see the log of slurmd there; then {again}", final=True)
    how = f"signal {job.signal}" if job.signal else f"exit code {job.exit_code}"
    reason = "" if job.reason in ("", "None", "NonZeroExitCode") else f", {printable_line(job.reason)}"
    return JobEnd(text=f"job {job.id} failed{where} ({how}{reason})", remedy=again, failed=True)


def slot_name(slot: int) -> str:
    """Return the name of a worker."""
    return f"{SLURM_NAME}-{slot}"


def slot_number(name: str) -> int:
    """Return the number of a worker; 0 if it has none."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def array_ranges(slots: Iterable[int]) -> str:
    """Return slots as sbatch's --array takes them: ``1-3,7``."""
    spans: list[list[int]] = []
    for slot in sorted(set(slots)):
        if spans and spans[-1][1] == slot - 1:
            spans[-1][1] = slot
        else:
            spans.append([slot, slot])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)
