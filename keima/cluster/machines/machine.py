"""The main node's actions on a worker's machine: check it, start and stop its workers, read their logs.

Everything uses one small program on that machine, ``keima/cluster/agent/program.py``, which is put there at the first
contact under the name of its content.
"""

from dataclasses import dataclass

from keima.cluster.agent.call import CALL_SECONDS, call_remote
from keima.cluster.agent.code import PROGRAM
from keima.cluster.agent.commands import (
    ALIVE,
    LINK,
    PROBE,
    START,
    STOP,
    TAIL,
    Alive,
    AliveRequest,
    LinkRequest,
    Probe,
    ProbeRequest,
    Started,
    StartRequest,
    Stopped,
    StopRequest,
    TailRequest,
    printable_start,
)
from keima.cluster.agent.packing import PYTHON, PYTHONS, VENV_PYTHON
from keima.cluster.machines.release import WorkerRequirements
from keima.cluster.ssh.errors import Refused
from keima.cluster.ssh.transport import Transport
from keima.config.commands import cluster
from keima.config.sections.workers import WorkerSettings

PROBE_SECONDS = 30.0  # waking a GPU's driver takes several seconds


@dataclass(frozen=True)
class WorkerSlot:
    """One worker process of a machine: its name, and its GPU; None: one core of the CPU."""

    name: str
    gpu: int | None = None
    alone: bool = False  # on a machine of its own, so that it need not wait until another worker has compiled
    far: bool = False  # its files travel on from here, so that a delta of a model is worth it


def worker_place(worker: str) -> str:
    """Return the folder of a worker."""
    return f"workers/{worker}"


def log_name(worker: str) -> str:
    """Return the log file of a worker."""
    return f"logs/worker_{worker}.log"


def release_folder(code_hash: str) -> str:
    """Return where bootstrap puts this code."""
    return f"releases/{code_hash}"


def own_python(machine: WorkerSettings) -> str | None:
    """Return the interpreter that the user has chosen, if any."""
    return machine.python if machine.python != PYTHON else None


def probe_machine(transport: Transport, machine: WorkerSettings, required: WorkerRequirements) -> Probe:
    """Probe a machine, for ``check.run_checks``.

    Raises:
        Refused: there is no Python, or it does not work.
        ClusterError: see ``call_remote``.
    """
    request = ProbeRequest(
        own=own_python(machine),
        environments=[f"{required.environment_folder}/bin/python", VENV_PYTHON],
        clone=VENV_PYTHON,
        python=PYTHONS,
        packages=required.packages,
        code=[release_folder(required.code_hash), "."],
        extra=required.extra,
    )
    return call_remote(transport, PROBE, request, python=machine.python, seconds=PROBE_SECONDS)


def start_worker(
    transport: Transport,
    slot: WorkerSlot,
    *,
    machine: WorkerSettings,
    probe: Probe,
    required: WorkerRequirements,
    coach: str = "",
) -> Started:
    """Start the worker of a slot unless it runs; it continues to play when the connection ends.

    A worker of another Coach than ``coach`` is not started.

    Raises:
        Refused: the machine has no Python or not our code; ``check.run_checks`` says more.
        ClusterError: see ``call_remote``.
    """
    folder = probe.folder_of(required.code_hash)
    if folder is None or probe.python is None:
        lacks = "Keima's code" if folder is None else "Python"
        raise Refused(
            transport.worker, f"{lacks} is missing on the machine", bootstrap_command(required, transport.worker)
        )
    argv = [
        probe.python.path,
        f"{folder}/{PROGRAM}",
        "worker",
        "--folder",
        worker_place(slot.name),
        "--log",
        log_name(slot.name),
    ]
    argv += [] if slot.gpu is None else ["--gpu", str(slot.gpu)]
    argv += ["--worker-class", required.worker_class] if required.extra else []
    request = StartRequest(
        place=worker_place(slot.name),
        argv=argv,
        env=slot_variables(slot, machine),
        log=log_name(slot.name),
        coach=coach,
        logs=f"{folder}/logs" if folder.startswith("/") else "",  # in a clone the user looks for its log there
        nice=machine.nice,
    )
    return call_remote(transport, START, request, python=machine.python, private=bool(machine.env))


def slot_variables(slot: WorkerSlot, machine: WorkerSettings) -> dict[str, str]:
    """Return the variables of a slot's process: its share of the machine, and the user's own."""
    if slot.gpu is not None:  # the order in which nvidia-smi numbers GPUs
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **machine.env, "CUDA_VISIBLE_DEVICES": str(slot.gpu)}
    return {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **machine.env}


def stop_worker(
    transport: Transport, worker: str, *, seconds: float = 10.0, python: str = PYTHON, coach: str = ""
) -> Stopped:
    """End a worker. It has ``seconds`` to deliver its finished games.

    No other process is touched, nor is a worker of another Coach than ``coach``.

    Raises:
        ClusterError: see ``call_remote``.
    """
    request = StopRequest(worker_place(worker), seconds, coach)
    return call_remote(transport, STOP, request, python=python, seconds=seconds + CALL_SECONDS + 5.0)


def ask_if_alive(transport: Transport, worker: str, *, python: str = PYTHON) -> Alive:
    """Return whether a worker runs.

    Raises:
        ClusterError: see ``call_remote``.
    """
    return call_remote(transport, ALIVE, AliveRequest(worker_place(worker)), python=python)


def read_log_end(transport: Transport, worker: str, *, lines: int = 20, python: str = PYTHON) -> str:
    """Return the last lines of a worker's log; empty if there is none.

    Raises:
        ClusterError: see ``call_remote``.
    """
    found = call_remote(transport, TAIL, TailRequest(log_name(worker), lines), python=python)
    return "\n".join(printable_start(line) for line in found.text.splitlines())


def link_to_inbox(transport: Transport, source: str, worker: str, name: str, *, coach: str) -> bool:
    """Hard-link a file of the machine into the inbox of a worker of this Coach; return whether that is possible.

    Raises:
        ClusterError: see ``call_remote``.
    """
    request = LinkRequest(source=source, place=worker_place(worker), target=name, coach=coach)
    return call_remote(transport, LINK, request).linked


def bootstrap_command(required: WorkerRequirements, worker: str) -> str:
    """Return the command that installs code and environment there."""
    return f"run: {cluster(f'bootstrap {worker}', required.config)}"
