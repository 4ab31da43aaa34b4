"""Every shipped experiment runs with --smoke and leaves behind what the reference says."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.programs import called
from tests.sources import EXPERIMENTS, ROOT

# Like quickstart except for their numbers; the tests of train_multi_gpu.py play chess, those of
# train_parallel.py twenty48.
SLOW = "chess", "config", "connect_four", "go7", "go9", "tic_tac_toe", "twenty48"
SHOWN = "quickstart", "twenty48"  # a two-player game and a one-player game
LEFT_BY_LOCKS_AND_DATABASES = {"coach.lock", "run.db-shm", "run.db-wal"}


def listed_in_readme() -> set[str]:
    """Return the contents of a run's folder according to the reference."""
    section = (
        (ROOT / "docs/reference.md")
        .read_text(encoding="utf-8")
        .partition("## What a run leaves behind")[2]
        .partition("\n## ")[0]
    )
    return {name.rstrip("/") for name in re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)}


@pytest.mark.trial
@pytest.mark.timeout(600)  # most of it compiling, the first time
@pytest.mark.parametrize(
    "config",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else []) for path in EXPERIMENTS],
)
def test_a_shipped_experiment_runs_with_smoke(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    called("start_main.py", "--config", config, "--smoke", "--run-dir", "run", cwd=tmp_path)
    assert {path.name for path in folder.iterdir()} - LEFT_BY_LOCKS_AND_DATABASES == listed_in_readme()
    assert called("audit", folder)
    if config.stem in SHOWN:
        assert called("scripts/view_results.py", folder) and called("scripts/watch_training.py", "--once", folder)


@pytest.mark.slow
@pytest.mark.trial
@pytest.mark.timeout(600)
def test_an_experiment_runs_with_a_spiking_network_and_reports_its_firing(tmp_path: Path) -> None:
    settings = yaml.safe_load((ROOT / "configs" / "tic_tac_toe.yaml").read_text(encoding="utf-8"))
    settings["network"] |= {"type": "spiking", "time_steps": 2}
    config, folder = tmp_path / "spiking.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    told = called("start_main.py", "--config", config, "--smoke", "--run-dir", "run", cwd=tmp_path)
    assert "synaptic" in told
    *_, last = json.loads((folder / "training_stats.json").read_text(encoding="utf-8"))
    assert 0 < last["learner"]["spikes"]["firing_rate"] < 1 and last["learner"]["spikes"]["synaptic_operations"] > 0
    assert b"learner/firing_rate" in b"".join(path.read_bytes() for path in (folder / "tensorboard").iterdir())
    assert "Firing" in called("scripts/view_results.py", folder)
