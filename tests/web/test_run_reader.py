"""A run's files as the dashboard reads them."""

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from games import load_game
from tests.training.example_reports import evaluation, iteration, progress, worker
from training.common.reports import IterationReport, RemoteStanding
from training.common.run_lock import RunLock
from training.data.ledger import open_ledger
from views import make_observers
from views.files import METRICS_NAME, scalars
from views.metrics import METRICS
from views.progress_file import PROGRESS_NAME, ProgressFile, UnreadableProgress, read_progress
from views.run_charts import chart_list
from web.run_reader import RunReader


def leave(folder: Path, *reports: IterationReport) -> RunReader:
    """Return the reader of a run that has reported these iterations."""
    folder.mkdir(exist_ok=True)
    for observer in make_observers(folder, name="run", game="connect_four"):
        observer.progress(progress(len(reports) + 1, workers=(worker(0), worker(1, state="error", error="it died"))))
        for report in reports:
            observer.iteration(report)
    return RunReader(folder)


def test_the_curves_are_the_figures_of_the_reports(tmp_path: Path) -> None:
    reports = [iteration(number, measured=evaluation(number) if number != 2 else None) for number in (1, 2, 3)]
    found = leave(tmp_path, *reports).curves()
    assert found["iterations"] == 3
    assert found["figures"]["iteration"] == [1, 2, 3]
    for name in ("run/seconds", "run/total_games", "learner/loss", "evaluation/elo", "evaluation/elo_margin"):
        values = [scalars(report).get(name) for report in reports]
        assert found["figures"][name] == [value and pytest.approx(value, rel=1e-5) for value in values], name
    assert found["figures"]["evaluation/elo"][1] is None
    titles = [column["title"] for column in found["table"]["titles"]]
    elo = next(metric for metric in METRICS if metric.name == "evaluation/elo")
    assert [row[titles.index("Elo")] for row in found["table"]["rows"]] == [
        elo.text(reports[2]),
        "",
        elo.text(reports[0]),
    ]


def test_every_curve_of_the_page_has_a_figure_that_reports_have(tmp_path: Path) -> None:
    whole = iteration(1, measured=evaluation(1))
    known = {metric.name for metric in METRICS} | scalars(whole).keys()
    for chart in chart_list([scalars(whole)]):
        for curve in chart["curves"]:
            assert curve["figure"] in known, chart["title"]


def test_a_resumed_run_s_repeated_iterations_replace_the_earlier_ones(tmp_path: Path) -> None:
    reader = leave(tmp_path, *(iteration(number, loss=1.0) for number in (1, 2, 3)))
    before = reader.stamps()
    assert reader.curves()["figures"]["learner/loss"] == [1.0, 1.0, 1.0]
    leave(tmp_path, iteration(2, loss=0.5))
    assert reader.stamps()[0] != before[0]
    assert reader.curves()["figures"]["learner/loss"] == [1.0, 0.5]


@pytest.mark.parametrize(
    "line", ["", "{", "[1]", '{"iteration": 2', "[" * 10_000, '{"iteration": 2, "learner/loss": "x"}', '{"a": 1}', "\0"]
)
def test_a_damaged_line_does_not_hide_the_others(tmp_path: Path, line: str) -> None:
    reader = leave(tmp_path, iteration(1))
    with (tmp_path / METRICS_NAME).open("a") as file:
        file.write(f"{line}\n" + json.dumps({"iteration": 3, "learner/loss": math.inf, "run/seconds": 1e-300}) + "\n")
    figures = reader.curves()["figures"]
    assert (figures["iteration"][0], figures["iteration"][-1]) == (1, 3)
    assert figures["learner/loss"][-1] is None
    json.dumps(figures, allow_nan=False)


def test_the_state_is_what_the_coach_last_reported(tmp_path: Path) -> None:
    reader = leave(tmp_path, iteration(1))
    assert reader.state()["phase"] == "ended"
    with RunLock(tmp_path):
        state = reader.state()
    assert (state["running"], state["phase"]) == (True, "waiting for games")
    assert ["Iteration", "2 of 200"] in state["figures"]
    first, second = state["workers"]
    assert (first["name"], first["mark"], first["error"]) == ("local-0", "playing", "")
    assert (second["mark"], second["error"]) == ("error", "it died")
    assert ["Games/s", "6.10"] in first["figures"]


def test_a_worker_on_another_machine_has_its_mark_and_share(tmp_path: Path) -> None:
    standing = RemoteStanding(mark="Syncing", share=0.25, last_batch=90.0)
    ProgressFile(tmp_path / PROGRESS_NAME).progress(
        replace(progress(1), workers=(replace(worker(3), standing=standing),))
    )
    (card,) = RunReader(tmp_path).state()["workers"]
    assert card["mark"] == "Syncing"
    assert ["Share", "25.0 %"] in card["figures"] and ["Last batch", "1 min 30 s ago"] in card["figures"]


def test_accounts_and_events_are_those_of_the_ledger(tmp_path: Path) -> None:
    with open_ledger(tmp_path, load_game("tic_tac_toe"), run_id="run") as ledger:
        ledger.grant("local-0", 40)
        ledger.discard("local-0", 15, "it was deleted")
        state = RunReader(tmp_path).state()
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
    assert any("is gone" in problem for problem in reader.state()["problems"])
    assert reader.curves()["iterations"] == 0
    for content in (b"", b"{", b"[]", b'{"written": 1}', b"\xff" * 100, b"[" * 100_000):
        (tmp_path / PROGRESS_NAME).write_bytes(content)
        with pytest.raises(UnreadableProgress, match=PROGRESS_NAME):
            read_progress(tmp_path / PROGRESS_NAME)
        (tmp_path / "run.db").write_bytes(content)
        problems = RunReader(tmp_path).state()["problems"]
        assert any(PROGRESS_NAME in problem for problem in problems) and any(
            "run.db" in problem for problem in problems
        )


def test_numbers_that_are_not_finite_survive_the_file(tmp_path: Path) -> None:
    report = replace(progress(1), games_per_second=math.nan, seconds_left=math.inf)
    ProgressFile(tmp_path / PROGRESS_NAME).progress(report)
    found = read_progress(tmp_path / PROGRESS_NAME).report
    assert math.isnan(found.games_per_second) and found.seconds_left == math.inf
    json.dumps(RunReader(tmp_path).state(), allow_nan=False)


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
    assert any("events" in problem for problem in RunReader(tmp_path).state()["problems"])
