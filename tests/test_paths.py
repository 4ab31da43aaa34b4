from pathlib import Path

import pytest

from keima.paths import find_file, workspace
from tests.sources import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_workspace_of_a_checkout_is_the_checkout_from_any_folder() -> None:
    assert workspace() == ROOT


@pytest.mark.usefixtures("folder")
def test_a_file_of_the_workspace_is_found_from_any_folder() -> None:
    assert find_file("configs/config.yaml") == ROOT / "configs" / "config.yaml"


@pytest.mark.usefixtures("folder")
def test_a_shipped_network_is_found_from_any_folder() -> None:
    assert find_file("models/go7.safetensors").is_file()


def test_a_user_s_own_file_takes_precedence_over_a_shipped_one(folder: Path) -> None:
    (folder / "configs").mkdir()
    (folder / "configs" / "config.yaml").touch()
    assert find_file("configs/config.yaml") == Path("configs/config.yaml")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["configs/another.yaml", "/configs/config.yaml"])
def test_any_other_name_is_left_unchanged(name: str) -> None:
    assert find_file(name) == Path(name)
