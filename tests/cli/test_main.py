"""The command keima: its verbs, what it says of wrong ones, and what a shell completes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keima import __version__
from keima.cli import main
from keima.cli.main import VERBS
from tests.programs import printed, run


def test_help_lists_every_verb_and_what_it_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["keima"])
    with pytest.raises(SystemExit, match="0"):
        main.main()
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown and each.about in shown for verb, each in VERBS.items())


def test_the_version_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["keima", "--version"])
    with pytest.raises(SystemExit, match="0"):
        main.main()
    assert capsys.readouterr().out == f"keima {__version__}\n"


@pytest.mark.parametrize(("typed", "hint"), [("trian", "did you mean train?"), ("qqq", "see keima --help")])
def test_a_wrong_verb_is_named_with_the_one_that_was_meant(
    typed: str, hint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["keima", typed])
    with pytest.raises(SystemExit, match="2"):
        main.main()
    assert f"keima: error: there is no verb {typed}; {hint}" in capsys.readouterr().err


@pytest.mark.medium
def test_a_file_in_the_present_folder_hides_no_package(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('hidden')")
    line = [sys.executable, "-m", "keima", "audit", "--help"]
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(line, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False, timeout=240)
    assert "usage: keima audit" in done.stdout


def completed(line: str, cwd: Path) -> list[str]:
    """Return what a shell would offer for the last word of a command line."""
    answer = cwd / "answer"
    variables = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    variables |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    subprocess.run(
        [sys.executable, "-m", "keima"],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        timeout=240,
        check=True,
    )
    return [word.strip() for word in answer.read_text().splitlines()]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("keima che", "check-game"),
        ("keima train --min", "--minutes"),
        ("keima resume --min", "--minutes"),
        ("keima gtp --sim", "--simulations"),
        ("keima cluster boot", "bootstrap"),
        ("keima cluster bootstrap --whe", "--wheels"),
        ("keima train qui", "quickstart"),
        ("keima train --set training.learning_rate_s", "training.learning_rate_schedule="),
    ],
)
def test_a_shell_completes_verbs_commands_flags_and_names(line: str, offered: str, tmp_path: Path) -> None:
    assert completed(line, tmp_path) == [offered]


@pytest.mark.medium
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_code_for_each_shell_is_printed(shell: str) -> None:
    assert "keima" in printed("completion", shell)


@pytest.mark.medium
def test_the_settings_of_a_run_are_changed_by_key(tmp_path: Path) -> None:
    line = ("tic_tac_toe", "--smoke", "--set", "search.num_simulations=3", "--set", "run.name=mine")
    refused = run("train", *line, "--set", "search.num_simulation=3", cwd=tmp_path)
    assert refused.returncode == 2
    assert "there is no setting search.num_simulation; did you mean search.num_simulations?" in refused.stderr
    assert not (tmp_path / "runs").exists()
