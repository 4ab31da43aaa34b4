"""What a worker must have of us: this checkout's code under the name of its hash, as an archive, and the versions of
the packages.
"""

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from configs.commands import connector
from distributed.remote import code as remote_code

PROJECT = Path(__file__).resolve().parents[2]
WORKER_CLASS = "training.worker.Worker"
REQUIREMENTS = "requirements.txt"
ENVIRONMENTS = "environments"  # on a machine, each in a folder named after the requirements that it was made by
PACKAGES = ("numba", "numpy", "pydantic", "PyYAML", "safetensors", "torch", "zstandard")  # which a worker imports


@dataclass(frozen=True, kw_only=True)
class Ours:
    """What runs here, and must run on every worker."""

    code_hash: str
    extra: str = ""  # the module or package of the user's own worker class
    worker_class: str = WORKER_CLASS
    packages: dict[str, str] = field(default_factory=dict)  # versions by name
    environment: str = f"{ENVIRONMENTS}/default"  # the folder there in which they are installed, if bootstrap does it
    connector: str = field(default_factory=connector)  # how the user calls the program that looks after the machines


def ours(worker_class: str = WORKER_CLASS, *, root: Path = PROJECT, config: Path | None = None) -> Ours:
    """What runs here; ``config`` is the settings file that lists the machines.

    Raises:
        ValueError: the worker class lies in no file beside the project's own.
    """
    extra = own_module(worker_class, root)
    packages = {name: metadata.version(name) for name in PACKAGES}
    return Ours(
        code_hash=code_hash(root, worker_class),
        extra=extra,
        worker_class=worker_class,
        packages=packages,
        environment=environment_folder(root),
        connector=connector(config),
    )


def environment_folder(root: Path = PROJECT) -> str:
    """The folder of the environment that has what is required here: checkouts that require the same share it, and no
    others do.
    """
    required = (root / REQUIREMENTS).read_bytes() if (root / REQUIREMENTS).is_file() else b""
    return f"{ENVIRONMENTS}/{hashlib.sha256(required).hexdigest()[:12]}"


def own_module(worker_class: str, root: Path = PROJECT) -> str:
    """The module or package in ``root`` that holds a worker class of the user's; empty for one of the project's.

    Raises:
        ValueError: there is no such file.
    """
    top = worker_class.partition(".")[0]
    if top in (*remote_code.FOLDERS, "configs"):
        return ""
    if not (root / f"{top}.py").is_file() and not (root / top).is_dir():
        raise ValueError(
            f"worker_class: {worker_class} would lie in {root / top}.py, which is not there; put it there, beside start_main.py"
        )
    return top


def code_hash(root: Path = PROJECT, worker_class: str = WORKER_CLASS) -> str:
    """A name for the code that a worker runs: the same only if all of it is the same."""
    return remote_code.code_hash(root, own_module(worker_class, root))


def pack(root: Path = PROJECT, worker_class: str = WORKER_CLASS) -> bytes:
    """The code that a worker runs as a tar.gz; the same code gives the same bytes."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for name in remote_code.code_files(root, own_module(worker_class, root)):
            content = (root / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()
