"""The program of the main node: what it refuses and how, and how it ends."""

import os
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import yaml

from keima.base.run_folder import FOLLOWED
from keima.base.run_lock import RunLock
from keima.base.system.command_line import program_name
from keima.cli.training import train
from keima.coach.session import configured_game
from keima.config.commands import cluster, keima
from keima.config.flags import given_settings
from keima.config.load import load_settings
from keima.config.sections.run import RunSettings
from keima.data.ledger import read_ledger
from tests.programs import begun, called
from tests.small_run import small_settings


def config(folder: Path, **changes: object) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(small_settings(folder, **changes).model_dump(mode="json")))
    return path


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the program's message when it refuses to start."""
    assert train.main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"{program_name()}: ")
    return said.err


def test_a_missing_config_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.yaml" in refusal(capsys, "--config", tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("\x00", "not YAML"),
        ("run: [", "line"),
        ("run:\n  name: a\n  nmae: b\n", "nmae"),
        ("run: {name: a}\n", "game is missing"),
    ],
)
def test_a_damaged_config_is_named_with_its_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str, words: str
) -> None:
    (tmp_path / "bad.yaml").write_text(damage)
    said = refusal(capsys, "--config", tmp_path / "bad.yaml", "--run-dir", tmp_path / "run")
    assert "bad.yaml" in said
    assert words in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("game", "line", "words"),
    [
        (
            "game:\n  name: backgammon\n",
            3,
            "game.name: there is no game called 'backgammon'; the games are chess, connect_four, go",
        ),
        (
            "game:\n  name: go\n  options:\n    size: 9\n    komi: 7.3\n",
            6,
            "game.options.komi: game 'go': komi must be a multiple of 0.5",
        ),
        ("game:\n  name: go\n  options: {}\n", 0, ""),
        (
            "game:\n  name: go\n  options:\n    size: big\n",
            5,
            "game.options.size: game 'go': size must be a whole number",
        ),
        (
            "game:\n  name: chess\n  options: {size: 9}\n",
            4,
            "game.options.size: game 'chess' has no option 'size'; it takes max_plies, claim_draws",
        ),
        (
            "game:\n  name: tic_tac_toe\n  options: {size: 9}\n",
            4,
            "game 'tic_tac_toe' has no option 'size'; it takes none",
        ),
    ],
)
def test_an_impossible_game_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], game: str, line: int, words: str
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(f"run: {{name: a, iterations: 1, directory: {tmp_path}}}\n{game}")
    if not words:
        assert configured_game(load_settings(path), path).name == "go"
        return
    said = refusal(capsys, "--config", path, "--run-dir", tmp_path / "run")
    assert f"{path}: line {line}: " in said and words in said
    assert not (tmp_path / "run").exists()


def test_a_smoke_run_respects_its_limits(tmp_path: Path) -> None:
    def run_settings(*arguments: str) -> RunSettings:
        return train.read_settings(train.parse(["--config", str(config(tmp_path)), "--smoke", *arguments]))[1].run

    assert (run_settings().iterations, run_settings().minutes) == (2, None)
    assert run_settings("--iterations", "5").iterations == 5
    assert run_settings("--minutes", "0.5").minutes == 0.5


def test_only_an_existing_run_can_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "start it without --resume" in refusal(
        capsys, "--config", config(tmp_path), "--run-dir", tmp_path / "run", "--resume"
    )


@pytest.mark.parametrize("what", ["my.yaml", "my_game.py"])
def test_the_run_of_a_config_or_a_game_is_resumed_by_their_names(what: str) -> None:
    arguments = train.parse([what, "--resume"])
    assert arguments.run_dir is None and arguments.config.suffix == ".yaml"


def test_a_run_s_path_means_that_path_and_its_name_alone_the_run_in_runs() -> None:
    assert train.parse(["runs/nowhere", "--resume"]).run_dir == Path("runs/nowhere")
    assert train.parse(["nowhere", "--resume"]).run_dir == Path("runs/nowhere")


def test_a_run_does_not_overwrite_another_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.db").touch()
    assert "--resume" in refusal(capsys, "--config", config(tmp_path), "--run-dir", tmp_path)


def test_a_run_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLock(tmp_path):
        said = refusal(capsys, "--config", config(tmp_path), "--run-dir", tmp_path)
    assert f"process {os.getpid()}" in said


def test_a_run_is_resumed_with_its_own_settings(tmp_path: Path) -> None:
    config(tmp_path, run={"seed": 77}).rename(tmp_path / "config.yaml")
    _, resumed = train.read_settings(train.parse(["--run-dir", str(tmp_path), "--resume"]))
    assert resumed.run.seed == 77
    _, begun = train.read_settings(train.parse(["--run-dir", str(tmp_path)]))
    assert begun.run.name == "quickstart"


def cluster_of(*names: str) -> dict[str, object]:
    return {"enabled": True, "workers": [{"host": name} for name in names]}


def test_a_resumed_cluster_takes_the_workers_that_its_file_lists_now(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    config(run_dir, run={"seed": 77}, distributed=cluster_of("worker1", "worker2")).rename(run_dir / "config.yaml")
    followed = config(tmp_path, run={"seed": 78}, distributed=cluster_of("worker2", "added"))
    arguments = train.parse(["--distributed", "--run-dir", str(run_dir), "--resume"])
    path, settings = train.read_settings(arguments)
    assert path == run_dir / "config.yaml"
    (run_dir / FOLLOWED).write_text(str(followed))
    path, settings = train.read_settings(arguments)
    assert path == followed
    assert [worker.name for worker in settings.distributed.workers] == ["worker2", "added"]
    assert settings.run.seed == 77
    followed.unlink()
    path, settings = train.read_settings(arguments)
    assert path == run_dir / "config.yaml"
    assert [worker.name for worker in settings.distributed.workers] == ["worker1", "worker2"]


@pytest.mark.parametrize("others", [{}, cluster_of("worker1")], ids=["this machine", "a cluster"])
def test_a_resumed_run_is_as_open_as_before_or_closed(tmp_path: Path, others: dict[str, object]) -> None:
    given = {**others, "enabled": True, "crowd": {"port": 0}}
    config(tmp_path, distributed=given).rename(tmp_path / "config.yaml")
    line = ["--run-dir", str(tmp_path), "--resume"]
    _, settings = train.read_settings(train.parse(line))
    assert settings.distributed.enabled and settings.distributed.crowd
    _, settings = train.read_settings(train.parse([*line, "--no-crowd"]))
    assert settings.distributed.crowd is None and settings.distributed.enabled == bool(others)


def test_a_local_run_continues_with_the_workers_of_its_file_or_else_of_the_cluster_s_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "run.db").touch()
    config(run_dir, run={"seed": 77}).rename(run_dir / "config.yaml")
    begun_with = config(tmp_path, run={"seed": 78})
    (run_dir / FOLLOWED).write_text(str(begun_with))
    (tmp_path / "elsewhere").mkdir()
    others = config(tmp_path / "elsewhere", distributed=cluster_of("worker2"))
    monkeypatch.setattr(train, "CLUSTER", tmp_path / "elsewhere" / "nowhere.yaml")
    line = ["--distributed", "--run-dir", str(run_dir), "--resume"]
    said = refusal(capsys, *line)
    assert f"{begun_with}: distributed.workers: none are listed" in said and "cluster add" in said
    monkeypatch.setattr(train, "CLUSTER", others)
    path, settings = train.read_settings(train.parse(line))
    assert (path, [worker.name for worker in settings.distributed.workers]) == (others, ["worker2"])
    config(tmp_path, distributed={**cluster_of("worker1"), "enabled": False})
    path, settings = train.read_settings(train.parse(line))
    assert (path, [worker.name for worker in settings.distributed.workers]) == (begun_with, ["worker1"])
    assert settings.distributed.enabled and settings.run.seed == 77
    path, settings = train.read_settings(train.parse(line[1:]))
    assert path == run_dir / "config.yaml" and not settings.distributed.enabled


def test_a_cluster_without_workers_says_how_to_add_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(capsys, "--distributed")
    assert "workers: the list is empty" in said and cluster("add HOST USER") in said
    assert not list(tmp_path.iterdir())


def begin(path: Path, run_dir: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return begun("start_main.py", "--config", path, "--run-dir", run_dir, *arguments)


@pytest.mark.trial
def test_a_run_ends_by_itself_or_by_ctrl_c_and_says_how_to_continue(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with begin(config(tmp_path, run={"iterations": None}), run_dir) as process:
        while not list(run_dir.glob("checkpoints/checkpoint-*")):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate()
    assert process.returncode == 130
    assert keima(f"resume {run_dir}") in said
    with read_ledger(run_dir) as ledger:
        before = len(ledger.iterations())
    assert not list(run_dir.glob("workers/*/outbox/*.games"))
    resumed = ("--config", config(tmp_path), "--run-dir", run_dir, "--resume", "--iterations", before + 1)
    assert "Continue:" not in called("start_main.py", *resumed)
    with read_ledger(run_dir) as ledger:
        assert len(ledger.iterations()) == before + 1


@pytest.mark.slow
@pytest.mark.trial
def test_a_second_ctrl_c_ends_a_run_at_once(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with begin(config(tmp_path, run={"iterations": None}), run_dir) as process:
        while not list(run_dir.glob("workers/*/worker.json")):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGSTOP)  # so that both arrive at once
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate()
    assert process.returncode == 130
    assert "Stopped immediately" in said


def test_takeover_goes_with_distributed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train.parse(["--takeover"])
    assert "--takeover goes with --distributed" in capsys.readouterr().err
    assert train.parse(["--distributed", "--takeover"]).takeover


def test_hours_are_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    assert given_settings(train.parse(["go9", "--hours", "1.5"])) == {"run.minutes": 90.0}
    with pytest.raises(SystemExit):
        train.parse(["go9", "--hours", "1", "--minutes", "60"])
    assert "--hours and --minutes both limit the run" in capsys.readouterr().err


@pytest.mark.medium
def test_a_broken_game_leaves_no_config_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def game():\n    return 1 / 0\n")
    assert train.main([str(tmp_path / "broken.py"), "--minutes", "1"]) == 2
    assert "broken.py" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.yaml"))


def test_nothing_is_measured_for_a_run_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("keima.coach.proposal.examine_in_process", pytest.fail)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"run": {"name": "mine", "auto": True}, "game": {"name": "tic_tac_toe"}}))
    assert "there is no run" in refusal(capsys, "--config", path, "--run-dir", tmp_path / "run", "--resume")
