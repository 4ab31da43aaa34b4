"""Processes start in the environment of the process that requests them, and end with it, however it ends."""

import os
import signal
import subprocess
import sys
from multiprocessing import active_children
from pathlib import Path

import pytest

from keima.base.system.processes import start_process
from keima.cluster.local.processes import PRELOAD
from tests.cluster.local.short_lived import PATIENCE, idle, write_device
from tests.lab.processes import parent, state, wait_until
from tests.programs import heed_ctrl_c
from tests.sources import ROOT

PROGRAM = """
import signal, sys, time
from pathlib import Path
from keima.base.system import processes
from tests.lab.processes import parent, state, wait_until
from tests.cluster.local.short_lived import idle

folder = Path(sys.argv[1])
process = processes.start_process(idle, (folder,), preload="signal", name="idle", by=signal.Signals(int(sys.argv[2])))
while not (folder / "begun").exists():
    time.sleep(0.01)
print(process.pid, flush=True)
time.sleep(300)
"""


def wait_for_end(pid: int) -> None:
    wait_until(lambda: state(pid) in "XZ", f"the end of process {pid}", seconds=PATIENCE)


@pytest.mark.medium
@pytest.mark.parametrize("victim", ["parent", "server"])
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_ends_when_its_parent_or_the_server_is_killed(
    tmp_path: Path, victim: str, by: signal.Signals
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(int(by))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        pid = int(program.stdout.readline())
        server = parent(pid)
        assert server != program.pid
        os.kill(program.pid if victim == "parent" else server, signal.SIGKILL)
        wait_for_end(pid)
        program.kill()
        wait_for_end(server)


@pytest.mark.medium
def test_processes_have_the_current_environment_and_end_by_termination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for listed in ("first", "second"):
        (tmp_path / listed).mkdir()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
        start_process(write_device, (tmp_path / listed,), preload=PRELOAD, name=listed).join(PATIENCE)
        assert (tmp_path / listed / "device").read_text() == listed
    process = start_process(idle, (tmp_path,), preload=PRELOAD, name="idle")
    wait_until((tmp_path / "begun").exists, "the process", seconds=PATIENCE)
    os.kill(parent(process.pid or 0), signal.SIGTERM)  # as a service manager ends all processes at once
    os.kill(parent(process.pid or 0), signal.SIGHUP)
    assert process.is_alive()
    process.terminate()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGTERM
    assert process not in active_children()


@pytest.mark.medium
@pytest.mark.parametrize(
    "preload",
    ["keima.cluster.local.preload", pytest.param("keima.play.arena.preload", marks=pytest.mark.slow)],
)
def test_ctrl_c_while_the_server_imports_says_nothing(preload: str) -> None:
    program = f"""
import importlib.abc, os, signal, sys

class Interrupter(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
import {preload}
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, preexec_fn=heed_ctrl_c
    )
    assert (ended.stdout, ended.stderr) == ("True\n", "")


def test_a_process_whose_starter_has_died_already_ends_at_once() -> None:
    code = """
import os, signal, sys
from keima.base.system.processes import die_with_starter
die_with_starter(signal.SIGTERM, starter=os.getppid())
print("lives", flush=True)
die_with_starter(signal.SIGTERM, starter=os.getpid())
print("lives still", flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("lives\n", "", 1)
