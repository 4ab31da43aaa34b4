"""The code and packages that a worker must have: this checkout's code as an archive named by its hash, and package
versions.
"""

import gzip
import hashlib
import io
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from keima.cluster.agent import code as remote_code
from keima.paths import SOURCE

WORKER_CLASS = "keima.worker.Worker"
REQUIREMENTS = "requirements.txt"
OPENSPIEL_REQUIREMENTS = "requirements-openspiel.txt"  # in addition, for OpenSpiel's games
ENVIRONMENTS = "environments"  # on a machine, each in a folder named by its requirements
PACKAGES = ("numba", "numpy", "pydantic", "PyYAML", "safetensors", "torch", "zstandard")  # that a worker imports


@dataclass(frozen=True, kw_only=True)
class WorkerRequirements:
    """What runs here, and must run on every worker."""

    code_hash: str
    extra: str = ""  # the module or package of the user's own worker class
    worker_class: str = WORKER_CLASS
    packages: dict[str, str] = field(default_factory=dict)  # versions by name
    files: tuple[str, ...] = (REQUIREMENTS,)  # that name the packages
    environment: str = f"{ENVIRONMENTS}/default"  # where bootstrap installs them
    config: Path | None = None  # the settings file that lists the machines, for messages


def worker_requirements(
    worker_class: str = WORKER_CLASS, *, game: str = "", root: Path = SOURCE, config: Path | None = None
) -> WorkerRequirements:
    """Return what runs here.

    Args:
        worker_class: the class that plays.
        game: the name of the game that is played; OpenSpiel's need its package.
        root: the checkout.
        config: the settings file that lists the machines.

    Raises:
        ValueError: the worker class is in no file beside the project's own, or OpenSpiel is not installed here.
    """
    extra = own_module(worker_class, root)
    packages = {name: metadata.version(name) for name in PACKAGES}
    files: tuple[str, ...] = (REQUIREMENTS,)
    if game == "openspiel":
        packages["open_spiel"] = openspiel_version()
        files += (OPENSPIEL_REQUIREMENTS,)
    return WorkerRequirements(
        code_hash=worker_code_hash(root, worker_class),
        extra=extra,
        worker_class=worker_class,
        packages=packages,
        files=files,
        environment=environment_folder(root, files),
        config=config,
    )


def openspiel_version() -> str:
    """Return the version of OpenSpiel's package here.

    Raises:
        ValueError: it is not installed.
    """
    try:
        return metadata.version("open_spiel")
    except metadata.PackageNotFoundError as error:
        remedy = f"{sys.executable} -m pip install -r {OPENSPIEL_REQUIREMENTS}"
        raise ValueError(f"the config's game is OpenSpiel's, which is not installed here: run `{remedy}`") from error


def environment_folder(root: Path, files: Sequence[str]) -> str:
    """Return the folder of the environment: checkouts with the same requirements share it, and no others do."""
    required = b"".join((root / name).read_bytes() for name in files if (root / name).is_file())
    return f"{ENVIRONMENTS}/{hashlib.sha256(required).hexdigest()[:12]}"


def own_module(worker_class: str, root: Path = SOURCE) -> str:
    """Return the module or package in ``root`` of the user's own worker class; empty for one of the project's.

    Raises:
        ValueError: there is no such file.
    """
    top = worker_class.partition(".")[0]
    if top in (*remote_code.FOLDERS, "training"):
        return ""
    if not (root / f"{top}.py").is_file() and not (root / top).is_dir():
        raise ValueError(
            f"worker_class: {worker_class} would be in {root / top}.py, which does not exist; "
            "put it there, beside start_main.py"
        )
    return top


def worker_code_hash(root: Path = SOURCE, worker_class: str = WORKER_CLASS) -> str:
    """Return the hash of the code that a worker runs; it is equal only if all of the code is."""
    return remote_code.code_hash(root, own_module(worker_class, root))


def pack_code(root: Path = SOURCE, worker_class: str = WORKER_CLASS) -> bytes:
    """Return the code that a worker runs as a tar.gz; equal code gives equal bytes."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name in remote_code.code_files(root, own_module(worker_class, root)):
            content = (root / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()
