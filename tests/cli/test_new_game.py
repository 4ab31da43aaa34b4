"""A new game is whole from the start: it keeps the contract, has a config that is valid, and tests that pass."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keima.cli import new_game
from keima.config.load import load_settings
from tests.sources import ROOT


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("kind", [[], ["--kernels"]])
def test_its_tests_pass_outside_of_the_checkout(folder: Path, kind: list[str]) -> None:
    new_game.main(["othello", *kind])
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_othello.py"]
    done = subprocess.run(line, cwd=folder, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_its_config_is_valid(folder: Path) -> None:
    new_game.main(["othello"])
    settings = load_settings(folder / "othello.yaml")
    assert settings.run.name == "othello"
    assert settings.run.auto


def test_no_file_is_overwritten(folder: Path) -> None:
    (folder / "othello.yaml").write_text("mine")
    with pytest.raises(ValueError, match=r"^already here: othello.yaml; choose another name"):
        new_game.check_inputs(new_game.parse(["othello"]))
    assert new_game.main(["othello"]) == 2
    assert (folder / "othello.yaml").read_text() == "mine"


@pytest.mark.parametrize("name", ["keima", "numpy", "random"])
def test_the_name_of_a_package_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.py would hide the package {name} from every program in its folder"):
        new_game.check_inputs(new_game.parse([name]))


@pytest.mark.parametrize("name", ["Othello", "4x4", "class", "my game", "../up"])
def test_a_name_that_no_module_can_have_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        new_game.parse([name])
    assert "expected a name such as othello" in capsys.readouterr().err


def test_the_files_name_the_game_and_import_from_keima_alone(folder: Path) -> None:
    new_game.main(["hexagons"])
    for name in ("hexagons.py", "hexagons.yaml", "test_hexagons.py"):
        text = (folder / name).read_text()
        assert "NAME" not in text and "CHECKOUT" not in text
        assert "hexagons" in text and str(ROOT) not in text
        assert set(re.findall(r"(?m)^from (\S+) import|^import (\S+)", text)) <= {
            ("keima", ""),
            ("", "numpy"),
            ("pathlib", ""),
        }
