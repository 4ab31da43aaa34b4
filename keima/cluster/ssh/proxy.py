"""``ProxyCommand`` of ``~/.ssh/config``: a program whose standard input and output lead to a machine."""

import os
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress

END_SECONDS = 1.0  # for a command to end by itself, and again after a signal
MOST_SAID = 300  # characters of its last output


class Proxy:
    """A running ProxyCommand, in a session of its own, so that Ctrl-C does not reach it.

    ``sock`` is a socket whose other end is the command's standard input and output. Unlike pipes, it supports timeouts.

    Raises:
        OSError: there is no shell to run it.
    """

    def __init__(self, command: str) -> None:
        self.sock, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the command runs
        shell = os.environ.get("SHELL") or "/bin/sh"
        try:
            self._process = subprocess.Popen(
                [shell, "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )
        except BaseException:
            self.sock.close()
            self._stderr.close()
            raise
        finally:
            theirs.close()

    def exit_text(self) -> str | None:
        """Return how the command ended, and the end of its standard error; None while it runs."""
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        self._stderr.seek(0)
        said = " ".join(self._stderr.read().decode("utf-8", "replace").split())
        return f"ended with {code} and said: {said[-MOST_SAID:] or 'nothing'}"

    def close(self) -> None:
        """End the command, if it has not ended with its connection."""
        self.sock.close()
        for number in (signal.SIGHUP, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
                break
        self._stderr.close()
