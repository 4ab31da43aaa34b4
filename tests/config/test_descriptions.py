"""What settings mean stands once, where they are declared; config.yaml, the page and --help say the same."""

import subprocess
import sys

import pytest

from keima.config.descriptions import describe_setting
from keima.config.load import known_keys
from tests.sources import ROOT
from tools.settings_page import CONFIG, PAGE, config_text, page_text

KEYS = [key for key in known_keys() if not key.startswith(("distributed.workers.", "distributed.defaults."))]


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_is_described_where_it_is_declared(key: str) -> None:
    assert len(describe_setting(key)) > 10


def test_the_config_and_the_page_are_made_from_the_descriptions() -> None:
    remedy = "run python tools/settings_page.py"
    assert CONFIG.read_text(encoding="utf-8") == config_text(), remedy
    assert PAGE.read_text(encoding="utf-8") == page_text(), remedy


def test_the_first_screen_has_the_ten_settings_that_people_change() -> None:
    lines = CONFIG.read_text(encoding="utf-8").splitlines()[:24]
    assert sum(line.startswith("#   ") for line in lines) == 10


def test_a_description_is_read_without_importing_the_settings() -> None:
    program = (
        "import sys; from keima.config.descriptions import describe_setting; describe_setting('run.seed'); "
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
