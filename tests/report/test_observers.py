import io
import json
import logging
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from keima.base.reports.run_reports import IterationReport, Observer, ProgressReport
from keima.base.reports.worker_status import ClusterNetwork
from keima.base.run_folder import STATS_NAME
from keima.report import make_observers, shield_observer
from keima.report.files.run_files import (
    METRICS_NAME,
    MetricsFile,
    StatsFile,
    UnreadableStats,
    read_earlier_rows,
    read_stats,
)
from keima.report.terminal.live import LiveView, TerminalConsole
from keima.report.terminal.plain import PlainLines
from tests.example_reports import evaluation, iteration, progress, worker
from tests.report.disk import full_disk


def iterations_in(path: Path) -> list[int]:
    """Return the numbers of the iterations in a file of one object per line."""
    return [json.loads(line)["iteration"] for line in path.read_text().splitlines()]


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


class Failing:
    """An observer that always fails with ``error``."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def progress(self, report: ProgressReport) -> None:
        raise self.error

    def iteration(self, report: IterationReport) -> None:
        raise self.error

    def event(self, text: str) -> None:
        raise self.error

    def close(self) -> None:
        raise self.error


# The statistics file


def test_the_statistics_file_is_a_list_of_the_iterations_as_reported(tmp_path: Path) -> None:
    reports = [iteration(1), iteration(2, measured=evaluation(2), workers=(worker(),))]
    observer = StatsFile(tmp_path / STATS_NAME)
    for report in reports:
        observer.iteration(report)
    rows = strict_json((tmp_path / STATS_NAME).read_text())
    assert [
        {key: row[key] for key in report.as_dict()} for row, report in zip(rows, reports, strict=True)
    ] == json.loads(json.dumps([report.as_dict() for report in reports]))


def test_the_statistics_file_keeps_the_plan_at_the_end_of_an_iteration(tmp_path: Path) -> None:
    observer = StatsFile(tmp_path / STATS_NAME)
    observer.progress(progress(1, iterations=200, seconds_left=90.0))
    observer.iteration(iteration(1))
    (row,) = read_stats(tmp_path / STATS_NAME)
    assert (row.iterations, row.seconds_left) == (200, 90.0)


def test_numbers_that_are_not_finite_leave_the_statistics_file_valid_json_and_can_be_read_back(tmp_path: Path) -> None:
    StatsFile(tmp_path / STATS_NAME).iteration(iteration(1, loss=math.nan))
    strict_json((tmp_path / STATS_NAME).read_text())
    learner = read_stats(tmp_path / STATS_NAME)[0].learner
    assert learner and math.isnan(learner.loss)


def test_a_resumed_run_continues_the_list_and_drops_the_iterations_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / STATS_NAME
    first = StatsFile(path)
    for number in range(1, 6):
        first.iteration(iteration(number))
    second = StatsFile(path)
    second.iteration(iteration(4, loss=9.0))
    assert [row.iteration for row in read_stats(path)] == [1, 2, 3, 4]
    assert read_stats(path)[-1].learner == iteration(4, loss=9.0).learner


@pytest.mark.parametrize(
    "content", [b'[{"iteration": 1, "sec', b'[\n{"iteration": 1},\n{"round": 2}\n]\n', b"not ours\n"]
)
def test_a_file_with_other_content_is_kept_under_another_name_and_the_list_starts_afresh(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / STATS_NAME
    path.write_bytes(content)
    assert read_earlier_rows(path, last=9) == []
    StatsFile(path).iteration(iteration(2))
    assert [row.iteration for row in read_stats(path)] == [2]
    assert [kept.read_bytes() for kept in tmp_path.iterdir() if kept != path] == [content]


def test_a_row_is_added_without_rewriting_the_others(tmp_path: Path) -> None:
    path = tmp_path / STATS_NAME
    observer = StatsFile(path)
    observer.iteration(iteration(1, workers=(worker(),) * 50))
    inode, before = path.stat().st_ino, path.stat().st_size
    with full_disk(before + 5_000):  # writing a second file next to it, or the whole file again, would need more
        observer.iteration(iteration(2))
    assert before < path.stat().st_size < before + 5_000 and path.stat().st_ino == inode
    assert [row["iteration"] for row in strict_json(path.read_text())] == [1, 2]


@pytest.mark.parametrize("lost", [1, 3, 20, 200])
def test_a_row_left_torn_by_a_killed_run_is_replaced_by_the_next_one(tmp_path: Path, lost: int) -> None:
    path = tmp_path / STATS_NAME
    observer = StatsFile(path)
    for number in (1, 2, 3):
        observer.iteration(iteration(number))
    path.write_bytes(path.read_bytes()[:-lost])
    StatsFile(path).iteration(iteration(3))
    assert [row["iteration"] for row in strict_json(path.read_text())] == [1, 2, 3]


def test_a_list_formatted_by_another_program_is_read(tmp_path: Path) -> None:
    path = tmp_path / STATS_NAME
    StatsFile(path).iteration(iteration(1))
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2))
    assert [row.iteration for row in read_stats(path)] == [1]


def test_a_file_deleted_meanwhile_starts_afresh(tmp_path: Path) -> None:
    path = tmp_path / STATS_NAME
    observer = StatsFile(path)
    observer.iteration(iteration(1))
    path.unlink()
    observer.iteration(iteration(2))
    assert [row.iteration for row in read_stats(path)] == [2]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'[{"iteration": 1}]', b"[", b"\xff\xfe", b"null"])
def test_a_file_that_is_no_list_of_iterations_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / STATS_NAME
    path.write_bytes(content)
    with pytest.raises(UnreadableStats, match=STATS_NAME):
        read_stats(path)


def test_an_oversized_row_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keima.report.files.row_file.ROW_LIMIT", 10)
    StatsFile(tmp_path / STATS_NAME).iteration(iteration(1))
    with pytest.raises(UnreadableStats, match="row of more than 10 bytes"):
        read_stats(tmp_path / STATS_NAME)


def test_an_iteration_that_found_the_disk_full_is_in_the_statistics_file_after_the_next(tmp_path: Path) -> None:
    path = tmp_path / STATS_NAME
    observer = StatsFile(path)
    observer.iteration(iteration(1))
    before = path.read_bytes()
    with full_disk(len(before)), pytest.raises(OSError):
        observer.iteration(iteration(2))
    assert path.read_bytes() == before
    observer.iteration(iteration(3))
    assert [row.iteration for row in read_stats(path)] == [1, 2, 3]


# metrics.jsonl


def test_metrics_are_flat_finite_numbers_under_the_names_of_their_sections(tmp_path: Path) -> None:
    report = iteration(
        4, loss=math.inf, measured=evaluation(4, solved=False), workers=(worker(0), worker(1, activity="error"))
    )
    MetricsFile(tmp_path / METRICS_NAME).iteration(report)
    metrics = strict_json((tmp_path / METRICS_NAME).read_text())
    assert (
        metrics["self_play/games"] == 100 and metrics["run/total_games"] == 400 and metrics["evaluation/elo"] == 400.0
    )
    assert metrics["workers/playing"] == 1 and metrics["workers/evaluations_per_second"] == 11800.0
    assert not {"learner/loss", "evaluation/search_error", "run/iteration"} & set(metrics)
    assert all(type(value) in (int, float) for value in metrics.values())


def test_a_line_of_metrics_torn_by_a_crash_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / METRICS_NAME
    first = MetricsFile(path)
    first.iteration(iteration(1))
    first.iteration(iteration(2))
    path.write_bytes(path.read_bytes()[:-30])
    second = MetricsFile(path)
    second.iteration(iteration(2))
    second.iteration(iteration(3))
    assert iterations_in(path) == [1, 2, 3]


def test_metrics_of_repeated_iterations_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / METRICS_NAME
    first = MetricsFile(path)
    for number in range(1, 6):
        first.iteration(iteration(number))
    MetricsFile(path).iteration(iteration(4))
    assert iterations_in(path) == [1, 2, 3, 4]


def test_a_full_disk_neither_tears_nor_loses_a_line_of_metrics(tmp_path: Path) -> None:
    path = tmp_path / METRICS_NAME
    observer = MetricsFile(path)
    observer.iteration(iteration(1))
    with full_disk(path.stat().st_size + 100), pytest.raises(OSError):
        observer.iteration(iteration(2))
    assert iterations_in(path) == [1]
    observer.iteration(iteration(3))
    assert iterations_in(path) == [1, 2, 3]


# Lines


class Clock:
    """A clock that advances on request."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_iteration_is_one_line_with_its_measurements_and_nothing_else() -> None:
    stream = io.StringIO()
    lines = PlainLines(stream)
    lines.progress(progress(1))
    lines.iteration(iteration(1, learned=False))
    lines.iteration(iteration(2, measured=evaluation(2)))
    early, late = stream.getvalue().splitlines()
    assert "1/200" in early and "100 games (+100)" in early and "12.3 games/s" in early
    assert not re.search("loss|elo|error|None", early)
    assert (
        "loss 1.000 (policy 0.750, value 0.250)" in late
        and "elo 200 ± 40" in late
        and "search error 25.0 ± 1.2 %" in late
    )


def test_the_parts_of_a_loss_are_named_if_a_network_has_auxiliary_heads() -> None:
    stream, report = io.StringIO(), iteration(2)
    assert report.learner is not None
    PlainLines(stream).iteration(replace(report, learner=replace(report.learner, loss=1.25, auxiliary_loss=0.25)))
    assert "loss 1.250 (policy 0.750, value 0.250, auxiliary 0.250)" in stream.getvalue()


def test_the_lines_of_iterations_are_aligned() -> None:
    stream = io.StringIO()
    lines = PlainLines(stream)
    for number in (1, 12, 123):
        lines.iteration(iteration(number))
    assert len({line.index("games (") for line in stream.getvalue().splitlines()}) == 1


def test_there_is_a_sign_of_life_after_a_while_without_lines() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = PlainLines(stream, heartbeat_seconds=30.0, clock=clock)
    for _ in range(100):
        clock.now += 1.0
        lines.progress(progress(3, workers=(worker(0), worker(1, activity="error"))))
    beats = stream.getvalue().splitlines()
    assert len(beats) == 3
    assert "waiting for games  62 of 100 games" in beats[0] and "1 playing, 1 error" in beats[0]


def test_a_cluster_s_metrics_come_regularly_however_often_there_are_other_lines() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = PlainLines(stream, heartbeat_seconds=30.0, clock=clock)
    network = ClusterNetwork(model_version=1, sync_seconds=None, network_mb_per_minute=0.0)
    for second in range(100):
        clock.now += 1.0
        lines.progress(replace(progress(3), network=network))
        if second % 10 == 0:
            lines.iteration(iteration(3))
    assert stream.getvalue().count("Games/second: ") == 3


def test_an_event_is_one_line_and_cannot_control_the_terminal() -> None:
    stream = io.StringIO()
    PlainLines(stream).event("worker said: \x1b[2J\x9b31m\nboom\r\x07")
    assert stream.getvalue().count("\n") == 1
    assert not set("\x1b\x9b\r\x07") & set(stream.getvalue())
    assert "boom" in stream.getvalue()


# All together


def test_a_failing_observer_is_logged_once_and_the_run_continues(caplog: pytest.LogCaptureFixture) -> None:
    observer = shield_observer(Failing(OSError("No space left on device")))
    with caplog.at_level(logging.WARNING):
        observer.progress(progress(1))
        observer.iteration(iteration(1))
        observer.event("something")
        observer.close()
    assert [record.getMessage() for record in caplog.records] == [
        "Failing failed, training continues: No space left on device"
    ]


def test_a_bug_in_an_observer_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    shield_observer(Failing(KeyError("mistake"))).iteration(iteration(1))
    assert caplog.records[0].exc_info


def test_an_interrupt_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        shield_observer(Failing(KeyboardInterrupt())).progress(progress(1))


def play(observers: list[Observer], numbers: range) -> None:
    for number in numbers:
        for observer in observers:
            observer.progress(progress(number))
            observer.iteration(iteration(number, measured=evaluation(number)))
    for observer in observers:
        observer.close()


def test_a_run_leaves_all_its_files_and_continues_them(tmp_path: Path) -> None:
    stream = io.StringIO()
    play(make_observers(tmp_path, name="run", game="go", stream=stream), range(1, 6))
    play(make_observers(tmp_path, name="run", game="go", stream=stream), range(4, 8))
    assert [row.iteration for row in read_stats(tmp_path / STATS_NAME)] == list(range(1, 8))
    assert iterations_in(tmp_path / METRICS_NAME) == list(range(1, 8))
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    assert len(stream.getvalue().splitlines()) == 5 + 4


def test_observers_without_a_place_to_write_stop_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a folder")
    play(make_observers(tmp_path / "file", name="run", game="go", stream=io.StringIO()), range(1, 4))
    assert {record.getMessage().split()[0] for record in caplog.records if "failed" in record.getMessage()} == {
        "StatsFile",
        "MetricsFile",
        "EventFile",
        "ProgressFile",
    }


def test_a_terminal_without_our_characters_is_no_reason_to_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    play(make_observers(tmp_path, name="run", game="go", stream=stream), range(1, 3))
    stream.seek(0)
    assert "elo 100 ? 40" in stream.read()
    assert not caplog.records


def terminal(width: int, height: int) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None, legacy_windows=False
    )


def test_a_lost_terminal_is_tried_once_and_left_alone() -> None:
    class Closed(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            raise BrokenPipeError

    stream = Closed()
    view = LiveView(name="run", game="go", console=TerminalConsole(file=stream, force_terminal=True))
    with pytest.raises(OSError):
        view.progress(progress(1))
    tried = stream.writes
    view.progress(progress(2))
    view.iteration(iteration(2))
    view.close()
    assert stream.writes == tried


def test_frames_are_drawn_no_more_often_than_eyes_can_follow() -> None:
    console, clock = terminal(80, 24), Clock()
    view = LiveView(name="run", game="go", console=console, clock=clock)
    for _ in range(100):
        clock.now += 0.01
        view.progress(progress(1))
    assert isinstance(console.file, io.StringIO)
    assert 3 <= console.file.getvalue().count("Iteration 1 of 200") <= 5


def test_the_last_frame_stays_when_the_screen_is_restored() -> None:
    console = terminal(80, 24)
    view = LiveView(name="run", game="go", console=console)
    view.progress(progress(1))
    view.close()
    assert isinstance(console.file, io.StringIO)
    screen, left = console.file.getvalue().split("\x1b[?1049l")
    assert "\x1b[?1049h" in screen and "Iteration 1 of 200" in left
