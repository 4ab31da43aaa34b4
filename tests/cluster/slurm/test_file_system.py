"""The file system of the folder that nodes share."""

import errno
import fcntl
from pathlib import Path

import pytest

from keima.cluster.slurm.file_system import CACHED, SHARED, can_lock_files, file_system_of

MOUNTS = """\
25 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 25 0:40 / /home rw,relatime shared:5 - nfs4 server:/home rw,vers=4.2
31 25 0:41 / /home/big\\040disk rw,relatime - lustre mgs@tcp:/big rw,flock
32 25 0:42 / /scratch rw - tmpfs tmpfs rw
33 25 0:43 / /scratch rw - beegfs beegfs_nodev rw
"""


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/home/me/runs", "nfs4"),
        ("/home/big disk/me", "lustre"),
        ("/homeless", "ext4"),
        ("/scratch/me", "beegfs"),
        ("/", "ext4"),
    ],
)
def test_the_innermost_and_latest_mount_counts(tmp_path: Path, folder: str, expected: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert file_system_of(Path(folder), mounts=mounts) == expected


def test_this_machine_s_own_file_system_is_found(tmp_path: Path) -> None:
    assert file_system_of(tmp_path)
    assert file_system_of(tmp_path, mounts=tmp_path / "none") == ""


def test_file_systems_that_can_be_shared_are_told_from_local_ones() -> None:
    assert all(SHARED.fullmatch(kind) for kind in ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "fuse.glusterfs"))
    assert not any(SHARED.fullmatch(kind) for kind in ("ext4", "xfs", "tmpfs", "overlay", "btrfs"))
    assert CACHED.fullmatch("nfs4") and not CACHED.fullmatch("lustre")


def test_locks_work_here_and_their_absence_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_lock_files(tmp_path)

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not can_lock_files(tmp_path)
    assert not list(tmp_path.iterdir())
