from pathlib import Path

import pytest

from configs.commands import CONFIG, settings_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_shipped_settings_file_is_found_from_any_folder() -> None:
    assert settings_file("configs/config.yaml") == CONFIG


def test_a_user_s_own_file_takes_precedence_over_a_shipped_one(folder: Path) -> None:
    (folder / "configs").mkdir()
    (folder / "configs" / "config.yaml").touch()
    assert settings_file("configs/config.yaml") == Path("configs/config.yaml")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["configs/another.yaml", "configs", "/configs/config.yaml"])
def test_any_other_name_is_left_unchanged(name: str) -> None:
    assert settings_file(name) == Path(name)
