"""The guide to training on several GPUs and machines, typed verbatim.

Where the guide's numbers would take too long:

- each command that trains has ``--blocks 1 --channels 8`` appended, a network of 1x8 instead of 20x256; two commands
  have a slow form with nothing appended;
- of the commands for one machine, one test types one of the launcher, one of Python that starts ranks and one that
  does not, with a free port appended by ``--master-port``; another types all;
- ``tests/lab/test_two_nodes.py`` types the commands for several machines on two hosts, with the first one's address
  instead of 192.168.1.100; here the first machine's line is typed where that address belongs to another machine.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from keima.cli.training import big_learner
from keima.config.load import load_settings
from keima.data.imports.game_files import SAMPLE, find_game_files, find_games, read_game_file
from keima.learning.dataset_settings import BigLearnerSettings
from keima.learning.ranks.meeting import DEFAULT_PORT
from keima.paths import SHIPPED, find_file
from tests.learning.ranks.test_ranks import free_port
from tests.programs import ranks_of
from tests.sources import ROOT

ONE_MACHINE = """\
# Train on all available GPUs (auto-detected)
./launch_distributed_training.sh

# Train on specific number of GPUs (e.g., 4 GPUs)
./launch_distributed_training.sh --gpus 4

# With mixed precision for faster training
./launch_distributed_training.sh --gpus 8 --mixed-precision

# With custom batch size
./launch_distributed_training.sh --gpus 8 --batch-size 2048
"""
FIRST_NODE = """\
./launch_distributed_training.sh \\
    --gpus 8 \\
    --nodes 2 \\
    --node-rank 0 \\
    --master-addr 192.168.1.100
"""
SECOND_NODE = """\
# On node 1
./launch_distributed_training.sh \\
    --gpus 8 \\
    --nodes 2 \\
    --node-rank 1 \\
    --master-addr 192.168.1.100
"""
THIRD_NODE = """\
# On node 2 (if using 3+ nodes)
./launch_distributed_training.sh \\
    --gpus 8 \\
    --nodes 3 \\
    --node-rank 2 \\
    --master-addr 192.168.1.100
"""
DIRECT = """\
# Single GPU
python3 train_distributed.py

# Multiple GPUs on single node
python3 train_distributed.py --world-size 8

# With torchrun (recommended for PyTorch >= 1.10)
torchrun --nproc_per_node=8 train_distributed.py --batch-size 1024
"""
FIRST_TORCHRUN = """\
torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 \\
    --master_addr=192.168.1.100 --master_port=12355 \\
    train_distributed.py --batch-size 2048
"""
SECOND_TORCHRUN = """\
torchrun --nproc_per_node=8 --nnodes=2 --node_rank=1 \\
    --master_addr=192.168.1.100 --master_port=12355 \\
    train_distributed.py --batch-size 2048
"""
LATER = """\
./launch_distributed_training.sh --gpus 8 --mixed-precision

./launch_distributed_training.sh --gpus 8 --batch-size 512

# Basic training
./launch_distributed_training.sh --gpus 8

# High performance settings
./launch_distributed_training.sh \\
    --gpus 8 \\
    --batch-size 2048 \\
    --mixed-precision
"""
LAUNCHER_OPTIONS = """\
- `--gpus`: Number of GPUs per node (default: 8)
- `--nodes`: Total number of nodes (default: 1)
- `--node-rank`: Rank of current node (default: 0)
- `--master-addr`: IP address of master node (default: localhost)
- `--master-port`: Port for communication (default: 12355)
- `--batch-size`: Total batch size across all GPUs (default: 1024)
- `--mixed-precision`: Enable mixed precision training
"""
PYTHON_OPTIONS = """\
- `--world-size`: Total number of processes
- `--rank`: Process rank
- `--local-rank`: Local process rank (set by torchrun)
- `--backend`: Communication backend (nccl for GPU, gloo for CPU)
- `--batch-size`: Total batch size
- `--num-workers`: Data loader workers per process
- `--learning-rate`: Learning rate (default: 0.001)
- `--mixed-precision`: Enable AMP training
"""
CHECKPOINT = "AlphaZeroNet_20x256_distributed.pt"
TROUBLE = 'python3 -c "import torch; print(torch.cuda.device_count())"'

SMALL = ["--blocks", "1", "--channels", "8"]
SMALL_CHECKPOINT = CHECKPOINT.replace("20x256", "1x8")
LOADING = "train_distributed.py: loading PyTorch\n"
CORES = len(os.sched_getaffinity(0))
STEP = re.compile(r"(?m)^epoch 1/1 +\d+%  step (\d+)  loss \d+\.\d{4} ")

pytestmark = [pytest.mark.trial, pytest.mark.timeout(1800)]
without_gpus = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


def commands(text: str) -> list[str]:
    """Return the commands in a text of the guide, each on one line."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.join(shlex.split(line)) for line in lines if line and not line.startswith("#")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout without any training yet: the programs, no runs and no checkpoints."""
    for name in ("launch_distributed_training.sh", "train_distributed.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which a server listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def typed(line: str, *appended: str, folder: Path, seconds: float = 1500) -> subprocess.CompletedProcess[str]:
    """Return the result of a line that is typed where the environment is active."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KEIMA_PYTHON": sys.executable}
    words = ["bash", "-c", f"{line} {shlex.join(appended)}"]
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )


def trained(line: str, folder: Path, checkpoint: Path, *appended: str) -> str:
    """Return the output of a line that trains on the sample games and leaves a checkpoint."""
    ended = typed(line, *appended, folder=folder)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stdout + ended.stderr
    said = ended.stdout
    assert f"Games: {SAMPLE}, the sample that comes with Keima" in said
    assert STEP.search(said) and re.search(
        r"(?m)^epoch 1/1 is over: mean loss \d+\.\d{4} over [\d,]+ positions of all ranks$", said
    )
    assert f"The checkpoint is {checkpoint}\n" in said and (folder / checkpoint).is_file()
    return said


@pytest.mark.slow
@without_gpus
def test_the_first_commands_train_one_after_the_other_each_in_its_own_folder(folder: Path) -> None:
    """The launcher's commands, and those of Python; only rank 0 prints."""
    launcher = commands(ONE_MACHINE)[-1]
    port = ["--master-port", str(free_port())]
    said = trained(launcher, folder, Path("checkpoints", SMALL_CHECKPOINT), *SMALL, *port)
    ranks = min(8, CORES)
    assert said.startswith(f"8 GPUs requested, none found: {ranks} rank")
    if ranks > 1:
        assert f"{ranks} ranks by gloo on cpu, batch 2,048: " in said
    assert said.count("is over: mean loss") == 1 and len(STEP.findall(said)) == len(set(STEP.findall(said)))
    alone, by_itself, _ = commands(DIRECT)
    said = trained(alone, folder, Path("checkpoints_2", SMALL_CHECKPOINT), *SMALL)
    assert "1 rank on cpu, batch 1,024: 1024 a rank" in said
    assert said.startswith("Earlier runs are kept: this one uses checkpoints_2; --resume continues the newest\n")
    refused = typed(by_itself, *SMALL, *port, "--save-dir", "checkpoints", folder=folder)
    assert refused.returncode == 2 and refused.stderr.startswith(LOADING) and refused.stderr.count("\n") == 2
    assert "continue it with --resume" in refused.stderr


@without_gpus
@pytest.mark.slow
def test_every_command_for_one_machine_trains_to_the_end(folder: Path) -> None:
    lines = [*commands(ONE_MACHINE), *commands(DIRECT), *commands(LATER)]
    for number, line in enumerate(lines, start=1):
        place = Path("checkpoints" if number == 1 else f"checkpoints_{number}", SMALL_CHECKPOINT)
        said = trained(line, folder, place, *SMALL)
        asked = next(
            (int(count) for count in re.findall(r"(?:--gpus|--world-size|--nproc_per_node)[ =](\d+)", line)), 1
        )
        ranks = min(asked, CORES)
        batch = next((int(size) for size in re.findall(r"--batch-size (\d+)", line)), 1024)
        assert f"{ranks} rank{'s by gloo' if ranks > 1 else ''} on cpu, batch {batch:,}: " in said
        assert ("none found" in said) == (asked > 1)
        assert ("float32" in said) == ("--mixed-precision" not in line) or "mixed" in line


@without_gpus
@pytest.mark.slow
@pytest.mark.parametrize("line", [commands(DIRECT)[0], commands(ONE_MACHINE)[-1]])
def test_the_guide_s_network_trains_on_a_machine_without_a_gpu(folder: Path, line: str) -> None:
    said = trained(line, folder, Path("checkpoints", CHECKPOINT))
    assert "connect_four, resnet 20x256, " in said


def test_the_options_and_defaults_are_the_guide_s(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = typed("./launch_distributed_training.sh --help", folder=ROOT).stdout
    help_text = big_learner.make_parser().format_help()
    for text, said in ((LAUNCHER_OPTIONS, shown), (PYTHON_OPTIONS, help_text)):
        assert set(re.findall(r"--[a-z-]+", text)) <= set(re.findall(r"--[a-z-]+", said))
    given = big_learner.make_parser().parse_args([])
    assert (given.nodes, given.node_rank, DEFAULT_PORT, BigLearnerSettings().batch_size) == (1, 0, 12355, 1024)
    assert "(default: 12355)" in shown and "(default: 1024)" in shown
    monkeypatch.chdir(SHIPPED / "samples")  # without runs
    experiment = big_learner.experiment_of(given, {}, world_size=1)
    settings = big_learner.learner_settings(experiment, "cpu")
    assert settings.training.learning_rate == 0.001
    assert big_learner.network_name(settings) + ".pt" == CHECKPOINT


def test_the_sample_has_a_few_hundred_complete_games_of_ours(tmp_path: Path) -> None:
    sample = find_file(find_games(tmp_path))
    from keima.games import load_game

    game = load_game(load_settings(sample / "config.yaml").game.name)
    chunks = [chunk for path in find_game_files(sample) for chunk in read_game_file(path, game)]
    assert not [line for chunk in chunks for line in chunk.bad]
    assert sum(chunk.games.num_games for chunk in chunks if chunk.games) == 800


def refusal(line: str, *appended: str, folder: Path, variables: str = "") -> str:
    """Return the one line of a command that cannot be carried out, apart from what it loads."""
    ended = typed(f"{variables} {line}".strip(), *appended, folder=folder)
    assert ended.returncode == 2 and ended.stdout == "", ended.stdout + ended.stderr
    said = ended.stderr.removeprefix(LOADING)
    assert said.count("\n") == 1 and "Traceback" not in said, ended.stderr
    return said


@pytest.mark.slow
def test_an_impossible_master_and_a_port_in_use_are_reported_in_one_line(folder: Path, taken: int) -> None:
    (first,) = commands(FIRST_NODE)
    said = refusal(first.replace("192.168.1.100", "192.0.2.1"), folder=folder)
    assert said.startswith(
        "train_distributed.py: --master-addr 192.0.2.1 is not an address of this machine, which runs rank 0"
    )
    said = refusal(commands(DIRECT)[1], "--master-port", str(taken), folder=folder)
    assert (
        said == f"train_distributed.py: --master-port {taken}: another program uses it; "
        "choose another, the same on all machines\n"
    )
    assert not list(folder.glob("checkpoints*"))


def test_the_guide_s_command_that_counts_gpus_works(folder: Path) -> None:
    ended = typed(TROUBLE, folder=folder)
    assert ended.returncode == 0 and ended.stdout.strip() == str(torch.cuda.device_count())


@without_gpus
@pytest.mark.slow
def test_a_rank_that_keeps_ending_is_reported_in_one_line(folder: Path) -> None:
    """Each rank is killed as soon as it exists."""
    words = [
        "--device",
        "cpu",
        "--gpus",
        "2",
        "--max-restarts",
        "1",
        "--master-port",
        str(free_port()),
        *SMALL,
        "--epochs",
        "1000",
    ]
    line = ["bash", "./launch_distributed_training.sh", *words]
    environment = {**os.environ, "KEIMA_PYTHON": sys.executable}
    with subprocess.Popen(
        line, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        killed = set[int]()
        while process.poll() is None and len(killed) < 4:
            for rank in ranks_of(process.pid, "train_distributed.py"):
                if rank not in killed:
                    killed.add(rank)
                    os.kill(rank, 9)
        assert process.stderr
        said = process.stderr.read()
    assert process.returncode == 2 and "Traceback" not in said
    assert re.search(
        r"(?m)^train_distributed.py: rank \d has ended with code -9 after 1 restarts; continue with --resume$", said
    ), said
