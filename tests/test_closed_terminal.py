"""A closed terminal or a broken SSH connection ends a run cleanly, unless nohup started it."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from keima.base.files import write_atomically
from keima.data.records import encode_batch
from tests.lab.processes import wait_until
from tests.learning.ranks.test_ranks import free_port
from tests.programs import Terminal, command
from tests.small_networks import CONNECT_FOUR
from tests.small_run import small_settings
from tests.sources import ROOT
from tests.synthetic import synthetic_batch

WORKING = """
import os, signal, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from keima.base.system.signals import exit_quietly_on_interrupt, handle_interrupts, stop_on_signals

class Work:
    stop_requested = False

@handle_interrupts
def main():
    work = Work()
    with stop_on_signals(work):
        Path("begun").touch()
        while not work.stop_requested and not Path("finish").exists():
            time.sleep(0.01)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)  # from the shell, and from the system once more
    print("where nobody reads", flush=True)
    Path("ended").write_text("asked to" if work.stop_requested else "by itself")
    return 130 if work.stop_requested else 0

exit_quietly_on_interrupt()
sys.exit(main())
"""
CLEANING_UP = """
import sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from keima.base.system.signals import exit_quietly_on_interrupt, handle_interrupts

@handle_interrupts
def main():
    try:
        Path("begun").touch()
        time.sleep(60)
    finally:
        print("where nobody reads", flush=True)
        Path("ended").write_text("cleaned up")

exit_quietly_on_interrupt()
sys.exit(main())
"""
RANKS = """
import sys

sys.path.insert(0, sys.argv[1])
from keima.learning.ranks.torchrun import RankLaunch, run_ranks

sys.exit(run_ranks(["rank.py"], [], RankLaunch(ranks=2, master_port=int(sys.argv[2]))))
"""
RANK = """
import os, time
from pathlib import Path

rank = os.environ["RANK"]
Path(f"begun{rank}").touch()
while not Path("finish").exists():
    time.sleep(0.01)
Path(f"ended{rank}").touch()
"""
SMALL_TRADER = (
    "--device cpu --num-envs 2 --lstm-size 8 --window 16 --update-interval 64 --checkpoint-interval 8 "
    "--episodes 1000000 --checkpoint-dir run"
)
LONG = {  # programs that would run for hours, and the files that exist once they have something to lose
    "start_main.py": ("--config small.yaml --run-dir run", "run/checkpoints/checkpoint-*"),
    "train_parallel.py": (
        "--filters 8 --blocks 1 --height 2 --width 2 --workers 2 --device cpu --run-dir run "
        "--games-per-epoch 2 --batch-size 128 --simulations 2 --epochs 100000",
        "checkpoints/model_epoch_10.pth",
    ),
    "scripts/train_multi_gpu.py": (
        "--gpus cpu,cpu --game tic_tac_toe --network resnet --blocks 1 --channels 8 --save-dir run "
        "--games-per-iter 4 --batch-size 16 --simulations 4 --iterations 100000",
        "run/checkpoint_iter_10.pt",
    ),
    "train_distributed.py": (
        "--data data --game connect_four --blocks 1 --channels 8 --device cpu --save-dir run "
        "--batch-size 64 --norm-batch 32 --num-workers 1 --epochs 1000000",
        "run/*.pt",
    ),
    "train_ppo_lstm.py": (SMALL_TRADER, "run/*.pt"),
    "train_ppo_lstm_distributed.py": (f"{SMALL_TRADER} --num-gpus 2", "run/*.pt"),
}


@contextmanager
def working(folder: Path, text: str, *before: str) -> Iterator[Terminal]:
    """Yield a program in a terminal, once it has begun."""
    (folder / "work.py").write_text(text)
    with Terminal(*before, sys.executable, "work.py", str(ROOT), cwd=folder) as terminal:
        terminal.wait_for((folder / "begun").exists)
        yield terminal


@pytest.mark.parametrize(("text", "ended"), [(WORKING, "asked to"), (CLEANING_UP, "cleaned up")])
def test_open_files_are_closed_and_later_output_is_no_error(tmp_path: Path, text: str, ended: str) -> None:
    with working(tmp_path, text) as terminal:
        assert terminal.close() == 130
    assert (tmp_path / "ended").read_text() == ended


def test_a_program_started_by_nohup_continues(tmp_path: Path) -> None:
    with working(tmp_path, WORKING, "nohup") as terminal:
        terminal.process.send_signal(signal.SIGHUP)
        (tmp_path / "finish").touch()
        assert terminal.close() == 0
    assert (tmp_path / "ended").read_text() == "by itself"


@pytest.mark.slow
def test_ranks_of_a_program_started_by_nohup_continue(tmp_path: Path) -> None:
    """By default torchrun ends them."""
    (tmp_path / "ranks.py").write_text(RANKS)
    (tmp_path / "rank.py").write_text(RANK)
    with Terminal("nohup", sys.executable, "ranks.py", str(ROOT), str(free_port()), cwd=tmp_path) as terminal:
        terminal.wait_for(lambda: len(list(tmp_path.glob("begun?"))) == 2)
        terminal.process.send_signal(signal.SIGHUP)
        (tmp_path / "finish").touch()
        assert terminal.close() == 0
    assert len(list(tmp_path.glob("ended?"))) == 2


def members(session: int) -> list[str]:
    """Return the living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            found += [path.parent.name] if int(of) == session and state != "Z" else []
    return found


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(900)  # most of it compiling, the first time
@pytest.mark.parametrize("program", LONG)
def test_a_run_ends_with_all_its_processes_and_keeps_finished_games(tmp_path: Path, program: str) -> None:
    settings = small_settings(tmp_path, run={"iterations": None})
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    (tmp_path / "data").mkdir()
    write_atomically(tmp_path / "data" / "batch.games", encode_batch(synthetic_batch(CONNECT_FOUR, games=10, seed=1)))
    words, kept = LONG[program]
    with Terminal(*command(program, *words.split()), cwd=tmp_path) as terminal:
        terminal.wait_for(lambda: any(tmp_path.glob(kept)), seconds=800)
        before = max(path.stat().st_mtime_ns for path in tmp_path.glob(kept))
        assert terminal.close() == 130
    wait_until(lambda: not members(terminal.process.pid), "the end of the server of processes", seconds=60)
    assert not list(tmp_path.glob("run/workers/*/outbox/*.games"))
    assert max(path.stat().st_mtime_ns for path in tmp_path.glob(kept)) >= before
