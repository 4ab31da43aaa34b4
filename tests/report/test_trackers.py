"""Trackers are told of a run by their own clients, and cannot disturb it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from keima.base.files import write_atomically
from keima.base.reports.run_reports import IterationReport
from keima.cli.training import train
from keima.config.load import ConfigError, load_settings, save_resolved
from keima.report.files.run_files import METRICS_NAME, MetricsFile, read_metrics
from keima.report.files.tracker_process import flatten_settings
from keima.report.files.trackers import FIRST_RETRY, FOLDER, Tracker, require_trackers
from tests.example_reports import evaluation, iteration, progress
from tests.report.browser import until
from tests.sources import ROOT

QUICKSTART = ROOT / "configs" / "quickstart.yaml"
PATIENCE = 240.0  # seconds for a client to be imported on a busy machine
without_wandb = pytest.mark.skipif(find_spec("wandb") is not None, reason="wandb is installed")
with_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="needs requirements-trackers.txt")
with_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="needs requirements-trackers.txt")


class Run:
    """A run that reports iterations to metrics.jsonl and a tracker, whose clock stands still."""

    def __init__(self, folder: Path, tracker: str) -> None:
        self.folder, self.name, self.now = folder, tracker, 0.0
        self.events = list[str]()
        if not (folder / "config.yaml").exists():
            save_resolved(load_settings(QUICKSTART), folder, write=write_atomically)
        self.metrics = MetricsFile(folder / METRICS_NAME)
        self.tracker = Tracker(tracker, folder, log_event=self.events.append, clock=lambda: self.now)

    def play(self, first: int, last: int, **changes: float) -> None:
        for number in range(first, last + 1):
            report: IterationReport = iteration(number, measured=evaluation(number), **changes)  # type: ignore[arg-type]
            self.metrics.iteration(report)
            self.tracker.iteration(report)

    def see(self) -> None:
        self.tracker.progress(progress(1))

    def process(self) -> subprocess.Popen[bytes]:
        process = self.tracker._process
        assert process
        return process

    def sent(self) -> int:
        try:
            return int(json.loads((self.folder / FOLDER / f"{self.name}.json").read_text())["iteration"])
        except (OSError, ValueError):
            return 0

    def end(self) -> None:
        """End, and wait until everything is sent."""
        process = self.process()
        self.tracker.close()
        assert process.wait(PATIENCE) == 0, (self.folder / FOLDER / f"{self.name}.log").read_text()


def config_with(folder: Path, trackers: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(QUICKSTART.read_text().replace("run:", f"run:\n  trackers: {trackers}", 1))
    return path


def test_trackers_are_off_by_default_and_named_in_the_run_section(tmp_path: Path) -> None:
    assert load_settings(QUICKSTART).run.trackers == ()
    assert load_settings(config_with(tmp_path, "[wandb, mlflow]")).run.trackers == ("wandb", "mlflow")


@pytest.mark.parametrize(("given", "said"), [("[aim]", "run.trackers"), ("[wandb, wandb]", "list each at most once")])
def test_other_trackers_are_refused(tmp_path: Path, given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_settings(config_with(tmp_path, given))


def test_settings_are_parameters_with_dotted_names() -> None:
    assert flatten_settings({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == [("a.b", 1), ("a.c.d", [2]), ("e", None)]


@without_wandb
def test_a_missing_client_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(ValueError, match=r"run.trackers: wandb not installed here: run `.*pip install wandb"):
        require_trackers(["wandb"])
    require_trackers([])


@without_wandb
@pytest.mark.trial
def test_a_run_with_a_missing_client_does_not_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", str(config_with(tmp_path, "[wandb]")), "--run-dir", str(tmp_path / "run")]
    assert train.main(words) == 2 and "pip install wandb" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@without_wandb
@pytest.mark.medium
def test_a_tracker_that_fails_is_told_once_and_tried_again_after_a_while(tmp_path: Path) -> None:
    run = Run(tmp_path, "wandb")
    run.play(1, 1)
    until(lambda: run.process().poll(), PATIENCE)
    run.see()
    (event,) = run.events
    assert event.startswith("wandb failed, training continues: ModuleNotFoundError: No module named 'wandb'")
    run.now += FIRST_RETRY - 1
    run.see()
    assert run.tracker._process is None
    run.now += 1
    run.see()
    until(lambda: run.process().poll(), PATIENCE)
    run.see()
    run.tracker.close()
    assert len(run.events) == 1


@pytest.mark.medium
def test_a_disk_that_takes_no_log_stops_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, "mlflow")
    (tmp_path / FOLDER).write_text("not a folder")
    run.play(1, 2)
    run.tracker.close()
    (event,) = run.events
    assert event.startswith("mlflow failed, training continues: ")


def known(folder: Path) -> dict[int, Mapping[str, float]]:
    """Return the metrics in metrics.jsonl that trackers are told, by iteration."""
    rows = read_metrics(folder / METRICS_NAME)
    return {int(row["iteration"]): {name: row[name] for name in row if "/" in name} for row in rows}


def told_to_mlflow(folder: Path) -> tuple[dict[int, dict[str, float]], Any]:
    """Return the metrics of the only run by iteration, and the run, by MLflow's client."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    (experiment,) = [each for each in client.search_experiments() if each.name == "keima"]
    (run,) = client.search_runs([experiment.experiment_id])
    found: dict[int, dict[str, float]] = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            found.setdefault(metric.step, {})[name] = metric.value
    return found, run


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of MLflow's."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return tmp_path


@with_mlflow
@pytest.mark.trial
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_every_metric_also_after_a_kill_and_in_the_next_session(mlflow: Path) -> None:
    run = Run(mlflow, "mlflow")
    run.play(1, 2)
    until(lambda: run.sent() == 2, PATIENCE)
    os.kill(run.process().pid, signal.SIGKILL)
    run.process().wait()
    run.play(3, 4)
    assert "mlflow failed, training continues" in run.events[0]
    run.now += FIRST_RETRY
    run.play(5, 5)
    run.end()
    assert run.sent() == 5
    before = known(mlflow)
    again = Run(mlflow, "mlflow")  # from an earlier checkpoint
    again.play(5, 6, loss=0.25)
    again.end()
    found, record = told_to_mlflow(mlflow)
    assert found == {**before, 6: known(mlflow)[6]}
    assert record.info.run_name == mlflow.name and record.info.status == "FINISHED"
    assert record.data.params["search.num_simulations"] == str(load_settings(QUICKSTART).search.num_simulations)
    assert not [name for name in record.data.params if name.startswith("distributed") or "directory" in name]


def told_to_wandb(folder: Path) -> list[dict[str, Any]]:
    """Return the records of all sessions, by wandb's own reader."""
    records = []
    for path in sorted((folder / FOLDER / "wandb").glob("offline-run-*")):
        words = [Path(sys.executable).parent / "wandb", "leet", "inspect", "--json", path]
        shown = subprocess.run(words, capture_output=True, text=True, check=True, cwd=folder).stdout
        records += [json.loads(line) for line in shown.splitlines() if line.startswith("{")]
    return records


@with_wandb
@pytest.mark.trial
@pytest.mark.timeout(600)
def test_wandb_has_every_metric_also_in_the_next_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    first, second = Run(tmp_path, "wandb"), Run(tmp_path, "wandb")
    first.play(1, 3)
    first.end()
    before = known(tmp_path)
    second.play(3, 5, loss=0.25)
    second.end()
    assert first.events == second.events == []
    records = told_to_wandb(tmp_path)
    found = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert [item["_step"] for item in found] == [1, 2, 3, 4, 5]
    for item in found:
        metrics = {name: value for name, value in item.items() if "/" in name}
        assert metrics == pytest.approx({**known(tmp_path), **before}[item["_step"]])
    runs = [record["run"] for record in records if record["type"] == "run"]
    assert len({run["run_id"] for run in runs}) == 1 and runs[0]["project"] == "keima"
    assert {run["host"] for run in runs} == {"keima"} and "environment" not in {record["type"] for record in records}
    config = next(run["config"]["update"] for run in runs)
    assert config["search"]["num_simulations"] and "distributed" not in config and "directory" not in config["run"]


@with_wandb
@pytest.mark.trial
@pytest.mark.timeout(600)
def test_after_a_run_is_killed_the_rest_is_sent(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, signal
from tests.report.test_trackers import Run
run = Run(pathlib.Path({str(tmp_path)!r}), "wandb")
run.play(1, 3)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "WANDB_MODE": "offline"}
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    until(lambda: [record for record in told_to_wandb(tmp_path) if record["type"] == "exit"], PATIENCE)
    steps = [record["history"]["item"]["_step"] for record in told_to_wandb(tmp_path) if record["type"] == "history"]
    assert steps == [1, 2, 3]
