"""Packages as files, for machines without a package index: which wheels of a folder a machine needs, and which are
missing.
"""

import platform
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

WHEELS_FOLDER = "wheels"  # on the machine, until they are installed
WHEEL_NAME = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
# pip takes only those that are named.
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
UNPACKED = 4  # an installed wheel takes at most this many times its size


class NoWheels(ValueError):
    """A folder lacks what a machine needs; the text says what, and how to get it."""


@dataclass(frozen=True)
class Wheel:
    """A wheel's file."""

    path: Path
    size: int  # bytes


def fitting_wheels(folder: Path, pins: Sequence[str], *, version: Sequence[int], machine: str) -> list[Wheel]:
    """Return the wheels of a folder that fit a machine, smallest first.

    Args:
        folder: on this machine.
        pins: the packages, such as ``numpy==2.4.6``.
        version: the version of the machine's Python.
        machine: the kind of its processor, as ``uname -m`` prints it.

    Raises:
        NoWheels: a required package is missing in the required version.
    """
    try:
        wheels = [path for path in folder.expanduser().glob("*.whl") if _fits_machine(path.name, version, machine)]
    except OSError as error:
        raise NoWheels(f"{folder} cannot be read: {error.strerror}") from error
    have = {
        (_normalized_name(found["name"]), found["version"].partition("+")[0])
        for path in wheels
        if (found := WHEEL_NAME.fullmatch(path.name))
    }
    missing = [pin for pin in pins if (_normalized_name(pin.partition("==")[0]), pin.partition("==")[2]) not in have]
    if missing:
        python = ".".join(map(str, version[:2]))
        what = f"{folder} has no wheels of {_shortened_list(missing)} for Python {python} on {machine}"
        raise NoWheels(f"{what}; run here: {download_command(folder, pins, version=version, machine=machine)}")
    return sorted((Wheel(path, path.stat().st_size) for path in wheels), key=lambda wheel: wheel.size)


def download_command(folder: Path, pins: Sequence[str], *, version: Sequence[int], machine: str) -> str:
    """Return the command that fills the folder, on this machine, for a machine of this kind."""
    command = "pip download --only-binary=:all:"
    if tuple(version[:2]) != sys.version_info[:2] or machine != platform.machine():
        command += f" --python-version {'.'.join(map(str, version[:2]))}"
        command += "".join(f" --platform {kind}_{machine}" for kind in PLATFORMS)
    return f"{command} --dest {shlex.quote(str(folder))} {' '.join(pins)} pip"


def installed_size(wheels: Iterable[Wheel]) -> int:
    """Return the bytes of disk that installing the wheels takes."""
    return UNPACKED * sum(wheel.size for wheel in wheels)


def _fits_machine(name: str, version: Sequence[int], machine: str) -> bool:
    """Return whether a Linux machine with this Python can use a wheel, by the name of its file."""
    found = WHEEL_NAME.fullmatch(name)
    if found is None or found["name"] == "keima":  # which travels as a release
        return False
    digits = "".join(map(str, version[:2]))
    pythons, abi, platforms = found["python"].split("."), found["abi"], found["platform"].split(".")
    stable = abi == "abi3" and any(
        re.fullmatch("cp3[0-9]*", each) and int(each[3:] or 0) <= version[1] for each in pythons
    )
    right = stable or bool({"py3", "py2.py3", f"py{digits}", f"cp{digits}"} & set(pythons))
    return right and any(each == "any" or ("linux" in each and each.endswith(f"_{machine}")) for each in platforms)


def _normalized_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _shortened_list(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
