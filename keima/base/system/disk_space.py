"""The free space of a disk."""

import shutil
from pathlib import Path


def free_disk_bytes(folder: Path) -> int | None:
    """Return the number of bytes that can still be written where ``folder`` is; None if that is unknown."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
