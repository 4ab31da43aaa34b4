"""Figures of one-player games."""

import pytest

from keima.base.reports.intervals import wilson_interval
from keima.data.scores import make_score_report, milestones_of
from keima.data.verify import verify_batch
from keima.games import load_game
from tests.one_player import SMALL, ends, random_batch

FULL = load_game("twenty48")


def test_figures_are_those_of_the_games() -> None:
    report = make_score_report(FULL, [1000.0, 3000.0, 20000.0, 8000.0], [128, 512, 2048, 1024])
    assert report is not None
    assert (report.games, report.mean, report.median, report.best) == (4, 8000.0, 5500.0, 20000.0)
    assert [(part.milestone, part.share) for part in report.milestones] == [
        (512, 0.75),
        (1024, 0.5),
        (2048, 0.25),
        (4096, 0.0),
        (8192, 0.0),
    ]


def test_each_share_is_within_its_interval() -> None:
    report = make_score_report(FULL, [1000.0] * 200, [2048] * 120 + [64] * 80)
    assert report is not None
    part = next(part for part in report.milestones if part.milestone == 2048)
    assert (part.low, part.high) == pytest.approx(wilson_interval(120, 200))
    assert part.low < part.share == 0.6 < part.high


def test_a_single_game_has_no_interval_and_no_games_have_no_figures() -> None:
    report = make_score_report(FULL, [1000.0], [128])
    assert report is not None and report.margin is None
    assert make_score_report(FULL, [], []) is None


def test_milestones_are_read_from_the_last_positions() -> None:
    batch = random_batch(games=20)
    verify_batch(batch, SMALL)
    assert milestones_of(SMALL, batch) == [SMALL.milestone_of(state) for state in ends(batch)]
    assert max(milestones_of(SMALL, batch)) >= 32


def test_milestones_are_tiles_that_fit_the_board() -> None:
    assert FULL.milestones == (512, 1024, 2048, 4096, 8192)
    assert SMALL.milestones == (512, 1024)
    assert load_game("twenty48", height=2, width=2).milestones == ()
