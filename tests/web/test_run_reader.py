"""A run's files as the dashboard reads them."""

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keima.base.reports.run_reports import IterationReport
from keima.base.reports.worker_status import ClusterNetwork, WorkerState, WorkerStatus
from keima.base.run_folder import PROGRESS_NAME, STATS_NAME
from keima.base.run_lock import RunLock
from keima.data.ledger import open_ledger
from keima.games import load_game
from keima.ppo.files import PPOStats
from keima.report import make_observers
from keima.report.charts.run_charts import add_time_and_cost, list_charts
from keima.report.files.progress_file import ProgressFile, UnreadableProgress, read_progress
from keima.report.files.run_files import METRICS_NAME, report_scalars
from keima.report.metrics import METRICS
from keima.web.run_reader import RunReader
from tests.example_reports import evaluation, iteration, ppo_round, progress, worker


def leave(folder: Path, *reports: IterationReport) -> RunReader:
    """Return the reader of a run that has reported these iterations."""
    folder.mkdir(exist_ok=True)
    for observer in make_observers(folder, name="run", game="connect_four"):
        observer.progress(progress(len(reports) + 1, workers=(worker(0), worker(1, activity="error", error="it died"))))
        for report in reports:
            observer.iteration(report)
    return RunReader(folder)


def test_the_curves_are_the_metrics_of_the_reports(tmp_path: Path) -> None:
    reports = [iteration(number, measured=evaluation(number) if number != 2 else None) for number in (1, 2, 3)]
    found = leave(tmp_path, *reports).read_curves()
    assert found["iterations"] == 3
    assert found["metrics"]["iteration"] == [1, 2, 3]
    for name in ("run/seconds", "run/total_games", "learner/loss", "evaluation/elo", "evaluation/elo_margin"):
        values = [report_scalars(report).get(name) for report in reports]
        assert found["metrics"][name] == [value and pytest.approx(value, rel=1e-5) for value in values], name
    assert found["metrics"]["evaluation/elo"][1] is None
    titles = [column["title"] for column in found["table"]["titles"]]
    elo = next(metric for metric in METRICS if metric.name == "evaluation/elo")
    assert [row[titles.index("Elo")] for row in found["table"]["rows"]] == [
        elo.format_value(reports[2]),
        "",
        elo.format_value(reports[0]),
    ]


def test_a_run_on_a_smaller_board_shows_that_board_until_its_own_begins(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "smaller").mkdir(parents=True)
    leave(run / "smaller" / "size-5", iteration(1), iteration(2))
    with RunLock(run):
        reader = RunReader(run)
        assert (reader.name, reader.read_curves()["iterations"], reader.read_state()["running"]) == ("run", 2, True)
        leave(run, iteration(1))
        assert reader.read_curves()["iterations"] == 1
    assert not reader.read_state()["running"]


def test_every_curve_of_the_page_has_a_metric_that_reports_have(tmp_path: Path) -> None:
    whole = iteration(1, measured=evaluation(1))
    known = {metric.name for metric in METRICS} | report_scalars(whole).keys()
    known |= add_time_and_cost([report_scalars(iteration(1)), report_scalars(iteration(2))])[1].keys()
    for chart in list_charts([report_scalars(whole)]):
        for curve in chart.curves:
            assert curve.metric in known, chart.title


def test_a_resumed_run_s_repeated_iterations_replace_the_earlier_ones(tmp_path: Path) -> None:
    reader = leave(tmp_path, *(iteration(number, loss=1.0) for number in (1, 2, 3)))
    before = reader.read_stamps()
    assert reader.read_curves()["metrics"]["learner/loss"] == [1.0, 1.0, 1.0]
    leave(tmp_path, iteration(2, loss=0.5))
    assert reader.read_stamps()[0] != before[0]
    assert reader.read_curves()["metrics"]["learner/loss"] == [1.0, 0.5]


@pytest.mark.parametrize(
    "line", ["", "{", "[1]", '{"iteration": 2', "[" * 10_000, '{"iteration": 2, "learner/loss": "x"}', '{"a": 1}', "\0"]
)
def test_a_damaged_line_does_not_hide_the_others(tmp_path: Path, line: str) -> None:
    reader = leave(tmp_path, iteration(1))
    with (tmp_path / METRICS_NAME).open("a") as file:
        file.write(f"{line}\n" + json.dumps({"iteration": 3, "learner/loss": math.inf, "run/seconds": 1e-300}) + "\n")
    metrics = reader.read_curves()["metrics"]
    assert (metrics["iteration"][0], metrics["iteration"][-1]) == (1, 3)
    assert metrics["learner/loss"][-1] is None
    json.dumps(metrics, allow_nan=False)


def test_the_state_is_what_the_coach_last_reported(tmp_path: Path) -> None:
    reader = leave(tmp_path, iteration(1))
    assert reader.read_state()["phase"] == "ended"
    with RunLock(tmp_path):
        state = reader.read_state()
    assert (state["running"], state["phase"]) == (True, "waiting for games")
    assert ["Iteration", "2 of 200"] in state["metrics"]
    first, second = state["workers"]
    assert (first["name"], first["state"], first["reason"]) == ("local-0", "playing", "")
    assert (second["state"], second["reason"]) == ("error", "it died")
    assert ["Games/s", "6.10"] in first["metrics"]


def cluster_state(folder: Path, *workers: WorkerStatus) -> dict[str, Any]:
    """Return the state of a running run with these workers on other machines."""
    network = ClusterNetwork(model_version=1, sync_seconds=2.0, network_mb_per_minute=1.5)
    ProgressFile(folder / PROGRESS_NAME).progress(replace(progress(1), workers=workers, network=network))
    with RunLock(folder):
        return RunReader(folder).read_state()


def test_a_worker_on_another_machine_has_its_state_share_reason_and_traffic(tmp_path: Path) -> None:
    far = replace(
        worker(3),
        name="far-2",
        state=WorkerState.ERROR,
        share=0.25,
        last_batch=90.0,
        machine="far",
        since=61.0,
        reason="its disk is full; free space on its disk; soon",
        note="plays in its own way",
        sent=2_500_000,
        received=3_200_000_000,
        disk_free=0,
    )
    state = cluster_state(tmp_path, far)
    (card,) = state["workers"]
    assert (card["state"], card["machine"], card["since"]) == ("Error", "far", "1 min 01 s")
    assert (card["reason"], card["remedy"]) == ("its disk is full", "free space on its disk; soon")
    assert card["note"] == "plays in its own way"
    for pair in (
        ["Share", "25.0 %"],
        ["Last batch", "1 min 30 s ago"],
        ["Sent", "2.50 MB"],
        ["Received", "3.20 GB"],
        ["Disk free", "0.00 MB"],
    ):
        assert pair in card["metrics"], pair
    assert ["Network usage", "1.5 MB/min"] in state["cluster"]


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        (WorkerState.SYNCING, "it plays as soon as this is done"),
        (WorkerState.OFFLINE, "keima cluster check"),
        (WorkerState.ERROR, "keima cluster logs far"),
        (WorkerState.ACTIVE, ""),
    ],
)
def test_every_state_has_a_remedy_even_where_its_reason_names_none(
    tmp_path: Path, state: WorkerState, remedy: str
) -> None:
    reason = "" if state is WorkerState.ACTIVE else "something happened"
    far = replace(worker(3), state=state, machine="far", since=1.0, reason=reason)
    (card,) = cluster_state(tmp_path, far)["workers"]
    assert card["reason"] == reason and remedy in card["remedy"] and bool(card["remedy"]) == bool(reason)


def test_models_that_are_on_their_way_are_counted(tmp_path: Path) -> None:
    report = replace(
        progress(13, workers=(worker(0), replace(worker(1), model_version=13), worker(2, activity="error")))
    )
    ProgressFile(tmp_path / PROGRESS_NAME).progress(report)
    with RunLock(tmp_path):
        assert ["Model", "13, on its way to 1 of 2 workers"] in RunReader(tmp_path).read_state()["metrics"]
    assert ["Model", "13"] in RunReader(tmp_path).read_state()["metrics"]


def test_time_and_cost_are_those_of_the_iterations_and_of_the_time_since(tmp_path: Path) -> None:
    def two(hours: float) -> tuple[WorkerStatus, ...]:
        return tuple(replace(worker(index), core_hours=hours) for index in (0, 1))

    reports = [
        iteration(number, measured=evaluation(number), workers=two(number), seconds_each=3600.0) for number in (1, 2)
    ]
    reader = leave(tmp_path, *reports)
    now = replace(progress(3, workers=two(2.5)), seconds=2.5 * 3600, seconds_left=60.0)
    ProgressFile(tmp_path / PROGRESS_NAME).progress(now)
    with RunLock(tmp_path):
        state = reader.read_state()
    assert state["time"] == [
        ["Elapsed", "2 h 30 min"],
        ["Left", "about 1 min 00 s"],
        ["Core hours of workers", "5.00 (2 now)"],
        ["Core hours for 100 Elo", "2.00"],
    ]
    assert reader.read_curves()["metrics"]["run/core_hours"] == [2.0, 4.0]
    assert state["shares"].startswith("The main node waited for games 99.4 %, learned 0.6 %")
    assert [limit["who"] for limit in state["limits"]] == ["workers"]


def test_an_event_that_the_ledger_and_the_coach_both_tell_is_shown_once(tmp_path: Path) -> None:
    said = ProgressFile(tmp_path / PROGRESS_NAME)
    with open_ledger(tmp_path, load_game("tic_tac_toe"), run_id="run") as ledger:
        ledger.grant("local-0", 40)
        for number in range(60):
            ledger.add_event("note", f"earlier {number}")
        ledger.discard("local-0", 15, "the worker is gone")
        said.event("15 games of worker local-0 are given up: the worker is gone")
        ledger.withdraw("local-0", 5, "others play them")
        said.event("5 games that worker local-0 has not begun are reassigned")
        ledger.discard("local-0", 2, "the worker is gone")
    said.event("a line of the Coach alone")
    said.progress(progress(1))
    texts = [text for _, text in RunReader(tmp_path).read_state()["events"]]
    assert len(texts) == 50
    assert texts[-4:] == [
        "15 games of worker local-0 are given up: the worker is gone",
        "5 games that worker local-0 has not begun are reassigned",
        "local-0: 2 games given up: the worker is gone",
        "a line of the Coach alone",
    ]


def test_a_run_of_ppo_has_its_own_charts_and_metrics(tmp_path: Path) -> None:
    file = PPOStats(tmp_path / STATS_NAME)
    for number in (1, 2):
        file.round(ppo_round(number))
    reader = RunReader(tmp_path)
    curves = reader.read_curves()
    titles = {chart["title"]: chart for chart in curves["charts"]}
    assert {"Reward per episode", "Entropy of the policy", "Steps per second"} <= titles.keys()
    assert curves["metrics"]["run/total_steps"] == [4000.0, 8000.0] and curves["metrics"]["iteration"] == [1.0, 2.0]
    assert curves["iterations"] == 2 and curves["table"]["rows"][0][0] == "2"
    state = reader.read_state()
    assert ["Round", "2"] in state["metrics"] and ["Steps", "8,000"] in state["metrics"]
    assert not state["running"] and state["problems"] == [] and state["phase"].startswith("last round: ")
    before = reader.read_stamps()
    file.round(ppo_round(3))
    after = reader.read_stamps()
    assert before[0] != after[0] and before[1] != after[1]
    assert reader.read_curves()["iterations"] == 3


def test_accounts_and_events_are_those_of_the_ledger(tmp_path: Path) -> None:
    with open_ledger(tmp_path, load_game("tic_tac_toe"), run_id="run") as ledger:
        ledger.grant("local-0", 40)
        ledger.discard("local-0", 15, "it was deleted")
        state = RunReader(tmp_path).read_state()
    assert state["game"] == "tic_tac_toe"
    (account,) = state["accounts"]
    assert account == {
        "name": "local-0",
        "granted": 40,
        "received": 0,
        "quarantined": 0,
        "missing": 0,
        "discarded": 15,
        "outstanding": 25,
    }
    assert any("it was deleted" in text for _, text in state["events"])


def test_what_is_wrong_with_the_files_is_told(tmp_path: Path) -> None:
    reader = RunReader(tmp_path / "gone")
    assert any("is gone" in problem for problem in reader.read_state()["problems"])
    assert reader.read_curves()["iterations"] == 0
    for content in (b"", b"{", b"[]", b'{"written": 1}', b"\xff" * 100, b"[" * 100_000):
        (tmp_path / PROGRESS_NAME).write_bytes(content)
        with pytest.raises(UnreadableProgress, match=PROGRESS_NAME):
            read_progress(tmp_path / PROGRESS_NAME)
        (tmp_path / "run.db").write_bytes(content)
        problems = RunReader(tmp_path).read_state()["problems"]
        assert any(PROGRESS_NAME in problem for problem in problems) and any(
            "run.db" in problem for problem in problems
        )


def test_numbers_that_are_not_finite_survive_the_file(tmp_path: Path) -> None:
    report = replace(progress(1), games_per_second=math.nan, seconds_left=math.inf)
    ProgressFile(tmp_path / PROGRESS_NAME).progress(report)
    found = read_progress(tmp_path / PROGRESS_NAME).report
    assert math.isnan(found.games_per_second) and found.seconds_left == math.inf
    json.dumps(RunReader(tmp_path).read_state(), allow_nan=False)


def test_events_are_in_the_file_with_the_next_report(tmp_path: Path) -> None:
    written = ProgressFile(tmp_path / PROGRESS_NAME, clock=lambda: 7.0)
    for number in range(150):
        written.event(f"event {number}")
    written.progress(progress(1))
    found = read_progress(tmp_path / PROGRESS_NAME)
    assert (found.written, len(found.events), found.events[-1]) == (7.0, 100, (7.0, "event 149"))


def test_a_ledger_that_is_damaged_within_is_told(tmp_path: Path) -> None:
    with open_ledger(tmp_path, load_game("tic_tac_toe"), run_id="run") as ledger:
        ledger.grant("local-0", 40)
    path = tmp_path / "run.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("DROP TABLE events")
    assert any("events" in problem for problem in RunReader(tmp_path).read_state()["problems"])
