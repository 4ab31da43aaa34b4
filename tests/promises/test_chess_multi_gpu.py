"""The guide to chess on several GPUs, typed verbatim on a machine without any.

Where the guide's numbers would take too long:

- the full run: ``--gpus 0,1,2,3,4,5,6,7`` becomes ``0,1``, ``--iterations 200`` 10 and ``--games-per-iter 1600`` 2,
  and a network of one block and 8 channels with 1 simulation is appended. Its slow form has eight processes,
  2 iterations and sixteen games, and appends ``--smoke`` alone;
- the other training commands: they are only parsed, and the requested run is checked; their slow form appends
  ``--smoke``;
- ``benchmark.py --games 100`` becomes 2, and ``--simulations 1 --opponents random --processes 1`` is appended; its
  slow form appends ``--opponents random``;
- ``watch_training.py`` gets ``--once``, without which it does not end; ``ssh your-cluster`` is left to the tests of
  SSH, and its command is typed here.

The guide's marks and bars were damaged when it was saved; ours are the original ones.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from keima.cli.training.train_multi_gpu import banner, read_arguments, settings_of
from keima.cluster.local.worker_devices import device_slots
from keima.networks.files.weights_file import load_weights
from keima.report.files.run_files import read_stats
from tests.sources import ROOT

CHECK = "python test_multiprocessing_fix.py"
CHECKED = """\
✓ Multi-GPU test completed successfully!
  State type: <class 'torch.Tensor'>
  ✓ States are PyTorch tensors (correctly converted)
"""
SMALL_TEST = """\
# Test with 2 GPUs first (5 minutes)
python scripts/train_multi_gpu.py \\
    --gpus 0,1 \\
    --iterations 2 \\
    --games-per-iter 100
"""
FULL_RUN = """\
# Full training run (~16 hours for 200 iterations)
python scripts/train_multi_gpu.py \\
    --gpus 0,1,2,3,4,5,6,7 \\
    --iterations 200 \\
    --games-per-iter 1600 \\
    --save-dir checkpoints_8gpu
"""
WATCH = """\
python scripts/watch_training.py \\
    --file checkpoints_8gpu/training_stats.json
"""
VIEW = """\
# View last 5 iterations
python scripts/view_results.py \\
    --training checkpoints_8gpu/training_stats.json \\
    --last 5
"""
REMOTE = (
    'ssh your-cluster "cd chess-snn-rl && '
    'python scripts/watch_training.py --file checkpoints_8gpu/training_stats.json --simple"'
)
SAMPLE = """\
======================================================================
  Multi-GPU Chess SNN Training
======================================================================
Primary training device: cuda:0
Parallel self-play GPUs: [0, 1, 2, 3, 4, 5, 6, 7]

=== Iteration 1 ===
Generating 1600 games...

Generating 1600 games across 8 GPUs...
Games per GPU: [200, 200, 200, 200, 200, 200, 200, 200]
----------------------------------------------------------------------
[   45.2s] GPU 3: Completed 200 games | Total: 1/8 GPUs done | Progress: 200/1600 games
[   48.1s] GPU 5: Completed 200 games | Total: 2/8 GPUs done | Progress: 400/1600 games
[   50.3s] GPU 1: Completed 200 games | Total: 3/8 GPUs done | Progress: 600/1600 games
[   52.7s] GPU 0: Completed 200 games | Total: 4/8 GPUs done | Progress: 800/1600 games
[   55.4s] GPU 7: Completed 200 games | Total: 5/8 GPUs done | Progress: 1000/1600 games
[   58.2s] GPU 2: Completed 200 games | Total: 6/8 GPUs done | Progress: 1200/1600 games
[   61.1s] GPU 4: Completed 200 games | Total: 7/8 GPUs done | Progress: 1400/1600 games
[   63.5s] GPU 6: Completed 200 games | Total: 8/8 GPUs done | Progress: 1600/1600 games
----------------------------------------------------------------------
Completed 1600 games in 63.5s (25.2 games/sec)

Game stats: {'total_games': 1600, 'avg_moves': 195.3, 'white_win_rate': 0.02, 'draw_rate': 0.96}
Adding games to replay buffer...
Buffer size: 312000
Training for 20 epochs...
Training losses: {'total_loss': 0.245, 'policy_loss': 0.187, 'value_loss': 0.421, 'entropy': 3.24}

=== Iteration 2 ===
"""
FEWER = "python scripts/train_multi_gpu.py --gpus 0,1,2,3 --iterations 2 --games-per-iter 200"
BLOCKING = "CUDA_LAUNCH_BLOCKING=1 python scripts/train_multi_gpu.py --gpus 0,1"
BENCHMARK = """\
python scripts/benchmark.py \\
    --checkpoint checkpoints_8gpu/model_final.pt \\
    --games 100 \\
    --save results_8gpu
"""
NOT_IN_THE_SAMPLE = ("No device was found: ", "The search is compiled for this machine: ", "Spikes: ")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder in which ``python scripts/...`` can be typed and files be left."""
    for name in ("scripts", "test_multiprocessing_fix.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def typed(command: str, *appended: str, cwd: Path, **changes: str) -> str:
    """Return the output of a command, typed with some of its numbers changed; it must succeed."""
    for name, number in changes.items():
        command, count = re.subn(rf"--{name.replace('_', '-')} \S+", f"--{name.replace('_', '-')} {number}", command)
        assert count == 1
    line = f"{command.rstrip()} {shlex.join(appended)}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = os.environ | {"PATH": path}
    ended = subprocess.run(
        [line], shell=True, cwd=cwd, env=variables, capture_output=True, text=True, timeout=3000, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def shape(lines: str) -> list[str]:
    """Return lines without their figures, whatever the devices are, and one line for all finished devices."""
    text = re.sub(r"(?<!Multi-)\b[GC]PU", "device", lines).replace("cuda:0", "cpu")
    text = re.sub(r"\[[0-9, ]+\]", "[N]", re.sub(r"^\[ *[0-9.]+s\]", "[Ns]", text, flags=re.MULTILINE))
    bare = [
        re.sub(r"[0-9]+(\.[0-9]+)?", "N", line) for line in text.splitlines() if not line.startswith(NOT_IN_THE_SAMPLE)
    ]
    return [
        line for number, line in enumerate(bare) if number == 0 or line != bare[number - 1] or " | Total: " not in line
    ]


def words_of(command: str) -> list[str]:
    """Return a training command's arguments for its program."""
    words = [word for word in shlex.split(command.replace("\\\n", " "), comments=True) if not word.startswith("CUDA_")]
    assert words[:2] == ["python", "scripts/train_multi_gpu.py"]
    return words[2:]


def check_run(here: Path, said: str, *, iterations: int, games: int) -> None:
    """Check that what the guide says about its run's lines and files is true."""
    sample = shape(SAMPLE)
    assert shape(said)[: len(sample)] == sample
    folder = here / "checkpoints_8gpu"
    rows = read_stats(folder / "training_stats.json")
    assert [(row.iteration, row.self_play.games) for row in rows] == [
        (number, games) for number in range(1, iterations + 1)
    ]
    first = rows[0].self_play
    positions = games * round(first.mean_plies, 1)
    assert f"'avg_moves': {round(first.mean_plies, 1)}," in said
    assert first.positions == pytest.approx(positions, rel=0.01), (
        "each move of either player is one more position, as in the sample"
    )
    assert load_weights(folder / "model_final.pt")
    written = {path.name for path in folder.glob("checkpoint_iter_*.pt")}
    assert written == {f"checkpoint_iter_{number}.pt" for number in range(10, iterations + 1, 10)}


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(1200)  # most of it compiling, the first time
def test_the_check_of_processes_prints_what_the_guide_shows(here: Path) -> None:
    before = sorted(here.iterdir())
    assert typed(CHECK, cwd=here) == CHECKED
    assert sorted(here.iterdir()) == before


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(1200)
def test_the_run_can_be_trained_watched_viewed_and_measured(here: Path) -> None:
    small = ("--blocks", "1", "--channels", "8", "--batch-size", "128", "--simulations", "1")
    said = typed(FULL_RUN, *small, cwd=here, gpus="0,1", iterations="10", games_per_iter="2")
    assert "No GPU was found: 2 processes play on the CPU instead of GPUs 0,1." in said
    check_run(here, said, iterations=10, games=2)
    assert typed(VIEW, cwd=here).startswith("The last 5 of 10 iterations:")
    assert typed(WATCH, "--once", cwd=here)
    there = REMOTE.removeprefix('ssh your-cluster "cd chess-snn-rl && ').removesuffix('"')
    assert typed(there, "--once", cwd=here).count("iteration") == 10
    said = typed(BENCHMARK, "--simulations", "1", "--opponents", "random", "--processes", "1", cwd=here, games="2")
    assert "random" in said
    (saved,) = (here / "results_8gpu").glob("*.json")
    assert json.loads(saved.read_text())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_run_is_trained_by_eight_processes(here: Path) -> None:
    check_run(here, typed(FULL_RUN, "--smoke", cwd=here, iterations="2", games_per_iter="16"), iterations=2, games=8)
    assert "random" in typed(BENCHMARK, "--opponents", "random", cwd=here)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", [SMALL_TEST, FEWER, BLOCKING])
def test_the_other_commands_train(here: Path, command: str) -> None:
    assert "2 iterations, 16 games" in typed(command, "--smoke", cwd=here)


@pytest.mark.parametrize(
    ("command", "gpus", "iterations", "games"),
    [(SMALL_TEST, 2, 2, 100), (FULL_RUN, 8, 200, 1600), (FEWER, 4, 2, 200), (BLOCKING, 2, 100, 100)],
)
def test_the_commands_request_what_the_guide_says(command: str, gpus: int, iterations: int, games: int) -> None:
    arguments = read_arguments(["--save-dir", "run", *words_of(command)])
    names = tuple(f"GPU-{number}" for number in range(8))
    slots = device_slots(arguments.gpus, names, cores=2)
    settings = settings_of(arguments, slots)
    assert (settings.run.iterations, settings.training.games_per_iteration) == (iterations, games)
    assert settings.network.type == "spiking" and settings.training.device == "cuda"
    assert [slot.device for slot in slots] == list(names[:gpus])
    assert banner(settings, slots)[1:] == [
        "  Multi-GPU Chess SNN Training",
        "=" * 70,
        "Primary training device: cuda:0",
        f"Parallel self-play GPUs: {list(range(gpus))}",
    ]
