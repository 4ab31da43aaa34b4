"""Ray is an extra: nothing needs it without the setting, and with it, its absence is reported at once."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from keima.cli.training import train
from keima.config.load import load_settings
from tests.small_run import small_settings
from tests.sources import ROOT

without_ray = pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")


def test_a_run_on_this_machine_and_over_ssh_has_no_ray_by_default() -> None:
    assert load_settings(ROOT / "configs" / "config.yaml").distributed.ray is None


@without_ray
def test_a_run_on_ray_without_ray_names_the_command_that_installs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = small_settings(tmp_path).model_dump(mode="json")
    values["distributed"] |= {"enabled": True, "ray": {}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    assert train.main(["--config", str(tmp_path / "config.yaml"), "--run-dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "Ray is not installed here" in said and "pip install 'ray[default]'" in said
    assert not (tmp_path / "run").exists()
