"""Check whether a machine can play, with a remedy for each failure, and how many workers it gets."""

import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from keima.cluster.agent.commands import Gpu, Interpreter, Probe
from keima.cluster.agent.inspection import OLDEST_PYTHON
from keima.cluster.machines.machine import (
    WorkerSlot,
    bootstrap_command,
    own_python,
    release_folder,
)
from keima.cluster.machines.release import WorkerRequirements
from keima.cluster.ssh.errors import Refused
from keima.config.sections.workers import WorkerSettings

LEAST_DISK = 10**9  # bytes
LEAST_MEMORY = 10**9  # bytes for each worker
LEAST_GPU_MEMORY = 10**9  # bytes for each worker: CUDA itself takes half of it
CLOCK_SECONDS = 60.0  # more is worth a warning; no clocks are compared


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str  # the name of the check
    ok: bool
    fatal: bool  # no worker can play until this is fixed
    text: str
    remedy: str = ""


def run_checks(
    probe: Probe, machine: WorkerSettings, required: WorkerRequirements, *, now: Callable[[], float] = time.time
) -> list[Finding]:
    """Return the results of all checks, in the order in which to fix them."""
    return [
        _check_writable(probe, machine),
        _check_disk(probe),
        _check_memory(probe, machine),
        _check_python(probe, machine, required),
        *_check_packages(probe, machine, required),
        _check_code(probe, machine, required),
        _check_gpu(probe, machine),
        *_check_gpu_memory(probe, machine),
        *_check_gpu_torch(probe, machine),
        _check_logout(probe),
        _check_clock(probe, now()),
    ]


def fatal_findings(checked: Iterable[Finding]) -> list[Finding]:
    """Return the findings that keep every worker from playing."""
    return [finding for finding in checked if finding.fatal and not finding.ok]


def refuse_unfit(worker: str, checked: Iterable[Finding], *, named: bool = False) -> None:
    """Raise if any finding keeps every worker from playing.

    Args:
        worker: the machine's name.
        checked: the findings.
        named: whether the text names each check.

    Raises:
        Refused: with all those findings and their remedies.
    """
    wrong = fatal_findings(checked)
    if wrong:
        what = "; ".join(f"{finding.what}: {finding.text}" if named else finding.text for finding in wrong)
        remedies = dict.fromkeys(part for finding in wrong for part in finding.remedy.split("; "))
        raise Refused(worker, what, "; ".join(remedies))


def worker_slots(probe: Probe, machine: WorkerSettings) -> list[WorkerSlot]:
    """Return the workers of a machine: for each GPU that the config names, or without GPUs for each core.

    Several of a GPU alternate, so that the first workers play on different GPUs.
    """
    gpus: list[int | None] = [gpu.index for gpu in _used_gpus(probe, machine)]
    asked = None if machine.processes == "auto" else machine.processes
    places = gpus * (asked or 1) if gpus else [None] * (asked or probe.cpus)
    if len(places) == 1:
        return [WorkerSlot(machine.name, places[0])]
    return [WorkerSlot(f"{machine.name}-{number}", gpu) for number, gpu in enumerate(places, start=1)]


def _wanted_gpus(machine: WorkerSettings) -> tuple[int, ...]:
    return machine.gpu_ids or (() if machine.gpu_id is None else (machine.gpu_id,))


def _used_gpus(probe: Probe, machine: WorkerSettings) -> list[Gpu]:
    present = {gpu.index: gpu for gpu in probe.gpus}
    return [present[index] for index in _wanted_gpus(machine) if index in present]


def _check_writable(probe: Probe, machine: WorkerSettings) -> Finding:
    if probe.writable:
        return _passed("folder", f"{probe.root} is writable")
    owner = shlex.quote(machine.user) if machine.user else "$USER"
    remedy = f"there: sudo chown -R {owner} {shlex.quote(probe.root)}; or choose another `directory:` in the config"
    return _failed("folder", f"{probe.root} is not writable", remedy)


def _check_disk(probe: Probe) -> Finding:
    text = f"{_gigabytes_text(probe.disk_free)} free"
    if probe.disk_free >= LEAST_DISK:
        return _passed("disk", text)
    return _failed(
        "disk",
        f"only {text}, and {_gigabytes_text(LEAST_DISK)} are needed",
        f"free space there (see: df -h {shlex.quote(probe.root)})",
    )


def _check_memory(probe: Probe, machine: WorkerSettings) -> Finding:
    workers = len(worker_slots(probe, machine))
    text = f"{_gigabytes_text(probe.memory)} for {workers} {'worker' if workers == 1 else 'workers'}"
    if probe.memory >= workers * LEAST_MEMORY:
        return _passed("memory", text)
    fewer = max(1, probe.memory // LEAST_MEMORY)
    remedy = (
        "give it more memory (a container: raise its limit), or play on another machine"
        if workers == 1
        else f"say `processes: {fewer}` for this worker in the config, or fewer gpu_ids"
    )
    return Finding("memory", False, workers == 1 and probe.memory < LEAST_MEMORY // 2, f"only {text}", remedy)


def _check_python(probe: Probe, machine: WorkerSettings, required: WorkerRequirements) -> Finding:
    needed, own = _version_text(OLDEST_PYTHON), own_python(machine)
    install = f"there: install Python {needed} or newer (Debian, Ubuntu: sudo apt-get install python3 python3-venv)"
    then = f"then {bootstrap_command(required, machine.name)}"
    if probe.python is None:
        if own:
            return _failed(
                "python",
                f"{own} is not there",
                "correct `python:` in the config, or remove it and bootstrap again",
            )
        return _failed("python", "python3 is not installed", f"{install}; {then}")
    found = f"Python {_version_text(probe.python.version)} at {probe.python.path}"
    if probe.python.version[:2] >= OLDEST_PYTHON:
        return _passed("python", found)
    if own:
        return _failed(
            "python",
            f"{found} is older than {needed}",
            f"name a newer one as `python:` in the config, or remove it; {then}",
        )
    return _failed("python", f"{found} is older than {needed}", f"{install}; {then}")


def _check_packages(probe: Probe, machine: WorkerSettings, required: WorkerRequirements) -> list[Finding]:
    """Check for missing packages, and for versions that differ from those here."""
    if probe.python is None or probe.python.version[:2] < OLDEST_PYTHON:
        return []
    have = probe.python.packages
    missing = [name for name in required.packages if not have.get(name)]
    other = [
        name
        for name, version in required.packages.items()
        if name not in missing and _public_version(have[name]) != _public_version(version)
    ]
    remedy = _install_remedy(probe.python, machine, required, [*missing, *other])
    result = []
    if missing:
        result.append(_failed("packages", f"missing: {', '.join(missing)}", remedy))
    if other:
        differ = ", ".join(
            f"{name} is {_public_version(have[name])}, here {_public_version(required.packages[name])}"
            for name in other
        )
        result.append(_failed("packages", differ, remedy))
    return result or [_passed("packages", ", ".join(f"{name} {have[name]}" for name in required.packages))]


def _install_remedy(
    python: Interpreter, machine: WorkerSettings, required: WorkerRequirements, names: list[str]
) -> str:
    bootstrap = bootstrap_command(required, machine.name)
    if not (own_python(machine) and python.environment):
        return bootstrap
    wanted = " ".join(f"{name}=={_public_version(required.packages[name])}" for name in names)
    return f"there: {python.path} -m pip install {wanted}; or remove `python:` from the config and {bootstrap}"


def _check_code(probe: Probe, machine: WorkerSettings, required: WorkerRequirements) -> Finding:
    folder = probe.folder_of(required.code_hash)
    if folder is not None:
        return _passed("code", f"{required.code_hash} in {'the folder itself' if folder == '.' else folder}")
    found = [name for name in probe.code if probe.code[name]]
    bootstrap = bootstrap_command(required, machine.name)
    if not found:
        clone = (
            "or if a clone and its environment exist there already, name them as `directory` and `python` in the config"
        )
        if probe.releases:
            return _failed("code", f"its code is an older release ({probe.releases[-1]}), not ours", bootstrap)
        return _failed("code", "Keima's code is not installed", f"{bootstrap}; {clone}")
    if release_folder(required.code_hash) in found:
        return _failed(
            "code", f"{release_folder(required.code_hash)} has been changed there, or is not complete", bootstrap
        )
    where = probe.root if found[0] == "." else found[0]
    return _failed(
        "code",
        f"its code differs from the code here ({probe.code[found[0]]} in {where}, here {required.code_hash})",
        bootstrap,
    )


def _check_gpu(probe: Probe, machine: WorkerSettings) -> Finding:
    wanted = _wanted_gpus(machine)
    listed = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in probe.gpus)
    missing = sorted(set(wanted) - {gpu.index for gpu in probe.gpus})
    if probe.gpus and missing:
        text = f"there is no GPU {', '.join(map(str, missing))}; there are {listed}"
        return _failed("gpu", text, f"correct {'gpu_ids' if machine.gpu_ids else 'gpu_id'} in the config")
    if probe.gpus and wanted:
        return _passed("gpu", ", ".join(_gpu_text(gpu) for gpu in _used_gpus(probe, machine)))
    workers = len(worker_slots(probe, machine))
    instead = f"its processor plays, in {workers} {'process' if workers == 1 else 'processes'}"
    if machine.gpu_ids:
        text = probe.gpu_error or "no NVIDIA GPU found"
        return _failed(
            "gpu",
            text,
            "there: install NVIDIA's driver, until nvidia-smi lists the GPUs; or remove gpu_ids from the config",
        )
    if machine.gpu_id is None:
        return _passed("gpu", f"none is used: {instead}")
    if probe.gpu_error:
        remedy = "there: install or repair NVIDIA's driver, until nvidia-smi lists the GPU"
        return Finding("gpu", False, False, f"{probe.gpu_error}, so {instead}", remedy)
    if "gpu_id" in machine.model_fields_set:
        remedy = "there: install NVIDIA's driver, until nvidia-smi lists the GPU; or remove gpu_id from the config"
        return Finding("gpu", False, False, f"there is no GPU {machine.gpu_id}, nor any other, so {instead}", remedy)
    return _passed("gpu", f"none: {instead}")


def _gpu_text(gpu: Gpu) -> str:
    return f"{gpu.index}: {gpu.name}, {_gigabytes_text(gpu.memory)}"


def _check_gpu_memory(probe: Probe, machine: WorkerSettings) -> list[Finding]:
    """Check for GPUs with too little memory for their processes."""
    each = 1 if machine.processes == "auto" else machine.processes
    least = min((gpu.memory for gpu in _used_gpus(probe, machine) if gpu.memory), default=0)
    if not least or least >= each * LEAST_GPU_MEMORY:
        return []
    fewer = max(1, least // LEAST_GPU_MEMORY)
    remedy = "let its processor play (`gpu_id: null`)" if each == 1 else f"say `processes: {fewer}` in the config"
    text = f"only {_gigabytes_text(least)} of memory for {each} {'process' if each == 1 else 'processes'}"
    return [Finding("gpu", False, False, text, remedy)]


def _check_gpu_torch(probe: Probe, machine: WorkerSettings) -> list[Finding]:
    """Check for a build of torch that cannot use the GPU, on which its workers would not play."""
    version = probe.python.packages.get("torch") if probe.python else None
    if not _used_gpus(probe, machine) or not probe.python or not version or not version.endswith("+cpu"):
        return []
    own = own_python(machine) or probe.python.path
    remedy = (
        f"there: {own} -m pip install --force-reinstall torch=={_public_version(version)}, "
        "without PyTorch's CPU index; or let its processor play (`gpu_id: null`)"
    )
    return [_failed("gpu", f"torch {version} cannot use the GPU", remedy)]


def _check_logout(probe: Probe) -> Finding:
    if not probe.kills_processes:
        return _passed("logout", "workers outlive the connection")
    text = "systemd ends workers when the connection ends (KillUserProcesses=yes)"
    return Finding("logout", False, False, text, "there: loginctl enable-linger")


def _check_clock(probe: Probe, now: float) -> Finding:
    skew = probe.clock - now
    if abs(skew) <= CLOCK_SECONDS:
        return _passed("clock", "agrees with the main node's")
    order = "ahead of" if skew > 0 else "behind"
    text = f"{abs(skew):.0f} s {order} the main node's; this only shifts the times in its log"
    return Finding("clock", False, False, text, "there: sudo timedatectl set-ntp true")


def _passed(what: str, text: str) -> Finding:
    return Finding(what, True, False, text)


def _failed(what: str, text: str, remedy: str) -> Finding:
    return Finding(what, False, True, text, remedy)


def _public_version(version: str | None) -> str:
    """Return a package's version without the suffix for its build, such as +cpu."""
    return (version or "").partition("+")[0]


def _version_text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _gigabytes_text(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
