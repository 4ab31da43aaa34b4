"""Check the file system of a folder that many machines share: whether it can be shared, and whether its locks work."""

import errno
import fcntl
import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
SHARED = re.compile(
    r"nfs4?|lustre|gpfs|beegfs(_nodev)?|ceph|fuse\.ceph(-fuse)?|cifs|smb3|glusterfs|fuse\.glusterfs|wekafs|panfs|afs"
    r"|gfs2|ocfs2|pvfs2|9p|virtiofs|fuse\.(juicefs|s3fs|sshfs)"
)
CACHED = re.compile(r"nfs4?|cifs|smb3|9p")  # whose clients may show a change seconds later
OCTAL = re.compile(r"\\([0-7]{3})")


def file_system_of(folder: Path, *, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system of an existing folder, such as nfs4; empty if it is unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    place, best, found = folder.resolve(), -1, ""
    for line in lines:
        mount, _, kind = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) < 5:
            continue
        point = Path(OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        if place.is_relative_to(point) and len(point.parts) >= best:  # of several at one point, the last is seen
            best, found = len(point.parts), kind.split(" ")[0]
    return found


def can_lock_files(folder: Path) -> bool:
    """Return whether files in the folder can be locked."""
    path = folder / ".lock-test"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True  # another machine holds it
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            return False
        raise
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
    return True
