"""Views of one-player games, for people and programs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from keima.base.reports.run_reports import WaitReport
from keima.base.run_folder import STATS_NAME
from keima.cli.reports.results import main as view_results
from keima.report.files.run_files import MetricsFile, StatsFile, read_stats, report_scalars
from keima.report.tables import ScreenFrame
from keima.report.terminal.plain import iteration_line
from tests import example_reports
from tests.one_player import iteration


def screen(rows: list[int], *, width: int = 160) -> str:
    frame = ScreenFrame(
        name="2048", game="twenty48", rows=[iteration(number, measured=number % 2 == 0) for number in rows]
    )
    return "\n".join(line.plain for line in frame.lines(width, 40))


def test_the_line_of_an_iteration_says_who_waited_for_whom() -> None:
    report = iteration(5)
    assert "waited" not in iteration_line(report)
    waits = WaitReport(games=20.0, learner=0.2, evaluation=4.0, learning=30.0)
    line = iteration_line(replace(report, waits=waits))
    assert line.endswith("waited: learner 20 s for games, both 4 s for strength")
    assert iteration_line(replace(report, waits=replace(waits, games=0.4, evaluation=0.0))).endswith("waited: nobody")


def test_a_line_has_the_scores_and_the_milestones() -> None:
    line = iteration_line(iteration(5, measured=True))
    assert "score 10,000 ± 500 (median 9,000, best 20,000; 512: 90.0 %; 1024: 70.0 %; 2048: 40.0 %)" in line
    assert "measured score 15,000 ± 500 (median 14,000, best 30,000;" in line
    assert "4096" not in line, "nobody has reached it"


def test_the_screen_shows_scores_and_the_share_of_games_that_reach_each_milestone() -> None:
    titles, first, second = screen([1, 2]).splitlines()[2:5]
    assert titles.split()[-4:] == ["Measured", "512", "1024", "2048"]
    assert "Median" in titles and "Best" in titles
    assert "2,000" in first and "40.0 %" in first
    assert "6,000 ± 500" in second and "6,000 ± 500" not in first


def test_wins_draws_and_elo_are_not_shown_for_one_player_games() -> None:
    assert not any(title in screen([1, 2, 3, 4]) for title in ("1st wins", "Draws", "Elo", "vs random"))


def test_scores_are_not_shown_for_two_player_games() -> None:
    frame = ScreenFrame(name="go", game="go", rows=[example_reports.iteration(number) for number in (1, 2)])
    text = "\n".join(line.plain for line in frame.lines(160, 40))
    assert "1st wins" in text and "Score" not in text and "Median" not in text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_scores_stay_visible_on_a_narrow_screen(width: int) -> None:
    text = screen([1, 2, 3, 4], width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "Score" in text and "Measured" in text


def test_trends_cover_the_whole_run() -> None:
    assert "Score       2,000 → 8,000" in screen([1, 2, 3, 4])
    assert "Measured    6,000 → 12,000" in screen([1, 2, 3, 4])


def test_scores_are_read_back_from_the_statistics_file(tmp_path: Path) -> None:
    observer = StatsFile(tmp_path / STATS_NAME)
    for number in (1, 2):
        observer.iteration(iteration(number, measured=True))
    rows = read_stats(tmp_path / STATS_NAME)
    assert [row.self_play.score for row in rows] == [iteration(number).self_play.score for number in (1, 2)]
    assert rows[1].evaluation == iteration(2, measured=True).evaluation


def test_metrics_have_the_scores_and_nothing_about_winners(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "metrics.jsonl").iteration(iteration(3, measured=True))
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["self_play/score_mean"], line["self_play/score_best"], line["self_play/reached_2048"]) == (
        6000.0,
        12000.0,
        0.4,
    )
    assert (line["evaluation/score_mean"], line["evaluation/score_margin"], line["evaluation/reached_4096"]) == (
        9000.0,
        500.0,
        0.0,
    )
    assert "self_play/draws" not in line


def test_every_metric_of_a_score_is_a_number() -> None:
    assert all(isinstance(value, float) for value in report_scalars(iteration(1, measured=True)).values())


def test_the_results_name_the_highest_mean_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    observer = StatsFile(tmp_path / STATS_NAME)
    for number in (1, 3):
        observer.iteration(iteration(number, measured=True))
    assert view_results([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "Highest mean score  9,000 ± 500, by model 3" in shown
    assert "Best model" in shown
