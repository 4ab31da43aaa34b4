"""The guide to 2048 with ParallelZeroTrainer, typed verbatim.

Where the guide's numbers would take too long:

- the snippet: ``num_workers=8`` becomes 2, ``epochs=100`` 2, ``games_per_epoch=32`` 4 and ``simulations=50`` 1; its
  slow form changes only the number of epochs;
- the commands: ``--smoke --height 2 --width 2 --epochs 1 --games-per-epoch 2`` is appended, and they run in this
  process, which also plays. Their slow form appends only ``--smoke``, with ``--epochs 2`` for 500, and worker processes
  play;
- the last two commands, one of which begins where the other has ended, always play with worker processes, here with 2;
- ``--epochs 500`` becomes 50, so that the file from which the next command starts exists.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from keima.cli.training import train_2048
from keima.cluster.local import worker_devices
from keima.cluster.local.worker_devices import spread_local_workers, spread_workers
from keima.coach.backends.backend import InlineBackend, SelfPlayBackend
from keima.config.load import load_settings
from keima.data.ledger import read_ledger
from keima.networks.files.weights_file import load_weights
from keima.networks.zero_network import ZeroNetwork
from keima.report.files.run_files import read_stats
from keima.trainers import run
from tests.sources import ROOT

SNIPPET = """\
from zero.game import GameRules
from zeromodel import ZeroNetwork
from distributed import ParallelZeroTrainer

# Create model and rules
rules = GameRules()
model = ZeroNetwork(rules.height, rules.width, 16)

# Create parallel trainer
trainer = ParallelZeroTrainer(
   model=model,
   rules=rules,
   num_workers=8  # number of parallel workers
)

# Train using parallel self-play
trainer.train(
   epochs=100,
   games_per_epoch=32,
   batch_size=64,
   lr=0.001,
   simulations=50  # MCTS simulations per move
)
"""
COMMANDS = """\
# Run with a specific number of workers
python train_parallel.py --workers 8
python train_parallel.py --workers-per-gpu 2
CUDA_VISIBLE_DEVICES=0,1 python train_parallel.py
# Run with default settings
python train_parallel.py

# Specify number of workers
python train_parallel.py --workers 16

# Configure model size
python train_parallel.py --filters 64 --blocks 5

# Training parameters
python train_parallel.py --epochs 500 --games-per-epoch 64 --batch-size 128 --lr 0.0005

# Load from checkpoint
python train_parallel.py --checkpoint checkpoints/model_epoch_50.pth
"""
LINES = [line for line in COMMANDS.splitlines() if line and not line.startswith("#")]
TRAINED, CONTINUED = LINES[-2:]
SMALL = ("--smoke", "--height", "2", "--width", "2")  # games of some ten moves


def words_of(line: str) -> tuple[dict[str, str], list[str]]:
    """Return a line's variables, and its arguments for the program."""
    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in words[: words.index("python")])
    assert words[len(variables) : len(variables) + 2] == ["python", "train_parallel.py"]
    return variables, words[len(variables) + 2 :]


def typed(line: str, *appended: str, cwd: Path) -> str:
    """Return the output of the line, typed with this checkout's interpreter and program; it must succeed."""
    said = line.replace("python train_parallel.py", f"{sys.executable} {ROOT / 'train_parallel.py'}")
    line = f"{said} {shlex.join(appended)}"
    ended = subprocess.run([line], shell=True, cwd=cwd, capture_output=True, text=True, timeout=1500, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def run_snippet(folder: Path, changes: dict[str, str]) -> Path:
    """Run the snippet with these words changed; return the run's folder."""
    program = SNIPPET
    for words, others in changes.items():
        assert program.count(words) == 1
        program = program.replace(words, others)
    (folder / "program.py").write_text(program)
    command = [sys.executable, "program.py"]
    ended = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (run_dir,) = (folder / "runs").iterdir()
    return run_dir


def epochs_of(run_dir: Path) -> list[tuple[int, int]]:
    """Return the games of each epoch, and the sum up to each."""
    return [(row.self_play.games, row.total_games) for row in read_stats(run_dir / "training_stats.json")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which programs run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play the games in this process, whatever number of workers is requested."""

    def inline(root: Path, *, log_event: Any, spread: Any, **options: Any) -> SelfPlayBackend:
        if spread.note:
            log_event(spread.note)
        return InlineBackend(root, cycles=40, **options)

    monkeypatch.setattr(run, "spread_processes", inline)


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(900)  # most of it compiling, the first time
def test_the_snippet_trains_and_an_epoch_plays_exactly_its_games(tmp_path: Path) -> None:
    changes = {"num_workers=8": "num_workers=2", "epochs=100": "epochs=2", "games_per_epoch=32": "games_per_epoch=4"}
    run_dir = run_snippet(tmp_path, changes | {"simulations=50": "simulations=1"})
    assert epochs_of(run_dir) == [(4, 4), (4, 8)]
    settings = load_settings(run_dir / "config.yaml")
    assert (settings.network.channels, settings.network.blocks, settings.training.batch_size) == (64, 5, 64)
    with read_ledger(run_dir) as ledger:
        assert {worker for worker, books in ledger.accounts().items() if books.next_game} == {"local-1", "local-2"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_snippet_trains_with_all_its_numbers(tmp_path: Path) -> None:
    assert epochs_of(run_snippet(tmp_path, {"epochs=100": "epochs=2"})) == [(32, 32), (32, 64)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_of_the_command_line_leaves_the_checkpoint_that_the_next_one_starts_from(tmp_path: Path) -> None:
    fewer = (
        "--workers",
        "2",
        "--epochs",
        "50",
        "--games-per-epoch",
        "2",
        "--simulations",
        "1",
        "--filters",
        "8",
        "--blocks",
        "1",
    )
    said = typed(TRAINED, *fewer, *SMALL[1:], "--run-dir", "run", cwd=tmp_path)
    assert "50 epochs, 100 games" in said
    assert epochs_of(tmp_path / "run") == [(2, 2 * epoch) for epoch in range(1, 51)]
    settings = load_settings(tmp_path / "run" / "config.yaml").training
    assert (settings.batch_size, settings.learning_rate) == (128, 0.0005)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {
        f"model_epoch_{number}.pth" for number in range(10, 51, 10)
    }
    said = typed(CONTINUED, *SMALL, "--workers", "2", cwd=tmp_path)
    assert "The weights are in checkpoints/model_epoch_52.pth" in said


@pytest.mark.trial
@pytest.mark.parametrize("line", LINES[:-1])
@pytest.mark.usefixtures("alone")
def test_every_command_trains(
    line: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables, words = words_of(line)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert train_2048.main([*words, *SMALL, "--epochs", "1", "--games-per-epoch", "2", "--run-dir", "run"]) == 0
    assert "1 epochs, 2 games" in capsys.readouterr().out
    given = dict(zip(words[::2], words[1::2], strict=True))
    if "--workers" in given:
        assert load_settings(here / "run" / "config.yaml").self_play.workers == int(given["--workers"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("line", LINES)
def test_every_command_trains_with_processes(line: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    (tmp_path / "checkpoints").mkdir()
    network = ZeroNetwork(4, 4, 16, filters=8, blocks=1)  # as large as --smoke makes it
    torch.save(network.state_dict(), tmp_path / "checkpoints" / "model_epoch_50.pth")
    line = line.replace("--epochs 500", "--epochs 2")  # which --smoke leaves as it is
    assert "2 epochs, 16 games" in typed(line, "--smoke", cwd=tmp_path)
    assert load_weights(tmp_path / "checkpoints" / f"model_epoch_{52 if line == CONTINUED else 2}.pth")


def test_the_numbers_of_the_command_line_are_those_of_the_guide() -> None:
    by_itself = numbers([])
    snippet = {
        name: float(value)
        for name, value in re.findall(r"(epochs|games_per_epoch|batch_size|lr|simulations)=([0-9.]+)", SNIPPET)
    }
    assert {name: by_itself[name] for name in snippet} == snippet
    given = numbers(words_of(TRAINED)[1])
    assert (given["epochs"], given["games_per_epoch"], given["batch_size"], given["lr"]) == (500, 64, 128, 0.0005)


def numbers(words: Sequence[str]) -> dict[str, float | None]:
    """Return the numbers that a command line gives to ``ParallelZeroTrainer.train``."""
    settings = train_2048.settings_of(train_2048.parse(words))
    return {
        "epochs": settings.run.iterations,
        "games_per_epoch": settings.training.games_per_iteration,
        "batch_size": settings.training.batch_size,
        "lr": settings.training.learning_rate,
        "simulations": settings.search.num_simulations,
    }


def test_workers_are_spread_over_the_gpus_as_the_guide_says() -> None:
    assert spread_workers(("0", "1"), cores=2).devices == ("0", "1") * 2, "at least 2 for each GPU"
    adjusted = spread_workers(("0", "1"), cores=16, workers=9)
    assert adjusted.devices == ("0", "1") * 4
    assert adjusted.note == "9 workers cannot be spread evenly over 2 GPUs: 8 play, 4 on each"


@pytest.mark.trial
@pytest.mark.usefixtures("alone")
def test_an_adjusted_number_of_workers_is_reported(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(worker_devices, "count_gpus", lambda: 2)
    assert train_2048.main(["--workers", "9", *SMALL, "--epochs", "1", "--games-per-epoch", "2"]) == 0
    assert "9 workers cannot be spread evenly over 2 GPUs: 8 play, 4 on each" in capsys.readouterr().out


@pytest.mark.trial
@pytest.mark.usefixtures("alone")
def test_self_play_on_the_cpu_does_not_move_training_even_when_the_run_is_resumed(here: Path) -> None:
    line = ["--self-play-device", "cpu", *SMALL, "--run-dir", "run"]
    assert train_2048.main([*line, "--epochs", "1", "--games-per-epoch", "2"]) == 0
    settings = load_settings(here / "run" / "config.yaml")
    assert (settings.self_play.device, settings.training.device) == ("cpu", "auto")
    assert set(spread_local_workers(settings).devices) == {""}
    assert train_2048.settings_of(train_2048.parse(["--run-dir", "run", "--resume"])).self_play.device == "cpu"


def test_help_lists_the_remedies_for_cuda_problems(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train_2048.main(["--help"])
    shown = capsys.readouterr().out
    assert all(
        words in shown
        for words in (
            "--self-play-device cpu",
            "--workers-per-gpu 2",
            "CUDA_VISIBLE_DEVICES=0,1 python train_parallel.py",
        )
    )
