"""The settings of workers in jobs of a Slurm cluster."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from keima.config.sections.types import Line, Section, as_tuple, matching

SlurmWord = Annotated[str, Field(max_length=1000), matching(r"[^\s-]\S*", "one word")]


SlurmOption = Annotated[
    str, Field(max_length=1000), matching(r"--?[A-Za-z][^\x00-\x1f\x7f]*", "an option of sbatch, such as --nice=100")
]


SLURM_TIME = re.compile(r"(?:([0-9]{1,4})-)?([0-9]{1,6})(?::([0-9]{1,6}))?(?::([0-9]{1,6}))?")


# Options of sbatch that are given by other settings, or by which jobs are found and watched.
SLURM_TAKEN = re.compile(
    r"--(array|job-name|parsable|wrap|wait|signal|requeue|no-requeue|output|error|open-mode|chdir|test-only|clusters)\b"
    r"|-[aJWoeDM]"
)


SLURM_NAME = "slurm"  # the workers are slurm-1, slurm-2 ...


SLURM_WORKER = re.compile(rf"{SLURM_NAME}(-[0-9]+)*")


def slurm_seconds(text: str) -> int:
    """Return the seconds of a time as Slurm writes it.

    Raises:
        ValueError: it is none.
    """
    found = SLURM_TIME.fullmatch(text)
    if not found:
        raise ValueError(f"expected a time as Slurm writes it, such as 4:00:00 or 2-12:00:00, found {text!r}")
    days, *parts = (int(part) if part else None for part in found.groups())
    numbers = [part for part in parts if part is not None]
    if days is None and len(numbers) < 3:  # minutes, or minutes and seconds
        numbers = [0, *numbers]
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return (((days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _slurm_time(text: str) -> str:
    slurm_seconds(text)
    return text


class SlurmSettings(Section):
    """Self-play in jobs of a Slurm cluster: an array of jobs with one worker each."""

    count: Annotated[int, Field(ge=1, le=1000)]
    """Jobs, each with one worker: slurm-1 to slurm-16; required."""
    partition: SlurmWord | None = None
    """Partition; here and below, null means what Slurm has by default."""
    time: Annotated[str, AfterValidator(_slurm_time)] | None = None
    """Time limit of a job, as for sbatch; when it ends, a new job follows."""
    gpus: Annotated[int, Field(ge=0, le=1)] = 0
    """GPUs per job: 0, the default, or 1."""
    gpu_type: SlurmWord | None = None
    """Type of the GPU, such as a100."""
    cpus: Annotated[int, Field(ge=1, le=1024)] = 1
    """Cores per job."""
    memory: Annotated[str, matching(r"[1-9][0-9]*[KMGT]?", "memory as Slurm writes it, such as 4G")] | None = None
    """Memory per job, such as 4G."""
    account: SlurmWord | None = None
    """Account that is charged."""
    qos: SlurmWord | None = None
    """Quality of service."""
    constraint: SlurmWord | None = None
    """Features that a node must have."""
    options: Annotated[tuple[SlurmOption, ...], BeforeValidator(as_tuple)] = ()
    """More options of sbatch, such as [--nice=100, --exclude=node7]."""
    setup: Annotated[tuple[Line, ...], BeforeValidator(as_tuple)] = ()
    """Shell lines before the worker starts, such as [module load python/3.11]."""
    directory: Line | None = None
    """Folder that all nodes share; null: slurm in the run's folder."""
    python: Line | None = None
    """Interpreter on the nodes; null: the one that runs the Coach."""
    warning_seconds: Annotated[int, Field(ge=10, le=3600)] = 60
    """Seconds before the time limit, in which a worker hands over its games."""
    poll_seconds: Annotated[float, Field(ge=1, le=600)] = 10.0
    """Seconds between polls of the queue, one for all jobs."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.time and slurm_seconds(self.time) < 2 * self.warning_seconds:
            raise ValueError(f"time ({self.time}) must be at least twice warning_seconds ({self.warning_seconds})")
        if self.gpu_type and not self.gpus:
            raise ValueError(f"gpu_type ({self.gpu_type}) needs gpus: 1")
        for option in self.options:
            if taken := SLURM_TAKEN.match(option):
                raise ValueError(f"options: {taken[0]} cannot be set here: Keima finds the jobs of a run by it")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the workers."""
        return tuple(f"{SLURM_NAME}-{number}" for number in range(1, self.count + 1))
