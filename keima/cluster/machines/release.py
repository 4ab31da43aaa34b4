"""The code and packages that a worker must have: a wheel of this package, named by its hash, and package versions.

The wheel has what a worker runs, and its metadata require what a worker imports. SSH, Slurm and Ray unpack it into a
release; pip can install it.
"""

import base64
import hashlib
import io
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from keima import __version__
from keima.cluster.agent import code as remote_code
from keima.paths import SOURCE, workspace
from keima.worker import WORKER_CLASS

ENVIRONMENTS = "environments"  # on a machine, each in a folder named by its packages
PACKAGES = ("numba", "numpy", "pydantic", "PyYAML", "safetensors", "torch", "zstandard")  # that a worker imports
OPENSPIEL = "open_spiel"  # too, for OpenSpiel's games
WHEEL = "Wheel-Version: 1.0\nGenerator: keima\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
ENTRY_POINTS = "[console_scripts]\nkeima = keima.cli.main:main\n"


@dataclass(frozen=True, kw_only=True)
class WorkerRequirements:
    """The code and packages that run here, and must run on every worker."""

    code_hash: str
    extra: str = ""  # the module or package of the user's own worker class
    worker_class: str = WORKER_CLASS
    packages: dict[str, str] = field(default_factory=dict)  # versions by name
    config: Path | None = None  # the settings file that lists the machines, for messages

    @property
    def pins(self) -> list[str]:
        """The packages in pip's notation; builds, such as +cpu, do not matter."""
        return [f"{name}=={version.partition('+')[0]}" for name, version in sorted(self.packages.items())]

    @property
    def environment_folder(self) -> str:
        """The folder where bootstrap installs them: those who need the same packages share it, and no others do."""
        return f"{ENVIRONMENTS}/{hashlib.sha256(' '.join(self.pins).encode()).hexdigest()[:12]}"


def worker_requirements(
    worker_class: str = WORKER_CLASS, *, game: str = "", root: Path = SOURCE, config: Path | None = None
) -> WorkerRequirements:
    """Return the code and packages that run here.

    Args:
        worker_class: the class that plays.
        game: the name of the game that is played; OpenSpiel's need its package.
        root: the folder of the package.
        config: the settings file that lists the machines.

    Raises:
        ValueError: the worker class is in no file of the user's, or OpenSpiel is not installed here.
    """
    packages = {name: metadata.version(name) for name in PACKAGES}
    if game == "openspiel":
        packages[OPENSPIEL] = openspiel_version()
    return WorkerRequirements(
        code_hash=worker_code_hash(root, worker_class),
        extra=own_module_name(worker_class, root),
        worker_class=worker_class,
        packages=packages,
        config=config,
    )


def openspiel_version() -> str:
    """Return the version of OpenSpiel's package here.

    Raises:
        ValueError: it is not installed.
    """
    try:
        return metadata.version(OPENSPIEL)
    except metadata.PackageNotFoundError as error:
        remedy = f"{sys.executable} -m pip install {OPENSPIEL}"
        raise ValueError(f"the config's game is OpenSpiel's, which is not installed here: run `{remedy}`") from error


def own_module_name(worker_class: str, root: Path = SOURCE) -> str:
    """Return the module or package of the user's own worker class; empty for one of the project's.

    Raises:
        ValueError: there is no such file.
    """
    top, folder = worker_class.partition(".")[0], own_modules_folder(root)
    if top in ("keima", "training"):
        return ""
    if not (folder / f"{top}.py").is_file() and not (folder / top).is_dir():
        raise ValueError(f"worker_class: {worker_class} needs {folder / top}.py, which does not exist")
    return top


def own_modules_folder(root: Path) -> Path:
    """Return the folder of the user's own modules, for the package in ``root``."""
    return workspace() if root == SOURCE else root


def worker_code_hash(root: Path = SOURCE, worker_class: str = WORKER_CLASS) -> str:
    """Return the hash of the code that a worker runs; it is equal only if all of the code is."""
    return remote_code.code_hash(root, own_module_name(worker_class, root), own_modules_folder(root))


def wheel_name(code_hash: str) -> str:
    """Return the name of the file of the wheel with this code."""
    return f"keima-{__version__}+{code_hash}-py3-none-any.whl"


def pack_code(required: WorkerRequirements, root: Path = SOURCE) -> bytes:
    """Return the wheel with the code that a worker runs; equal code and packages give equal bytes.

    Binary distribution format: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
    """
    found = remote_code.code_files(root, required.extra, own_modules_folder(root))
    files = {name: path.read_bytes() for name, path in found}
    version = f"{__version__}+{required.code_hash}"
    about = f"keima-{version}.dist-info"
    files[f"{about}/METADATA"] = "\n".join(
        [
            "Metadata-Version: 2.1",
            "Name: keima",
            f"Version: {version}",
            "Summary: The code of a Keima worker",
            "Requires-Python: >=3.11",
            *(f"Requires-Dist: {pin}" for pin in required.pins),
            "",
        ]
    ).encode()
    files[f"{about}/WHEEL"] = WHEEL.encode()
    files[f"{about}/entry_points.txt"] = ENTRY_POINTS.encode()
    files[f"{about}/RECORD"] = _wheel_record(files, about).encode()
    return _zip_files(files)


def _wheel_record(files: Mapping[str, bytes], about: str) -> str:
    """Return the list of a wheel's files, with hashes and sizes."""
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    return "".join([*lines, f"{about}/RECORD,,\n"])


def _zip_files(files: Mapping[str, bytes]) -> bytes:
    """Return an archive without times and owners."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr, member.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    return packed.getvalue()
