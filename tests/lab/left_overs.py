"""What hosts leave on this machine when their process is killed.

Other processes may have hosts and clean up at the same time.
"""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.lab.processes import lives

BRIDGE = "keima"  # followed by the subnet's number: the process that makes the bridge has the subnet
FOLDERS = Path("/var/tmp")
FOLDER = "keima-hosts-"  # followed by the id of the process that made it


def bridges() -> dict[str, str]:
    """Return all bridges on this machine, each with the id of the process that made it."""
    found = {}
    for alias in Path("/sys/class/net").glob(f"{BRIDGE}*/ifalias"):
        with suppress(OSError):  # it has just been removed
            words = alias.read_text(encoding="utf-8").split()
            if words[:1] == [BRIDGE]:
                found[alias.parent.name] = words[1]
    return found


def remove_left_overs() -> None:
    """Remove the bridges and folders of killed processes, unless another process does."""
    for bridge, owner in bridges().items():
        if not lives(owner):
            _try("ip", "link", "del", bridge)
    for folder in FOLDERS.glob(f"{FOLDER}*"):
        if not lives(folder.name.removeprefix(FOLDER).split("-")[0]):
            for disk in folder.glob("*/disk"):
                if os.path.ismount(disk):
                    _try("umount", str(disk))
            shutil.rmtree(folder, ignore_errors=True)


def _try(*argv: str) -> None:
    subprocess.run(argv, capture_output=True, check=False)
