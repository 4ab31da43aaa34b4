import io
import os
import pty
import re
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from keima.base.run_folder import PROGRESS_NAME, STATS_NAME
from keima.base.run_lock import RunLock
from keima.cli.reports.watch import WatchedStats, follow_run, main, make_screen
from keima.report.files.run_files import StatsFile, StatsRow, read_stats
from tests.example_reports import evaluation, iteration, progress, worker
from tests.programs import command, heed_ctrl_c


def write(
    path: Path, numbers: Sequence[int], *, iterations: int | None = 200, seconds_left: float | None = 3600.0
) -> None:
    """Write a statistics file of these iterations to ``path``, as a run does."""
    observer = StatsFile(path)
    for number in numbers:
        observer.progress(progress(number, iterations=iterations, seconds_left=seconds_left))
        observer.iteration(
            iteration(
                number, measured=evaluation(number), workers=(worker(0), worker(1, activity="error", error="lost"))
            )
        )


@pytest.fixture
def stats(tmp_path: Path) -> WatchedStats:
    """Return the statistics of a run of three iterations, read once."""
    write(tmp_path / STATS_NAME, [1, 2, 3])
    stats = WatchedStats(tmp_path / STATS_NAME)
    stats.poll()
    return stats


def numbers(stats: WatchedStats) -> list[int]:
    return [row.iteration for row in stats.rows]


def text(stats: WatchedStats, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in make_screen(stats).lines(width, height))


def at_age(monkeypatch: pytest.MonkeyPatch, stats: WatchedStats, seconds: float) -> None:
    """Let this many seconds have passed since the file was written."""
    monkeypatch.setattr(time, "time", lambda: stats.written + seconds)


def test_the_screen_shows_progress_and_remaining_time(stats: WatchedStats, monkeypatch: pytest.MonkeyPatch) -> None:
    at_age(monkeypatch, stats, 60.0)
    shown = text(stats)
    assert "Iteration 3 of 200 · done 1 min 00 s ago" in shown
    assert "3 min 00 s · about 59 min 00 s left" in shown
    assert "16.7 ± 1.2 %" in shown and "█▃▁" in shown
    assert "local-1" in shown and "lost" in shown


def test_a_run_that_has_reached_its_end_is_finished_and_not_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / STATS_NAME, [1, 2, 3], iterations=3, seconds_left=0.0)
    stats = WatchedStats(tmp_path / STATS_NAME)
    stats.poll()
    at_age(monkeypatch, stats, 86400.0)
    assert "finished 1 d 00 h ago" in text(stats)
    assert "No new iteration" not in text(stats)


def test_a_stalled_run_is_noticed(stats: WatchedStats, monkeypatch: pytest.MonkeyPatch) -> None:
    at_age(monkeypatch, stats, 170.0)
    assert "No new iteration" not in text(stats)
    at_age(monkeypatch, stats, 190.0)
    assert "No new iteration since" in text(stats) and "took 1 min 00 s each" in text(stats)


def test_a_run_with_a_killed_coach_is_noticed_at_once(stats: WatchedStats) -> None:
    with RunLock(stats.path.parent):
        assert "The run has stopped" not in text(stats, width=200)
    assert "The run has stopped before its end" in text(stats, width=200) and "--resume continues it" in text(
        stats, width=200
    )


def test_a_clock_that_is_set_back_shows_no_negative_times(stats: WatchedStats, monkeypatch: pytest.MonkeyPatch) -> None:
    at_age(monkeypatch, stats, -500.0)
    assert "done 0 s ago" in text(stats) and "1 h 00 min left" in text(stats)


def test_the_file_is_read_again_only_after_a_change(stats: WatchedStats, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def counted(path: Path, **options: Any) -> list[StatsRow]:
        reads.append(path)
        return read_stats(path, **options)

    monkeypatch.setattr("keima.cli.reports.watch.read_stats", counted)
    stats.poll()
    assert not reads
    write(stats.path, [1, 2, 3, 4])
    stats.poll()
    stats.poll()
    assert numbers(stats) == [1, 2, 3, 4] and len(reads) == 1


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b'{"iteration": 1}']
)
def test_while_the_file_is_half_written_the_last_good_metrics_remain(
    stats: WatchedStats, damage: Callable[[bytes], bytes]
) -> None:
    whole = stats.path.read_bytes()
    stats.path.write_bytes(damage(whole))
    stats.poll()
    assert numbers(stats) == [1, 2, 3]
    assert "is not a list of iterations" in text(stats, width=300)
    stats.path.write_bytes(whole)
    stats.poll()
    assert numbers(stats) == [1, 2, 3] and not stats.problem


def test_a_file_that_disappears_and_comes_back_is_shown_again(stats: WatchedStats) -> None:
    stats.path.unlink()
    stats.poll()
    assert numbers(stats) == [1, 2, 3] and "is not there" in text(stats, width=300)
    write(stats.path, [1])
    stats.poll()
    assert numbers(stats) == [1] and not stats.problem


def test_before_the_first_iteration_the_screen_says_what_it_waits_for(tmp_path: Path) -> None:
    stats = WatchedStats(tmp_path / STATS_NAME)
    stats.poll()
    assert "after the first iteration" in text(stats, width=300)


def test_a_run_on_a_smaller_board_shows_that_board_until_its_own_begins(tmp_path: Path) -> None:
    run, board = tmp_path / "hex11", tmp_path / "hex11" / "smaller" / "size-7"
    board.mkdir(parents=True)
    stats = WatchedStats(run / STATS_NAME)
    (board / PROGRESS_NAME).touch()
    write(board / STATS_NAME, [1, 2])
    stats.poll()
    assert numbers(stats) == [1, 2] and "hex11 (size-7)" in text(stats)
    (run / PROGRESS_NAME).touch()
    stats.poll()
    assert not numbers(stats) and "after the first iteration" in text(stats, width=300)
    write(run / STATS_NAME, [1])
    stats.poll()
    assert numbers(stats) == [1] and "size-7" not in text(stats)


def followed(
    monkeypatch: pytest.MonkeyPatch, stats: WatchedStats, steps: Sequence[Callable[[], object]], *, lines: bool
) -> str:
    """Return the output if one step is done between two polls, and Ctrl-C is pressed after the last."""
    left = list(steps)

    def sleep(seconds: float) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    monkeypatch.setattr(time, "sleep", sleep)
    out = io.StringIO()
    follow_run(stats, Console(file=out, width=80, height=24, force_terminal=not lines, color_system=None), lines=lines)
    return out.getvalue()


def test_plain_lines_follow_the_run_through_damage_and_a_return_to_its_checkpoint(
    stats: WatchedStats, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [
        lambda: write(stats.path, [1, 2, 3, 4]),
        lambda: None,
        lambda: stats.path.write_bytes(b"["),
        lambda: None,
        lambda: write(stats.path, [1, 2, 3, 4, 5, 6]),
        lambda: write(stats.path, [1, 2, 3, 4]),
        lambda: write(stats.path, [1, 2, 3, 4, 5]),
    ]
    lines = followed(monkeypatch, stats, steps, lines=True).splitlines()
    told = [line.split()[1].removesuffix("/200") for line in lines if line.startswith("iteration")]
    assert told == ["1", "2", "3", "4", "5", "6", "5"]
    assert len([line for line in lines if "is not a list" in line]) == 1


def test_the_screen_follows_the_run_and_is_restored(stats: WatchedStats, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = followed(monkeypatch, stats, [lambda: write(stats.path, [1, 2, 3, 4])], lines=False)
    assert "Iteration 3 of 200" in shown and "Iteration 4 of 200" in shown
    assert shown.rindex("\x1b[?1049h") < shown.rindex("\x1b[?1049l")


@pytest.mark.parametrize("options", [["{run}"], ["--file", "{run}"], ["--file", "{run}/training_stats.json"]])
def test_a_run_is_named_by_its_folder_or_its_file(
    stats: WatchedStats, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([option.format(run=stats.path.parent) for option in options] + ["--once"]) == 0
    assert "Iteration 3 of 200" in capsys.readouterr().out


def test_a_run_is_found_by_its_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    write(tmp_path / "runs" / "first" / STATS_NAME, [1])
    monkeypatch.chdir(tmp_path)
    assert main(["first", "--once", "--simple"]) == 0
    assert capsys.readouterr().out.startswith("iteration   1/200")


def test_once_shows_the_last_iterations_as_lines_and_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / STATS_NAME, range(1, 31))
    assert main([str(tmp_path), "--once", "--simple"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == [
        f"{number}/200" for number in range(21, 31)
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["{run}/nowhere"], "there is no .*nowhere"),
        (["--file", "{run}/nowhere/training_stats.json"], "there is no .*nowhere"),
        (["{run}", "--once"], "is not there yet"),
    ],
)
def test_files_without_statistics_are_refused(
    tmp_path: Path, options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([option.format(run=tmp_path) for option in options]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert re.search(complaint, captured.err)


def test_a_damaged_file_is_refused_with_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / STATS_NAME).write_text("[{}]")
    assert main([str(tmp_path), "--once"]) == 2
    assert "is not a list of iterations: 0.iteration: Field required" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["run", "--file", "file"]])
def test_exactly_one_run_is_watched(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(options)
    assert "RUN" in capsys.readouterr().err


@pytest.fixture
def folder_for_all() -> Iterator[Path]:
    """A folder that every user may enter; those above tmp_path are private to their owner."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_an_unreadable_file_of_another_user_is_named_with_the_remedy(
    folder_for_all: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder_for_all / STATS_NAME, [1])
    (folder_for_all / STATS_NAME).chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may read everything
    try:
        assert main([str(folder_for_all), "--simple"]) == 2
    finally:
        os.seteuid(user)
    said = capsys.readouterr().err
    assert re.search(r"training_stats.json may not be read by \w+: run this program as the user who trains", said)


@pytest.mark.medium
@pytest.mark.parametrize("connected", ["pipe", "socket"])  # sshd uses the one or the other
def test_a_remote_viewer_leaves_no_process_behind(stats: WatchedStats, connected: str) -> None:
    if connected == "pipe":
        reads, writes = os.pipe()
    else:
        reads, writes = (end.detach() for end in socket.socketpair())
    program = command("scripts/watch_training.py", "--file", stats.path, "--simple")
    child = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=writes, stderr=subprocess.PIPE)
    os.close(writes)
    received = b""
    while b"teration" not in received:
        received += (data := os.read(reads, 65536))
        assert data, received
    os.close(reads)  # what sshd does when the client is gone; the run itself prints nothing more
    _, errors = child.communicate(timeout=240)
    assert (child.returncode, errors) == (0, b"")


def test_ctrl_c_ends_the_program_cleanly_wherever_it_is_started(stats: WatchedStats, tmp_path: Path) -> None:
    main_end, child_end = pty.openpty()
    child = subprocess.Popen(
        command("scripts/watch_training.py", stats.path),
        stdout=child_end,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "TERM": "xterm"},
        preexec_fn=heed_ctrl_c,
    )
    os.close(child_end)
    received = b""
    while b"local-1" not in received:
        assert select.select([main_end], [], [], 240)[0], received
        received += os.read(main_end, 65536)
    child.send_signal(signal.SIGINT)
    deadline = time.monotonic() + 240
    while (
        b"\x1b[?1049l" not in received and time.monotonic() < deadline
    ):  # keep reading: a full terminal would block the program
        assert select.select([main_end], [], [], 240)[0], received
        received += os.read(main_end, 65536)
    _, errors = child.communicate(timeout=240)
    os.close(main_end)
    assert (child.returncode, errors) == (0, b"")
    assert b"\x1b[?1049l" in received
