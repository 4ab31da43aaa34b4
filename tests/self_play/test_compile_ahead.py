"""The search is compiled beside a program that starts, once, and for all games."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from keima.config.sections.search import SearchSettings
from keima.games import load_game
from keima.search.workspace import make_workspace
from keima.self_play import compile_ahead
from keima.self_play.compile_ahead import LAST, PROGRAM, is_compiled, start_compiling
from tests.compilation.compiling import run_code
from tests.lab.processes import has_ended, wait_until
from tests.sources import ROOT

STARTER = """
import os, sys, time
from keima.self_play import compile_ahead

compile_ahead.count_usable_cores = lambda: 2
compile_ahead.start_compiling("analysis")
print(compile_ahead._started[0].pid, flush=True)
time.sleep(600)
"""

ANALYSE = """
from keima.self_play.compile_ahead import compile_search, is_compiled
from tests.compilation.compiling import watch_compiling

compiled = watch_compiling()
compile_search("analysis")
assert is_compiled("analysis")
print(*compiled, sep="\\n")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache's folder of all files."""
    monkeypatch.setattr(compile_ahead, "cache_folder", lambda path: tmp_path)
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the commands that are started; none of them is."""
    commands = list[list[str]]()
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: commands.append(command))
    return commands


@pytest.mark.parametrize(("name", "options"), [("connect_four", {}), ("go", {"size": 7}), ("chess", {})])
def test_one_search_serves_all_games(name: str, options: dict[str, int]) -> None:
    first, second = (
        numba.typeof(make_workspace(game, SearchSettings(), num_trees=1, simulations=64))
        for game in (load_game("tic_tac_toe"), load_game(name, **options))
    )
    assert first == second


@pytest.mark.parametrize("kind", LAST)
def test_it_is_started_until_the_last_function_is_in_the_cache(
    kind: str, folder: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_ahead, "count_usable_cores", lambda: 2)
    file, function = LAST[kind]
    assert f"\ndef {function}(" in file.read_text()
    (folder / f"{file.stem}.another-1.py311.nbi").touch()
    assert not is_compiled(kind)
    start_compiling(kind)
    assert [command[-3:] for command in started] == [[PROGRAM, kind, str(os.getpid())]]
    (folder / f"{file.stem}.{function}-1.py311.nbi").touch()
    assert is_compiled(kind)
    start_compiling(kind)
    assert len(started) == 1


def test_a_machine_with_one_core_has_nothing_to_spare(
    folder: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_ahead, "count_usable_cores", lambda: 1)
    start_compiling("analysis")
    assert not started


@pytest.mark.medium
def test_it_ends_with_its_starter(tmp_path: Path) -> None:
    env = {**os.environ, "KEIMA_CACHE": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", STARTER], cwd=ROOT, env=env, stdout=subprocess.PIPE) as starter:
        assert starter.stdout
        helper = int(starter.stdout.readline())
        assert not has_ended(helper)
        starter.send_signal(signal.SIGKILL)
    wait_until(lambda: has_ended(helper), "the end of the process that compiles")


@pytest.mark.slow
def test_what_it_has_compiled_is_not_compiled_again(tmp_path: Path) -> None:
    assert "keima.search.simulate:advance_searches" in run_code(ANALYSE, tmp_path)
    assert run_code(ANALYSE, tmp_path) == [""]
