"""What of this machine its processes may use: cores and memory, within the limits of their cgroups.

A container, a Slurm job or a systemd service may have less than the machine: an affinity, a CPU quota, and a limit of
memory (cgroups(7); cpu.max and memory.max of version 2, cpu.cfs_quota_us and memory.limit_in_bytes of version 1). A
limit of any group on the way to the root holds.

This file runs on a worker's machine before anything is installed: standard library only.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path


def count_usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may keep busy; part of a core counts as one.

    Args:
        root: the folder with ``proc`` and ``sys``.
    """
    cores = float(len(os.sched_getaffinity(0)))
    for folder in iterate_cgroup_folders("cpu", root):
        text = read_text(folder / "cpu.max").split() or [
            read_text(folder / "cpu.cfs_quota_us"),
            read_text(folder / "cpu.cfs_period_us"),
        ]
        with contextlib.suppress(ValueError, ZeroDivisionError, IndexError):  # "max" is no limit
            quota = int(text[0]) / int(text[1])
            cores = min(cores, quota) if quota > 0 else cores
    return max(1, math.ceil(cores))


def find_usable_memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process and its children may use, for ``root`` as above."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in iterate_cgroup_folders("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(ValueError):  # "max" is no limit
                most = min(most, int(read_text(folder / name)))
    return most


def iterate_cgroup_folders(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's groups for a controller, from its own group up to the mounted root.

    Version 1 mounts each controller on its own, version 2 all of them together; a machine may have both.
    """
    groups = {}  # controller, empty for version 2 -> path of this process's group
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        groups.update(dict.fromkeys(names.split(","), path))
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        mount, kind, options = before.split(), after.partition(" ")[0], after.rpartition(" ")[2]
        path = groups.get("" if kind == "cgroup2" else controller, "")
        if not path or len(mount) < 5 or not (kind == "cgroup2" or controller in options.split(",")):
            continue
        shown, top = mount[3].rstrip("/"), root / mount[4].lstrip("/")
        # In a container the mount shows the container's group as its root, and the path may be that of the host.
        folder = top / path[len(shown) + 1 :] if path.startswith(f"{shown}/") else top
        while folder != top:
            yield folder
            folder = folder.parent
        yield top


def read_text(path: Path) -> str:
    """Return the content of a small file; empty if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
