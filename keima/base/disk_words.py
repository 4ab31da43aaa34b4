"""Explain system errors of files, with a remedy. Imports only the standard library, so that programs start fast."""

import errno
import os

PART = ".part"  # suffix of a file in writing: see ``keima.base.files``
RIGHTS = "permission denied: change its permissions (chmod), or choose another place"
DISK_ERRORS = {
    errno.ENOENT: "no such file or folder: check the spelling, and create the folder if it is missing",
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
    errno.EISDIR: "it is a folder: name a file in it",
    errno.ENOTDIR: "part of its path is a file, not a folder: choose another path",
    errno.EEXIST: "it exists already: choose another name, or remove it",
    errno.ENOSPC: "the disk is full: free some space, or choose another place",
    errno.EDQUOT: "the disk quota is used up: free some space, or choose another place",
    errno.EROFS: "the disk is mounted read-only: choose another place",
    errno.ENAMETOOLONG: "its name is too long: choose a shorter one",
}


def error_text(error: BaseException) -> str:
    """Return the text of an error; for a system error, the file and the remedy instead of an error number."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    what = DISK_ERRORS.get(error.errno) or os.strerror(error.errno).lower()
    if error.filename is None:
        return what
    return f"{os.fsdecode(error.filename).removesuffix(PART)}: {what}"
