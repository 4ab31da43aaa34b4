"""The scripts of a job: one that Slurm keeps from submission on, and one in the run's folder, which the first one runs.

The second is written at the start of each session. A job that begins later runs the code and the Python of that
session. Both replace themselves by the next program, so that the worker is the process which Slurm signals.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from keima.cluster.agent.code import PROGRAM
from keima.cluster.slurm.jobs import NO_GPU, NO_PYTHON, NOT_SHARED
from keima.config.sections.slurm import SLURM_NAME, SlurmSettings

JOB_SCRIPT = "job.sh"
WORKER_SCRIPT = "worker.sh"
VISIBLE_TRIES, VISIBLE_SECONDS = 12, 5  # until a new file on a shared file system is seen by all nodes
OUTPUT = "logs/slurm-%A_%a.out"


def job_script(folder: Path) -> str:
    """Return the script of all jobs of a run.

    Args:
        folder: the folder of its workers, which the nodes must share.
    """
    return f"""#!/bin/bash
umask 077
cd /
folder={shlex.quote(str(folder))}
tries=0
until [ -r "$folder/{WORKER_SCRIPT}" ]; do
    tries=$((tries + 1))
    if [ "$tries" -ge {VISIBLE_TRIES} ]; then
        echo "$folder/{WORKER_SCRIPT} cannot be read on $(uname -n): it is on no file system that this node shares" >&2
        exit {NOT_SHARED}
    fi
    sleep {VISIBLE_SECONDS}
done
cd "$folder" || exit {NOT_SHARED}
find logs -name "slurm-*_$SLURM_ARRAY_TASK_ID.out" -mtime +1 -delete 2>/dev/null
exec /bin/bash ./{WORKER_SCRIPT} "{SLURM_NAME}-$SLURM_ARRAY_TASK_ID"
"""


def worker_script(settings: SlurmSettings, *, python: str, release: str, worker_class: str = "") -> str:
    """Return the script that becomes the worker that it is given.

    Args:
        settings: of the jobs.
        python: the interpreter.
        release: the folder of the code, relative to the run's.
        worker_class: the user's own class; empty: the default.
    """
    profile = ['for file in /etc/profile ~/.bash_profile; do [ -r "$file" ] && . "$file"; done']  # defines `module`
    gpu = f': "${{CUDA_VISIBLE_DEVICES:-}}"; [ -n "$CUDA_VISIBLE_DEVICES" ] || exit {NO_GPU}'
    threads = "export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1} MKL_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}"
    own = f" --worker-class {shlex.quote(worker_class)}" if worker_class else ""
    lines = [
        "worker=$1",
        *(profile if settings.setup else ()),
        *settings.setup,
        threads,
        gpu if settings.gpus else "export CUDA_VISIBLE_DEVICES=",
        f"python={shlex.quote(python)}",
        f'"$python" -c "import sys; sys.exit(sys.version_info < (3, 11))" || exit {NO_PYTHON}',
        f'exec "$python" {shlex.quote(release)}/{PROGRAM} worker --scheduled --folder "workers/$worker" '
        f'--log "logs/worker_$worker.log"{own} </dev/null',
    ]
    return "\n".join(["#!/bin/bash", "# Written at the start of each session.", *lines, ""])


def sbatch_options(settings: SlurmSettings, *, name: str, folder: Path) -> Sequence[str]:
    """Return the options of sbatch for all jobs of a run.

    Args:
        settings: of the jobs.
        name: of the jobs, by which they are found.
        folder: the folder of the run's workers.
    """
    gpu = f"gpu:{settings.gpu_type}:{settings.gpus}" if settings.gpu_type else f"gpu:{settings.gpus}"
    given = {
        "job-name": name,
        "output": str(folder / OUTPUT),
        "open-mode": "append",
        "chdir": "/",
        "signal": f"B:TERM@{settings.warning_seconds}",
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(settings.cpus),
        "mem": settings.memory,
        "gres": gpu if settings.gpus else None,
        "time": settings.time,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "constraint": settings.constraint,
    }
    return ["--requeue", *(f"--{key}={value}" for key, value in given.items() if value is not None), *settings.options]
