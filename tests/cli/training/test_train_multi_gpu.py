"""The guide's program for several GPUs: its options, what it refuses and how, its files, and how it ends."""

import re
from pathlib import Path

import pytest

from keima.base.run_folder import STATS_NAME
from keima.base.system.command_line import program_name
from keima.cli.training import train_multi_gpu
from keima.cli.training.train_multi_gpu import read_arguments, settings_of
from keima.cluster.local.worker_devices import device_slots
from keima.coach.bounds import window_capacity
from keima.config.load import load_settings, save_resolved
from keima.config.schema import Settings
from keima.networks.files.weights_file import load_weights
from keima.report.files.run_files import read_stats
from tests.programs import printed
from tests.sources import ROOT

OF_THE_GUIDE = {"--gpus", "--iterations", "--games-per-iter", "--save-dir", "--resume"}
SLOTS = device_slots("cpu,cpu", (), cores=1)
GO = ROOT / "configs" / "go9.yaml"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which the program runs, on a machine without GPUs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train_multi_gpu, "local_gpus", lambda: ())
    return tmp_path


def settings_for(*arguments: object) -> Settings:
    """Return the settings of the run that the command line requests."""
    read = read_arguments([str(argument) for argument in ("--save-dir", "run", *arguments)])
    return settings_of(read, SLOTS)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the program's message when it refuses to start."""
    assert train_multi_gpu.main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"{program_name()}: ")
    return said.err


def usage(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the program's message about an invalid command line."""
    with pytest.raises(SystemExit) as ended:
        train_multi_gpu.main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_help_has_every_option_of_the_guide_and_names_the_files_left_behind(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train_multi_gpu.main(["--help"])
    shown = capsys.readouterr().out
    assert set(re.findall(r"--[a-z-]+", shown)) >= OF_THE_GUIDE
    assert "checkpoint_iter_10.pt" in shown and "model_final.pt" in shown and "training_stats.json" in shown


def test_by_default_it_plays_chess_and_measures_no_strength() -> None:
    settings = settings_for()
    assert settings.game.name == "chess"
    assert (settings.run.iterations, settings.training.games_per_iteration) == (100, 100)
    assert settings.evaluation.every == 0 and not settings.training.asynchronous
    assert (settings.network.type, settings.network.time_steps) == ("spiking", 2)
    assert settings.game.options["max_plies"] == 240, "as in configs/chess.yaml"
    assert settings.training.window.min_positions == settings.training.batch_size
    assert window_capacity(settings.training.window, 300_000) == 300_000, (
        "nothing is forgotten before the buffer is full"
    )


def test_options_of_the_command_line_become_the_run_s_settings() -> None:
    numbers = (
        "--iterations",
        2,
        "--games-per-iter",
        30,
        "--simulations",
        5,
        "--batch-size",
        8,
        "--lr",
        0.01,
        "--seed",
        7,
        "--minutes",
        3,
    )
    settings = settings_for(*numbers, "--network", "spiking", "--blocks", 3, "--channels", 24, "--parallel-games", 11)
    assert (settings.run.iterations, settings.run.seed, settings.run.minutes) == (2, 7, 3)
    assert (settings.training.games_per_iteration, settings.training.batch_size, settings.training.learning_rate) == (
        30,
        8,
        0.01,
    )
    assert settings.search.num_simulations == 5 >= settings.search.cheap_simulations
    assert (settings.network.type, settings.network.blocks, settings.network.channels) == ("spiking", 3, 24)
    assert settings_for("--time-steps", 3).network.time_steps == 3
    assert settings_for("--network", "resnet").network.time_steps is None
    assert not settings_for("--game", "connect_four").network.predict_ownership, "a spiking network has no such head"
    assert settings_for("--game", "connect_four", "--network", "resnet").network.predict_ownership
    assert settings.self_play.parallel_games == 11


def test_a_user_s_experiment_is_followed_where_options_say_nothing_else() -> None:
    settings, shipped = settings_for("--config", GO, "--blocks", 2), load_settings(GO)
    assert (
        settings.game == shipped.game
        and settings.search == shipped.search
        and settings.evaluation == shipped.evaluation
    )
    assert settings.network == shipped.network.model_copy(update={"blocks": 2})
    assert settings.run.name == "run"


def test_a_resumed_run_keeps_its_settings_except_for_new_options(here: Path) -> None:
    (here / "run").mkdir()
    (here / "run" / "run.db").touch()
    (here / "run" / "gpus").write_text("cpu,cpu,cpu")
    save_resolved(
        settings_for("--game", "connect_four", "--iterations", 5, "--blocks", 2, "--simulations", 9), here / "run"
    )
    read = read_arguments(["--save-dir", "run", "--resume", "--iterations", "8"])
    settings = settings_of(read, SLOTS)
    assert (read.gpus, settings.game.name, settings.run.iterations) == ("cpu,cpu,cpu", "connect_four", 8)
    assert (settings.network.blocks, settings.search.num_simulations) == (2, 9)
    assert read_arguments(["--save-dir", "run", "--resume", "--gpus", "cpu"]).gpus == "cpu"


def test_smoke_shrinks_numbers_and_raises_none() -> None:
    settings = settings_for("--smoke", "--iterations", 1, "--simulations", 100)
    assert (settings.run.iterations, settings.search.num_simulations, settings.training.games_per_iteration) == (
        1,
        4,
        8,
    )
    assert [settings_for("--smoke", *length).run.iterations for length in ((), ("--iterations", 5))] == [2, 5], (
        "how long it takes stands"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--iterations", "0"],
        ["--games-per-iter", "0"],
        ["--lr", "-1"],
        ["--blocks", "0"],
        ["--parallel-games", "0"],
        ["--batch-size", "1"],
    ],
)
def test_invalid_numbers_are_refused(here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        train_multi_gpu.main(["--game", "tic_tac_toe", *arguments])
    assert re.search(rf"argument {arguments[0]}: expected .*, found {arguments[1]}\n", capsys.readouterr().err)
    assert not list(here.iterdir())


def test_a_missing_gpu_is_named_with_the_existing_ones(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_multi_gpu, "local_gpus", lambda: ("0", "1"))
    assert "there is no GPU 2 here: there are 2: 0, 1" in refusal(capsys, "--game", "tic_tac_toe", "--gpus", "0,2")
    assert not list(here.iterdir())


def test_only_an_existing_run_can_be_resumed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--resume needs the --save-dir" in usage(capsys, "--resume")
    assert "leave --config and --game out" in usage(capsys, "--resume", "--save-dir", "run", "--game", "go")
    assert "start it without --resume" in refusal(capsys, "--resume", "--save-dir", "run")
    (here / "run").mkdir()
    (here / "run" / "run.db").touch()
    said = refusal(capsys, "--save-dir", "run", "--gpus", "cpu", "--game", "tic_tac_toe")
    assert "continue it with --resume, or choose another folder with --save-dir" in said


@pytest.mark.slow  # tests/promises types the same commands, except for the audit
@pytest.mark.timeout(900)  # most of it compiling, the first time
def test_the_guide_s_commands_train_chess_and_show_the_results(tmp_path: Path) -> None:
    options = ("--gpus", "cpu,cpu", "--smoke", "--save-dir", "checkpoints_2cpu")
    said = printed("scripts/train_multi_gpu.py", *options, cwd=tmp_path, seconds=800)
    folder = tmp_path / "checkpoints_2cpu"
    rows = read_stats(folder / STATS_NAME)
    assert [row.iteration for row in rows] == [1, 2]
    assert said.startswith(f"{'=' * 70}\n  Multi-GPU Chess SNN Training\n{'=' * 70}\nPrimary training device: cpu\n")
    assert said.count("Generating 8 games across 2 CPUs...\nGames per CPU: [4, 4]\n") == 2
    assert f"Completed 8 games in {rows[0].self_play.seconds:.1f}s" in said
    assert "ERROR" not in said
    assert load_weights(folder / "model_final.pt")
    stats = f"checkpoints_2cpu/{STATS_NAME}"
    assert printed("scripts/view_results.py", "--training", stats, "--last", "1", cwd=tmp_path).startswith(
        "The last 1 of 2 iterations:"
    )
    assert (
        printed("scripts/watch_training.py", "--file", stats, "--simple", "--once", cwd=tmp_path).count("iteration")
        == 2
    )
    assert "balance" in printed("audit", "checkpoints_2cpu", cwd=tmp_path)
