"""The dashboard as people start it, and requests of any shape to it."""

import http.client
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

from tests import programs

SECONDS = 120.0  # for an answer, on a machine that is also busy with other work


@dataclass(frozen=True)
class Dashboard:
    """A running dashboard."""

    address: str  # that it printed
    port: int
    token: str

    def ask(
        self, path: str, *, method: str = "GET", body: bytes | None = None, cookie: bool = True, **headers: str
    ) -> "Answer":
        """Send a request, by default with the cookie; ``headers`` replace what a browser would send."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)) as connection:
            sent = {"Cookie": f"keima-{self.port}={self.token}"} if cookie else {}
            connection.request(method, path, body, sent | headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())

    def read(self, path: str) -> Any:
        """Return the JSON at a path."""
        answer = self.ask(path)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)


class Answer(NamedTuple):
    """What the server has answered."""

    status: int
    headers: Message
    body: bytes


def printed_address(process: "subprocess.Popen[str]", page: str = "/") -> Dashboard:
    """Return the server whose address the program prints next; it leads to ``page``."""
    assert process.stdout
    line = process.stdout.readline()
    found = re.fullmatch(rf"\w+: (http://127\.0\.0\.1:(\d+){page}\?token=(\S+))\n", line)
    assert found, line + process.stdout.read()
    return Dashboard(found[1], int(found[2]), found[3])


def dashboard(*runs: Path) -> AbstractContextManager[Dashboard]:
    """Yield a dashboard of these runs, which ends by Ctrl-C with the block."""
    return server("dashboard", *runs)


@contextmanager
def server(program: str, *arguments: object, page: str = "/") -> Iterator[Dashboard]:
    """Yield the server that a program starts, which ends by Ctrl-C with the block; its address leads to ``page``."""
    with programs.begun(program, "--no-browser", *arguments) as process:
        yield printed_address(process, page)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=SECONDS)
        assert "Traceback" not in rest, rest
