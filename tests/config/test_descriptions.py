"""What settings mean stands once, where they are declared; the configs, the page and --help say the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from keima.config.descriptions import declared_settings, describe_setting
from keima.config.load import known_keys
from keima.config.sections.types import Section
from keima.learning.dataset_settings import BigExperiment
from keima.ppo.settings import TraderSettings
from tests.sources import ROOT
from tools.settings_page import CONFIG, made_files

OF_PPO, OF_BIG_LEARNER = (f"{kind.__module__}.{kind.__name__}" for kind in (TraderSettings, BigExperiment))


@pytest.mark.parametrize("key", list(known_keys()))
def test_every_setting_is_described_where_it_is_declared(key: str) -> None:
    assert len(describe_setting(key)) > 10


@pytest.mark.parametrize(("kind", "settings"), [(TraderSettings, OF_PPO), (BigExperiment, OF_BIG_LEARNER)])
def test_so_is_every_setting_of_the_other_programs(kind: type[Section], settings: str) -> None:
    for key in known_keys(kind):
        assert len(describe_setting(key, settings)) > 10, key


def test_inherited_settings_come_first_as_in_the_class() -> None:
    fields = TraderSettings().training.__class__.model_fields
    assert list(declared_settings("training", OF_PPO)) == list(fields)


def test_a_description_continues_a_sentence() -> None:
    assert describe_setting("history.data", OF_PPO).startswith("a .csv or .parquet file")
    assert describe_setting("training.clip_coef", OF_PPO).startswith("PPO's clipping range")


def test_an_unknown_setting_is_refused() -> None:
    for key in ("run.sed", "rum.seed", "run.seed.more"):
        with pytest.raises(KeyError):
            describe_setting(key)


@pytest.mark.parametrize("path", list(made_files()), ids=lambda path: path.name)
def test_the_configs_and_the_page_are_made_from_the_descriptions(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == made_files()[path], "run python tools/settings_page.py"


def test_the_first_screen_has_the_ten_settings_that_people_change() -> None:
    lines = CONFIG.read_text(encoding="utf-8").splitlines()[:24]
    assert sum(line.startswith("#   ") for line in lines) == 10


def test_a_description_is_read_without_importing_the_settings() -> None:
    program = (
        "import sys; from keima.config.descriptions import describe_setting; describe_setting('run.seed'); "
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
