"""The list of metrics agrees with the reports, and every view reads it."""

import html
from dataclasses import replace
from pathlib import Path

from keima.base.reports.run_reports import GeneralizationReport, IterationReport, SpikeReport, WaitReport
from keima.report.charts.page import make_run_page
from keima.report.files.run_files import EventFile, report_scalars
from keima.report.metrics import CHARTS, METRICS, PPO_CHARTS, PPO_METRICS, read_metric
from keima.report.tables import TRENDS
from tests import one_player
from tests.example_reports import evaluation, iteration


def full_report() -> IterationReport:
    """Return a report with every metric, of both a two-player and a one-player game."""
    report, scored = iteration(3, measured=evaluation(3)), one_player.iteration(3, measured=True)
    assert report.learner and report.evaluation and scored.evaluation
    spikes = SpikeReport(
        firing_rate=0.1, layers={}, synaptic_operations=1e6, multiply_accumulates=1e5, without_spikes=2e6
    )
    found = GeneralizationReport(policy_new=0.3, policy_learned=0.2, value_new=0.24, value_learned=0.25)
    return replace(
        report,
        self_play=replace(report.self_play, score=scored.self_play.score),
        learner=replace(report.learner, spikes=spikes, generalization=found),
        evaluation=replace(
            report.evaluation,
            score=scored.evaluation.score,
            accepted=True,
            elo_gain=120.0,
            elo_gain_margin=30.0,
            gain_over=2,
            elo_progress=310.0,
            elo_progress_margin=50.0,
            progress_since=1,
            random_return=0.4,
            random_return_margin=0.1,
            earlier_return=0.1,
            earlier_return_margin=0.1,
            expected_gain=150.0,
            expected_gain_margin=60.0,
            expected_error=0.02,
            expected_error_margin=0.01,
            expected_score=30_000.0,
            expected_score_margin=5000.0,
        ),
        waits=WaitReport(games=20.0, learner=0.5, evaluation=4.0, learning=30.0),
    )


def test_a_metric_is_the_metric_that_files_have_under_its_name() -> None:
    report = full_report()
    files = report_scalars(report)
    computed = {"run/iteration", "learner/generalization_excess"}
    for metric in METRICS:
        for name in (metric.name, metric.margin):
            if name and name not in computed:
                assert read_metric(report, name) == files[name], name
    assert read_metric(report, "evaluation/reached_2048") == files["evaluation/reached_2048"]
    assert all(metric.format_value(report) for metric in METRICS)


def test_a_metric_that_was_not_measured_is_empty() -> None:
    report = iteration(1, learned=False)
    assert {metric.title for metric in METRICS if metric.format_value(report)} >= {"Iter.", "Time", "Games/s"}
    assert not [
        metric
        for metric in METRICS
        if metric.name.startswith(("learner", "evaluation")) and metric.format_value(report)
    ]


def test_names_and_titles_are_unique_and_views_use_known_ones() -> None:
    for metrics, charts in ((METRICS, CHARTS), (PPO_METRICS, PPO_CHARTS)):
        names = {metric.name for metric in metrics}
        assert len(names) == len(metrics) == len({metric.title for metric in metrics})
        assert names >= {name for chart in charts for _, name in chart.curves}
    assert {metric.name for metric in METRICS} >= set(TRENDS)


def test_the_page_and_tensorboard_explain_each_metric(tmp_path: Path) -> None:
    report = full_report()
    shown = make_run_page("run", [], [report], [])
    observer = EventFile(tmp_path)
    observer.iteration(report)
    observer.iteration(replace(report, iteration=4))
    (file,) = tmp_path.iterdir()
    for metric in METRICS:
        if metric.rank is not None:
            assert f'title="{html.escape(metric.help)}">{metric.title}<' in shown
        if metric.name in report_scalars(report):
            assert file.read_bytes().count(metric.help.encode()) == 1, "with its first value only"
