"""What the web application tells of several runs, and when."""

import asyncio
import socket
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import anyio
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from keima.report import make_observers
from keima.web.app import ChangeStreams
from keima.web.run_reader import RunReader
from keima.web.server import open_listener
from tests.example_reports import iteration, progress
from tests.web.serving import SECONDS, dashboard

STREAMS = 100


class CountingReader(RunReader):
    """Counts how often its files are asked."""

    asked = 0

    def read_stamps(self) -> tuple[str, str]:
        self.asked += 1
        return super().read_stamps()


def leave(folder: Path) -> Path:
    """Return the folder of a run of one iteration."""
    folder.mkdir()
    for observer in make_observers(folder, name=folder.name, game="connect_four"):
        observer.progress(progress(1))
        observer.iteration(iteration(1))
    return folder


def test_open_pages_share_one_poll_of_the_files(tmp_path: Path) -> None:
    reader = CountingReader(leave(tmp_path / "run"))
    streams = ChangeStreams([reader], lambda: False)

    async def first_lines() -> list[str]:
        answers = [await streams.answer(Request({"type": "http"})) for _ in range(STREAMS)]
        told = []
        for answer in answers:
            assert isinstance(answer, StreamingResponse)
            told.append(str(await anext(aiter(answer.body_iterator))))
        return told

    told = anyio.run(first_lines)
    assert told == ['data: {"run": 0, "curves": true, "state": true}\n\n'] * STREAMS
    assert 1 <= reader.asked <= STREAMS // 2


def test_answers_are_sent_at_once() -> None:
    async def sent_at_once() -> int:
        with open_listener("127.0.0.1", 0) as opened:
            accepted = asyncio.get_running_loop().create_future()
            server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), sock=opened)
            _, client = await asyncio.open_connection(*opened.getsockname())
            writer = await accepted
            found = int(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            for each in (writer, client):
                each.close()
            server.close()
            return found

    assert asyncio.run(sent_at_once())


@pytest.mark.medium
def test_the_stream_tells_the_end_of_the_server(tmp_path: Path) -> None:
    with dashboard(leave(tmp_path / "run")) as served:
        connection = HTTPConnection("127.0.0.1", served.port, timeout=SECONDS)
        connection.request("GET", "/api/changes", headers={"Cookie": f"keima-{served.port}={served.token}"})
        answer = connection.getresponse()
        assert answer.readline() == b'data: {"run": 0, "curves": true, "state": true}\n'
    with closing(connection):
        assert answer.read().endswith(b"event: end\ndata:\n\n")


@pytest.mark.medium
def test_the_calibration_of_a_run_that_this_program_does_not_play_is_refused_in_words(tmp_path: Path) -> None:
    with dashboard(leave(tmp_path / "run")) as served:
        answer = served.ask("/api/runs/0/calibration")
        assert answer.status == 404 and b"not the folder of a run" in answer.body
        assert served.ask("/api/runs/1/calibration").status == 404
