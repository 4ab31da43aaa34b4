"""What the system says of a file, in words and with what helps. It is imported before all that takes long to import."""

import errno
import os

PART = ".part"  # of the name of a file that is being written: see ``training.common.files``
RIGHTS = "this user may not use it so: change its rights (chmod), or choose another place"
WORDS = {
    errno.ENOENT: "it is not there, or its folder is not: see how the name is spelled, and make the folder if it is missing",
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
    errno.EISDIR: "it is a folder, and a file is meant: name a file in it",
    errno.ENOTDIR: "something in its path is a file, and no folder: choose another path",
    errno.EEXIST: "something of that name is there already: choose another name, or remove it",
    errno.ENOSPC: "its disk is full: make room, or choose another place",
    errno.EDQUOT: "this user's share of the disk is full: make room, or choose another place",
    errno.EROFS: "its disk is mounted read-only: choose another place",
    errno.ENAMETOOLONG: "its name is too long: choose a shorter one",
}


def in_words(error: BaseException) -> str:
    """What has happened, for people: where the system has refused a file, the file and what helps, without an error
    number.
    """
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    what = WORDS.get(error.errno) or os.strerror(error.errno).lower()
    if error.filename is None:
        return what
    return f"{os.fsdecode(error.filename).removesuffix(PART)}: {what}"
