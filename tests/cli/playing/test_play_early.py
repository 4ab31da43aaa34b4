"""Keima as an engine that gets commands while it loads: torch is held back until the test releases it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keima import __version__
from keima.games import load_game
from keima.networks.files.heading import Heading, read_heading
from keima.paths import SHIPPED
from tests.programs import command
from tests.small_run import GAME, model_bytes, saved_model

GATE = """
import importlib.abc, pathlib, sys, time

class Gate(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        while name == "torch" and not pathlib.Path({open!r}).exists():
            time.sleep(0.01)

sys.meta_path.insert(0, Gate())
"""
GO = SHIPPED / "models" / "go7.safetensors"

pytestmark = [pytest.mark.medium, pytest.mark.timeout(900)]


class Loading:
    """An engine that does not import torch before ``let_go``."""

    def __init__(self, process: subprocess.Popen[str], gate: Path) -> None:
        self.process, self._gate = process, gate

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def until(self, last: str) -> list[str]:
        """Return its lines up to one."""
        assert self.process.stdout
        lines = [self.process.stdout.readline()]
        while lines[-1] != last:
            assert lines[-1], f"it has ended after {lines}"
            lines.append(self.process.stdout.readline())
        return [line.rstrip("\n") for line in lines]

    def let_go(self) -> None:
        self._gate.touch()


@contextmanager
def loading(folder: Path, *words: object) -> Iterator[Loading]:
    gate = folder / "open"
    (folder / "sitecustomize.py").write_text(GATE.format(open=str(gate)))
    line = command(*words)
    env = {**os.environ, "PYTHONPATH": str(folder)}
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env) as process:
        try:
            yield Loading(process, gate)
        finally:
            process.kill()


@pytest.mark.slow
def test_gtp_answers_greetings_before_torch_is_loaded_and_the_rest_waits_in_order(tmp_path: Path) -> None:
    with loading(tmp_path, "gtp", GO, "--simulations", 8) as engine:
        for line, answer in {
            "name": "= Keima",
            "7 protocol_version": "=7 2",
            "known_command genmove": "= true",
        }.items():
            engine.say(line)
            assert engine.until("\n") == [answer, ""]
        engine.say("version")
        assert engine.until("\n")[0].endswith("model 42")
        engine.say("list_commands")
        commands = engine.until("\n")
        assert {"= protocol_version", "genmove", "kata-analyze"} <= set(commands)
        for line in ("1 boardsize 7", "2 name", "3 genmove b", "4 list_commands", "5 quit"):
            engine.say(line)
        engine.let_go()
        assert [engine.until("\n")[0].split()[0] for _ in range(3)] == ["=1", "=2", "=3"]
        assert engine.until("\n") == [commands[0].replace("= ", "=4 "), *commands[1:]], (
            "the engine itself says the same"
        )
        engine.until("\n")
        assert engine.process.wait(60) == 0


@pytest.mark.slow
def test_uci_answers_greetings_before_torch_is_loaded_and_isready_waits(tmp_path: Path) -> None:
    path = saved_model(tmp_path / "tiny.safetensors", load_game("chess"), version=3)
    with loading(tmp_path, "uci", path) as engine:
        engine.say("uci")
        greeting = engine.until("uciok\n")
        assert greeting[0] == "id name Keima 3" and any(line.startswith("option name Threads") for line in greeting)
        engine.say("isready")
        engine.say("uci")
        engine.let_go()
        assert engine.until("uciok\n") == ["readyok", *greeting], "the engine itself says the same"


@pytest.mark.slow
def test_analysis_answers_for_its_version_before_torch_is_loaded(tmp_path: Path) -> None:
    with loading(tmp_path, "analysis", GO) as engine:
        engine.say('{"id":"a","action":"query_version"}')
        answer = f'{{"id":"a","action":"query_version","version":"{__version__}","git_hash":"<omitted>"}}'
        assert engine.until(f"{answer}\n") == [answer]
        engine.say('{"id":"b","action":"clear_cache"}')
        engine.say('{"id":"a","action":"query_version"}')
        engine.let_go()
        assert engine.until(f"{answer}\n") == ['{"id":"b","action":"clear_cache"}', answer]


@pytest.mark.parametrize("last", ["quit\n", ""])
def test_an_abandoned_engine_ends_while_it_loads(last: str, tmp_path: Path) -> None:
    with loading(tmp_path, "gtp", GO) as engine:
        said, _ = engine.process.communicate(f"name\n{last}", timeout=240)
        assert (engine.process.returncode, said) == (0, "= Keima\n\n" + ("=\n\n" if last else ""))


def test_the_header_of_a_model_is_read_from_both_kinds_of_file(tmp_path: Path) -> None:
    (tmp_path / "way.model").write_bytes(model_bytes(5))
    assert read_heading(tmp_path / "way.model") == Heading(game=GAME.name, model_version=5)
    assert read_heading(GO) == Heading(game="go", model_version=42)


@pytest.mark.parametrize(
    "data",
    [b"", b"nothing", b"\xff" * 100, (9).to_bytes(8, "little") + b'{"a": [1}', (2).to_bytes(8, "little") + b"[]"],
)
@pytest.mark.parametrize("name", ["a.model", "a.safetensors"])
def test_a_file_without_a_model_has_no_header(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    assert read_heading(tmp_path / name) is None
