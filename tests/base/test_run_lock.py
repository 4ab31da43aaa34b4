"""One writer per run, and no lock outlives its process."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from keima.base import run_lock
from keima.base.run_lock import RunLock, RunLocked, is_held
from tests.sources import ROOT

HOLD = """
import sys, time
from pathlib import Path
from keima.base.run_lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    """Start a process that has the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


def test_a_second_coach_is_told_which_process_works_on_the_run(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(RunLocked, match=f"in use: process {os.getpid()} holds coach.lock"):
        RunLock(tmp_path)


def test_the_lock_can_be_taken_again_after_its_release(tmp_path: Path) -> None:
    RunLock(tmp_path).close()
    with RunLock(tmp_path):
        assert (tmp_path / "coach.lock").read_text() == f"{os.getpid()}\n"


def test_others_can_see_whether_a_process_works_on_a_run(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with RunLock(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_checking_whether_a_process_works_on_a_run_keeps_no_coach_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunLock(tmp_path).close()
    with (tmp_path / "coach.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as is_held does for a moment
        pause = SimpleNamespace(sleep=lambda seconds: fcntl.flock(file, fcntl.LOCK_UN))
        monkeypatch.setattr(run_lock, "time", pause)
        RunLock(tmp_path).close()


def test_runs_do_not_share_a_lock(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with RunLock(tmp_path), RunLock(tmp_path / "other"):
        pass


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    with hold(tmp_path) as process:
        with pytest.raises(RunLocked, match=f"process {process.pid} holds"):
            RunLock(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        RunLock(tmp_path).close()
