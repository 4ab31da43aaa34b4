"""Programs of the checkout, started as people start them."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sources import ROOT
from training.evaluation.ladder import find_program

GNU_GO = find_program("gnugo")
needs_gnu_go = pytest.mark.skipif(GNU_GO is None, reason="GNU Go is not installed (Debian: apt-get install gnugo)")


@contextmanager
def begun(program: str, *words: object, cwd: Path = ROOT) -> Iterator[subprocess.Popen[str]]:
    """A program that runs, named by its path in the checkout; it heeds Ctrl-C. What it says is one stream. It ends with the block."""
    line = command(program, *words)
    with subprocess.Popen(line, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed_ctrl_c) as process:
        try:
            yield process
        finally:
            process.kill()


def run(program: str, *words: object, cwd: Path = ROOT, seconds: float = 280) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, which may take so long."""
    return subprocess.run(command(program, *words), cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False)


def printed(program: str, *words: object, cwd: Path = ROOT, seconds: float = 280) -> str:
    """What a program prints that comes to a good end."""
    ended = run(program, *words, cwd=cwd, seconds=seconds)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def command(program: str, *words: object) -> list[str]:
    """How the program is started, wherever one is."""
    return [sys.executable, str(ROOT / program), *map(str, words)]


def heed_ctrl_c() -> None:
    """In a child: what a terminal's programs do. Those of a script in the background are started to ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ranks_of(launcher: int, program: str) -> list[int]:
    """The processes of a program that torchrun has started, itself the process ``launcher``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent, line = path.read_text().rpartition(")")[2].split()[1], (path.parent / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if int(parent) == launcher and program.encode() in line:
            found.append(int(path.parent.name))
    return sorted(found)
