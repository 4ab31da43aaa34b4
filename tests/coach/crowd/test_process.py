"""The checker as the Coach starts it: a process beside the run, which finds a liar and ends with its starter."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from keima.base.system.priority import WORKER_PRIORITY
from keima.coach.crowd.process import CheckerProcess
from keima.coach.crowd.verdicts import VerdictReader
from keima.config.load import save_resolved
from tests.coach.crowd.crowd import RUN_SEED, SEARCH, answer_without_network, open_run
from tests.lab.processes import has_ended
from tests.small_run import small_settings

SECONDS = 240.0  # for a process on a busy machine, which may have to compile the search


def wait_until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def make_run_files(folder: Path) -> None:
    """Write the settings of a run with a crowd."""
    changes = {"run": {"seed": RUN_SEED}, "game": {"name": "connect_four"}, "search": SEARCH.model_dump()}
    save_resolved(small_settings(folder, **changes), folder)


@pytest.mark.slow  # 20 s
@pytest.mark.timeout(2 * SECONDS)
def test_the_process_finds_a_liar_at_the_priority_of_workers_and_is_replaced_if_it_ends(tmp_path: Path) -> None:
    make_run_files(tmp_path)
    events, now = list[str](), 0.0
    with open_run(tmp_path) as run:
        for batch in islice(answer_without_network(run, "crowd-liar-1"), 2):
            run.send("crowd-liar-1", batch)
        checker = CheckerProcess(tmp_path, 0.02, log_event=events.append, clock=lambda: now)
        try:
            checker.poll()
            first, reader = checker.process_id, VerdictReader(tmp_path)
            assert first is not None
            found = dict[str, str]()
            wait_until(lambda: found.update(reader.read_new()) or found)
            assert list(found) == ["crowd-liar-1"]
            assert os.getpriority(os.PRIO_PROCESS, first) == WORKER_PRIORITY
            os.kill(first, 9)
            wait_until(lambda: has_ended(first))
            checker.poll()
            assert checker.process_id is None and len(events) == 1 and "exit code -9" in events[0]
            now += 100.0
            checker.poll()
            second = checker.process_id
            assert second not in (None, first)
        finally:
            checker.close()
        assert checker.process_id is None and has_ended(second or 0)


@pytest.mark.slow  # 20 s
@pytest.mark.timeout(2 * SECONDS)
def test_the_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    make_run_files(tmp_path)
    with open_run(tmp_path):
        program = (
            "import sys, pathlib, time; from keima.coach.crowd.process import CheckerProcess\n"
            "checker = CheckerProcess(pathlib.Path(sys.argv[1]), 0.02, log_event=print)\n"
            "checker.poll(); print(checker.process_id, flush=True); time.sleep(600)"
        )
        starter = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
        assert starter.stdout
        checker = int(starter.stdout.readline())
        wait_until((tmp_path / "crowd" / "checker.log").exists)
        assert not has_ended(checker)
        starter.kill()
        starter.wait()
        starter.stdout.close()
        wait_until(lambda: has_ended(checker))
