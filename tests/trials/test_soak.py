"""Runs that go on beside each other while clocks step; tests/trials/soak.py lets them go on for hours."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(1500)
def test_runs_go_on_beside_each_other_and_each_process_is_watched(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ["--hours", "0.08", "--runs", "2", "--folder", str(tmp_path / "runs"), "--report", str(report)]
    line = [sys.executable, "-m", "tests.trials.soak", *words]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(report.read_text())
    assert [run["games"] > 0 for run in found["runs"]] == [True, True]
    roles = {(row["run"], row["process"]) for row in found["processes"]}
    assert roles >= {("quickstart", "main"), ("quickstart", "worker"), ("tic_tac_toe", "main"), ("dashboard", "main")}
