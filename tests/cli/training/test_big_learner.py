"""The program that trains on files, alone and under torchrun."""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from keima.base.files import write_atomically
from keima.base.system.command_line import program_name
from keima.cli.training import big_learner
from keima.config.load import number_schema
from keima.data.records import encode_batch
from keima.learning.dataset_settings import BigExperiment, BigLearnerSettings
from tests.learning.ranks.test_ranks import free_port
from tests.programs import ranks_of
from tests.small_networks import CONNECT_FOUR
from tests.sources import ROOT
from tests.synthetic import synthetic_batch

NAME = "AlphaZeroNet_1x8_distributed"
SMALL = [
    "--game",
    "connect_four",
    "--blocks",
    "1",
    "--channels",
    "8",
    "--device",
    "cpu",
    "--batch-size",
    "64",
    "--norm-batch",
    "32",
]
LAUNCHER = str(ROOT / "launch_distributed_training.sh")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for seed in range(3):
        write_atomically(
            folder / f"batch{seed}.games", encode_batch(synthetic_batch(CONNECT_FOUR, games=10, seed=seed))
        )
    return folder


def train(data: Path, save_dir: Path, *words: str) -> int:
    return big_learner.main([*SMALL, "--data", str(data), "--save-dir", str(save_dir), *words])


def refusal(capsys: pytest.CaptureFixture[str], data: Path, save_dir: Path, *words: str) -> str:
    assert train(data, save_dir, *words) == 2
    return capsys.readouterr().err


def model(save_dir: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = torch.load(save_dir / f"{NAME}.pt", weights_only=True)["model"]
    return weights


@pytest.mark.medium
def test_it_reports_each_batch_and_epoch_and_can_be_resumed(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(data, tmp_path / "checkpoints") == 0
    said = capsys.readouterr().out
    assert "connect_four, resnet 1x8, 0.0 million parameters, float32" in said
    assert "1 rank on cpu, batch 64: 64 a rank, 2 groups for batch norm" in said
    assert "epoch 1/1 100%  step " in said and " samples/s (" in said and "epoch 1/1 is over: mean loss " in said
    assert train(data, tmp_path / "checkpoints", "--resume", "--epochs", "2") == 0
    said = capsys.readouterr().out
    assert "Resuming after step" in said and "epoch 2/2 is over" in said and "epoch 1/" not in said


def test_impossible_options_are_refused_with_a_remedy(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "start without --resume" in refusal(capsys, data, tmp_path, "--resume")
    assert "does not exist" in refusal(capsys, tmp_path / "nowhere", tmp_path)
    two = ("--check", "--world-size", "2", "--batch-size", "3")
    assert "--batch-size 3 is too small for 2 ranks: use at least 4" in refusal(capsys, data, tmp_path, *two)
    assert "--node-rank 2 is out of range for --nodes 2" in refusal(
        capsys, data, tmp_path, "--launch", "--nodes", "2", "--node-rank", "2"
    )
    assert "--backend nccl" in refusal(capsys, data, tmp_path, "--world-size", "2", "--backend", "nccl")
    (tmp_path / f"{NAME}.pt").touch()
    assert "continue it with --resume, or choose another --save-dir" in refusal(capsys, data, tmp_path)


@pytest.mark.parametrize(
    ("flag", "value", "range_"),
    [
        ("--epochs", "0", "a whole number from 1"),
        ("--norm-batch", "1", "a whole number from 2"),
        ("--learning-rate", "-1", "a number above 0 and up to 10"),
        ("--rank", "-1", "a whole number from 0"),
    ],
)
def test_numbers_out_of_range_are_refused_with_their_flag_and_range(
    capsys: pytest.CaptureFixture[str], flag: str, value: str, range_: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        big_learner.main(["--data", "games", flag, value])
    assert f"argument {flag}: expected {range_}, found {value}\n" in capsys.readouterr().err


@pytest.mark.medium
def test_a_training_without_folders_learns_from_the_newest_run_and_gets_its_own_folder(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    data.rename(run / "games")
    (run / "run.db").touch()
    (run / "config.yaml").write_text("run:\n  name: mine\ngame:\n  name: connect_four\n")
    assert big_learner.main(SMALL) == 0
    said = capsys.readouterr().out
    assert "Games: runs/mine\n" in said and f"The checkpoint is checkpoints/{NAME}.pt" in said
    assert big_learner.main([*SMALL, "--seed", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Earlier runs are kept: this one uses checkpoints_2; --resume continues the newest\n")
    assert big_learner.main(["--resume", "--device", "cpu"]) == 0
    assert (
        capsys.readouterr().out
        == "Nothing is left to do in checkpoints_2: its epoch is finished. --resume --epochs 2 trains one more\n"
    )
    assert big_learner.main(["--resume", "--epochs", "2", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "Games: runs/mine\n" in said and "epoch 2/2 is over" in said


@pytest.mark.parametrize(("scale", "rate"), [("none", 0.001), ("linear", 0.004), ("sqrt", 0.002)])
def test_the_learning_rate_is_scaled_by_the_total_batch(data: Path, scale: str, rate: float) -> None:
    words = [
        *SMALL,
        "--data",
        str(data),
        "--batch-size",
        "1024",
        "--learning-rate",
        "0.001",
        "--scale-learning-rate",
        scale,
    ]
    experiment = big_learner.experiment_of(big_learner.make_parser().parse_args(words), {}, world_size=1)
    assert big_learner.learner_settings(experiment, "cpu").training.learning_rate == pytest.approx(rate)


def given(data: Path, *words: object, saved: dict[str, Any] | None = None) -> BigExperiment:
    """Return the settings of a training with this command line."""
    arguments = big_learner.make_parser().parse_args(["--data", str(data), *map(str, words)])
    return big_learner.experiment_of(arguments, saved or {}, world_size=1)


def test_flags_override_a_config_file_which_overrides_the_settings_of_a_resumed_training(
    data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "run: {name: mine}\ngame: {name: connect_four}\nnetwork: {blocks: 1, channels: 8}\n"
        "big_learner:\n  epochs: 3\n  norm_batch: 32\n  learning_rate: 0.01\n"
    )
    experiment = given(data, "--config", path, "--norm-batch", 64, "--channels", 16)
    big = experiment.big_learner
    assert (big.epochs, big.norm_batch, big.learning_rate, big.batch_size) == (3, 64, 0.01, 1024)
    assert (experiment.game.name, experiment.network.blocks, experiment.network.channels) == ("connect_four", 1, 16)
    resumed = given(data, "--seed", 7, saved=experiment.to_plain_values())
    assert resumed == experiment.model_copy(update={"big_learner": big.model_copy(update={"seed": 7})})
    resumed = given(data, "--config", path, saved={**experiment.to_plain_values(), "batch_size": 512, "epochs": 9})
    assert (resumed.big_learner.epochs, resumed.big_learner.batch_size, resumed.network.channels) == (3, 512, 8)


def test_an_invalid_config_file_is_refused_with_its_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("run: {name: mine}\ngame: {name: connect_four}\nbig_learner:\n  epoch: 3\n  batch_size: 1\n")
    assert refusal(capsys, data, tmp_path / "saved", "--config", str(path)).splitlines() == [
        f"{program_name()}: {path}: 2 problems",
        "  line 5: big_learner.batch_size: expected at least 2, found 1",
        "  line 4: big_learner.epoch is not a setting; did you mean big_learner.epochs?",
    ]
    assert not (tmp_path / "saved").exists()


def test_the_help_states_the_defaults_of_the_settings() -> None:
    defaults = BigLearnerSettings().model_dump()
    flags = {action.dest: action for action in big_learner.make_parser()._actions if action.dest in defaults}
    assert flags.keys() == defaults.keys()
    for name, action in flags.items():
        value = defaults[name]
        if value is not None:
            said = (action.help or "").rpartition("(default: ")[2].rstrip(")").replace(",", "")
            assert said == (("no", "yes")[value] if isinstance(value, bool) else str(value)), name
        if action.type and isinstance(value, int):
            schema = number_schema(f"big_learner.{name}", BigExperiment)
            with pytest.raises(argparse.ArgumentTypeError):
                action.type(str(schema["minimum"] - 1))  # type: ignore[operator]
            assert action.type(str(schema["minimum"])) == schema["minimum"]  # type: ignore[operator]


def test_the_launcher_explains_itself() -> None:
    shown = subprocess.run([LAUNCHER, "--help"], capture_output=True, text=True, timeout=240, check=True).stdout
    guide = ("--gpus", "--nodes", "--node-rank", "--master-addr", "--master-port", "--batch-size", "--mixed-precision")
    assert all(flag in shown for flag in guide)


@pytest.mark.medium
def test_the_launcher_refuses_once_what_every_rank_would_refuse(tmp_path: Path) -> None:
    words = [
        LAUNCHER,
        "--gpus",
        "2",
        *SMALL,
        "--",
        "--save-dir",
        str(tmp_path / "saved"),
        "--data",
        str(tmp_path / "nowhere"),
    ]
    environment = {**os.environ, "KEIMA_PYTHON": sys.executable}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith(f"train_distributed.py: --data {tmp_path / 'nowhere'} does not exist: give")
    assert ended.stderr.count("\n") == 1


def launch(data: Path, save_dir: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start two ranks by the launcher."""
    words = [LAUNCHER, "--gpus", "2", "--master-port", str(free_port()), "--max-restarts", "2", *SMALL]
    words += ["--", "--data", str(data), "--save-dir", str(save_dir), "--epochs", "6", "--checkpoint-every", "2"]
    environment = {**os.environ, "KEIMA_PYTHON": sys.executable}
    with log.open("wb") as output:
        return subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT)


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(1800)
def test_killing_a_rank_does_not_change_the_result(data: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert launch(data, tmp_path / "undisturbed", log).wait() == 0, log.read_text()
    disturbed = launch(data, tmp_path / "disturbed", log)
    while "epoch 2/6" not in log.read_text():
        assert disturbed.poll() is None, log.read_text()
        time.sleep(0.02)
    os.kill(ranks_of(disturbed.pid, "train_distributed.py")[-1], signal.SIGKILL)
    assert disturbed.wait() == 0, log.read_text()
    assert "Resuming after step" in log.read_text()
    undisturbed, found = model(tmp_path / "undisturbed"), model(tmp_path / "disturbed")
    assert all(torch.equal(undisturbed[name], found[name]) for name in undisturbed)
