import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from keima.base.reports.formats import (
    games_so_far,
)
from keima.base.reports.worker_status import ClusterNetwork, WorkerState
from keima.base.run_folder import STATS_NAME
from keima.report.files.run_files import read_stats
from keima.report.tables import ScreenFrame
from keima.report.terminal.plain import heartbeat_line
from tests.example_reports import evaluation, iteration, progress, worker
from tests.sources import ROOT

WORKERS = (worker(0), worker(1), worker(2, activity="error", error="CUDA out of memory: tried to allocate 2.00 GiB"))
EVENTS = (
    "12:33:10 worker local-2 was restarted",
    "12:34:01 batch local-2-000017 is in quarantine: game 12: column 4 is full",
)


def frame(
    iterations: int = 12, *, workers: Any = WORKERS, events: Any = EVENTS, solved: bool = True, note: str = ""
) -> ScreenFrame:
    rows = [iteration(number, measured=evaluation(number, solved=solved)) for number in range(1, iterations + 1)]
    return ScreenFrame(
        name="first",
        game="connect_four",
        now=progress(iterations + 1, workers=workers),
        rows=rows,
        events=events,
        note=note,
    )


def test_a_frame_fits_every_terminal() -> None:
    many = tuple(worker(number, error="no " * 30) for number in range(30))
    for picture in (
        frame(),
        frame(100, workers=many, events=EVENTS * 10, note="wrong " * 20),
        ScreenFrame(name="first", game="go"),
    ):
        for width in (1, 2, 10, 33, 60, 80, 120, 250):
            for height in (1, 2, 5, 12, 24, 60):
                lines = picture.lines(width, height)
                assert len(lines) <= height
                assert max(cell_len(line.plain) for line in lines) <= width


def test_the_usual_terminal_shows_eight_iterations_the_workers_and_the_last_events() -> None:
    lines = [line.plain for line in frame().lines(80, 24)]
    text = "\n".join(lines)
    assert re.findall(r"^ +(\d+) +100 ", text, re.MULTILINE) == [str(number) for number in range(5, 13)]
    assert all(
        title in text
        for title in ("Loss", "Policy", "Value", "Window", "Elo", "Search err", "Policy err", "Outstanding")
    )
    assert all(f"local-{number}" in text for number in range(3)) and "CUDA out of m" in text
    assert all(event[:60] in text for event in EVENTS)
    assert (
        "Iteration 13 of 200 · waiting for games" in text
        and "62 of 100 games" in text
        and "about 3 h 16 min left" in text
    )
    assert len(lines) == 24 and "…" not in lines[2]


def test_a_run_that_is_over_time_says_that_it_ends() -> None:
    late = progress(13, seconds_left=0.0)
    assert heartbeat_line(late).endswith("time is up; this is the last iteration")
    assert "time is up" in "\n".join(line.plain for line in ScreenFrame(name="run", game="go", now=late).lines(100, 24))


def test_games_for_later_iterations_are_counted_separately() -> None:
    assert [games_so_far(here, 8) for here in (0, 7, 8, 34)] == [
        "0 of 8 games",
        "7 of 8 games",
        "8 of 8 games",
        "8 of 8 games, 26 more are here",
    ]
    text = "\n".join(
        line.plain for line in replace(frame(), now=replace(progress(3), games_here=34, games_wanted=8)).lines(80, 24)
    )
    assert "8 of 8 games, 26 more are here" in text and "34 of 8" not in text


def test_a_larger_terminal_shows_more_columns_and_more_iterations() -> None:
    usual, large = frame(60).lines(80, 24), frame(60).lines(160, 60)
    assert len(large) == 60
    assert "Draws" in large[4].plain and "Draws" not in usual[4].plain


def test_missing_measurements_take_no_space() -> None:
    text = "\n".join(line.plain for line in frame(solved=False).lines(200, 40))
    assert "Elo" in text
    assert not re.search("Search err|Policy err|None|nan", text)


def test_a_run_with_the_name_of_its_game_is_named_once() -> None:
    assert ScreenFrame(name="go", game="go").lines(80, 24)[0].plain == "Keima  go"


def test_workers_in_error_come_first_and_those_without_a_line_are_counted() -> None:
    many = tuple(worker(number, activity="error" if number == 20 else "playing") for number in range(30))
    text = [line.plain for line in frame(workers=many).lines(80, 24)]
    heading = next(i for i, line in enumerate(text) if line.startswith("Worker"))
    assert text[heading + 1].startswith("local-20  error")
    assert re.fullmatch(r"2\d more: 2\d playing", text[heading + 3])


def test_markup_in_names_and_events_is_shown_as_text() -> None:
    console = Console(width=80, height=24, file=io.StringIO())
    with console.capture() as captured:
        console.print(frame(events=("[bold]not markup[/bold] :smile:",)))
    assert "[bold]not markup[/bold] :smile:" in captured.get()


# In a real terminal. The other process draws on request, and answers when it has drawn.

CHILD = """
import sys
from pathlib import Path
import keima.report.terminal.live
from keima.report import make_observers
from tests.example_reports import iteration, progress, worker

keima.report.terminal.live.FRAME_SECONDS = 0.0
observers = make_observers(Path(sys.argv[1]), name="first", game="connect_four")
for number, command in enumerate(sys.stdin, start=1):
    for observer in observers:
        observer.progress(progress(number, workers=(worker(),)))
        observer.iteration(iteration(number))
        if command == "close\\n":
            observer.close()
    sys.stderr.write("drawn\\n")
    sys.stderr.flush()
"""


class Terminal:
    """A pseudo-terminal in which ``CHILD`` runs."""

    def __init__(self, run_dir: Path, *, width: int, height: int, term: str = "xterm-256color") -> None:
        self.main, child_end = pty.openpty()
        self.answers = ""  # everything that the child has said beyond the terminal
        self.resize(width, height)
        self.child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(run_dir)],
            stdin=subprocess.PIPE,
            stdout=child_end,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "TERM": term},
            start_new_session=True,
        )
        os.close(child_end)

    def resize(self, width: int, height: int) -> None:
        ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def tell(self, command: str, *, watched: bool = True) -> str:
        """Return what the terminal receives until the child has answered."""
        assert self.child.stdin and self.child.stderr
        self.child.stdin.write(f"{command}\n".encode())
        self.child.stdin.flush()
        received, answer = b"", b""
        sources: list[Any] = [self.child.stderr, *([self.main] if watched else [])]
        while b"drawn\n" not in answer:
            ready, _, _ = select.select(sources, [], [], 240.0)
            assert ready, f"the child is silent after {answer!r}"
            if self.main in ready:
                received += os.read(self.main, 65536)
            elif chunk := os.read(self.child.stderr.fileno(), 65536):
                answer += chunk
            else:
                pytest.fail(f"the child has died: {answer.decode()}")
        self.answers += answer.decode()
        while watched and select.select([self.main], [], [], 0)[0]:
            received += os.read(self.main, 65536)
        return received.decode()

    def end(self) -> int:
        assert self.child.stdin and self.child.stderr
        self.child.stdin.close()
        self.child.stderr.close()
        return self.child.wait(240.0)


@pytest.fixture
def eighty(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, width=80, height=24)
    yield terminal
    terminal.child.kill()
    terminal.end()


def screen(received: str) -> list[str]:
    """Return the lines of the last frame."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", received.rpartition("\x1b[H")[2]).split("\r\n")


def test_the_live_view_fills_the_terminal_and_follows_its_size(eighty: Terminal) -> None:
    lines = screen(eighty.tell("draw"))
    assert [len(line) for line in lines] == [80] * 24
    assert lines[0].startswith("Keima  first · connect_four")
    eighty.resize(120, 40)
    assert [len(line) for line in screen(eighty.tell("draw"))] == [120] * 40
    eighty.resize(30, 8)
    assert [len(line) for line in screen(eighty.tell("draw"))] == [30] * 8
    eighty.resize(1, 1)
    eighty.tell("draw")
    eighty.resize(80, 24)
    assert "Iteration 5 of 200" in screen(eighty.tell("draw"))[1]


def test_the_live_view_restores_the_terminal(eighty: Terminal) -> None:
    received = eighty.tell("draw") + eighty.tell("close")
    assert received.index("\x1b[?1049h") < received.index("\x1b[?1049l")
    assert received.rindex("\x1b[?25l") < received.rindex("\x1b[?25h")
    assert eighty.end() == 0


def test_a_closed_terminal_does_not_end_the_run(eighty: Terminal, tmp_path: Path) -> None:
    eighty.tell("draw")
    os.close(eighty.main)
    for _ in range(3):
        eighty.tell("draw", watched=False)
    eighty.tell("close", watched=False)
    assert [row.iteration for row in read_stats(tmp_path / STATS_NAME)] == [1, 2, 3, 4, 5]
    assert eighty.answers.count("LiveView failed, training continues") == 1


def test_a_limited_terminal_gets_lines(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, width=80, height=24, term="dumb")
    received = terminal.tell("draw")
    assert "\x1b" not in received and re.search(r"iteration +1/200 .*\r\n$", received)
    assert terminal.end() == 0


def test_a_cluster_is_shown_as_in_its_status_file() -> None:
    """Workers active n/N, Model sync time, Network usage, and each worker's state, share and last batch."""
    workers = (
        replace(worker(0), state=WorkerState.ACTIVE, share=0.625, last_batch=7.0),
        replace(worker(1), state=WorkerState.OFFLINE, share=0.0),
    )
    network = ClusterNetwork(model_version=3, sync_seconds=3.21, network_mb_per_minute=12.34)
    now = replace(progress(3, workers=workers), network=network)
    lines = [line.plain for line in ScreenFrame(name="run", game="go", now=now).lines(80, 30)]
    assert f"Games/second: {12.2:<26.1f}Workers active: 1/2" in lines
    assert f"{'Model sync time: 3.2s':40}Network usage: 12.3 MB/min" in lines
    assert "  Workers active: 1/2  Model sync time: 3.2s  Network usage: 12.3 MB/min" in heartbeat_line(now)
    assert "1 offline" in heartbeat_line(now)
    active, offline = (next(line for line in lines if line.startswith(each.name)) for each in workers)
    assert re.search(r"Active\b.*62\.5 %.*7 s ago", active)
    assert "Offline" in offline and "ago" not in offline
