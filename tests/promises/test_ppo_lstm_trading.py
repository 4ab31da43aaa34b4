"""The guide to trading with PPO-LSTM on several GPUs, typed verbatim.

Where the guide's numbers would take too long:

- each command has ``--episodes 16 --num-envs 4 --lstm-size 16 --window 32 --epochs 2`` appended, and the last value of
  an option counts; the command that resumes has ``--episodes 24`` or nothing appended instead;
- one test types a command of one process, one of several and the one that resumes, with a free port appended by
  ``--master-port``; another types all of them, in the guide's order;
- ``watch -n 1 nvidia-smi`` is not one of our programs.
"""

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keima.cli.training import ppo
from keima.learning.ranks.meeting import DEFAULT_PORT
from keima.learning.ranks.process_group import Ranks
from keima.networks.files.weights_file import decode_tree
from keima.ppo.settings import TraderSettings
from tests.learning.ranks.test_ranks import free_port
from tests.sources import ROOT

QUICK_START = """\
python train_ppo_lstm.py --episodes 1000
# Use all available GPUs
python train_ppo_lstm.py --distributed --episodes 1000

# Use specific number of GPUs
python train_ppo_lstm.py --distributed --num-gpus 2 --episodes 1000
"""
EXAMPLES = """\
python train_ppo_lstm.py --distributed --episodes 10000
python train_ppo_lstm.py \\
  --distributed \\
  --num-gpus 4 \\
  --episodes 10000 \\
  --learning-rate-actor 1e-3 \\
  --update-interval 512 \\
  --checkpoint-interval 500
"""
RESUME = """\
python train_ppo_lstm.py \\
  --distributed \\
  --num-gpus 4 \\
  --resume \\
  --episodes 5000
"""
SINGLE_LINE = "Episode 100/1000 - Reward: 45.23, Return: $234.56, Win Rate: 65.0% (20 closed, 3 open), Steps: 234"
MULTI_LINE = (
    "Episode 100/1000 - Reward: 45.23, Return: $234.56, Win Rate: 65.0% (20 closed, 3 open), Steps: 234 | GPUs: 4"
)
PROGRESS = """\
# Check training progress
tail -f training.log | grep "Episode"
"""
NCCL = """\
# Set environment variables
export NCCL_DEBUG=INFO
export NCCL_TIMEOUT=3600
"""
PORT = """\
# Use different master port
python train_ppo_lstm.py --distributed --master-port 12356
"""
SELECTION = """\
# Use specific GPUs
export CUDA_VISIBLE_DEVICES=0,1,2,3
python train_ppo_lstm.py --distributed --num-gpus 4
"""
CUSTOM = """\
python train_ppo_lstm_distributed.py \\
  --episodes 10000 \\
  --num-gpus 8 \\
  --checkpoint-dir checkpoints/experiment1 \\
  --master-port 12355
"""
TUNING = """\
# Optimize NCCL performance
export NCCL_SOCKET_IFNAME=eth0
export NCCL_IB_DISABLE=1  # If no InfiniBand
export NCCL_P2P_DISABLE=1  # If P2P issues
"""
SMALL = ["--episodes", "16", "--num-envs", "4", "--lstm-size", "16", "--window", "32", "--epochs", "2"]
CORES = len(os.sched_getaffinity(0))
SECONDS = 280

pytestmark = [pytest.mark.trial, pytest.mark.timeout(1800)]
without_gpus = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


def commands(text: str) -> list[str]:
    """Return the commands in a text of the guide, each on one line."""
    return [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout without any training yet."""
    for name in ("train_ppo_lstm.py", "train_ppo_lstm_distributed.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def typed(line: str, *appended: object, folder: Path, before: str = "", seconds: float = 1500) -> str:
    """Return the output of a line that is typed where the environment is active; it must succeed.

    Args:
        before: lines that are typed before it, such as those that set variables.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = ["bash", "-c", f"{before}\n{line} {shlex.join(map(str, appended))}"]
    ended = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stdout + ended.stderr
    return ended.stdout


def form(line: str) -> str:
    """Return a line of output without its numbers; on the CPU the ranks are not GPUs."""
    line = re.sub(r"-?\$[\d,]+\.\d\d\b", "$", line.replace("| Ranks:", "| GPUs:"))
    return re.sub(r"\d+", "0", re.sub(r"-(?=\d)", "", line)).replace("0.0%", "%").replace("0.0", "0")


def lines_of(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("Episode ")]


def newest(folder: Path) -> dict[str, Any]:
    """Return the newest checkpoint in a folder."""
    path = max(folder.glob("ppo_lstm_episode_*.pt"))
    return decode_tree(path.read_bytes(), path=path)


def follow_progress(folder: Path, until: str) -> str:
    """Return what the guide's line for it shows on a terminal, up to ``until``."""
    ours, theirs = pty.openpty()
    (line,) = commands(PROGRESS)
    with subprocess.Popen(["bash", "-c", line], cwd=folder, stdout=theirs, start_new_session=True) as process:
        said, deadline = "", time.monotonic() + SECONDS
        while until not in said and time.monotonic() < deadline:
            if select.select([ours], [], [], 1.0)[0]:
                said += os.read(ours, 4096).decode()
        os.killpg(process.pid, signal.SIGTERM)
    os.close(ours)
    os.close(theirs)
    return said


@pytest.mark.slow
@without_gpus
def test_commands_train_one_after_the_other_and_the_newest_run_is_resumed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, _, two = commands(QUICK_START)
    monkeypatch.chdir(folder)
    assert ppo.main([*shlex.split(alone)[2:], *SMALL]) == 0
    shown = follow_progress(folder, "Episode 16/16 - ")
    assert {form(line[line.index("Episode ") :]) for line in shown.splitlines()} == {form(SINGLE_LINE)}

    port = ["--master-port", free_port()]
    said = typed(two, *SMALL, *port, folder=folder, before=NCCL + TUNING)
    ranks = min(2, CORES)
    assert f"2 GPUs requested, none found: {ranks} rank" in said and "this one uses checkpoints_ppo_2; --resume" in said
    assert "NCCL_DEBUG, NCCL_IB_DISABLE, NCCL_P2P_DISABLE, NCCL_SOCKET_IFNAME" in said
    assert {form(line) for line in lines_of(said)} == {form(MULTI_LINE if ranks > 1 else SINGLE_LINE)}
    assert newest(folder / "checkpoints_ppo_2")["counters"]["world_size"] == ranks

    (resume,) = commands(RESUME)
    said = typed(resume, "--episodes", 24, *port, folder=folder)
    assert (
        "output in checkpoints_ppo_2/" in said and "Resuming after 16 episodes" in said and "Episode 24/24 - " in said
    )
    reached = "checkpoints_ppo_2 has finished 24 episodes, and --episodes 24 includes them, so nothing is left to do: "
    assert typed(resume, "--episodes", 24, *port, folder=folder) == f"{reached}--resume --episodes 48 trains 24 more\n"


@without_gpus
@pytest.mark.slow
def test_every_command_works_in_the_guide_s_order(folder: Path) -> None:
    for number, line in enumerate(commands(QUICK_START + EXAMPLES), start=1):
        said = typed(line, *SMALL, folder=folder)
        place = folder / ("checkpoints_ppo" if number == 1 else f"checkpoints_ppo_{number}")
        assert "Episode 16/16 - " in said and newest(place)["counters"]["episodes_over"] == 16
    saved = newest(folder / "checkpoints_ppo_5")["told"]
    assert (saved["learning_rate_actor"], saved["update_interval"]) == (1e-3, 512)
    (resume,) = commands(RESUME)
    assert "Resuming after 16 episodes" in typed(resume, "--episodes", 24, folder=folder)
    assert "Episode 24/24" in follow_progress(folder, "Episode 24/24")
    (port,) = commands(PORT)
    assert "Episode 16/16 - " in typed(port, *SMALL, folder=folder, before=NCCL)
    export, select = commands(SELECTION)
    assert f"4 GPUs requested, none found: {min(4, CORES)} rank" in typed(select, *SMALL, folder=folder, before=export)
    (custom,) = commands(CUSTOM)
    said = typed(custom, *SMALL, folder=folder, before=TUNING)
    assert (
        "output in checkpoints/experiment1/" in said
        and newest(folder / "checkpoints" / "experiment1")["counters"]["episodes_over"] == 16
    )


def test_the_options_and_defaults_are_the_guide_s() -> None:
    texts = QUICK_START + EXAMPLES + RESUME + PORT + CUSTOM
    assert set(re.findall(r"--[a-z-]+", texts)) <= set(re.findall(r"--[a-z-]+", ppo.make_parser().format_help()))
    settings = TraderSettings()
    assert (settings.training.update_interval, settings.run.episodes, DEFAULT_PORT) == (128, 1000, 12355)


def test_the_update_interval_is_divided_among_the_ranks() -> None:
    """The guide's example: each of 4 GPUs takes 32 of 128 steps."""
    for world_size, each in ((1, 128), (4, 32)):
        training = TraderSettings().training
        assert training.for_ranks(world_size).num_steps * training.num_envs == each


def test_rank_0_trades_on_the_history_and_the_others_on_simulated_markets(tmp_path: Path) -> None:
    closes = 100 + np.sin(np.arange(400)).round(4)
    rows = [
        f"{1700000000 + 3600 * hour},{close},{close + 1},{close - 1},{close},5" for hour, close in enumerate(closes)
    ]
    path = tmp_path / "prices.csv"
    path.write_text("\n".join(["timestamp,open,high,low,close,volume", *rows]) + "\n")
    settings = TraderSettings.from_flat({"data": str(path)})
    first, second = (ppo.build_worlds(settings, Ranks(rank=rank, world_size=2)) for rank in (0, 1))
    assert set(np.asarray(first.close)) <= set(closes) and not set(np.asarray(second.close)) & set(closes)
    assert ppo.environments_text(settings, Path("saved"), Ranks(world_size=2)).startswith(
        f"8 environments on {path}, 8 on simulated markets"
    )
