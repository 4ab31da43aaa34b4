"""A worker that plays a user's game confined, as a program: the game plays, and does nothing else."""

import json
import logging
import os
import sys
from pathlib import Path

import pytest

from keima.cli import worker
from keima.config.own_modules import source_of
from keima.games import load_game
from keima.networks.files.heading import stored_sha256
from keima.paths import CACHE, PACKAGE, SOURCE
from tests import programs
from tests.cli.test_worker import PATIENCE, wait_until
from tests.own_game import own_game
from tests.small_run import model_bytes
from tests.worker.test_worker import Main

ATTEMPTS = """
import json, os, socket, subprocess, tempfile

def attempt(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"

if os.environ["KEIMA_CACHE"].endswith("confined"):
    outside, temporary = {outside!r}, tempfile.gettempdir()
    secret = os.path.join(outside, "secret")
    tried = {{
        "write": attempt(lambda: open(os.path.join(outside, "new"), "w").close()),
        "read": attempt(lambda: open(secret).close()),
        "network": attempt(lambda: socket.create_connection(("127.0.0.1", 9))),
        "link": attempt(lambda: os.symlink(secret, os.path.join(temporary, "link"))),
        "temporary": attempt(lambda: tempfile.TemporaryFile().close()),
        "password": os.environ.get("PASSWORD", "unknown"),
    }}
    subprocess.run(["touch", os.path.join(outside, "new")], capture_output=True)
    with open(os.path.join(temporary, "tried.json"), "w") as file:
        json.dump(tried, file)
"""


@pytest.mark.trial
@pytest.mark.slow
def test_a_confined_worker_plays_a_user_s_game_that_can_do_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    file = own_game(tmp_path / "mine.py")
    with file.open("a", encoding="utf-8") as end:
        end.write(ATTEMPTS.format(outside=str(outside)))
    monkeypatch.setenv("KEIMA_CACHE", str(CACHE))
    game = load_game(str(file))
    main = Main(tmp_path / "w", granted=12, game=game.name, modules=(game.name,))
    main.folder.module_path(game.name).write_bytes(source_of(game.name))
    data = model_bytes(2, game)
    main.folder.model_path(2).write_bytes(data)
    main.assign(model_version=2, model_sha256=stored_sha256(data))

    log = tmp_path / "logs" / "worker.log"
    monkeypatch.setenv("PASSWORD", "secret")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # compiling takes minutes; tests/base/system compiles confined code
    with programs.begun("worker", "--folder", tmp_path / "w", "--confined", "--log", log) as process:
        wait_until(lambda: len(main.folder.batch_files()) == 2, process)
        main.assign(stop=True)
        assert process.wait(PATIENCE) == 0
    assert [batch.game for batch in main.batches()] == [game.name] * 2
    said = log.read_text()
    tried = json.loads((tmp_path / "w" / "tmp" / "tried.json").read_text())
    assert (tried["temporary"], tried["password"]) == ("done", "unknown")
    if "no network" in said:
        assert tried["network"] == "PermissionError"
    if "no writing outside its own folders" in said:
        assert {tried[name] for name in ("write", "read", "link")} == {"PermissionError"}
        assert [path.name for path in outside.iterdir()] == ["secret"]
    if "no network, no writing" not in said:
        assert "WARNING" in said


def test_test_games_are_not_confined(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        worker.parse(["--test-games", "go", "--confined"])
    assert "--confined needs --folder" in capsys.readouterr().err


def test_a_confined_worker_keeps_no_secrets_in_its_environment_and_has_a_cache_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[tuple[str, list[str], dict[str, str]]] = []
    secrets = {"AWS_SECRET_ACCESS_KEY": "x", "KEIMA_KEY_PASSPHRASE": "x", "SSH_AUTH_SOCK": "/s"}
    environment = {"HOME": "/home/me", "CUDA_VISIBLE_DEVICES": "1", **secrets}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(os, "execve", lambda *words: started.append(words))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "keima", "worker"])
    worker.restart_with_own_cache()
    ((program, words, variables),) = started
    assert words == [program, "-m", "keima", "worker"]
    assert variables == {
        "HOME": "/home/me",
        "CUDA_VISIBLE_DEVICES": "1",
        "KEIMA_CACHE": str(CACHE / "confined"),
    }


def test_neither_the_home_nor_the_checkout_is_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, packages = tmp_path / "me", tmp_path / "me" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE}:{home}:{tmp_path / 'libraries'}")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setattr(sys, "path", ["", str(home / "work"), str(packages)])
    found = worker.find_code()
    assert {packages, tmp_path / "libraries", PACKAGE, Path("/usr")} <= set(found)
    assert not {home, tmp_path, home / "work", Path(), Path.cwd(), SOURCE} & set(found)


def test_a_log_in_a_folder_that_may_not_be_written_is_emptied_when_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: object) -> None:
        raise PermissionError

    monkeypatch.setattr("logging.handlers.os.rename", refuse)
    monkeypatch.setattr(os, "dup2", lambda *descriptors: None)
    handler = worker.LogFile(tmp_path / "log", maxBytes=100, backupCount=1, encoding="utf-8")
    for number in range(100):
        handler.emit(logging.makeLogRecord({"msg": f"line {number}"}))
    handler.close()
    assert (tmp_path / "log").stat().st_size <= 100
    assert (tmp_path / "log").read_text().endswith("line 99\n")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
