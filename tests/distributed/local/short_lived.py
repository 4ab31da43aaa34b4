"""What worker processes do in the tests of those who start them.

It is imported in each of them, and so imports next to nothing.
"""

import os
import time
from pathlib import Path

PATIENCE = 270.0  # seconds, for a machine that has much else to do


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
