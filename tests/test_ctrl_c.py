"""Ctrl-C ends our programs quietly, even while they are still being imported."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from keima.base.run_folder import RECORD_NAME, STATS_NAME
from keima.cli.main import VERBS
from keima.data.ledger import open_ledger
from tests.programs import begun, heed_ctrl_c
from tests.small_run import GAME
from tests.sources import ROOT

PROGRAMS: dict[str, Sequence[str]] = {  # valid calls: RUN is the folder of a run, NEW will be one
    "start_main.py": ["--run-dir", "NEW"],
    "start_worker.py": ["--test-games", "tic_tac_toe"],
    "train_parallel.py": ["--run-dir", "NEW"],
    "train_distributed.py": ["--data", "RUN"],
    "train_ppo_lstm.py": ["--checkpoint-dir", "NEW"],
    "audit": ["RUN"],
    "scripts/benchmark.py": ["--run", "RUN"],
    "check-game": ["tic_tac_toe"],
    "plan": ["tic_tac_toe"],
    "dashboard": ["RUN"],
    "play": ["go7"],
    "rate": ["go7"],
    "speedrun": ["tic_tac_toe"],
    "verify": ["RUN"],
    "join": ["https://127.0.0.1:9/#ssssssssssssssssssssssss"],
    "crowd": ["links", "RUN"],
    "export": ["RUN", "new.safetensors"],
    "scripts/train_multi_gpu.py": ["--save-dir", "NEW"],
    "scripts/view_results.py": ["RUN"],
    "scripts/watch_training.py": ["RUN"],
    "distributed/ssh_connector.py": ["--check"],
    "test_multiprocessing_fix.py": [],
}
CLEANING_UP = """
import sys, time
from keima.base.system.signals import exit_quietly_on_interrupt, handle_interrupts

@handle_interrupts
def main():
    try:
        print("begun", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)

exit_quietly_on_interrupt()
sys.exit(main())
"""


def test_all_programs_are_tried() -> None:
    texts = {
        path: path.read_text(encoding="utf-8")
        for folder in (".", "scripts", "distributed")
        for path in (ROOT / folder).glob("*.py")
    }
    doors = {path: re.findall(r'run_module\("([\w.]+)"', text) for path, text in texts.items()}
    started = {path.relative_to(ROOT).as_posix() for path, modules in doors.items() if modules}
    started |= {
        path.relative_to(ROOT).as_posix() for path, text in texts.items() if "exit_quietly_on_interrupt()" in text
    }
    behind = {module for modules in doors.values() for module in modules}
    started |= {verb for verb, program in VERBS.items() if program.module not in behind}
    others = {"new-game", "completion", "gtp", "analysis", "uci"}
    assert set(PROGRAMS) == started - others, "these end at once, or with their input"


@pytest.mark.parametrize("program", PROGRAMS)
def test_ctrl_c_silently_ends_a_program_that_is_still_importing(program: str, tmp_path: Path) -> None:
    places = {"RUN": tmp_path, "NEW": tmp_path / "new"}
    with open_ledger(tmp_path, GAME):
        (tmp_path / STATS_NAME).write_text("[]")
        (tmp_path / RECORD_NAME).write_text("{}")
    with begun(program, *(places.get(word, word) for word in PROGRAMS[program])) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        while process.poll() is None and "site-packages" not in maps.read_text():  # the first of the large libraries
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=240)
    assert process.returncode == -signal.SIGINT  # which a shell reports as 130
    assert re.fullmatch(r"(.*: loading .*\n)?", said)  # its output so far


def test_open_files_are_closed_at_ctrl_c() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CLEANING_UP],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_ctrl_c,
    )
    assert process.stdout and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=240)
    assert (process.returncode, said) == (130, "cleaned up\n")
