"""What the main node does on a worker's machine: check it, start and stop its workers, read their logs.

Everything uses one small program on that machine, ``keima/cluster/agent/program.py``, which is put there at the first
contact under the name of its content. Each call is one command of bounded duration, and every answer is validated. Over
an ``AgentTransport`` all calls share one process there and one channel.
"""

import json
import re
import secrets
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from keima.base.reports import text as texts
from keima.cluster.agent.client import LOG_IN, AgentTransport
from keima.cluster.agent.code import PROGRAM
from keima.cluster.agent.packing import PYTHON, PYTHONS, VENV_PYTHON, install_remote_program, launch_command
from keima.cluster.machines.release import WorkerRequirements
from keima.cluster.ssh.errors import Refused, RemoteFailure
from keima.cluster.ssh.transport import REMEDIES, Completed, Transport
from keima.config.commands import cluster
from keima.config.sections.workers import WorkerSettings

CALL_SECONDS = 8.0
PROBE_SECONDS = 30.0  # waking a GPU's driver takes several seconds
# Answers of a machine on which our program has not run, so that it has not read and deleted the request.
UNREAD = ("absent", "pythonless", "system")
ERROR_NUMBER = re.compile(r"\[Errno (\d{1,4})\]")  # as Python writes it in file errors
TEXT = 4000  # maximum characters of a text for one line


def printable_start(text: str) -> str:
    """Return the start of a text on one line, without control characters."""
    return texts.printable_line(text[:TEXT])


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("holds characters that no such text has")
    return text


PrintableText = Annotated[str, AfterValidator(printable_start)]
PathText = Annotated[str, Field(max_length=4096), AfterValidator(_check_printable)]
NonNegativeInt = Annotated[int, Field(ge=0)]


class RemoteAnswer(BaseModel):
    """An answer from a machine; it may be malformed."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


A = TypeVar("A", bound=RemoteAnswer)


class Interpreter(RemoteAnswer):
    """The Python that runs the workers of a machine."""

    path: PathText
    environment: bool = False  # a virtual or conda environment
    version: Annotated[tuple[int, ...], Field(max_length=5)]
    packages: dict[PrintableText, PrintableText | None]  # versions; None for one that is missing


class Gpu(RemoteAnswer):
    """One GPU, as nvidia-smi lists it."""

    index: NonNegativeInt
    name: PrintableText
    memory: NonNegativeInt  # bytes


class Probe(RemoteAnswer):
    """The result of probing a machine.

    A folder with code is named relative to the cluster's folder, or, for a clone beside it, by its absolute path.
    """

    root: PathText
    writable: bool
    disk_free: NonNegativeInt  # bytes, in the cluster's folder
    python: Interpreter | None
    platform: PrintableText
    machine: PrintableText  # the kind of processor
    processor: PrintableText = ""  # equal only for processors that run each other's machine code
    cpus: Annotated[int, Field(ge=1, le=100_000)]
    memory: NonNegativeInt  # bytes
    gpus: Annotated[tuple[Gpu, ...], Field(max_length=1024)]
    gpu_error: PrintableText
    kills_processes: bool  # systemd ends what is left running at logout
    clock: float  # seconds since 1970
    boot_id: PrintableText
    code: dict[PrintableText, PrintableText]  # the hash of the code in each folder; empty if there is none
    whole: tuple[PrintableText, ...]  # the folders that bootstrap has completed

    def folder_of(self, code_hash: str) -> str | None:
        """Return the folder that has exactly this code, if there is one."""
        good = [
            folder
            for folder, found in self.code.items()
            if found == code_hash and (folder.startswith((".", "/")) or folder in self.whole)
        ]
        return good[0] if good else None


class Started(RemoteAnswer):
    """A worker's process; ``already`` if it was running before."""

    pid: NonNegativeInt
    start_ticks: NonNegativeInt
    boot_id: PrintableText
    already: bool


class Stopped(RemoteAnswer):
    """Whether there was a process to stop, and whether it had to be killed."""

    found: bool
    killed: bool


class Alive(RemoteAnswer):
    """Whether a process runs, and the exit code of a long command that has ended."""

    running: bool
    pid: NonNegativeInt
    code: int | None = None


class Linked(RemoteAnswer):
    """Whether a file could be linked."""

    linked: bool


class Tail(RemoteAnswer):
    """The end of a log, and the log's size."""

    text: str
    end: NonNegativeInt


@dataclass(frozen=True)
class WorkerSlot:
    """One worker process of a machine: its name, and its GPU; None: one core of the CPU."""

    name: str
    gpu: int | None = None
    alone: bool = False  # on a machine of its own, so that it need not wait until another worker has compiled


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
    request = {
        "own": own_python(machine),
        "environments": [f"{required.environment_folder}/bin/python", VENV_PYTHON],
        "clone": VENV_PYTHON,
        "python": PYTHONS,
        "packages": required.packages,
        "code": [release_folder(required.code_hash), "."],
        "extra": required.extra,
    }
    return validate_answer(
        transport, Probe, call_remote(transport, "probe", request, python=machine.python, seconds=PROBE_SECONDS)
    )


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
        lacks = "our code" if folder is None else "Python"
        raise Refused(
            transport.worker, f"the machine is without {lacks}", bootstrap_command(required, transport.worker)
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
    request: dict[str, Any] = {
        "place": worker_place(slot.name),
        "argv": argv,
        "env": slot_variables(slot, machine),
        "log": log_name(slot.name),
    }
    request["coach"] = coach
    if folder.startswith("/"):  # a clone of the user's, who looks for its log there
        request["logs"] = f"{folder}/logs"
    return validate_answer(
        transport, Started, call_remote(transport, "start", request, python=machine.python, private=bool(machine.env))
    )


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
    request = {"place": worker_place(worker), "seconds": seconds, "coach": coach}
    return validate_answer(
        transport, Stopped, call_remote(transport, "stop", request, python=python, seconds=seconds + CALL_SECONDS + 5.0)
    )


def ask_if_alive(transport: Transport, worker: str, *, python: str = PYTHON) -> Alive:
    """Return whether a worker runs.

    Raises:
        ClusterError: see ``call_remote``.
    """
    return validate_answer(
        transport, Alive, call_remote(transport, "alive", {"place": worker_place(worker)}, python=python)
    )


def read_log_end(transport: Transport, worker: str, *, lines: int = 20, python: str = PYTHON) -> str:
    """Return the last lines of a worker's log; empty if there is none.

    Raises:
        ClusterError: see ``call_remote``.
    """
    found = validate_answer(
        transport, Tail, call_remote(transport, "tail", {"log": log_name(worker), "lines": lines}, python=python)
    )
    return "\n".join(printable_start(line) for line in found.text.splitlines())


def link_to_inbox(transport: Transport, source: str, worker: str, name: str, *, coach: str) -> bool:
    """Hard-link a file of the machine into the inbox of a worker of this Coach; return whether that is possible.

    Raises:
        ClusterError: see ``call_remote``.
    """
    request = {"source": source, "place": worker_place(worker), "target": name, "coach": coach}
    return validate_answer(transport, Linked, call_remote(transport, "link", request)).linked


def call_remote(
    transport: Transport,
    command: str,
    request: dict[str, Any],
    *,
    python: str = PYTHON,
    seconds: float = CALL_SECONDS,
    private: bool = False,
) -> Any:
    """Carry out one command of ``keima/cluster/agent/program.py``; the program is put there first if it is missing.

    Over an ``AgentTransport``, the running agent carries it out, whatever ``python`` and ``private`` say.

    Args:
        transport: to the machine.
        command: the command's name.
        request: the command's arguments.
        python: the interpreter to try first.
        seconds: the time limit.
        private: whether to hide the request from other users of the machine, who can list its processes.

    Raises:
        Unreachable: the machine is gone, or did not answer within ``seconds``.
        Refused: nothing there can run our program.
        RemoteFailure: the command failed; the text says why.
    """
    answer = _ask_remote(transport, command, request, python, seconds, private)
    if answer.get("kind") == "absent":
        install_remote_program(transport)
        answer = _ask_remote(transport, command, request, python, seconds, private)
    return remote_result(transport, command, request, answer, python=python)


def remote_result(
    transport: Transport, command: str, request: dict[str, Any], answer: dict[str, Any], *, python: str
) -> Any:
    """Return the result in an answer of ``keima/cluster/agent/program.py``.

    Raises:
        Refused, RemoteFailure: as ``call_remote``.
    """
    if "ok" in answer:
        return answer["ok"]
    kind, text = str(answer.get("kind")), printable_start(str(answer.get("failed")))
    if kind == "pythonless":
        names = " nor ".join(dict.fromkeys([python, VENV_PYTHON, *PYTHONS]))
        raise Refused(
            transport.worker,
            f"there is no Python that works: neither {names} is one",
            "install Python 3.11 or newer there",
        )
    if kind == "system":
        name = {"Darwin": "macOS"}.get(text, text)
        raise Refused(
            transport.worker, f"it runs {name}, and a worker needs Linux", "use a Linux machine, or a virtual one on it"
        )
    if kind == "elsewhere":
        remedy = (
            "give each of them a `directory` of its own in the config; or, if that process is no more, "
            f"remove {request.get('place')}/process.json there"
        )
        raise RemoteFailure(transport.worker, text, remedy)
    if kind == "python":
        raise Refused(transport.worker, text, "repair it, or name another with `python:` in the config")
    raise RemoteFailure(transport.worker, f"{command}: {text}", disk_remedy(text))


def disk_remedy(text: str) -> str:
    """Return what to do about a file error of the remote program, from its number; empty for other failures."""
    found = ERROR_NUMBER.search(text)
    return REMEDIES.get(int(found[1]), "") if found else ""


def _ask_remote(
    transport: Transport, command: str, request: dict[str, Any], python: str, seconds: float, private: bool
) -> dict[str, Any]:
    if isinstance(transport, AgentTransport):
        return transport.ask_agent(command, request, seconds=seconds)
    nonce = secrets.token_hex(8)
    text, name = json.dumps(request), f".remote/requests/{nonce}.json"
    if private:
        transport.put(text.encode(), name)
        text = json.dumps({"request": name})
    done = transport.run(launch_command(nonce, command, text, python=python), seconds=seconds)
    answer = find_answer(transport.worker, done, nonce)
    if private and answer.get("kind") in UNREAD:
        transport.remove(name)
    return answer


def find_answer(worker: str, done: Completed, nonce: str) -> dict[str, Any]:
    """Return the answer to the request ``nonce`` from output in which a login shell may print anything else.

    Raises:
        RemoteFailure: there is none.
    """
    mark = f"@@{nonce} ".encode()
    lines = [line[len(mark) :] for line in done.stdout.splitlines() if line.startswith(mark)]
    try:
        answer = json.loads(lines[-1])
        if isinstance(answer, dict):
            return answer
    except (IndexError, ValueError, RecursionError):
        pass
    said = printable_start((done.stderr or done.stdout)[-TEXT:].decode("utf-8", "replace"))[-300:] or "nothing"
    raise RemoteFailure(worker, f"a command gave no answer, but ended with {done.code} and said: {said}", LOG_IN)


def validate_answer(transport: Transport, kind: type[A], answer: Any) -> A:
    """Return the validated answer.

    Raises:
        RemoteFailure: it is not valid.
    """
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        raise RemoteFailure(
            transport.worker, f"an answer cannot be understood: {printable_start(str(error))[:300]}"
        ) from error


def bootstrap_command(required: WorkerRequirements, worker: str) -> str:
    """Return the command that installs code and environment there."""
    return f"run: {cluster(f'bootstrap {worker}', required.config)}"
