"""A game-playing program that reads commands from its standard input and answers on its standard output.

Subclasses implement UCI, GTP and NBoard.
"""

import fcntl
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

ANSWER_SECONDS = 20.0  # for an answer, beyond the time that the engine is given to think
END_SECONDS = 5.0  # until a program that has closed its output is ended
MOST_ERRORS = 2**20  # bytes of its standard error that are kept
ERROR_CHARACTERS = 500  # characters of a failed engine


class EngineFailed(RuntimeError):
    """The engine has exited, does not answer, or breaks the protocol; the text says which, and to what command."""


class EngineProcess:
    """A running engine. Every answer has a time limit, and ``close`` ends the process.

    Args:
        command: the program and its arguments.
        language: its protocol.
        seconds: for an answer, beyond the time that it is given to think.
        environment: of the process; None: that of this one.

    Attributes:
        name: reported by the engine; until then, the name of its file.

    Raises:
        EngineFailed: it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        language: str,
        seconds: float = ANSWER_SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._path, self._language, self._seconds = Path(command[0]), language, seconds
        self._rest, self._lines, self._is_killed = b"", list[str](), False
        self.name = self._path.name
        files = ExitStack()
        self._files, self._errors = files, files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (ended by close)
        pipe = subprocess.PIPE
        try:
            # In a group of its own: the program may be a script, whose engine must not outlive it.
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self._errors, env=environment, start_new_session=True
            )
        except OSError as error:
            self._files.close()
            raise EngineFailed(f"{self._path} cannot be started: {error.strerror}") from error
        flags = fcntl.fcntl(self._errors, fcntl.F_GETFL)  # both share them: the engine writes to the file's end
        fcntl.fcntl(self._errors, fcntl.F_SETFL, flags | os.O_APPEND)
        assert self._process.stdin and self._process.stdout
        self._input, self._output = self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and those that it has started."""
        self._kill_group()
        self._process.wait()
        self._output.close()
        self._files.close()
        with suppress(BrokenPipeError):  # it may have ended with unread input
            self._input.close()

    def _kill_group(self) -> None:
        if not self._is_killed:  # later the number may be another group's
            self._is_killed = True
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _deadline(self, seconds: float) -> float:
        """Return the deadline of an answer that may take ``seconds`` of thinking."""
        return time.monotonic() + self._seconds + seconds

    def _send_lines(self, *lines: str) -> None:
        if os.fstat(self._errors.fileno()).st_size > MOST_ERRORS:  # an engine that logs each move, for days
            os.truncate(self._errors.fileno(), 0)
        try:
            self._input.write("".join(f"{line}\n" for line in lines).encode())
            self._input.flush()
        except OSError as error:
            raise self._failure(lines[-1]) from error

    def _read_line(self, command: str, awaited: str, deadline: float) -> str:
        """Return the next line of output after ``command``, while waiting for ``awaited``."""
        while not self._lines:
            with selectors.DefaultSelector() as selector:
                selector.register(self._output, selectors.EVENT_READ)
                left = deadline - time.monotonic()
                if left < 0 or not selector.select(left):  # some engines talk on without an answer
                    late = f"has not answered {awaited!r} to {command!r} in time"
                    raise EngineFailed(f"{self._path} {late}: does it speak {self._language}?")
            data = os.read(self._output.fileno(), 2**16)
            if not data:
                raise self._failure(command)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += [line.decode(errors="replace").strip() for line in lines]
        return self._lines.pop(0)

    def _failure(self, command: str) -> EngineFailed:
        with suppress(subprocess.TimeoutExpired):  # then it has only closed its input or output
            self._process.wait(END_SECONDS)
        self._kill_group()
        code = self._process.wait()
        self._errors.seek(0)
        words = self._errors.read()[-ERROR_CHARACTERS:].decode(errors="replace").strip().replace("\n", " / ")
        return EngineFailed(
            f"{self._path} has ended with exit code {code} when it was told {command!r}{': ' + words if words else ''}"
        )
