"""Slurm's commands sbatch, squeue and scancel, and the remedies for their errors."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from keima.base.reports.text import printable_line
from keima.cluster.slurm.jobs import FORMAT, Job, array_ranges, parse_jobs
from keima.cluster.ssh.errors import Refused, RemoteFailure
from keima.config.sections.slurm import SLURM_NAME

COMMANDS = ("sbatch", "squeue", "scancel")
SECONDS = 30.0  # for a command; a busy controller takes several
TEXT = 500  # characters of what a command says
NO_SLURM = "start the run on a machine of the cluster, such as its login node, or add the folder of {name} to PATH"
REMEDIES = {  # by what the commands say
    r"invalid partition": "correct distributed.slurm.partition: sinfo lists the partitions",
    r"invalid account|account/partition": "correct distributed.slurm.account, or the partition that it may use",
    r"invalid qos|invalid quality": "correct distributed.slurm.qos",
    r"invalid feature|constraint": "correct distributed.slurm.constraint: sinfo -o %f lists the features of nodes",
    r"time limit": "lower distributed.slurm.time: sinfo -o '%P %l' lists the limits of partitions",
    r"invalid generic resource|gres": "correct distributed.slurm.gpus and gpu_type: sinfo -o '%P %G' lists them",
    r"memory": "lower distributed.slurm.memory",
    r"node configuration is not available|more processors|node count": (
        "no node has what distributed.slurm asks for in cpus, gpus and memory: see sinfo -N -l"
    ),
    r"job array": "lower distributed.slurm.count below MaxArraySize: scontrol show config | grep MaxArraySize",
    r"job submit limit|QOS policy|MaxSubmit|accounting": (
        "the limits of your account do not allow it: lower distributed.slurm.count or time, or choose another qos"
    ),
    r"unrecognized option|invalid option|invalid argument": "correct distributed.slurm.options: see sbatch --help",
    r"unable to contact|connect failure|connection refused|not responding|communication|timed out": (
        "it is retried; scontrol ping shows whether Slurm's controller runs"
    ),
    r"munge|authentication": "it is retried; this machine's munged must run, with the cluster's key",
}
NOT_PASSED_ON = re.compile(r"SLURM_(?!CONF$)|CUDA_VISIBLE_DEVICES$|(OMP|MKL|NUMBA)_NUM_THREADS$")


class Slurm:
    """Slurm's commands on this machine.

    Args:
        environment: variables of the commands; by default this process's.
        seconds: the time limit of a command.
    """

    def __init__(self, *, environment: Mapping[str, str] | None = None, seconds: float = SECONDS) -> None:
        given = os.environ if environment is None else environment
        # Of a Coach that is a job itself, its resources are not those of the workers.
        self._environment = {name: value for name, value in given.items() if not NOT_PASSED_ON.match(name)}
        self._seconds = seconds

    def check(self) -> None:
        """Check that the commands are there.

        Raises:
            Refused: one is not.
        """
        for name in COMMANDS:
            if shutil.which(name, path=self._environment.get("PATH")) is None:
                raise Refused(SLURM_NAME, f"Slurm's {name} is not found on this machine", NO_SLURM.format(name=name))

    def submit(self, script: Path, slots: Sequence[int], options: Sequence[str]) -> int:
        """Submit an array with a job for each slot; return its id.

        Raises:
            RemoteFailure: Slurm refuses it or does not answer.
        """
        said = self._run(["sbatch", "--parsable", f"--array={array_ranges(slots)}", *options, str(script)])
        number = said.strip().rpartition("\n")[2].partition(";")[0]  # a site may print more before it
        if not number.isdecimal():
            raise RemoteFailure(SLURM_NAME, f"sbatch returned no job id; it printed: {printable_line(said[-TEXT:])}")
        return int(number)

    def jobs(self, name: str) -> list[Job]:
        """Return the user's jobs of this name, also those that have ended lately.

        Raises:
            RemoteFailure: Slurm does not answer.
        """
        mine = ["--noheader", "--array", "--states=all", f"--user={os.getuid()}", f"--name={name}"]
        said = self._run(["squeue", *mine, f"--Format={FORMAT}"])
        try:
            return parse_jobs(said)
        except ValueError as error:
            raise RemoteFailure(SLURM_NAME, f"the output of squeue is invalid: {printable_line(str(error))}") from error

    def warn(self, *jobs: str) -> None:
        """Send SIGTERM to the workers of jobs, which then deliver their games and exit; other jobs are not affected.

        Raises:
            RemoteFailure: Slurm does not answer.
        """
        if jobs:
            self._run(["scancel", "--quiet", "--batch", "--signal=TERM", *jobs])

    def cancel(self, *jobs: str) -> None:
        """End jobs: SIGTERM, and after Slurm's KillWait SIGKILL; those that have ended are left alone.

        Raises:
            RemoteFailure: Slurm does not answer.
        """
        if jobs:
            self._run(["scancel", "--quiet", *jobs])

    def _run(self, argv: Sequence[str]) -> str:
        """Return what a command prints.

        Raises:
            Refused: there is no such command.
            RemoteFailure: it fails.
        """
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._seconds,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for us alone
            )
        except FileNotFoundError as error:
            raise Refused(
                SLURM_NAME, f"Slurm's {argv[0]} is not found on this machine", NO_SLURM.format(name=argv[0])
            ) from error
        except subprocess.TimeoutExpired as error:
            text = f"{argv[0]} has not ended after {self._seconds:g} s"
            raise RemoteFailure(SLURM_NAME, text, remedy_for("timed out")) from error
        except OSError as error:
            raise RemoteFailure(SLURM_NAME, f"{argv[0]} cannot be run: {error}") from error
        if done.returncode:
            said = printable_line((done.stderr or done.stdout).decode("utf-8", "replace")[-TEXT:])
            text = said.removeprefix(f"{argv[0]}: ").removeprefix("error: ") or f"it ended with {done.returncode}"
            raise RemoteFailure(SLURM_NAME, f"{argv[0]}: {text}", remedy_for(text))
        return done.stdout.decode("utf-8", "replace")


def remedy_for(text: str) -> str:
    """Return the remedy for an error message of a command; empty if that is unknown."""
    found = (remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, text, re.IGNORECASE))
    return next(found, "")
