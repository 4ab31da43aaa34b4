"""The models that can be played against."""

from pathlib import Path

import pytest

from keima.base.files import sha256_hex
from keima.data.ledger import open_ledger
from keima.data.ledger_rows import ModelRow
from keima.web.models import Models, shipped_models
from keima.web.run_reader import RunReader
from tests.small_run import GAME, model_bytes
from tests.web.small_models import small_model


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with four models: the first one's file is gone, and the last one was rejected."""
    folder = tmp_path / "run"
    (folder / "models").mkdir(parents=True)
    with open_ledger(folder, GAME) as ledger:
        for version in (1, 2, 3, 4):
            path, data = f"models/{version}.model", model_bytes(version)
            if version > 1:
                (folder / path).write_bytes(data)
            row = {"path": path, "bytes": len(data), "sha256": sha256_hex(data)}
            ledger.add_model(ModelRow(version=version, iteration=0, accepted=version < 4, **row))  # type: ignore[arg-type]
    return folder


def test_a_run_offers_its_models_that_are_there_with_the_newest_accepted_one_first(run: Path) -> None:
    found = Models([RunReader(run)], []).list_models()
    assert [(model.name, model.title) for model in found] == [
        ("run-0-3", "model 3, the newest"),
        ("run-0-4", "model 4"),
        ("run-0-2", "model 2"),
    ]
    assert {(model.group, model.game) for model in found} == {("run", "tic_tac_toe")}


def test_only_names_that_are_offered_lead_to_a_file(run: Path, tmp_path: Path) -> None:
    model = small_model(tmp_path, "tic_tac_toe")
    models = Models([RunReader(run)], [model, tmp_path / "missing.safetensors"])
    chosen = models.find_model("file-0")
    assert chosen and chosen.path == model
    for name in ("file-1", "run-0-1", "run-1-3", "", "../run", str(model)):
        assert models.find_model(name) is None


def test_a_run_that_is_gone_offers_nothing_and_the_shipped_models_are_there(tmp_path: Path) -> None:
    assert Models([RunReader(tmp_path / "gone")], []).list_models() == []
    assert [model.game for model in Models([], shipped_models()).list_models()] == ["go", "go"]
