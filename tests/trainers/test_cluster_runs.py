"""Runs whose games are played by the machines of a config."""

from functools import partial
from pathlib import Path

import pytest

from keima.base.run_lock import RunLock, RunLocked
from keima.cluster.control import requests
from keima.trainers import run


def test_a_second_run_in_a_folder_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LOCK_SECONDS", 0.0)
    control = tmp_path / "work" / "distributed" / "control"
    monkeypatch.setattr(run, "lock_control_folder", partial(requests.lock_control_folder, control))
    control.mkdir(parents=True)
    config = tmp_path / "config.yaml"
    with RunLock(control), pytest.raises(RunLocked, match=f"the workers of {tmp_path / 'work'}; stop it first"):
        run.cluster_backend_maker(config=config)
    run.cluster_backend_maker(config=config)
