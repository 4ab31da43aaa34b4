"""Packages as files, for machines without a package index: which wheels of a folder a machine needs, and which are
missing.
"""

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from keima.cluster.agent.commands import Interpreter
from keima.cluster.agent.inspection import list_wheel_platforms

WHEELS_FOLDER = "wheels"  # on the machine, until they are installed
WHEEL_NAME = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
UNPACKED = 4  # an installed wheel takes at most this many times its size


class NoWheels(ValueError):
    """A folder lacks what a machine needs; the text says what, and how to get it."""


@dataclass(frozen=True)
class Wheel:
    """A wheel's file."""

    path: Path
    size: int  # bytes


def fitting_wheels(folder: Path, pins: Sequence[str], python: Interpreter) -> list[Wheel]:
    """Return the wheels of a folder that a machine's interpreter can install, smallest first.

    Args:
        folder: on this machine.
        pins: the packages, such as ``numpy==2.4.6``.
        python: the machine's interpreter.

    Raises:
        NoWheels: a required package is missing in the required version.
    """
    try:
        wheels = [path for path in folder.expanduser().glob("*.whl") if _fits_interpreter(path.name, python)]
    except OSError as error:
        raise NoWheels(f"{folder} cannot be read: {error.strerror}") from error
    have = {
        (_normalized_name(found["name"]), found["version"].partition("+")[0])
        for path in wheels
        if (found := WHEEL_NAME.fullmatch(path.name))
    }
    missing = [pin for pin in pins if (_normalized_name(pin.partition("==")[0]), pin.partition("==")[2]) not in have]
    if missing:
        newest = max(python.platforms, key=_libc_version, default="an unknown platform")
        what = f"{folder} has no wheels of {_shortened_list(missing)} for Python {_version_text(python)} on {newest}"
        raise NoWheels(f"{what}; run here: {download_command(folder, pins, python)}")
    return sorted((Wheel(path, path.stat().st_size) for path in wheels), key=lambda wheel: wheel.size)


def download_command(folder: Path, pins: Sequence[str], python: Interpreter) -> str:
    """Return the command that fills the folder, on this machine, for an interpreter of another one.

    pip takes only the platforms that are named, so all are, unless this machine has the same.
    """
    command = "pip download --only-binary=:all:"
    if tuple(python.version[:2]) != sys.version_info[:2] or set(python.platforms) != set(list_wheel_platforms()):
        command += f" --python-version {_version_text(python)}"
        today = (name for name in python.platforms if name.startswith(("manylinux2014", "manylinux_2", "musllinux")))
        named = [name for name in today if not (2, 0) < _libc_version(name) < (2, 17)]
        command += "".join(f" --platform {name}" for name in sorted(named, key=_libc_version, reverse=True))
    return f"{command} --dest {shlex.quote(str(folder))} {' '.join(pins)} pip"


def installed_size(wheels: Iterable[Wheel]) -> int:
    """Return the bytes of disk that installing the wheels takes."""
    return UNPACKED * sum(wheel.size for wheel in wheels)


def _fits_interpreter(name: str, python: Interpreter) -> bool:
    """Return whether an interpreter can install a wheel, by the name of its file."""
    found = WHEEL_NAME.fullmatch(name)
    if found is None or found["name"] == "keima":  # which travels as a release
        return False
    digits = "".join(map(str, python.version[:2]))
    pythons, abis, platforms = (set(found[key].split(".")) for key in ("python", "abi", "platform"))
    stable = "abi3" in abis and any(
        re.fullmatch("cp3[0-9]*", each) and int(each[3:] or 0) <= python.version[1] for each in pythons
    )
    right = bool({"py3", f"py{digits}", f"cp{digits}"} & pythons) and bool({"none", f"cp{digits}"} & abis)
    return (stable or right) and bool({"any", *python.platforms} & platforms)


def _version_text(python: Interpreter) -> str:
    return ".".join(map(str, python.version[:2]))


def _libc_version(name: str) -> tuple[int, int]:
    """Return the version of libc in the tag of a platform; (0, 0) if it has none."""
    found = re.search(r"linux_(\d+)_(\d+)_", name)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _normalized_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _shortened_list(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
