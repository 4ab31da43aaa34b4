"""What this process may use, from the limits of cgroups of both versions."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keima.base.system.limits import count_usable_cores, find_usable_memory

V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MEMORY = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V1_CPU = "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))


def make_root(folder: Path, *, groups: str, mounts: str, files: dict[str, str]) -> Path:
    """Make a root folder with these contents below ``proc/self`` and ``sys/fs/cgroup``."""
    texts = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}
    for name, text in (texts | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize(("quota", "cores"), [("200000 100000", 2), ("150000 100000", 2), ("5000 100000", 1)])
def test_a_container_of_version_2_has_the_cores_of_its_quota(tmp_path: Path, quota: str, cores: int) -> None:
    files = {"cpu.max": f"{quota}\n", "memory.max": "1073741824\n"}
    root = make_root(tmp_path, groups="0::/\n", mounts=V2.format(root="/"), files=files)
    assert (count_usable_cores(root), find_usable_memory(root)) == (cores, 2**30)


@pytest.mark.usefixtures("many_cores")
def test_the_tightest_limit_on_the_way_to_the_root_holds(tmp_path: Path) -> None:
    files = {
        "job.slice/cpu.max": "400000 100000\n",
        "job.slice/step/cpu.max": "max 100000\n",
        "job.slice/memory.max": "2147483648\n",
        "job.slice/step/memory.max": "3221225472\n",
    }
    root = make_root(tmp_path, groups="0::/job.slice/step\n", mounts=V2.format(root="/"), files=files)
    assert (count_usable_cores(root), find_usable_memory(root)) == (4, 2**31)


@pytest.mark.usefixtures("many_cores")
def test_a_container_of_version_1_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    groups = "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n"
    files = {
        "memory/memory.limit_in_bytes": "1073741824\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "300000\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    mounts = V1_MEMORY.format(root="/docker/abc") + V1_CPU.format(root="/docker/abc")
    root = make_root(tmp_path, groups=groups, mounts=mounts, files=files)
    assert (count_usable_cores(root), find_usable_memory(root)) == (3, 2**30)


@pytest.mark.usefixtures("many_cores")
def test_groups_without_a_limit_leave_the_machine_s_own(tmp_path: Path) -> None:
    files = {
        "cpu.max": "max 100000\n",
        "memory.max": "max\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    mounts = V2.format(root="/") + V1_MEMORY.format(root="/") + V1_CPU.format(root="/")
    root = make_root(tmp_path, groups="4:memory:/\n2:cpu,cpuacct:/\n0::/\n", mounts=mounts, files=files)
    everything = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (count_usable_cores(root), find_usable_memory(root)) == (64, everything)


@pytest.mark.usefixtures("many_cores")
def test_missing_or_odd_files_are_no_limit(tmp_path: Path) -> None:
    assert count_usable_cores(tmp_path) == 64
    mounts = "short\n - \n" + V2.format(root="/x")
    assert count_usable_cores(make_root(tmp_path, groups="odd\n0::/elsewhere\n", mounts=mounts, files={})) == 64


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A real group with 1 GiB of memory, of whichever version this machine has."""
    top = next((path for path in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")) if path.is_dir()), Path("/"))
    group = top / f"keima-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if top.name == "memory" else "memory.max")).write_text(str(2**30))
    except OSError as error:
        pytest.skip(f"this user may not limit a cgroup: {error}")
    yield group
    group.rmdir()


def test_a_process_in_a_real_group_knows_its_limit(memory_group: Path) -> None:
    code = "from keima.base.system.limits import find_usable_memory; print(find_usable_memory())"
    command = f"echo $$ > {memory_group}/cgroup.procs && exec {sys.executable} -c '{code}'"
    assert int(subprocess.run(["sh", "-c", command], check=True, capture_output=True).stdout) == 2**30
