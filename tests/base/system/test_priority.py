"""Programs that give way to all others."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from keima.base.system.priority import has_session_scheduling
from tests.lab.processes import has_ended
from tests.programs import heed_ctrl_c
from tests.sources import ROOT

pytestmark = pytest.mark.medium

SECONDS = 2.0  # that two processes compete for a core
PATIENCE = 120.0
PROGRAM = """
import os, signal, sys, time
from keima.base.system.priority import run_at_low_priority
run_at_low_priority()
print(os.getpid(), flush=True)
{}
"""
BUSY = """
import os, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print("ready", flush=True)
until = float(sys.stdin.readline())
while time.monotonic() < until:
    pass
print(time.process_time(), flush=True)
"""


@contextmanager
def begun(text: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a Python program in a session of its own, as in another terminal."""
    with subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def test_it_leaves_the_core_to_a_process_of_another_session() -> None:
    with begun(BUSY) as other, begun(PROGRAM.format(BUSY)) as ours:
        line(ours)
        for process in (other, ours):
            assert line(process) == "ready"
        until = time.monotonic() + SECONDS  # the same moment for both, however late one of them begins
        for process in (other, ours):
            assert process.stdin
            process.stdin.write(f"{until}\n")
            process.stdin.flush()
        times = [float(line(process)) for process in (other, ours)]
    assert times[0] > 4 * times[1], times


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_program_and_its_exit_code_comes_back(number: signal.Signals) -> None:
    wait = f"""
signal.signal({int(number)}, lambda number, frame: sys.exit(7))
print("waits", flush=True)
for _ in range(600):  # Python may notice a signal that comes just before a sleep only after it
    time.sleep(0.1)
"""
    with begun(PROGRAM.format(wait)) as process:
        assert line(process).isdecimal() and line(process) == "waits"
        process.send_signal(number)
        assert process.wait(PATIENCE) == 7


@pytest.mark.skipif(not has_session_scheduling(), reason="no autogroups here, so the program needs no fork")
def test_a_signal_that_comes_at_once_after_the_fork_reaches_the_program() -> None:
    at_once = f"""
import os, signal, sys, time
fork = os.fork
def fork_and_be_signalled():
    read, write = os.pipe()
    child = fork()
    if child:
        os.read(read, 1)
        os.kill(os.getpid(), {int(signal.SIGTERM)})
    else:
        signal.signal({int(signal.SIGTERM)}, lambda number, frame: sys.exit(7))
        os.write(write, b".")
    return child
os.fork = fork_and_be_signalled
"""
    with begun(at_once + PROGRAM.format("time.sleep(60)")) as process:
        assert process.wait(PATIENCE) == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_signal_that_ended_the_program(number: signal.Signals) -> None:
    with begun(PROGRAM.format(f"os.kill(os.getpid(), {int(number)})")) as process:
        assert process.wait(PATIENCE) == -number


def test_the_program_ends_with_the_process_that_was_started_even_if_that_is_killed() -> None:
    with begun(PROGRAM.format("time.sleep(60)")) as process:
        pid = int(line(process))
        os.kill(process.pid, signal.SIGKILL)
        until = time.monotonic() + PATIENCE
        while not has_ended(pid):
            assert time.monotonic() < until
            time.sleep(0.05)
