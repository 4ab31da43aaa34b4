"""docs/operations.md agrees with the code."""

import ast
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from keima.base.run_folder import LEDGER_NAME
from keima.cli import cluster
from keima.cli.training import train
from keima.cluster.control.status import SYMBOLS
from keima.config.sections.cluster import DistributedSettings
from keima.config.sections.workers import WorkerSettings
from tests.sources import ROOT, tree

GUIDE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
# The sources of the messages of --check.
CHECKING = ("machines/check.py", "ssh/host_keys.py", "ssh/ssh_transport.py", "ssh/route.py", "ssh/wire.py")
SHORTEST = 12  # letters that distinguish one message from all others


def plain(text: str) -> str:
    """Return the text without line breaks and Markdown."""
    return " ".join(re.sub(r"[`*\\]", "", text).split())


def fragments(node: ast.expr) -> list[str]:
    """Return the constant parts of a text, in all its variants."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return [each.value for each in node.values if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return []


def messages() -> set[str]:
    """Return the longest fragment of each message that refuses a machine or reports a problem."""
    found = set()
    for path in (ROOT / "keima" / "cluster" / name for name in CHECKING):
        for call in ast.walk(tree(path)):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id in ("Refused", "Unreachable", "_failed", "Finding")
            ):
                place = 3 if call.func.id == "Finding" else 1
                longest = max((part.strip(" .:;,()") for part in fragments(call.args[place])), key=len, default="")
                found.add(plain(longest) if len(longest) >= SHORTEST else "")
    return found - {""}


def test_there_are_messages() -> None:
    assert len(messages()) > 25


@pytest.mark.parametrize("message", sorted(messages()))
def test_every_message_of_a_check_is_in_the_guide(message: str) -> None:
    assert message in plain(GUIDE)


def test_every_command_is_in_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    options = {f"keima cluster {command}" for command in cluster.COMMANDS}
    for command in cluster.COMMANDS:
        with pytest.raises(SystemExit):
            cluster.parse([command, "--help"])
        options |= set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert len(options) >= 17
    assert not {option for option in options if option not in GUIDE}


def test_every_setting_of_the_cluster_is_in_the_guide() -> None:
    settings = {*DistributedSettings.model_fields, *WorkerSettings.model_fields}
    assert not {name for name in settings if f"`{name}" not in GUIDE}


def connector_commands() -> list[list[str]]:
    """Return the arguments of the guide's calls of the connector."""
    calls = re.findall(r"^keima cluster (.*)$", GUIDE, re.MULTILINE)
    return [shlex.split(call, comments=True) for call in calls]


@pytest.mark.parametrize("arguments", connector_commands(), ids=" ".join)
def test_every_command_of_the_guide_can_be_typed(arguments: list[str]) -> None:
    cluster.parse(arguments)


def unit() -> str:
    """Return the guide's systemd unit."""
    (found,) = re.findall(r"^```ini\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize("begun", [False, True])
def test_the_unit_and_the_tmux_line_begin_a_run_and_the_unit_continues_it(tmp_path: Path, begun: bool) -> None:
    keima = tmp_path / ".venv" / "bin" / "keima"
    keima.parent.mkdir(parents=True)
    keima.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    keima.chmod(0o755)
    (tmp_path / "runs" / "lab").mkdir(parents=True)
    if begun:
        (tmp_path / "runs" / "lab" / LEDGER_NAME).touch()
    (line,) = re.findall(r"^ExecStart=(.*)$", unit(), re.MULTILINE)
    (in_tmux,) = re.findall(r"^tmux new-session .*? '(.*)'$", GUIDE, re.MULTILINE)
    for command, resumes in ((shlex.split(line.replace("$$", "$")), begun), (["sh", "-c", in_tmux], False)):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=240)
        verb, *arguments = done.stdout.split()
        parsed = train.parse(arguments)
        assert (verb, parsed.distributed, parsed.run_dir) == ("train", True, Path("runs/lab"))
        assert parsed.resume is resumes


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_the_unit_is_valid(tmp_path: Path) -> None:
    (tmp_path / "keima").mkdir()
    file = tmp_path / "keima.service"
    file.write_text(unit())
    env = {**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    argv = ["systemd-analyze", "--user", "verify", str(file)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_mark_is_in_the_guide() -> None:
    assert not {state for state, symbol in SYMBOLS.items() if f"{symbol} {state.value}" not in GUIDE}
