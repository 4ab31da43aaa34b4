"""The scripts of a job, run by bash with a Python that tells what it is given."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from keima.cluster.slurm import script
from keima.cluster.slurm.jobs import NO_GPU, NO_PYTHON, NOT_SHARED
from keima.cluster.slurm.script import job_script, sbatch_options, worker_script
from keima.config.sections.slurm import SlurmSettings

PYTHON = """#!/bin/sh
[ "$1" = -c ] && exit 0
echo "$@"
echo "cuda=${CUDA_VISIBLE_DEVICES-unset} omp=$OMP_NUM_THREADS pid=$$ folder=$PWD loaded=$LOADED"
"""


def settings(**values: Any) -> SlurmSettings:
    return SlurmSettings.model_validate({"count": 2, **values})


class Node:
    """A compute node, with the run's folder and a Python."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "it's a folder"
        self.folder.mkdir()
        self.python = root / "python"
        self.python.write_text(PYTHON)
        self.python.chmod(0o700)
        self.job = root / "spool"

    def write(self, *, python: Path | None = None, **values: Any) -> None:
        text = worker_script(settings(**values), python=str(python or self.python), release="releases/ab")
        (self.folder / script.WORKER_SCRIPT).write_text(text)

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        self.job.write_text(job_script(self.folder))
        environment = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "7", **variables}
        return subprocess.run(["/bin/bash", str(self.job)], env=environment, capture_output=True, text=True)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_job_becomes_the_worker_of_its_number_in_the_run_s_folder(node: Node) -> None:
    node.write()
    done = node.run()
    given, state = done.stdout.splitlines()
    assert given == (
        "releases/ab/keima/__main__.py worker --scheduled --folder workers/slurm-7 --log logs/worker_slurm-7.log"
    )
    assert f"folder={node.folder}" in state and "cuda= omp=1" in state


def test_a_job_removes_what_earlier_jobs_of_its_worker_have_printed(node: Node) -> None:
    logs = node.folder / "logs"
    logs.mkdir()
    for name, days in (("slurm-1_7.out", 3), ("slurm-2_7.out", 0), ("slurm-1_17.out", 3), ("worker_slurm-7.log", 3)):
        (logs / name).write_text("printed")
        os.utime(logs / name, times=2 * (time.time() - 86_400 * days,))
    node.write()
    assert node.run().returncode == 0
    assert sorted(path.name for path in logs.iterdir()) == ["slurm-1_17.out", "slurm-2_7.out", "worker_slurm-7.log"]


def test_the_worker_is_the_process_that_slurm_has_started_so_that_signals_reach_it(node: Node) -> None:
    node.write()
    node.job.write_text(job_script(node.folder))
    with subprocess.Popen(
        ["/bin/bash", str(node.job)], env={"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "7"}, stdout=-1, text=True
    ) as job:
        assert f"pid={job.pid} " in job.communicate()[0]


def test_a_job_that_begins_later_runs_what_the_latest_session_has_written(node: Node) -> None:
    node.write()
    node.run()
    node.write(setup=["export LOADED=yes"])
    assert "loaded=yes" in node.run().stdout


def test_a_worker_has_the_cores_of_its_job_and_the_gpu_that_slurm_assigns(node: Node) -> None:
    node.write(gpus=1)
    assert "cuda=3 omp=4" in node.run(CUDA_VISIBLE_DEVICES="3", SLURM_CPUS_PER_TASK="4").stdout


def test_a_job_without_its_gpu_says_so_by_its_exit_code(node: Node) -> None:
    node.write(gpus=1)
    assert node.run().returncode == NO_GPU


def test_a_job_whose_python_cannot_be_run_says_so_by_its_exit_code(node: Node) -> None:
    node.write(python=node.folder / "nowhere")
    assert node.run().returncode == NO_PYTHON


def test_a_job_on_a_node_that_does_not_share_the_folder_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "VISIBLE_TRIES", 1)
    done = node.run()
    assert done.returncode == NOT_SHARED and "no file system that this node shares" in done.stderr


def test_every_setting_becomes_an_option_of_sbatch_and_the_user_s_own_come_last(tmp_path: Path) -> None:
    given = {"partition": "gpu", "time": "1-0", "gpus": 1, "gpu_type": "a100", "cpus": 4, "memory": "8G"}
    more = {"account": "go", "qos": "low", "constraint": "a&b", "options": ["--nice=5"], "warning_seconds": 90}
    options = sbatch_options(settings(**given, **more), name="keima-run", folder=tmp_path)
    assert {
        *("--job-name=keima-run", "--requeue", "--signal=B:TERM@90", "--partition=gpu", "--time=1-0", "--mem=8G"),
        *("--gres=gpu:a100:1", "--cpus-per-task=4", "--account=go", "--qos=low", "--constraint=a&b"),
    } <= set(options)
    assert options[-1] == "--nice=5"


def test_what_is_not_set_is_left_to_slurm(tmp_path: Path) -> None:
    names = {option.partition("=")[0] for option in sbatch_options(settings(), name="keima-run", folder=tmp_path)}
    assert not names & {"--partition", "--time", "--mem", "--gres", "--account", "--qos", "--constraint"}


def test_the_scripts_are_valid_for_bash(tmp_path: Path) -> None:
    for number, text in enumerate(
        [
            job_script(tmp_path),
            worker_script(settings(gpus=1, setup=["module load a"]), python=sys.executable, release="r"),
        ]
    ):
        path = tmp_path / f"{number}.sh"
        path.write_text(text)
        assert subprocess.run(["/bin/bash", "-n", str(path)]).returncode == 0
