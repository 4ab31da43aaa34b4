"""The guide's program for 2048: its options, what it refuses and how, its files, and how it ends."""

import re
import signal
import time
from pathlib import Path

import pytest
import torch

from keima.base.system.command_line import program_name
from keima.cli.training import train_2048
from keima.config.commands import keima
from keima.config.load import save_resolved
from keima.config.schema import Settings
from keima.data.ledger import read_ledger
from keima.networks.files.weights_file import load_weights, save_weights
from keima.networks.zero_network import ZeroNetwork
from tests.programs import begun, printed
from tests.small_run import small_settings

SMALL = ["--filters", "8", "--blocks", "1", "--height", "2", "--width", "2"]  # games of some ten moves
TINY = [
    *SMALL,
    "--workers",
    "2",
    "--device",
    "cpu",
    "--games-per-epoch",
    "2",
    "--batch-size",
    "128",
    "--simulations",
    "2",
]
OF_THE_GUIDE = {
    *("--workers", "--workers-per-gpu", "--filters", "--blocks", "--checkpoint"),
    *("--epochs", "--games-per-epoch", "--batch-size", "--lr", "--simulations"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which the program runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings_for(*words: object) -> Settings:
    """Return the settings of the run that the command line requests."""
    return train_2048.settings_of(train_2048.parse([str(word) for word in words]))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the program's message when it refuses to start."""
    assert train_2048.main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"{program_name()}: ")
    return said.err


@pytest.mark.parametrize("option", ["--checkpoint", "--run-dir"])
def test_an_error_of_the_system_becomes_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name, reason in (
        ("file", "is a file, and a run needs a folder"),
        ("file/below", "part of its path is a file, not a folder"),
    ):
        if option == "--checkpoint" and name == "file":
            name, reason = "", "it is a folder: name a file in it"
        said = refusal(capsys, option, tmp_path / name)
        assert reason in said and str(tmp_path / name) in said
        assert "Errno" not in said


def usage(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the program's message about an invalid command line."""
    with pytest.raises(SystemExit) as ended:
        train_2048.main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_help_has_every_option_of_the_guide_and_says_when_weights_are_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        train_2048.main(["--help"])
    shown = capsys.readouterr().out
    assert set(re.findall(r"--[a-z-]+", shown)) >= OF_THE_GUIDE
    assert "checkpoints/model_epoch_N.pth every 10 epochs and at the end" in shown


def test_without_options_it_trains_like_the_guide_s_call() -> None:
    settings = settings_for()
    training, network = settings.training, settings.network
    assert (settings.run.iterations, training.games_per_iteration, settings.search.num_simulations) == (100, 32, 50)
    assert (training.batch_size, training.learning_rate) == (64, 0.001)
    assert (network.channels, network.blocks) == (64, 5)
    assert (settings.self_play.workers, training.device) == ("auto", "auto")


def test_workers_are_counted_either_in_total_or_per_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not allowed with" in usage(capsys, "--workers", 4, "--workers-per-gpu", 2)


@pytest.mark.parametrize(
    ("flag", "value", "range_"),
    [
        ("--workers", "0", "a whole number from 1"),
        ("--epochs", "0", "a whole number from 1"),
        ("--lr", "-1", "a number above 0 and up to 10"),
        ("--height", "9", "a whole number from 2 to 5"),
        ("--blocks", "0", "a whole number from 1 to 100"),
    ],
)
def test_invalid_numbers_are_refused_with_their_flag_and_range(
    here: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str, range_: str
) -> None:
    assert f"argument {flag}: expected {range_}, found {value}\n" in usage(capsys, flag, value)
    assert not list(here.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no device 'cuda' here" in refusal(capsys, *SMALL, "--device", "cuda", "--epochs", 1)


def test_a_missing_checkpoint_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "checkpoints/model_epoch_50.pth" in refusal(capsys, "--checkpoint", "checkpoints/model_epoch_50.pth")


def test_a_file_that_is_no_checkpoint_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "model_epoch_50.pth").write_text("weights")
    assert "model_epoch_50.pth is not a file of weights" in refusal(capsys, "--checkpoint", "model_epoch_50.pth")


def test_a_checkpoint_of_another_network_is_named_with_the_possible_cause(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_weights(here / "model_epoch_50.pth", ZeroNetwork(2, 2, 16, filters=16, blocks=1).state_dict())
    said = refusal(capsys, *SMALL, "--checkpoint", "model_epoch_50.pth")
    assert (
        "model_epoch_50.pth belongs to another network; have --filters, --blocks, --height or --width changed?" in said
    )
    assert not (here / "runs").exists()


def test_the_name_of_a_file_contains_its_epochs() -> None:
    assert train_2048.epochs_in_name(Path("checkpoints/model_epoch_50.pth")) == 50
    assert train_2048.epochs_in_name(Path("checkpoints/best.pth")) == train_2048.epochs_in_name(None) == 0


def test_only_an_existing_run_can_be_resumed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--resume needs the --run-dir" in usage(capsys, "--resume")
    assert "give one of them" in usage(capsys, "--resume", "--run-dir", "run", "--checkpoint", "model_epoch_50.pth")
    assert "start it without --resume" in refusal(capsys, "--resume", "--run-dir", "run")


def test_a_run_of_another_game_is_left_to_the_program_that_started_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_resolved(small_settings(here), here)
    assert f"a run of tic_tac_toe: continue it by {keima(f'resume {here}')}" in refusal(
        capsys, "--resume", "--run-dir", here
    )


def test_smoke_shrinks_numbers_and_raises_none() -> None:
    settings = settings_for("--smoke", "--epochs", 1, "--simulations", 100)
    assert (settings.run.iterations, settings.search.num_simulations, settings.self_play.workers) == (1, 4, 2)
    assert settings_for("--smoke", "--workers", 3).self_play.workers == 3
    lengths = [settings_for("--smoke", *length).run.iterations for length in ((), ("--epochs", 5))]
    assert lengths == [2, 5], "how long it takes stands"


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(900)  # most of it compiling, the first time
def test_a_run_starts_from_a_checkpoint_leaves_one_every_ten_epochs_ends_by_ctrl_c_and_resumes(here: Path) -> None:
    checkpoints, run_dir = here / "checkpoints", here / "run"
    checkpoints.mkdir()
    save_weights(checkpoints / "model_epoch_50.pth", ZeroNetwork(2, 2, 16, filters=8, blocks=1).state_dict())
    options = ("--epochs", 100_000, "--checkpoint", "checkpoints/model_epoch_50.pth", "--run-dir", "run")
    with begun("train_parallel.py", *TINY, *options, cwd=here) as process:
        while not (checkpoints / "model_epoch_60.pth").exists():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate()
    assert process.returncode == 130, said
    assert "python train_parallel.py --run-dir run --resume" in said
    with read_ledger(run_dir) as ledger:
        done = len(ledger.iterations())
    assert load_weights(checkpoints / f"model_epoch_{50 + done}.pth")
    assert {path.name for path in checkpoints.iterdir()} == {
        f"model_epoch_{epoch}.pth" for epoch in (*range(50, 50 + done, 10), 50 + done)
    }
    said = printed("train_parallel.py", "--run-dir", "run", "--resume", "--epochs", done + 1, cwd=here, seconds=800)
    assert f"The weights are in checkpoints/model_epoch_{51 + done}.pth" in said
    assert f"{done + 1} epochs" in said
    with read_ledger(run_dir) as ledger:
        assert len(ledger.iterations()) == done + 1
    assert printed("audit", run_dir)
