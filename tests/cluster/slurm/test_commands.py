"""Slurm's commands, with stand-ins: what is called, and what is said when they fail."""

from pathlib import Path

import pytest

from keima.cluster.slurm.commands import Slurm, remedy_for
from keima.cluster.ssh.errors import Refused, RemoteFailure


class Programs:
    """Programs in place of Slurm's."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self, name: str, script: str) -> None:
        (self.root / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.root / name).chmod(0o700)

    def slurm(self, *, seconds: float = 20.0, **variables: str) -> Slurm:
        return Slurm(environment={"PATH": f"{self.root}:/usr/bin:/bin", **variables}, seconds=seconds)


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def test_the_array_s_id_is_read_even_if_the_site_prints_more(programs: Programs) -> None:
    programs.make("sbatch", "echo Welcome to the cluster; echo '812;main'")
    assert programs.slurm().submit(Path("job.sh"), [1, 2, 5], []) == 812


def test_a_submission_without_an_id_is_an_error(programs: Programs) -> None:
    programs.make("sbatch", "echo Submitted")
    with pytest.raises(RemoteFailure, match="returned no job id; it printed: Submitted"):
        programs.slurm().submit(Path("job.sh"), [1], [])


def test_a_coach_in_a_job_does_not_pass_its_own_resources_on(programs: Programs) -> None:
    programs.make(
        "sbatch",
        'echo "$SLURM_JOB_ID$SLURM_MEM_PER_NODE$CUDA_VISIBLE_DEVICES$OMP_NUM_THREADS$SLURM_CONF" >&2; exit 1',
    )
    inside = {"SLURM_JOB_ID": "5", "SLURM_MEM_PER_NODE": "9", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "8"}
    with pytest.raises(RemoteFailure) as found:
        programs.slurm(**inside, SLURM_CONF="/etc/s.conf").submit(Path("job.sh"), [1], [])
    assert found.value.what == "sbatch: /etc/s.conf"


def test_a_missing_command_is_refused_with_the_remedy(programs: Programs) -> None:
    with pytest.raises(Refused, match=r"Slurm's sbatch is not found on this machine; start the run on"):
        Slurm(environment={"PATH": str(programs.root)}).check()


def test_a_command_that_hangs_is_given_up(programs: Programs) -> None:
    programs.make("squeue", "exec sleep 60")
    with pytest.raises(RemoteFailure, match=r"squeue has not ended after 0\.5 s; it is retried"):
        programs.slurm(seconds=0.5).jobs("keima-run")


def test_a_queue_that_cannot_be_understood_is_an_error(programs: Programs) -> None:
    programs.make("squeue", "echo nonsense")
    with pytest.raises(RemoteFailure, match="the output of squeue is invalid: 'nonsense'"):
        programs.slurm().jobs("keima-run")


def test_cancelling_nothing_calls_nothing(programs: Programs) -> None:
    programs.slurm().cancel()


@pytest.mark.parametrize(
    ("said", "remedy"),
    [  # of Slurm 22.05.8
        ("invalid partition specified: nope", "sinfo lists the partitions"),
        ("Batch job submission failed: Invalid feature specification", "distributed.slurm.constraint"),
        ("Invalid generic resource (gres) specification", "distributed.slurm.gpus"),
        ("Memory specification can not be satisfied", "distributed.slurm.memory"),
        ("Batch job submission failed: Requested node configuration is not available", "sinfo -N -l"),
        ("unrecognized option '--nonsense'", "distributed.slurm.options"),
        ("Batch job submission failed: Invalid job array specification", "distributed.slurm.count"),
        ("Batch job submission failed: Invalid account or account/partition combination specified", "slurm.account"),
        ("Unable to contact slurm controller (connect failure)", "scontrol ping"),
    ],
)
def test_what_slurm_says_has_a_remedy(said: str, remedy: str) -> None:
    assert remedy in remedy_for(said)
