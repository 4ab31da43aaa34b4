"""Ray is an extra: nothing needs it without the setting, and with it, its absence is reported at once."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from configs.load import load_settings
from tests.sources import ROOT
from tests.training.small_run import small_settings

without_ray = pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")


@pytest.mark.medium
def test_ray_is_not_imported_without_the_setting() -> None:
    program = "import sys, start_main, distributed.operations.cluster; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_run_on_this_machine_and_over_ssh_has_no_ray_by_default() -> None:
    assert load_settings(ROOT / "configs" / "config.yaml").distributed.ray is None


@without_ray
@pytest.mark.trial
def test_a_run_on_ray_without_ray_names_the_command_that_installs_it(tmp_path: Path) -> None:
    values = small_settings(tmp_path).model_dump(mode="json")
    values["distributed"] |= {"enabled": True, "ray": {}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    line = [
        sys.executable,
        "start_main.py",
        "--config",
        str(tmp_path / "config.yaml"),
        "--run-dir",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Ray is not installed here" in done.stderr and "pip install -r requirements-ray.txt" in done.stderr
    assert not (tmp_path / "run").exists()
