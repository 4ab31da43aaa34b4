"""Log files on a disk that is full."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

FULL = Path("/dev/full")  # where writing finds no space
PROGRAM = """
import logging
from keima.base.system.logs import set_log_handler

set_log_handler(logging.FileHandler("/dev/full"))
logging.error("lost")
print("goes on")
"""


@pytest.mark.skipif(not FULL.exists(), reason=f"there is no {FULL} here")
def test_a_log_without_space_prints_no_traceback_on_the_terminal() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "goes on\n")
    assert "Traceback" not in ended.stderr
