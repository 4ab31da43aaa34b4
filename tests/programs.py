"""Programs of the checkout, started as people start them."""

import fcntl
import importlib
import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Self

import pytest

from keima.cli.main import VERBS
from keima.play.arena.ladder import find_program
from tests.sources import ROOT

GNU_GO = find_program("gnugo")
needs_gnu_go = pytest.mark.skipif(GNU_GO is None, reason="GNU Go is not installed (Debian: apt-get install gnugo)")


@contextmanager
def begun(program: str, *words: object, cwd: Path = ROOT) -> Iterator[subprocess.Popen[str]]:
    """Yield a running program, named by its verb or its path in the checkout, that handles Ctrl-C. Its outputs are one
    stream. It ends with the block.
    """
    line = command(program, *words)
    with subprocess.Popen(
        line, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed_ctrl_c
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class Terminal:
    """A terminal in which one program runs, as in a window or an SSH login.

    Args:
        line: the command.
        environment: variables in addition to this process's own.
    """

    def __init__(self, *line: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> None:
        self._end, inside = pty.openpty()

        def at_home() -> None:
            heed_ctrl_c()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # whose processes the system signals when it is closed

        variables = {**os.environ, "TERM": "xterm", **(environment or {})}
        self.process = subprocess.Popen(
            line,
            cwd=cwd,
            env=variables,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=at_home,
        )
        os.close(inside)
        self.shown = b""

    def wait_for(self, what: Callable[[], bool], *, seconds: float = 280) -> None:
        """Read until ``what`` is true; fail if the program ends before."""
        deadline = time.monotonic() + seconds
        while not what():
            alive = self.process.poll() is None
            self._read()
            assert what() or (alive and time.monotonic() < deadline), self.shown.decode("utf-8", "replace")

    def wait(self, *, seconds: float = 280) -> int:
        """Read until the program has ended; return how."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown.decode("utf-8", "replace")
            self._read()
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        if select.select([self._end], [], [], 0.05)[0]:
            with suppress(OSError):  # there is no program any more
                self.shown += os.read(self._end, 65536)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._end, text.encode())

    def close(self) -> int:
        """Close the window: the system takes the terminal away and signals its processes (SIGHUP). Return how the
        program ends.
        """
        os.close(self._end)
        self._end = -1
        return self.process.wait(280)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *what: object) -> None:
        if self._end >= 0:
            os.close(self._end)
        self.process.kill()
        self.process.wait()


def run(program: str, *words: object, cwd: Path = ROOT, seconds: float = 280) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, within a time limit."""
    return subprocess.run(
        command(program, *words), cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False
    )


def printed(program: str, *words: object, cwd: Path = ROOT, seconds: float = 280) -> str:
    """Return the output of a program that succeeds."""
    ended = run(program, *words, cwd=cwd, seconds=seconds)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def called(program: str, *words: object, cwd: Path = ROOT) -> str:
    """Call a program's ``main`` in this process and return what it prints; it must succeed. Nothing is imported again,
    so it takes seconds less than a start.
    """
    if program in VERBS:
        name, first = VERBS[program].module, VERBS[program].words
    else:
        (name,), first = re.findall(r"keima\.[\w.]+", (ROOT / program).read_text().partition("run_module(")[2]), ()
    module = importlib.import_module(name)
    with chdir(cwd), redirect_stdout(io.StringIO()) as said:
        assert module.main([*first, *map(str, words)]) == 0, said.getvalue()
    return said.getvalue()


def command(program: str, *words: object) -> list[str]:
    """Return how the program, a verb or a path in the checkout, is started, from any folder."""
    begin = ["-m", "keima", program] if program in VERBS else [str(ROOT / program)]
    return [sys.executable, *begin, *map(str, words)]


def heed_ctrl_c() -> None:
    """In a child: do what a terminal does. Programs started by a background script or by nohup ignore signals."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def ranks_of(launcher: int, program: str) -> list[int]:
    """Return the rank processes of a program that torchrun has started; torchrun is the process ``launcher``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent, line = path.read_text().rpartition(")")[2].split()[1], (path.parent / "cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if int(parent) == launcher and program.encode() in line:
            found.append(int(path.parent.name))
    return sorted(found)
