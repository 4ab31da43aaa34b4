"""How Ctrl-C ends our programs: quietly, also while they are still being imported."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.programs import begun, heed_ctrl_c
from tests.sources import ROOT

NOWHERE = ROOT / "runs" / "nowhere"
PROGRAMS: dict[str, Sequence[object]] = {
    "start_main.py": ["--run-dir", NOWHERE, "--resume"],
    "start_worker.py": ["--rehearse", "tic_tac_toe"],
    "train_parallel.py": ["--run-dir", NOWHERE, "--resume"],
    "train_distributed.py": ["--data", NOWHERE],
    "train_ppo_lstm.py": ["--checkpoint-dir", NOWHERE, "--resume"],
    "scripts/audit.py": [NOWHERE],
    "scripts/benchmark.py": ["--run", NOWHERE],
    "scripts/make_perfect_play_positions.py": ["--help"],
    "scripts/play.py": ["--run", NOWHERE],
    "scripts/train_multi_gpu.py": ["--save-dir", NOWHERE, "--resume"],
    "scripts/view_results.py": [NOWHERE],
    "scripts/watch_training.py": [NOWHERE],
    "distributed/ssh_connector.py": ["--config", NOWHERE, "--check"],
}
CLEANING_UP = """
import sys, time
from training.ctrl_c import ends_at_once, interruptible

@interruptible
def main():
    try:
        print("begun", flush=True)
        time.sleep(60)
    finally:
        print("cleaned up", flush=True)

ends_at_once()
sys.exit(main())
"""


def test_all_programs_are_tried() -> None:
    texts = {path: path.read_text(encoding="utf-8") for folder in (".", "scripts", "distributed") for path in (ROOT / folder).glob("*.py")}
    started = {path.relative_to(ROOT).as_posix() for path, text in texts.items() if "sys.exit(main())" in text or "ends_at_once()" in text}
    assert set(PROGRAMS) == started


@pytest.mark.parametrize("program", PROGRAMS)
def test_ctrl_c_ends_a_program_that_is_still_importing_without_a_word(program: str) -> None:
    with begun(program, *PROGRAMS[program]) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        while process.poll() is None and "site-packages" not in maps.read_text():  # the first of the large libraries
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (-signal.SIGINT, "")  # which a shell calls 130


def test_what_a_program_has_open_is_closed_at_ctrl_c() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CLEANING_UP], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed_ctrl_c
    )
    assert process.stdout and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "cleaned up\n")
