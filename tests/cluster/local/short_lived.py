"""Worker processes in the tests of the code that starts them.

Every one of them imports this module, so it imports next to nothing.
"""

import os
import time
from pathlib import Path

PATIENCE = 270.0  # seconds, for a machine that is also busy with other work


def die(root: Path) -> None:
    raise SystemExit(3)


def die_once(root: Path) -> None:
    if not (root / "begun").exists():
        (root / "begun").touch()
        raise SystemExit(3)
    time.sleep(PATIENCE)


def idle(root: Path) -> None:
    (root / "begun").touch()
    time.sleep(PATIENCE)


def write_device(root: Path) -> None:
    (root / "device.part").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    (root / "device.part").rename(root / "device")
