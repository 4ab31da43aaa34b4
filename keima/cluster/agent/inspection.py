"""Probes a worker's machine: all that the main node checks before it starts a worker.

Like all of this folder, it runs on a worker's machine before anything is installed: standard library only.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from keima.base.system.limits import count_usable_cores, find_usable_memory, read_text
from keima.cluster.agent.code import COMPLETE_MARK, code_hash
from keima.cluster.agent.commands import INSPECT, Gpu, InspectRequest, Interpreter, Probe, ProbeRequest, to_json
from keima.cluster.agent.process import PROC, CommandFailed, boot_id

OLDEST_PYTHON = (3, 11)
PROGRAM = "start_worker.py"  # in every checkout
MOST_CLONES = 4
OLDER_NAMES = (("manylinux1", 5), ("manylinux2010", 12), ("manylinux2014", 17))  # each with the x of glibc 2.x
TOOL_SECONDS = 10.0  # a driver that hangs must not hang the probe


def probe_this_machine(request: ProbeRequest) -> Probe:
    """Return all that the main node checks before it starts a worker."""
    root = Path.cwd()
    usage = shutil.disk_usage(root)
    gpus, gpu_error = find_gpus()
    clones = find_clones(root)
    theirs = [str(clone / request.clone) for clone in clones]
    return Probe(
        root=str(root),
        writable=is_writable(root),
        disk_free=usage.free,
        python=choose_interpreter(request.own, request.environments, [*theirs, *request.python], request.packages),
        platform=platform.platform(),
        machine=platform.machine(),
        processor=processor_name(),
        cpus=count_usable_cores(),
        memory=find_usable_memory(),
        gpus=tuple(gpus),
        gpu_error=gpu_error,
        kills_processes=kills_processes_at_logout(),
        clock=time.time(),
        boot_id=boot_id(),
        code={folder: code_hash(root / folder, request.extra) for folder in [*request.code, *map(str, clones)]},
        releases=tuple(list_releases(root)),
        whole=tuple(folder for folder in request.code if (root / folder / COMPLETE_MARK).exists()),
    )


def list_releases(root: Path) -> list[str]:
    """Return the releases in the cluster's folder that are complete, the newest last."""
    marks = [path for path in root.glob(f"releases/*/{COMPLETE_MARK}") if os.access(path, os.R_OK)]
    return [mark.parent.name for mark in sorted(marks, key=lambda mark: mark.stat().st_mtime)][-MOST_CLONES:]


def find_clones(root: Path) -> list[Path]:
    """Return the folders of the home that look like a checkout of ours, except ``root`` itself."""
    try:
        folders = sorted(Path.home().iterdir())
    except (OSError, RuntimeError):
        return []
    clones = [path for path in folders if os.access(path / PROGRAM, os.R_OK)]
    return [path for path in clones if path.resolve() != root.resolve()][:MOST_CLONES]


def choose_interpreter(
    own: str | None, environments: Sequence[str], others: list[str], packages: dict[str, str]
) -> Interpreter | None:
    """Return the best interpreter: one that has all packages, else one that is new enough; None if there is none.

    Args:
        own: the interpreter that the user has named; it has precedence and must work. With it, only environments count.
        environments: those that bootstrap has made, best first.
        others: other candidates, best first.
        packages: versions by name.
    """
    found: list[Interpreter] = []
    if own and shutil.which(str(Path(own).expanduser())) is None:
        return None
    for candidate in [own, *environments] if own else [*environments, *others]:
        path = shutil.which(str(Path(candidate).expanduser()))
        if path is None:
            continue
        try:
            found.append(
                inspect_interpreter(str(Path(path).absolute()), packages)
            )  # links stay: a virtual environment is one
        except CommandFailed:
            if candidate == own:
                raise
            continue
        if has_all_packages(found[-1], packages):
            return found[-1]
    new = [each for each in found if tuple(each.version[:2]) >= OLDEST_PYTHON]
    return next(iter(new or found), None)


def inspect_interpreter(path: str, packages: dict[str, str]) -> Interpreter:
    """Return what an interpreter reports about itself."""
    command = [path, sys.argv[0], "inspect", INSPECT.name, to_json(InspectRequest(list(packages)))]
    try:
        answer = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=TOOL_SECONDS)
        line = next(line for line in answer.stdout.decode().splitlines() if line.startswith("@@inspect "))
        return replace(Interpreter(**json.loads(line.partition(" ")[2])["ok"]), path=path)
    except (OSError, ValueError, TypeError, LookupError, StopIteration, subprocess.SubprocessError):
        raise CommandFailed(f"{path} is there but does not work as a Python interpreter", "python") from None


def has_all_packages(found: Interpreter, packages: dict[str, str]) -> bool:
    """Return whether an interpreter is new enough and has these versions; builds, such as +cpu, do not matter."""
    have = found.packages
    return tuple(found.version[:2]) >= OLDEST_PYTHON and all(
        (have.get(name) or "").partition("+")[0] == version.partition("+")[0] for name, version in packages.items()
    )


def describe_this_interpreter(request: InspectRequest) -> Interpreter:
    """Return this interpreter's version, those of packages (None: missing), whether it is a virtual environment, and
    the platforms of the wheels that it can install.
    """
    from importlib import metadata  # only here, as it imports much

    made = sys.prefix != sys.base_prefix or Path(sys.prefix, "conda-meta").is_dir()
    versions: dict[str, str | None] = {}
    for name in request.packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return Interpreter(
        version=sys.version_info[:3], packages=versions, environment=made, platforms=tuple(list_wheel_platforms())
    )


def list_wheel_platforms() -> list[str]:
    """Return the tags of the platforms whose wheels this interpreter can install, as its pip says.

    Without a pip they follow from the version of glibc (PEP 600); another libc is then not known.
    """
    try:
        return list(importlib.import_module("pip._vendor.packaging.tags").platform_tags())
    except ImportError:
        return list_glibc_platforms(platform.libc_ver()[1], platform.machine())


def list_glibc_platforms(version: str, machine: str) -> list[str]:
    """Return the tags of PEP 600 for a version of glibc, such as 2.31, and the older names for some of them."""
    found = [f"linux_{machine}"]
    major, _, minor = version.partition(".")
    if major == "2" and minor.isdigit():
        first = 5 if machine in ("x86_64", "i686") else 17  # before, there were no wheels for other processors
        found += [f"manylinux_2_{each}_{machine}" for each in range(first, int(minor) + 1)]
        found += [f"{name}_{machine}" for name, each in OLDER_NAMES if first <= each <= int(minor)]
    return found


def processor_name() -> str:
    """Return a name for the processor, equal only if each can run the other's machine code; empty if unknown."""
    text = read_text(PROC / "cpuinfo").partition("\n\n")[0]
    features = sorted(
        line
        for line in text.splitlines()
        if line.startswith(("vendor_id", "cpu family", "model", "flags", "Features", "CPU "))
    )
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:16] if features else ""


def find_gpus() -> tuple[list[Gpu], str]:
    """Return the NVIDIA GPUs that nvidia-smi lists, and the error if there is a GPU that it does not list."""
    expected = any(Path("/dev").glob("nvidia[0-9]*")) or (PROC / "driver/nvidia").exists()
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return [], "nvidia-smi is missing" if expected else ""
    query = [tool, "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            query, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=TOOL_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [], f"nvidia-smi does not answer: {error}"
    text = answer.stdout.decode("utf-8", "replace")
    if answer.returncode:
        return [], "nvidia-smi fails: " + " ".join(text.split())[:300]
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    gpus = [row for row in rows if len(row) == 3 and row[0].isdigit()]
    return [Gpu(int(row[0]), row[1], int(row[2]) * 2**20 if row[2].isdigit() else 0) for row in gpus], ""


def is_writable(root: Path) -> bool:
    """Return whether files can be created in ``root``."""
    test = root / f".write-{os.getpid()}.part"
    try:
        test.write_bytes(b"x")
        test.unlink()
    except OSError:
        return False
    return True


def kills_processes_at_logout() -> bool:
    """Return whether systemd ends what this user leaves running at logout."""
    folders = [Path(folder) for folder in ("/etc/systemd", "/run/systemd", "/usr/lib/systemd")]
    files = [path for folder in folders for path in [folder / "logind.conf", *folder.glob("logind.conf.d/*.conf")]]
    enabled = any(
        line.replace(" ", "") == "KillUserProcesses=yes" for path in files for line in read_text(path).splitlines()
    )
    name = os.environ.get("USER") or os.environ.get("LOGNAME") or ""
    return enabled and os.getuid() != 0 and not Path("/var/lib/systemd/linger", name).is_file()
