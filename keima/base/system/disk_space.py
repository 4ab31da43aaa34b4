"""How much room a disk has."""

import shutil
from pathlib import Path


def free_disk_bytes(folder: Path) -> int | None:
    """The bytes that may still be written where ``folder`` is; None if that cannot be found out."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
