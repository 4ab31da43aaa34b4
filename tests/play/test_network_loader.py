"""Which search a network's file brings along."""

from pathlib import Path

import pytest

from keima.config.load import load_settings, save_resolved
from keima.data.ledger import open_ledger
from keima.paths import SHIPPED
from keima.play.network_loader import UNKNOWN_RUN, load_network_from_model
from tests.small_run import GAME, saved_model, small_settings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model in a folder of models, beside the settings of something."""
    (tmp_path / "models").mkdir()
    save_resolved(small_settings(tmp_path, search={"c_puct": 2.5}), tmp_path)
    return saved_model(tmp_path / "models" / "a.safetensors", GAME)


def test_a_model_of_a_run_has_the_search_of_the_run(model: Path) -> None:
    open_ledger(model.parent.parent, GAME).close()
    assert load_network_from_model(model).search.c_puct == 2.5


def test_settings_that_are_not_of_a_run_do_not_count(model: Path) -> None:
    assert load_network_from_model(model).search == UNKNOWN_RUN
    (model.parent.parent / "config.yaml").write_text("services: {}\n")
    assert load_network_from_model(model).search == UNKNOWN_RUN


def test_a_model_whose_run_s_settings_are_damaged_still_plays(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_ledger(model.parent.parent, GAME).close()
    (model.parent.parent / "config.yaml").write_text("search: {c_puct: -1}\n")
    assert load_network_from_model(model).search == UNKNOWN_RUN
    assert "config.yaml" in caplog.text and "c_puct" in caplog.text


@pytest.mark.medium
def test_a_shipped_model_has_the_search_of_its_experiment() -> None:
    found = load_network_from_model(SHIPPED / "models" / "go7.safetensors")
    assert found.search == load_settings(SHIPPED / "configs" / "go7.yaml").search != UNKNOWN_RUN
