"""Users' own files are named by their content and kept on each machine; faults are reported with file and line."""

from pathlib import Path

import pytest

from keima.config import own_modules
from keima.config.load import ConfigError, load_settings, save_resolved, with_begun_modules
from keima.config.own_modules import (
    ModuleProblem,
    copy_modules,
    keep_copies,
    keep_module,
    load_module,
    source_of,
    stem_of,
)
from keima.config.schema import Settings


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store for this test."""
    monkeypatch.setattr(own_modules, "CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "modules"


def written(path: Path, text: str = "answer = 42\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def config(folder: Path, game: str = "game: {module: othello.py}", network: str = "") -> Path:
    return written(folder / "run.yaml", f"run: {{name: mine}}\n{game}\n{network}\n")


def test_a_file_is_named_by_its_stem_and_content(tmp_path: Path) -> None:
    name = keep_module(written(tmp_path / "othello.py"))
    assert stem_of(name) == "othello" and keep_module(written(tmp_path / "elsewhere" / "othello.py")) == name
    assert keep_module(written(tmp_path / "othello.py", "answer = 43\n")) != name


def test_a_kept_file_is_loaded_after_the_original_is_gone(tmp_path: Path) -> None:
    path = written(tmp_path / "gone.py")
    name = keep_module(path)
    path.unlink()
    assert load_module(name).answer == 42
    assert load_module(name) is load_module(name)


def test_a_copy_has_the_name_of_the_original(tmp_path: Path, store: Path) -> None:
    name = keep_module(written(tmp_path / "othello.py"))
    copy_modules(("chess", name), tmp_path / "run" / "modules")
    (store / f"{name}.py").unlink()
    with pytest.raises(ModuleProblem, match=r"does not have it: name the file othello\.py"):
        source_of(name)
    keep_copies(tmp_path / "run" / "modules")
    assert source_of(name) == b"answer = 42\n"


def test_a_copy_that_was_changed_is_refused(tmp_path: Path, store: Path) -> None:
    name = keep_module(written(tmp_path / "othello.py"))
    copy_modules([name], tmp_path / "modules")
    copy = written(tmp_path / "modules" / f"{name}.py", "answer = 43\n")
    with pytest.raises(ModuleProblem, match="was changed"):
        keep_module(copy)
    written(store / f"{name}.py", "answer = 43\n")
    with pytest.raises(ModuleProblem, match="damaged"):
        load_module(name)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("game.yaml", "", r"expected a Python file"),
        ("my-game.py", "", r"name the file with letters, digits and underscores"),
        ("game.py", "def game(:\n", r"game\.py, line 1: invalid syntax"),
        ("game.py", "\x00", r"game\.py"),
        ("game.py", "#" * 300_000, r"larger than 256 KiB"),
    ],
)
def test_an_invalid_module_is_refused(tmp_path: Path, file: str, text: str, problem: str) -> None:
    with pytest.raises(ModuleProblem, match=problem):
        keep_module(written(tmp_path / file, text))


def test_a_missing_file_and_one_that_is_not_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModuleProblem, match=r"there is no file .*nowhere\.py"):
        keep_module(tmp_path / "nowhere.py")
    (tmp_path / "latin.py").write_bytes(b"name = '\xe9'\n")
    with pytest.raises(ModuleProblem, match=r"latin\.py is not UTF-8 text"):
        keep_module(tmp_path / "latin.py")


def test_a_failing_file_is_reported_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "fails.py", "size = 3\nhalf = size / 0\n")
    with pytest.raises(ModuleProblem, match=rf"{path}, line 2: ZeroDivisionError"):
        load_module(keep_module(path))
    alone = written(tmp_path / "needs.py", "\nimport my_tables\n")
    with pytest.raises(ModuleProblem, match=r"needs\.py, line 2: there is no installed package 'my_tables'"):
        load_module(keep_module(alone))


def test_settings_name_a_file_relative_to_their_own(tmp_path: Path) -> None:
    path = written(tmp_path / "games" / "othello.py")
    settings = load_settings(config(tmp_path, "game: {module: games/othello.py}"))
    assert settings.game.name == keep_module(path) and settings.game.module == str(path)
    assert settings.own_modules == (settings.game.name,)
    assert Settings.model_validate(settings.model_dump()) == settings


def test_a_user_s_network_is_described_by_its_name_and_options(tmp_path: Path) -> None:
    path = written(tmp_path / "tiny.py")
    settings = load_settings(config(tmp_path, "game: {name: chess}", "network: {module: tiny.py, options: {width: 8}}"))
    assert settings.network.arguments() == {"type": keep_module(path), "width": 8}


@pytest.mark.parametrize(
    ("game", "network", "problem"),
    [
        ("game: {module: nowhere.py}", "", r"line 2: game: there is no file"),
        ("game: {module: othello.py, name: go}", "", r"line 2: game: either name"),
        ("game: {openspiel: hex, options: {}}", "", r"line 2: game: openspiel: write the parameters into the name"),
        (
            "game: {name: go}",
            "network: {type: perceiver}",
            r"line 3: network.type: expected 'resnet', 'bottleneck' or ",
        ),
        ("game: {name: go}", "network: {options: {width: 8}}", r"line 3: network: options: only for a network of your"),
        ("game: {name: go}", "network: {module: othello.py, predict_reply: true}", r"has no such heads"),
    ],
)
def test_contradictory_settings_are_refused(tmp_path: Path, game: str, network: str, problem: str) -> None:
    written(tmp_path / "othello.py")
    with pytest.raises(ConfigError, match=problem):
        load_settings(config(tmp_path, game, network))


def test_the_name_of_an_openspiel_game_stands_for_its_adapter(tmp_path: Path) -> None:
    game = load_settings(config(tmp_path, 'game: {openspiel: "hex(board_size=5)"}')).game
    assert (game.name, game.options) == ("openspiel", {"game": "hex(board_size=5)"})


def test_a_run_keeps_a_copy_and_uses_it_after_the_file_has_changed(tmp_path: Path, store: Path) -> None:
    path, run = written(tmp_path / "othello.py"), tmp_path / "run"
    run.mkdir()
    settings = load_settings(config(tmp_path))
    assert with_begun_modules(settings, run) == (settings, [])
    save_resolved(settings, run)
    assert with_begun_modules(settings, run) == (settings, [])

    written(path, "answer = 43\n")
    changed, said = with_begun_modules(load_settings(tmp_path / "run.yaml"), run)
    assert changed.game.name == settings.game.name and changed.game.module != str(path)
    assert "othello.py has changed since this run began" in said[0]

    path.unlink()
    (store / f"{settings.game.name}.py").unlink()
    assert load_settings(run / "config.yaml").game.name == settings.game.name
    assert load_module(settings.game.name).answer == 42
