"""A page of the documentation that leads through steps: the files that it has one write, and its commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.sources import ROOT

# "Save this as `transformer.py`:" or "Replace `othello.py` by this:", with its block.
FILE = re.compile(r"(?:Save this as|Replace) `([\w.]+)`[^\n]*\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    """The text of a page."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def write_files(text: str, folder: Path) -> list[Path]:
    """Write the files that the page has one write."""
    paths = []
    for name, content in FILE.findall(text):
        (folder / name).write_text(content, encoding="utf-8")
        paths.append(folder / name)
    return paths


def commands(text: str) -> list[str]:
    """The page's commands, line by line."""
    return [line for block in COMMANDS.findall(text) for line in block.splitlines()]


def follow(command: str, folder: Path, *, typed: str = "", seconds: float = 280) -> str:
    """Run a command as the page says, in ``folder``, and return what it prints; it must come to a good end."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": programs}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        input=typed,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout
